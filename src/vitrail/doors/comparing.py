"""Two trained models on the same pictures, none of which either has learnt from, as far as their runs can tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..data import split_files
from ..errors import DataError
from ..evaluate.compare import Comparison, compare_predictions
from ..predict.predictor import Predictor
from ..train import cross_validation, dataset
from ..train.run_folder import RunFolder
from .evaluation import Counter, Evaluation, Labelled, evaluate, groups_of


@dataclass(frozen=True)
class Compared:
    """Both models' figures, and what lies between them."""

    first: Evaluation
    second: Evaluation
    comparison: Comparison


def against(
    first: Predictor, second: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> Compared:
    """Let both answer every picture, and compare.

    Raises:
        as `evaluate`; DataError: they answer different tasks or names.
    """
    one = evaluate(first, labelled, skip_bad, counted)
    other = evaluate(second, labelled, skip_bad, counted)
    found = compare_predictions(one.predictions, other.predictions, groups_of(labelled, one.predictions))
    return Compared(one, other, replace(found, notes=labelled.notes))


def unseen_by(run: Path, labelled: Labelled) -> Labelled:
    """The same pictures without those that a run has learnt from or chosen by, if its data is the same.

    A model that is no run folder does not say what it has seen, and neither does one that learnt from other data; a
    note says so.

    Raises:
        DataError: the run has seen all of them.
    """
    folder = RunFolder(run)
    if not folder.splits_file.is_file():
        return _noted(labelled, f"{run} does not say which pictures it has learnt from; it may have seen these.")
    if not dataset.is_same_data(folder.data_file, labelled.source):
        return _noted(labelled, f"{run} has learnt from other data; whether it has seen these pictures is not known.")
    splits, _ = split_files.read_splits(folder.splits_file, labelled.source)
    kept = np.setdiff1d(labelled.rows, np.concatenate([splits["train"], splits["val"]]))
    if not len(kept):
        raise DataError(
            f"{run} has learnt from all of these {len(labelled.rows):,} pictures, so it cannot be compared on them. "
            "Give another SOURCE, or train both models with the same seed."
        )
    if left := len(labelled.rows) - len(kept):
        text = f"{left:,} pictures that {run} has learnt from are left out; {len(kept):,} are new to both."
        return _noted(replace(labelled, rows=kept), text)
    return labelled


def learnt_told(run: Path, labelled: Labelled) -> Labelled:
    """The same pictures, with a note from how many of them a run, or the folds in a folder, have learnt."""
    runs = [RunFolder(path) for path in cross_validation.fold_folders(run)] or [RunFolder(run)]
    if not all(one.splits_file.is_file() and dataset.is_same_data(one.data_file, labelled.source) for one in runs):
        return labelled
    learnt = [split_files.read_splits(one.splits_file, labelled.source)[0]["train"] for one in runs]
    count = len(np.intersect1d(labelled.rows, np.concatenate(learnt)))
    if not count:
        return labelled
    return _noted(
        labelled,
        f"{run} has learnt from {count:,} of these {len(labelled.rows):,} pictures with their answers, so the figures "
        f"are too good. Those of the pictures that it has held out: vitrail evaluate {run}",
    )


def _noted(labelled: Labelled, text: str) -> Labelled:
    return replace(labelled, notes=(*labelled.notes, text))
