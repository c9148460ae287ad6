"""Fashion-MNIST from scratch: official test accuracy over seeds, nothing chosen on the test set.

    python benchmarks/fashion_mnist.py                             # 20 minutes, seeds 0, 1, 2: 65 minutes, alone
    python benchmarks/fashion_mnist.py --minutes 60 --seeds 0
    python benchmarks/fashion_mnist.py --minutes 10

The official training pictures are parted into train and val by the plan. Seeds whose row is in the results file, or
whose run folder is there, are not run again. Writes benchmarks/results/fashion-mnist-20min.json.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from making.records import Results, Row, number, spread, train_run


def main() -> None:
    """Run what is missing, then collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results(f"fashion-mnist-{options.minutes:g}min")
    for seed in options.seeds:
        row = results.row({"seed": seed}, partial(run, options.folder, options.minutes, seed))
        print(f"seed {seed}: {number(row, 'accuracy'):.4f} after {number(row, 'seconds'):.0f} s", flush=True)
    results.write(summary(results.rows))


def folder_of(folder: Path, minutes: float, seed: int) -> Path:
    """Where the run of a seed lies."""
    return folder / f"fashion-mnist-{minutes:g}min-seed{seed}"


def run(folder: Path, minutes: float, seed: int) -> Row:
    """One training with the plan's own choices; its checkpoints are kept for a curve."""
    words = ("fashion-mnist", "--minutes", minutes, "--seed", seed)
    return train_run(folder_of(folder, minutes, seed), *words, history=True)


def summary(rows: list[Row]) -> Row:
    """Mean and standard deviation of the accuracy."""
    found = spread(number(row, "accuracy") for row in rows)
    return {"mean_accuracy": found["mean"], "standard_deviation": found["standard_deviation"]}


if __name__ == "__main__":
    main()
