"""scikit-learn's digits in five folds, a minute of two cores each: accuracy over all 1,797 pictures.

    python benchmarks/digits_folds.py                   # seed 0: about five minutes, nothing else running
    python benchmarks/digits_folds.py --seeds 0 1 2

Every fold is a `vitrail train digits --folds 5 --data.fold K` of its own with the plan's own choices. Nothing is chosen
on anything, so no picture is kept for validation: 1,437 are learnt, 360 tested. Folds whose row or run folder is there
are not run again. Writes benchmarks/results/digits-5-folds.json.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from making.records import Results, Row, number, spread, train_run

FOLDS = 5


def main() -> None:
    """Run what is missing, then collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=0.7)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("digits-5-folds")
    for seed in options.seeds:
        for fold in range(FOLDS):
            run = options.folder / f"digits-{options.minutes:g}min-seed{seed}-fold{fold}"
            where = ["--folds", FOLDS, "--data.fold", fold, "--data.val_fraction", 0, "--seed", seed]
            key = {"minutes": options.minutes, "seed": seed, "fold": fold}
            row = results.row(key, partial(train_run, run, "digits", "--minutes", options.minutes, *where))
            took = f"{number(row, 'seconds'):.0f} s of training, {number(row, 'wall_seconds'):.0f} s in all"
            print(f"seed {seed}, fold {fold}: {number(row, 'accuracy'):.4f}, {took}", flush=True)
    results.write({"summary": summary(results.rows)})


def summary(rows: list[Row]) -> list[Row]:
    """For each budget: accuracy over all folds, the folds' spread, that of the seeds' means, and the longest fold."""
    found: list[Row] = []
    for minutes in sorted({number(row, "minutes") for row in rows}):
        here = [row for row in rows if number(row, "minutes") == minutes]
        of_seed = {seed: [row for row in here if row["seed"] == seed] for seed in {row["seed"] for row in here}}
        whole = [over_pictures(folds) for folds in of_seed.values() if len(folds) == FOLDS]
        found.append(
            {
                "minutes": minutes,
                "folds": spread(number(row, "accuracy") for row in here),
                "seeds": spread(whole) if whole else None,
                "longest_seconds": max(number(row, "wall_seconds") for row in here),
            }
        )
    return found


def over_pictures(folds: list[Row]) -> float:
    """The share of all pictures that were answered rightly by the fold that had not seen them."""
    right = sum(number(row, "accuracy") * number(row, "n") for row in folds)
    return right / sum(number(row, "n") for row in folds)


if __name__ == "__main__":
    main()
