"""Measure the throughput: a few real steps on a copy of the model, before the number of steps is fixed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from dataclasses import dataclass

from ...data.loader import ImageStore
from ...errors import ResourceError
from ...model.vit import create_model
from ...runtime import is_out_of_memory
from .. import loop
from ..dataset import Dataset
from ..distill.distillation import build_teacher
from ..distributed.collectives import SINGLE_PROCESS, RankGroup
from ..loop import build_train_state, train_steps
from ..plan import Plan, ProgressiveStage

MEASURED_STEPS, WARM_UP = 12, 2
MIN_MEASURED_STEPS, ENOUGH_SECONDS = 3, 5.0
TRIAL_STEPS = 1_000_000  # steps of the trial's recipe: enough to begin a phase anywhere


@dataclass(frozen=True)
class Throughput:
    """Mean seconds of a step in each phase of a recipe, making the batch included."""

    stages: tuple[tuple[ProgressiveStage, float], ...]

    @property
    def mean_seconds(self) -> float:
        """Seconds of a step, over the whole training."""
        return sum(phase.fraction * seconds for phase, seconds in self.stages)


def measure_throughput(
    plan: Plan, images: ImageStore, dataset: Dataset, group: RankGroup = SINGLE_PROCESS
) -> Throughput:
    """Train a copy of the model for at most fourteen steps in each phase; the last, with all to see, comes first.

    Raises:
        ResourceError: the memory is full; the message says what would fit.
    """
    long = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=TRIAL_STEPS))
    phases = plan.recipe.progressive_stages()
    try:
        found = {
            phase: group.broadcast_object(_measure_stage(long, images, dataset, phase, group))
            for phase in reversed(phases)
        }
        return Throughput(tuple((phase, found[phase]) for phase in phases))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler: the exception holds the frames that hold the memory.
    count = loop.images_per_forward(plan, group.world_size)
    advice = loop.advise_smaller_batch(
        build_train_state(create_model(plan.model, plan.seed), plan, group), plan, "the same with", group.world_size
    )
    raise ResourceError(f"The memory is full in the first steps: {count} pictures at once do not fit. {advice}")


def _measure_stage(
    plan: Plan, images: ImageStore, dataset: Dataset, stage: ProgressiveStage, group: RankGroup
) -> float:
    """The first steps warm up and are not counted."""
    learner = build_train_state(create_model(plan.model, plan.seed), plan, group)
    learner.teacher = build_teacher(plan, dataset)
    steps = train_steps(
        learner, images, dataset.loss_targets("train"), plan,
        math.ceil(stage.begin * plan.recipe.steps), dataset.shard_ids("train"), dataset.source.task, group=group,
        custom_functions=dataset.custom_functions,
    )  # fmt: skip
    list(itertools.islice(steps, WARM_UP))
    began, counted = time.perf_counter(), 0
    for counted, _ in enumerate(itertools.islice(steps, MEASURED_STEPS), 1):
        if group.world_size == 1 and counted >= MIN_MEASURED_STEPS and time.perf_counter() - began > ENOUGH_SECONDS:
            break  # of a large model few steps tell as much
    return (time.perf_counter() - began) / counted
