"""What a trained model makes of the held-out pictures, and what they decide: temperature, thresholds, abstaining."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.loader import ImageStore
from ..data.preprocess import preprocess_image
from ..data.source import Source
from ..errors import DataError
from ..evaluate.answers import Answers, answers_of
from ..evaluate.collect import collect_with_features
from ..evaluate.decisions import Decisions, decide
from ..evaluate.finite import refuse_not_finite
from ..evaluate.table import path_of
from ..evaluate.unlike import Familiar, familiar
from ..evaluate.views import Views
from ..model.vit import ViT
from ..spec import ImageSpec
from .dataset import Dataset, class_of
from .loop import Learner
from .plan import Plan
from .stepping.optimizer import averaged

EVALUATION_BATCH = 250
FAMILIAR_PICTURES = 5000
"""Training pictures that say what is familiar."""


class Outputs(NamedTuple):
    """What the model makes of some pictures."""

    rows: NDArray[np.int64]
    pictures: ImageStore
    outputs: np.ndarray
    """float32 [n, K]"""
    features: np.ndarray
    """float32 [n, D]: what the head reads of the last block."""


def look(
    learner: Learner, plan: Plan, dataset: Dataset, rows: NDArray[np.int64], views: Views | None = None
) -> Outputs:
    """The model's outputs for some rows, in their order.

    Args:
        views: of each picture; None takes those of the plan.

    Raises:
        DataError: a picture cannot be read, or the model's outputs are no numbers.
    """
    assert isinstance(learner.model, ViT)
    pictures = dataset.shown(rows, plan.image, plan.compute.workers)
    with averaged(learner.model, learner.average):
        outputs, features = collect_with_features(
            learner.model, pictures, rows, plan.image, EVALUATION_BATCH, plan.compute.device,
            plan.compute.number_format, views or plan.recipe.views, dataset.source.task,
        )  # fmt: skip
    refuse_not_finite(outputs)
    refuse_not_finite(features)
    return Outputs(rows, pictures, outputs, features)


def settle(learner: Learner, plan: Plan, dataset: Dataset, valid: Outputs) -> tuple[Decisions, Familiar | None]:
    """What turns outputs into answers, from the validation pictures and a sample of those of the training.

    Raises:
        DataError: the model's outputs are no numbers.
    """
    source = dataset.source
    if not len(valid.rows):
        return Decisions(ordered=plan.answers.ordered, miss=plan.answers.miss), None
    rows = dataset.sample("train", FAMILIAR_PICTURES, plan.seed)
    try:
        sample = look(learner, plan, dataset, rows, views=Views())
    except DataError:  # a training goes on without a few of its pictures, and has named them
        sample = look(learner, plan, dataset, _readable(source, rows, plan.image), views=Views())
    known = familiar(sample.features, class_of(source, sample.rows) if source.task == "classes" else None)
    outputs = valid.outputs if dataset.scaling is None else dataset.scaling.values(valid.outputs)
    targets = _targets(source, valid.rows)
    distances = None if known is None else known.distances(valid.features)
    return decide(source.task, plan.answers, source.classes, outputs, targets, distances), known


def _readable(source: Source, rows: NDArray[np.int64], spec: ImageSpec) -> NDArray[np.int64]:
    """The rows whose pictures are still there, looked at one by one."""
    kept = []
    for row in rows.tolist():
        with suppress(DataError):
            preprocess_image(source.pictures[row], spec)
            kept.append(row)
    return np.array(kept, np.int64)


def answers(dataset: Dataset, split: str, seen: Outputs, decided: Decisions, known: Familiar | None) -> Answers:
    """The model's answers to a whole split, in the split's order."""
    source = dataset.source
    names = [(path_of(source.pictures[row]), source.ids[row]) for row in seen.rows.tolist()]
    return answers_of(
        source.task, seen.outputs, source.classes, dataset.scaling, names, split, _targets(source, seen.rows),
        decisions=decided, distances=None if known is None else known.distances(seen.features),
    )  # fmt: skip


def _targets(source: Source, rows: NDArray[np.int64]) -> np.ndarray:
    return class_of(source, rows) if source.task == "classes" else source.targets[rows]
