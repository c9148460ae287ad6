"""Four pictures to a case: accuracy and AUROC of each picture alone, and of cases by mean, max, attention and auto.

    python benchmarks/cases.py --elpv ELPV --dinov2 DINOV2     # ELPV, DINOV2: as benchmarks/elpv.py
    python benchmarks/cases.py                                 # the digits alone, five minutes

The cases are drawn for it, a fifth each for validation and test, and every picture is labelled as its case is: `views`
four digits of one class under noise of standard deviation 100 (of 255); `needle` one digit among three pictures without
one, noise or a ramp of grey; `defect` a module of four solar cells of ELPV, of which exactly one is defective, or none;
`alike` four cells that are all defective, or all sound. The digits are learnt from random values in 600 steps, the
cells by a probe of frozen DINOv2-S/14 at 112 pixels.

One model is trained for each set and seed; every pool is then fitted to its validation cases and measured on its test
cases, 95 % intervals over cases (of the pictures over cases too). Rows that are there are kept. Writes
benchmarks/results/cases.json.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from elpv import read_cells
from making.records import Results, Row, commit, train_run
from PIL import Image
from sklearn.datasets import load_digits

import vitrail
from vitrail.data.parallel import ImageName
from vitrail.evaluate.cases import fit_case_pool
from vitrail.evaluate.inference import run_inference_with_features
from vitrail.evaluate.metrics import ClassificationMetrics
from vitrail.evaluate.task_metrics import TaskMetrics, compute_metrics
from vitrail.predict.predictor import MemberOutputs, Predictor
from vitrail.services.evaluation import load_held_out
from vitrail.train.dataset import Dataset

SIZE, NOISE = 4, 100
DIGIT_CASES = {"views": 430, "needle": 1200}
"""Of 1,797 digits."""
SETTINGS = ("mean", "max", "attention", "auto")
WORDS = ("--data.targets", "label", "--group", "case", "--case", "auto", "--data.val_fraction", "0.2",
         "--data.test_fraction", "0.2")  # fmt: skip
FIGURES = ("accuracy", "accuracy_interval", "auroc", "auroc_interval", "log_loss", "log_loss_interval")
CELLS = ("--finetune.method", "probe", "--image-size", 112)


def main() -> None:
    """Draw, train, pool, collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--dinov2", type=Path, help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("cases")
    for seed in options.seeds:
        for name in ("views", "needle", "defect", "alike"):
            is_digits = name in ("views", "needle")
            if not is_digits and (options.elpv is None or options.dinov2 is None):
                print(f"{name}: left out, needs --elpv and --dinov2; see --help")
                continue
            folder = options.folder / f"cases-{name}-{seed}"
            draw = partial(draw_digits, name, folder, seed)
            words: tuple[object, ...] = ("--weights", "none", "--steps", 600)
            if not is_digits:
                draw = partial(draw_modules, name, folder, seed, options.elpv)
                words = ("--weights", options.dinov2, "--data-root", options.elpv, *CELLS)
            row = results.row({"set": name, "seed": seed}, partial(measure, folder, draw, words, seed))
            print(f"{name}, seed {seed}: {row['chosen']} chosen", flush=True)
            for of in ("pictures", *SETTINGS):
                one = row[of]
                print(f"  {of:<9} accuracy {one['accuracy']:.3f} {one['accuracy_interval']}, AUROC {one['auroc']:.3f} "
                      f"{one['auroc_interval']}, log loss {one['log_loss']:.3f}", flush=True)  # fmt: skip
    results.write({})


def draw_digits(name: str, folder: Path, seed: int) -> None:
    """Pictures and a manifest of cases of digits."""
    pixels, digits = load_digits(return_X_y=True)
    pixels, generator = pixels.reshape(-1, 8, 8) * (255 / 16), np.random.default_rng(seed)
    order, cells = generator.permutation(len(digits)), []
    unused = {digit: iter(order[digits[order] == digit]) for digit in range(10)}
    for case in range(DIGIT_CASES[name]):
        digit = case % 10
        if name == "views":
            images = [pixels[next(unused[digit])] + generator.normal(0, NOISE, (8, 8)) for _ in range(SIZE)]
        else:
            images = [pixels[next(unused[digit])]]
            for _ in range(SIZE - 1):
                y, x = np.mgrid[-1:1:8j, -1:1:8j]
                (down, right), level = generator.normal(0, 60, 2), generator.uniform(50, 205)
                ramp = level + down * y + right * x + generator.normal(0, 5, (8, 8))
                images.append(ramp if generator.random() < 0.5 else generator.uniform(0, 255, (8, 8)))
        for place, k in enumerate(generator.permutation(SIZE).tolist()):
            cells.append((f"{case:04d}-{place}.png", f"digit {digit}", f"case {case:04d}"))
            Image.fromarray(images[k].clip(0, 255).astype(np.uint8)).save(folder / cells[-1][0])
    write_manifest(folder, cells)


def draw_modules(name: str, folder: Path, seed: int, elpv: Path) -> None:
    """A manifest of modules of ELPV's cells, as many with a defect as without."""
    cells = read_cells(elpv / "labels.csv")
    generator = np.random.default_rng(seed)
    defective, sound = (
        iter(generator.permutation([path for path, chance, _ in cells if (chance > 0.5) == bad]).tolist())
        for bad in (True, False)
    )
    bad = 1 if name == "defect" else SIZE
    count = min(sum(chance > 0.5 for _, chance, _ in cells) // bad,
                sum(chance <= 0.5 for _, chance, _ in cells) // (2 * SIZE - bad))  # fmt: skip
    rows = []
    for case in range(2 * count):
        has_defect = case % 2
        paths = [next(defective) if has_defect and k < bad else next(sound) for k in range(SIZE)]
        label = "defective" if has_defect else "sound"
        rows += [(paths[k], label, f"module {case:03d}") for k in generator.permutation(SIZE).tolist()]
    write_manifest(folder, rows)


def write_manifest(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    """The table that a training reads."""
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("path", "label", "case"), *rows])


def measure(folder: Path, draw: Callable[[], None], words: tuple[object, ...], seed: int) -> Row:
    """Train, fit every pool, and measure it on the test cases."""
    if not (folder / "cases.csv").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        draw()
    facts = train_run(folder / "run", folder / "cases.csv", *WORDS, *words, "--seed", seed)
    run = vitrail.open(folder / "run")
    member, task = run.predictor.single_member(), run.predictor.task
    read = {}
    for split in ("val", "test"):
        labelled = load_held_out(run.path, split)
        source, rows = labelled.source, labelled.rows
        store = Dataset(source, {}).load_rows(rows, member.spec, 0)
        outputs, features = run_inference_with_features(member.model, store, rows, member.spec, member.settings, task)
        assert source.groups is not None
        read[split] = outputs, features, source.targets[rows], source.groups[rows]
    outputs, features, targets, groups = read["test"]
    names = [ImageName("", labelled.source.ids[row]) for row in labelled.rows]
    found: Row = {}
    for setting in SETTINGS:
        pool = fit_case_pool(setting, task, run.plan.decisions, member.classes, None, *read["val"],
                             member.decisions.temperature, run.plan.seed)  # fmt: skip
        predictor = Predictor([replace(member, case_pool=pool)])
        table = predictor.decide(names, [MemberOutputs(outputs, None, pool.score_images(features))])
        table = predictor.add_cases(replace(table, targets=targets, split="test"), groups)
        found["pictures"] = figures(compute_metrics(table, None, groups))
        found[setting] = {**figures(compute_metrics(table.cases)), "method": pool.method, "reason": pool.reason}
    counts = {split: [len(held), len(np.unique(held))] for split, (*_, held) in read.items()}
    kept = {name: facts[name] for name in ("steps", "model", "seconds", "machine")}
    return {"chosen": found["auto"]["method"], **found, "pictures_and_cases": counts, **kept, "commit": commit()}


def figures(metrics: TaskMetrics) -> Row:
    """Accuracy, AUROC and log loss with their intervals."""
    assert isinstance(metrics, ClassificationMetrics)
    named = {name: getattr(metrics, name) for name in FIGURES}
    return {name: np.round(value, 4).tolist() for name, value in named.items()}


if __name__ == "__main__":
    main()
