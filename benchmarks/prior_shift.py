"""Probabilities moved to another prevalence, and its estimate, where 1, 10 or 50 % of the pictures have the defect.

    python benchmarks/prior_shift.py --elpv ELPV        # six minutes; without --elpv one, and no solar cells

One model is trained on scikit-learn's digits (is it an 8?) and one on ELPV's cells (is it defective?); each answers its
test pictures, drawn with replacement at each share. In `calibration_error` (of 1: debiased, as the report has it) and
`log_loss` are the means before and after `shift_probabilities`; `held` counts in how many draws the 95 % interval of
the estimate by expectation and maximisation has the true share.

Rows of `simulated` pictures have the exact probabilities of a model trained at 30 %, or logits that are half too large,
with 900 validation pictures; of their intervals 95 in 100 should hold the share. Rows that are there are kept. Writes
benchmarks/results/prior-shift.json.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from elpv import read_cells, source_words, write_tables
from making.records import Results, Row, commit, train_run
from sklearn.datasets import load_digits

import vitrail
from vitrail.evaluate.calibration import debiased_calibration_error
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.evaluate.prevalence import (
    estimate_prevalences,
    measure_prevalences,
    prevalence_ratios,
    shift_probabilities,
)
from vitrail.services.deciding import open_stored_run

SHARES = (0.01, 0.1, 0.5)
PICTURES, DRAWS, TRAINED_AT, VALIDATION = 600, 100, 0.3, 900
SIMULATED_GAP = 1.5
"""Distance of the means of two normal classes, in standard deviations."""
SPLITS = {"data.val_fraction": 0.35, "data.test_fraction": 0.35}
DIGITS = {
    "model.width": 32, "model.depth": 1, "model.heads": 2, "model.mlp_width": 32, "compute.threads": 1,
    "compute.num_workers": 0, "recipe.batch_size": 64, "recipe.flip": False, "recipe.tta_flip": False, **SPLITS,
}  # fmt: skip


def main() -> None:
    """Train, resample, simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("prior-shift")
    jobs = [({"of": "digits", "share": share}, partial(resample_digits, options.folder, share)) for share in SHARES]
    if options.elpv is None:
        print("prior_shift: no solar cells, they need --elpv; see --help")
    else:
        cells = partial(resample_cells, options.folder, options.elpv)
        jobs += [({"of": "elpv", "share": share}, partial(cells, share)) for share in SHARES]
    jobs += [
        ({"of": "simulated", "share": share, "factor": factor}, partial(simulate_intervals, share, factor))
        for factor in (1.0, 1.5) for share in SHARES
    ]  # fmt: skip
    for key, make in jobs:
        print(results.row(key, make), flush=True)
    results.write({})


def resample_digits(folder: Path, share: float) -> Row:
    """A small model of digits, on test pictures with this share of 8s."""
    run = folder / "prior-shift-digits"
    if not run.exists():
        pixels, digits = load_digits(return_X_y=True)
        images = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        vitrail.fit((images, np.where(digits == 8, "eight", "other")), steps=300, device="cpu", out=run,
                    settings=DIGITS, quiet=True)  # fmt: skip
    return resample(run, "eight", share)


def resample_cells(folder: Path, elpv: Path, share: float) -> Row:
    """A model of solar cells, on test pictures with this share of defective ones."""
    run = folder / "prior-shift-elpv"
    tables = write_tables(read_cells(elpv / "labels.csv"), folder)
    splits = [word for name, value in SPLITS.items() for word in (f"--{name}", value)]
    train_run(run, *source_words(tables, "scratch", elpv), "--weights", "none", "--minutes", 5, *splits)
    return resample(run, "defective", share)


def resample(run: Path, name: str, share: float) -> Row:
    """Calibration before and after, and the estimate, on test pictures with this share of a class."""
    stored = open_stored_run(run)
    validation, test = stored.tables["val"], stored.tables["test"]
    assert isinstance(validation, ClassificationPredictions) and isinstance(test, ClassificationPredictions)
    k, measured = stored.names.index(name), measure_prevalences(validation)
    new = tuple(share if one == name else 1 - share for one in stored.names)
    ratios, generator = prevalence_ratios("classification", measured, new), np.random.default_rng(0)
    having, others = np.flatnonzero(test.targets == k), np.flatnonzero(test.targets == 1 - k)
    errors, losses, estimates, held = [], [], [], 0
    for draw in range(DRAWS):
        count = generator.binomial(PICTURES, share)
        rows = np.r_[generator.choice(having, count), generator.choice(others, PICTURES - count)]
        before, truth = test.probabilities[rows], test.targets[rows] == k
        both = [each[:, k] for each in (before, shift_probabilities("classification", before, ratios))]
        errors.append([debiased_calibration_error(each, truth) for each in both])
        likely = [np.where(truth, each, 1 - each).clip(1e-7) for each in both]
        losses.append([float(-np.log(each).mean()) for each in likely])
        one = estimate_prevalences(table_of(before, names=stored.names), validation, draw)[k]
        estimates.append((one.value, *one.interval))
        held += one.interval.low <= share <= one.interval.high
    return {
        "test_pictures": [len(having), len(others)],
        "validation": measured[k],
        "calibration_error": before_and_after(errors),
        "log_loss": before_and_after(losses),
        **summary_of(estimates, held),
        "commit": commit(),
    }


def before_and_after(pairs: list[list[float]]) -> Row:
    """The means of both."""
    return {"before": fmean(pair[0] for pair in pairs), "after": fmean(pair[1] for pair in pairs)}


def summary_of(estimates: list[tuple[float, float, float]], held: int) -> Row:
    """The mean estimate with the mean ends of its interval, and how often that has the truth."""
    value, low, high = (fmean(one[place] for one in estimates) for place in range(3))
    return {"estimate": value, "interval": [low, high], "held": held, "of_draws": len(estimates)}


def table_of(
    probabilities: np.ndarray, targets: np.ndarray | None = None, names: tuple[str, ...] = ("a", "b")
) -> ClassificationPredictions:
    """A table of these probabilities."""
    ids = tuple(map(str, range(len(probabilities))))
    return ClassificationPredictions(
        paths=ids, ids=ids, split="val", targets=targets, probabilities=probabilities, classes=names
    )


def draw_exact(
    n: int, share: float, trained_at: float, seed: int, factor: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [n, 2] of a model trained at `trained_at`, of pictures of which `share` have it; and which."""
    generator = np.random.default_rng(seed)
    targets = (generator.random(n) < share).astype(np.int64)
    logits = SIMULATED_GAP * (generator.normal(size=n) + SIMULATED_GAP * targets) - SIMULATED_GAP**2 / 2
    chances = 1 / (1 + np.exp(-factor * (logits + np.log(trained_at / (1 - trained_at)))))
    return np.stack([1 - chances, chances], 1).astype(np.float32), targets


def simulate_intervals(share: float, factor: float) -> Row:
    """How often the interval of an estimate has the true share, where log-odds are exact or too large by a factor."""
    estimates, held, draws = [], 0, 4 * DRAWS
    for seed in range(draws):
        probabilities, _ = draw_exact(PICTURES, share, TRAINED_AT, seed, factor)
        validation = table_of(*draw_exact(VALIDATION, TRAINED_AT, TRAINED_AT, draws + seed, factor))
        one = estimate_prevalences(table_of(probabilities), validation, seed)[1]
        estimates.append((one.value, *one.interval))
        held += one.interval.low <= share <= one.interval.high
    return {"validation": TRAINED_AT, **summary_of(estimates, held)}


if __name__ == "__main__":
    main()
