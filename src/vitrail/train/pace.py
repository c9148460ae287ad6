"""How long a step takes here: a few real ones on a copy of the model, before the number of steps is fixed."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
from jaxtyping import Int64, Shaped

from ..data.loader import Pictures
from ..data.source import Task
from ..model.vit import create
from .loop import prepare, train
from .plan import Plan

MEASURED_STEPS = 12


def seconds_per_step(
    plan: Plan,
    pictures: Pictures,
    targets: Shaped[np.ndarray, " n *K"],
    blocks: Int64[np.ndarray, " n"] | None = None,
    task: Task = "classes",
) -> tuple[float, float]:
    """Mean seconds of a step while patches are dropped, and of one that sees them all; making the batch included."""
    late = _measure(plan, pictures, targets, blocks, task, early=False)
    if plan.recipe.keep_patches == 1 or plan.recipe.keep_until == 0:
        return late, late
    return _measure(plan, pictures, targets, blocks, task, early=True), late


def _measure(
    plan: Plan,
    pictures: Pictures,
    targets: Shaped[np.ndarray, " n *K"],
    blocks: Int64[np.ndarray, " n"] | None,
    task: Task,
    early: bool,
) -> float:
    """The first two steps warm up and are not counted."""
    recipe = dataclasses.replace(plan.recipe, steps=1000, keep_until=0.999 if early else 0.0)
    trial = dataclasses.replace(plan, recipe=recipe)
    steps = train(prepare(create(plan.model, plan.seed), trial), pictures, targets, trial, blocks=blocks, task=task)
    list(itertools.islice(steps, 2))
    began = time.perf_counter()
    counted = len(list(itertools.islice(steps, MEASURED_STEPS)))
    return (time.perf_counter() - began) / counted
