"""Several models as one: the mean of their answers, and what they have decided together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .answers import Answers
from .decisions import UNLIKE, UNSURE, Decisions
from .label_predictions import LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import Predictions


def shared(decided: Sequence[Decisions]) -> Decisions:
    """The means of what several models have decided; what not all have decided, none has.

    Distances of several models have no common cut: a picture is unlike where half of the models or more say so.
    """
    first, *rest = decided
    if not rest:
        return first

    def means(values: list[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean(values, axis=0).tolist()) if all(values) else ()

    return replace(
        first,
        temperature=(),
        unlike=None,
        thresholds=means([one.thresholds for one in decided]),
        cuts=means([one.cuts for one in decided]),
        reach=means([one.reach for one in decided]),
        sure=float(np.mean([one.sure for one in decided])),
    )


def mean_of(tables: Sequence[Answers], decided: Decisions) -> Answers:
    """One table from those of several models about the same pictures.

    Args:
        decided: what they have decided together.
    """
    first, *rest = tables
    if not rest:
        return first
    said = [np.array([why == UNLIKE for why in one.told()], np.float64) for one in tables]
    unlike = np.asarray(np.mean(said, axis=0) >= 0.5)
    if isinstance(first, NumberPredictions):
        values = np.asarray(np.mean([one.values for one in tables if isinstance(one, NumberPredictions)], axis=0))
        return replace(first, values=values, abstained=_reasons(unlike, np.zeros(len(first), bool)))
    several = [one.probabilities for one in tables if not isinstance(one, NumberPredictions)]
    probabilities = np.asarray(np.mean(several, axis=0, dtype=np.float64)).astype(np.float32)
    if isinstance(first, LabelPredictions):
        told = _reasons(unlike, np.zeros(len(first), bool))
        return replace(first, probabilities=probabilities, answered=decided.labels(probabilities), abstained=told)
    assert isinstance(first, Predictions)
    unsure = probabilities.max(1) < decided.sure if len(first) else np.zeros(0, bool)
    answered = decided.classes(probabilities, first.classes)
    return replace(first, probabilities=probabilities, answered=answered, abstained=_reasons(unlike, unsure))


def _reasons(unlike: np.ndarray, unsure: np.ndarray) -> tuple[str, ...]:
    if not (unlike.any() or unsure.any()):
        return ()
    return tuple(np.where(unlike, UNLIKE, np.where(unsure, UNSURE, "")).tolist())
