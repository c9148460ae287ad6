"""A training of several folds, measured on the answers of the models that have not seen the pictures."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from ..train import folding
from ..train.together import SPLIT
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
    if split not in (None, SPLIT):
        raise UsageError(
            f"Folds hold out every picture once, so their split is {SPLIT}. Got {split!r}; ask one fold for it, such "
            f"as {folding.first(path)}."
        )
    whole = folding.of_folder(path, given)
    answers, source = whole.answers, whole.dataset.source
    labelled = Labelled(source, whole.rows(answers), SPLIT, whole.dataset.notes)
    return labelled, Evaluation(whole.figures(), answers, source.name)
