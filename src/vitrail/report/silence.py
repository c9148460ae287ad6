"""What a page says of the pictures that are left unanswered: how many, why, and whether that was right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import UNKNOWN_CLASS, ClassificationPredictions, MultilabelPredictions
from .choice import wrong_labels
from .shares import Share, share_of

NAMED = 6
"""Unanswered pictures of either kind that a page names; the table of predictions names all."""


class Silence(NamedTuple):
    """Pictures without an answer."""

    share: Share
    """Of all."""
    unsure: int
    unlike: int
    some_unsure: tuple[str, ...]
    """Ids of the first of them."""
    some_unlike: tuple[str, ...]
    table: str
    """The file whose column `abstain` says it of each picture."""
    wrong_silent: Share | None
    """Of those that are left unanswered, the ones that would have been answered wrongly."""
    wrong_answered: Share | None
    """Of those that are answered."""
    wrong: str
    """What being wrong means here, in words."""
    can_be_unsure: bool
    can_be_unlike: bool


def silence(answers: TaskPredictions, decided: Decisions, groups: Shaped[np.ndarray, " n"] | None = None) -> Silence:
    """Of one table of classes or labels, which has at least one row."""
    silent, wrong, known = answers.silent, *_wrong(answers)

    def of(rows: np.ndarray) -> Share | None:
        return share_of(wrong[rows], None if groups is None else groups[rows])

    def some(reason: str) -> tuple[str, ...]:
        found = [name for name, why in zip(answers.ids, answers.abstained, strict=False) if why == reason]
        return tuple(found[:NAMED])

    share = share_of(silent, groups)
    assert share is not None
    return Silence(
        share=share,
        unsure=sum(why == UNSURE for why in answers.abstained),
        unlike=sum(why == UNLIKE for why in answers.abstained),
        some_unsure=some(UNSURE),
        some_unlike=some(UNLIKE),
        table=f"predictions/{answers.split}.csv",
        wrong_silent=of(silent & known),
        wrong_answered=of(~silent & known),
        wrong="wrong in some label" if isinstance(answers, MultilabelPredictions) else "wrong",
        can_be_unsure=decided.sure > 0 or UNSURE in answers.abstained,
        can_be_unlike=decided.unlike is not None or UNLIKE in answers.abstained,
    )


def _wrong(answers: TaskPredictions) -> tuple[np.ndarray, np.ndarray]:
    """Which pictures are answered wrongly, in any label, and of which that is known; bool [n] each."""
    if isinstance(answers, MultilabelPredictions):
        return np.asarray(wrong_labels(answers).any(1)), np.asarray(answers.known.any(1))
    assert isinstance(answers, ClassificationPredictions)
    targets = np.full(len(answers), UNKNOWN_CLASS) if answers.targets is None else answers.targets
    return np.asarray(answers.labels != targets), np.asarray(targets != UNKNOWN_CLASS)
