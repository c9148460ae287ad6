"""Pre-training that goes on from DINOv2-S/14, beside the same minutes without it: solar cells and Fashion-MNIST.

    python benchmarks/continued.py DINOV2 ELPV --seeds 0 1 2        # the folders of benchmarks/elpv.py
    python benchmarks/continued.py DINOV2 ELPV --data elpv --minutes 6

Solar cells: all labels, a fold of five for each seed, and no picture without a label. Fashion-MNIST: 500 pictures with
a label, 4,500 others without, 2,000 of the official test, at 56 pixels. Both ways have the same minutes and end with
the plan's own tuning; `kept` says whether the validation pictures let the continued weights in.

Rows and complete run folders are not run again. Writes benchmarks/results/continued.json.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
from elpv import read_cells, source_words, write_tables
from making.records import Results, Row, number, paired_difference, spread, train_run

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings

DATA = {"elpv": (6.0, 224), "fashion-mnist": (4.0, 56)}
"""Minutes, and pixels that DINOv2 is shown."""
LABELLED, WITHOUT, TESTED = 500, 4500, 2000
FIGURES = ("accuracy", "log_loss")
WAYS = ("none", "continued")


def main() -> None:
    """Run what is missing, compare in pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("elpv", type=Path, nargs="?", help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, help="other than each data's own")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.dinov2 is None:
        print("continued: left out, needs a folder with DINOv2; see --help")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results("continued")
    for data in options.data:
        if data == "elpv" and options.elpv is None:
            print("elpv: left out, needs the folder of ELPV's pictures; see --help")
            continue
        minutes, side = DATA[data]
        minutes = minutes if options.minutes is None else options.minutes
        for seed in options.seeds:
            source, further = pictures_of(data, seed, options)
            for way in WAYS:
                run = options.folder / f"continued-{data}-{way}-{minutes:g}min-seed{seed}"
                words = [*source, "--weights", options.dinov2, "--image-size", side, "--minutes", minutes]
                words += ["--seed", seed, *(["--pretrain", *further] if way == "continued" else [])]
                key = {"data": data, "way": way, "minutes": minutes, "seed": seed}
                row = results.row(key, partial(train_and_compare, run, words))
                shown = ", ".join(f"{name} {number(row, name):.4f}" for name in FIGURES)
                kept = f"; kept: {row['continued']['kept']}" if row["continued"] else ""
                print(f"{data}, {way}, seed {seed}: {shown}{kept}; {number(row, 'wall_seconds'):.0f} s", flush=True)
    results.write({"summary": summary(results.rows)})


def pictures_of(data: str, seed: int, options: argparse.Namespace) -> tuple[list[object], list[object]]:
    """The words for the labelled pictures, and for those without a label."""
    if data == "elpv":
        tables = write_tables(read_cells(options.elpv / "labels.csv"), options.folder)
        parted = ["--folds", 5, "--data.fold", seed % 5, "--data.val_fraction", 0.2]
        return [*source_words(tables, "scratch", options.elpv), *parted], []
    labelled, further = (options.folder / f"continued-{name}-seed{seed}.npz" for name in ("labelled", "further"))
    if not (labelled.exists() and further.exists()):
        source = open_source("fashion-mnist", DataSettings())
        train, test = (
            np.random.default_rng(seed).permutation(source.splits[split])[:count]
            for split, count in (("train", LABELLED + WITHOUT), ("test", TESTED))
        )
        known, rest = train[:LABELLED], train[LABELLED:]
        tested = {"x_test": source.images[test], "y_test": source.targets[test]}
        np.savez(labelled, x_train=source.images[known], y_train=source.targets[known], **tested)
        np.savez(further, x_train=source.images[rest], y_train=source.targets[rest])
    return [labelled, "--data.val_fraction", 0.3], ["--pretrain.extra_images", further]


def train_and_compare(run: Path, words: list[object]) -> Row:
    """Train, if need be; the figures of the test pictures, and what start.json says of the pre-training."""
    row = train_run(run, *words)
    return {**row, "continued": json.loads((run / "start.json").read_text(encoding="utf-8")).get("continued")}


def summary(rows: list[Row]) -> list[Row]:
    """For each data and budget: both ways, their paired difference, and how often the continued weights were kept."""
    found: list[Row] = []
    for data, minutes in sorted({(row["data"], row["minutes"]) for row in rows}):
        here = {(row["way"], row["seed"]): row for row in rows if (row["data"], row["minutes"]) == (data, minutes)}
        seeds = sorted(seed for way, seed in here if way == "none" and ("continued", seed) in here)
        pairs = {way: [here[way, seed] for seed in seeds] for way in WAYS}
        case: Row = {"data": data, "minutes": minutes, "seeds": seeds}
        case["kept"] = sum(row["continued"]["kept"] for row in pairs["continued"])
        for name in FIGURES if seeds else ():
            values = {way: [number(row, name) for row in pairs[way]] for way in WAYS}
            case[name] = {way: spread(values[way]) for way in WAYS}
            case[f"{name} gained"] = paired_difference(values["continued"], values["none"])
        found.append(case)
    return found


if __name__ == "__main__":
    main()
