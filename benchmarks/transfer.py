"""From a checkpoint to few pictures: every way to go on, and the plan's own choice beside them.

    python benchmarks/transfer.py DINOV2 DIR/elpv_dataset/data          # everything: about three hours
    python benchmarks/transfer.py DINOV2 DIR/elpv_dataset/data --stop-after 80     # begin nothing after 80 minutes
    python benchmarks/transfer.py --starts fashion masked --data digits-100 --seeds 0
    python benchmarks/transfer.py DINOV2 --starts dinov2 --ways linear automatic

Starts: a Fashion-MNIST run of ours, supervised; one of masked autoencoding without labels; DINOv2-S/14, which
benchmarks/making/real_dinov2.py makes; none, for the plan's own model from random values. Data: 100, 500 and 1,437 of
scikit-learn's digits, tested on the other 360 of a stratified fifth; ELPV (see benchmarks/elpv.py), tested on a
stratified fifth. The seed decides which pictures and everything else. From one start to the same data all ways have
as many steps as lp-ft makes in the minutes on all cores of a quiet machine (`making/paces.py`), and the trainings run
two at a time with one thread each; DINOv2, whose features alone can take half a minute, has twice the minutes. A
tuned model that is below the frozen probe on the validation pictures (a fifth of the training pictures) gives way to
it, as the verb does it for everybody:

  scratch    from random values                        linear   the frozen probe
  lp-ft      the probe, then all, lower blocks slower  full     the same, all blocks at one rate
  lora       adapters beside the matrices              knn      nearest training pictures; k by validation
  automatic  what the plan does by itself: lp-ft, and WiSE-FT's means of it and the probe

Rows and complete run folders are not run again. Writes benchmarks/results/transfer.json, and the paces.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from elpv import read_cells, source_words, write_tables
from fashion_mnist import folder_of
from fashion_mnist import run as fashion_run
from making.paces import row_of, steps_of
from making.records import Job, Results, Row, number, spread, train_run
from sklearn.model_selection import StratifiedShuffleSplit, train_test_split

from vitrail import load
from vitrail.checkpoints import bundle_weights
from vitrail.data.loader import ImageStore
from vitrail.data.open import open_source
from vitrail.data.preprocess import normalize
from vitrail.data.settings import DataSettings
from vitrail.evaluate import probe
from vitrail.files import safetensors_file
from vitrail.model.vit import ViT, create_model
from vitrail.spec import ImageSpec
from vitrail.train.dataset import open_dataset
from vitrail.train.run_folder import RunFolder

DIGITS = (100, 500, 1437)
STARTS = ("none", "fashion", "masked", "dinov2")
DATA = (*(f"digits-{count}" for count in DIGITS), "elpv")
ONLY_TUNED = ["--finetune.wise_ft_alphas", "1.0"]
WAYS: dict[str, list[object]] = {
    "linear": ["--finetune.method", "probe"],
    "lp-ft": ["--finetune.method", "full", *ONLY_TUNED],
    "full": ["--finetune.method", "full", "--finetune.layer_decay", 1, "--finetune.freeze_blocks", 0, *ONLY_TUNED],
    "lora": ["--finetune.method", "lora", *ONLY_TUNED],
    "automatic": [],
}
BATCH = 64
CLOCK = ("seconds", "wall_seconds")
"""Left out: trainings of equal steps go beside each other and beside other work, so no clock tells anything of them."""


def main() -> None:
    """Make the starts, run what is missing, collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?")
    parser.add_argument("elpv", type=Path, nargs="?")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, "knn"], default=[*WAYS, "knn"])
    parser.add_argument(
        "--stop-after", type=float, default=float("inf"), help="begin no training after so many minutes"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=0.5, help="of each training on digits")
    parser.add_argument("--elpv-minutes", type=float, default=1.5, help="of each training on ELPV")
    parser.add_argument("--dinov2-times", type=float, default=2.0, help="so many times these minutes from DINOv2")
    parser.add_argument("--start-minutes", type=float, default=13.0, help="of each Fashion-MNIST run")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("transfer")
    data = [each for each in options.data if each != "elpv" or options.elpv is not None]
    if len(data) < len(options.data):
        print("elpv: left out, needs the folder of ELPV's pictures; see --help")
    keys: list[Row] = [
        {"start": start, "data": each, "way": way, "seed": seed}
        for seed, start, each in product(options.seeds, options.starts, data)
        for way in (("scratch",) if start == "none" else options.ways)
    ]
    missing = [key for key in keys if not results.find(key)]
    starts = dict.fromkeys(str(key["start"]) for key in missing)
    weights = {start: found for start in starts if (found := weights_of(start, options))}
    sources = {(each, seed): source_of(each, seed, options) for each in data for seed in options.seeds if missing}
    fitted = {
        (start, each): words_of(str(weights[start]), start, each, sources[each, options.seeds[0]], options)
        for start, each in dict.fromkeys((str(key["start"]), str(key["data"])) for key in missing)
        if start in weights
    }

    def make_start(key: Row) -> Row:
        start, each = str(key["start"]), str(key["data"])
        return measure_way(str(weights[start]), sources[each, key["seed"]], fitted[start, each], key, options.folder)

    jobs: list[Job] = [
        (key, partial(make_start, key)) for key in keys if str(key["start"]) in weights or results.find(key)
    ]
    trainings = [job for job in jobs if job[0]["way"] != "knn"]
    readings = [job for job in jobs if job[0]["way"] == "knn"]
    for some in (trainings, readings):  # neighbours are looked for in what the run of linear has left
        for row in results.side_by_side(some, options.stop_after):
            label = f"{row['start']} -> {row['data']}, {row['way']}, seed {row['seed']}"
            print(f"{label}: {number(row, 'accuracy'):.4f}", flush=True)
    results.write({"summary": summary(results.rows)})


def weights_of(start: str, options: argparse.Namespace) -> Path | str | None:
    """Where the weights of a start lie, trained if need be; None where they must be given and are not."""
    if start == "none":
        return start
    if start == "dinov2":
        if options.dinov2 is None:
            print("dinov2: left out, needs the folder of its weights; see --help")
        return options.dinov2
    if start == "fashion":
        fashion_run(options.folder, options.start_minutes, 0)
        return folder_of(options.folder, options.start_minutes, 0)
    run = options.folder / f"fashion-mnist-masked-{options.start_minutes:g}min-seed0"
    train_run(run, "fashion-mnist", "--minutes", options.start_minutes, "--seed", 0, "--pretrain.budget_fraction", 0.95)
    return encoder_of(run)


def encoder_of(run: Path) -> Path:
    """A bundle of what masked autoencoding alone has learnt: the weights before any label was seen."""
    folder = run / "encoder"
    if not folder.exists():
        plan = RunFolder(run).read_plan()
        model = create_model(plan.model, plan.seed)
        model.load_state_dict(safetensors_file.load_tensors(run / "start.safetensors"))
        classes = open_source("fashion-mnist", DataSettings(source="fashion-mnist")).classes
        bundle_weights.save_bundle(
            folder, model, plan.image, "classification", classes, {"model_name": plan.model_name}
        )
    return folder


def words_of(
    weights: str, start: str, data: str, source: Sequence[object], options: argparse.Namespace
) -> dict[str, list[object]]:
    """What each way is told: as many steps as the minutes of these data allow from this start, and what the plan of
    these minutes fits to them, which a plan of so many steps would not: the model from random values; the pixels that
    DINOv2 sees and the blocks of it that stay as they are. Our own starts see their pixels, and all blocks are tuned.
    """
    minutes = options.elpv_minutes if data == "elpv" else options.minutes
    if start == "dinov2":
        minutes *= options.dinov2_times
    way = "scratch" if start == "none" else "lp-ft"
    words = [*source, "--weights", weights, *WAYS.get(way, [])]
    name = f"transfer-{start}-{data}-{minutes:g}min-paces"
    steps = steps_of(name, {way: words}, minutes)[way]
    chosen = row_of(name, way)
    if start == "none":
        return {"scratch": [*steps, "--model", chosen["model"]]}
    pixels = ["--image-size", chosen["pixels"]] if start == "dinov2" else []
    frozen = ["--finetune.freeze_blocks", chosen["frozen_blocks"]] if start == "dinov2" else []
    tuned = {"lp-ft": [*steps, *pixels, *frozen], "automatic": [*steps, *pixels, *frozen]}
    return {"linear": pixels, "knn": pixels, "full": [*steps, *pixels], "lora": [*steps, *pixels], **tuned}


def measure_way(
    weights: str,
    source: Sequence[object],
    fitted: Mapping[str, Sequence[object]],
    key: Mapping[str, object],
    folder: Path,
) -> Row:
    """One training, or the neighbours in the features of the run of linear."""
    start, data, way, seed = (str(key[name]) for name in ("start", "data", "way", "seed"))
    trains = "linear" if way == "knn" else way
    run = folder / f"transfer-{start}-{data}-{trains}-seed{seed}"
    words = ["--seed", seed, *fitted[way], "--compute.threads", 1, "--weights", weights]
    row = train_run(run, *source, *words, *WAYS.get(trains, []))
    if way == "knn":
        return nearest(run)
    return {name: value for name, value in row.items() if name not in CLOCK}


def source_of(data: str, seed: int, options: argparse.Namespace) -> list[object]:
    """The words that say which pictures are learnt and tested."""
    if data == "elpv":
        tables = write_tables(read_cells(options.elpv / "labels.csv"), options.folder)
        parted = ["--folds", 5, "--data.fold", seed % 5, "--data.val_fraction", 0.2]
        return [*source_words(tables, "scratch", options.elpv), *parted]
    path = options.folder / f"{data}-seed{seed}.npz"
    if not path.exists():
        digits = open_source("digits", DataSettings())
        train, test = few(digits.targets, int(data.removeprefix("digits-")), seed)
        arrays = {"x_train": digits.images[train], "y_train": digits.targets[train]}
        np.savez(path, x_test=digits.images[test], y_test=digits.targets[test], **arrays)
    plain = ["--recipe.flip", "false", "--recipe.tta_flip", "false"]  # a mirrored digit is another sign
    return [path, "--data.val_fraction", 0.2, *plain]


def few(targets: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `count` training pictures and of a fifth to test on, both stratified; the test is the same for all."""
    ((rest, test),) = StratifiedShuffleSplit(1, test_size=0.2, random_state=seed).split(targets, targets)
    if count >= len(rest):
        return np.sort(rest), np.sort(test)
    chosen, _ = train_test_split(rest, train_size=count, random_state=seed, stratify=targets[rest])
    return np.sort(chosen), np.sort(test)


def nearest(run: Path) -> Row:
    """The accuracy of k nearest neighbours, k chosen on the validation pictures, in the features of a frozen run."""
    plan = RunFolder(run).read_plan()
    dataset = open_dataset(plan.data, plan.seed, RunFolder(run))
    model = load(run / "model")
    features = {
        split: features_of(model, dataset.load_images(split, plan.image, plan.compute.num_workers), rows, plan.image)
        for split, rows in dataset.splits.items()
    }
    targets = {split: dataset.targets(split) for split in dataset.splits}
    known = (features["train"], targets["train"])

    def accuracy(split: str, count: int) -> float:
        outputs = probe.knn_outputs(*known, features[split], "classification", plan.model.outputs, count)
        return float((outputs.argmax(1) == targets[split]).mean())

    best = max(probe.NEIGHBOR_COUNTS, key=partial(accuracy, "val"))
    return {"accuracy": accuracy("test", best), "neighbours": best}


def features_of(model: ViT, pictures: ImageStore, rows: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Pooled features [n, P] of rows, without gradients."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            images = normalize(pictures.take(rows[start : start + BATCH]), spec)
            parts.append(model.features(images, keep=("pooled",))["pooled"].float())
    return torch.cat(parts).numpy()


def summary(rows: list[Row]) -> list[Row]:
    """For each start, data and way: accuracy over the seeds."""
    names = ("start", "data", "way")
    order = {value: place for place, value in enumerate([*STARTS, *DATA, "scratch", "knn", *WAYS])}
    cases = {tuple(str(row[name]) for name in names) for row in rows}
    found: list[Row] = []
    for case in sorted(cases, key=lambda case: [order[value] for value in case]):
        here = [row for row in rows if tuple(row[name] for name in names) == case]
        accuracy = spread(number(row, "accuracy") for row in here)
        found.append({**dict(zip(names, case, strict=True)), "accuracy": accuracy})
    return found


if __name__ == "__main__":
    main()
