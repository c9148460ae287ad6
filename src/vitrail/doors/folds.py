"""A training of several folds, measured on the answers of the models that have not seen the pictures."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from ..train import cross_validation
from ..train.cross_validation import OUT_OF_FOLD
from .evaluation import Evaluation, Labelled


def out_of_fold(path: Path, split: str | None = None, given: object | None = None) -> tuple[Labelled, Evaluation]:
    """All pictures that the folds have held out, and what they are worth; no model is asked again.

    Args:
        path: the folder of all folds.
        split: nothing but "out-of-fold" or None; one fold has splits.
        given: the object that they were trained on, if it was one.

    Raises:
        UsageError: another split, or a fold that is not done.
        DataError: the data is not what the folds were begun with.
    """
    if split not in (None, OUT_OF_FOLD):
        raise UsageError(
            f"Folds hold out every picture once, so their split is {OUT_OF_FOLD}. Got {split!r}; ask one fold for "
            f"it, such "
            f"as {cross_validation.first_run_folder(path)}."
        )
    whole = cross_validation.load_fold_predictions(path, given)
    answers, source = whole.answers, whole.dataset.source
    labelled = Labelled(source, whole.rows(answers), OUT_OF_FOLD, whole.dataset.notes)
    return labelled, Evaluation(whole.figures(), answers, source.name)
