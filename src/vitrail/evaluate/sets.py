"""Answers with what surrounds them, sets of classes and ranges of numbers that hold the truth as often as promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data.source import Task
from ..errors import UsageError
from .answers import Answers
from .conformal import Sets, fewest
from .decisions import Decisions
from .number_predictions import NumberPredictions
from .predictions import Predictions


def refuse_without_sets(task: Task, decided: Decisions) -> None:
    """Refuse to surround answers with nothing, before a picture is answered.

    Raises:
        UsageError: labels, which have thresholds instead; or nothing was fitted, as on too few validation pictures.
    """
    if task == "labels":
        raise _of_labels()
    if not (decided.cuts if task == "classes" else decided.reach):
        raise UsageError(
            f"This model has no {'sets' if task == 'classes' else 'ranges'}: to hold the truth in "
            f"{1 - decided.miss:.0%} of all cases they are fitted on at least {fewest(decided.miss)} validation "
            "pictures with a known target, and its training had fewer, or was not ours. Train with a larger "
            "--data.val_fraction, or promise less by a larger --answers.miss."
        )


def with_sets(answers: Answers, decided: Decisions) -> Answers:
    """The same answers with a set of classes for each picture, or a range for each number.

    The promise is that of `conformal`: of pictures like the validation ones all but a share of `decided.miss` have
    their truth inside.

    Args:
        decided: what was fitted on validation pictures; of several models, what they have decided together.

    Raises:
        UsageError: as `refuse_without_sets`.
    """
    if isinstance(answers, Predictions):
        refuse_without_sets("classes", decided)
        return replace(answers, sets=Sets(decided.miss, decided.cuts, ()).of(answers.probabilities))
    if isinstance(answers, NumberPredictions):
        refuse_without_sets("number", decided)
        around = np.array([-1.0, 1.0]) * np.array(decided.reach)[:, None]  # [K, 2]
        return replace(answers, ranges=(answers.values[..., None] + around).astype(np.float32))
    raise _of_labels()


def _of_labels() -> UsageError:
    return UsageError(
        "Sets are of classes, and ranges of numbers. This model answers each label by itself, from a threshold of its "
        'own on; train with --answers.rule "sensitivity 0.95" to miss fewer of them.'
    )
