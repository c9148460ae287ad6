"""Measure the throughput: a few real steps on a copy of the model, before the number of steps is fixed."""

from __future__ import annotations

import dataclasses
import itertools
import time
from dataclasses import dataclass

from ...errors import ResourceError
from ...model.vit import create_model
from ...runtime import is_out_of_memory
from .. import loop
from ..context import PlanContext
from ..distill.distillation import build_teacher
from ..loop import build_train_state, train_steps
from ..plan import ProgressiveStage, Recipe

MEASURED_STEPS, WARM_UP = 12, 2
MIN_MEASURED_STEPS, ENOUGH_SECONDS = 3, 5.0
MAX_MEASURED_TOKENS = 65_536
"""Most patches of a measured batch on one CPU: the pace of larger batches follows from fewer pictures."""
TRIAL_STEPS = 1_000_000  # steps of the trial's recipe: enough to begin a phase anywhere


@dataclass(frozen=True)
class Throughput:
    """Mean seconds of a step in each phase of a recipe, making the batch included."""

    stages: tuple[tuple[ProgressiveStage, float], ...]

    @property
    def mean_seconds(self) -> float:
        """Seconds of a step, over the whole training."""
        return sum(phase.fraction * seconds for phase, seconds in self.stages)


def measure_throughput(context: PlanContext) -> Throughput:
    """Train a copy of the model for at most fourteen steps in each phase; the last, with all patches, comes first.

    All ranks train together and get rank 0's times.

    Raises:
        ResourceError: the memory is full; the message says what would fit.
    """
    plan, world_size = context.plan, context.group.world_size
    stages = plan.recipe.progressive_stages()
    try:
        seconds = {stage: context.group.broadcast_object(_measure_stage(context, stage)) for stage in reversed(stages)}
        return Throughput(tuple((stage, seconds[stage]) for stage in stages))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler: the exception holds the frames that hold the memory.
    count = loop.images_per_forward(plan, world_size)
    train_state = build_train_state(create_model(plan.model, plan.seed), plan, context.group)
    advice = loop.advise_smaller_batch(train_state, plan, "the same with", world_size)
    raise ResourceError(f"The memory is full in the first steps: {count} pictures at once do not fit. {advice}")


def _measure_stage(context: PlanContext, stage: ProgressiveStage) -> float:
    """Mean seconds of the stage's first steps, without those that warm up."""
    dataset, group = context.dataset, context.group
    recipe, scale = _limit_batch(context)
    plan = dataclasses.replace(context.plan, recipe=recipe)
    train_state = build_train_state(create_model(plan.model, plan.seed), plan, group)
    train_state.teacher = build_teacher(plan, dataset)
    steps = train_steps(
        train_state, context.images, dataset.loss_targets("train"), plan,
        plan.recipe.step_at(stage.begin), dataset.shard_ids("train"), dataset.source.task, group=group,
        custom_functions=dataset.custom_functions,
    )  # fmt: skip
    start_time, count = time.perf_counter(), 0
    for _ in itertools.islice(steps, WARM_UP):
        if group.world_size == 1 and (seconds := time.perf_counter() - start_time) > ENOUGH_SECONDS:
            return seconds * scale  # a single step of a large model is enough
        start_time = time.perf_counter()
    for count, _ in enumerate(itertools.islice(steps, MEASURED_STEPS), 1):
        seconds = time.perf_counter() - start_time
        if group.world_size == 1 and count >= MIN_MEASURED_STEPS and seconds > ENOUGH_SECONDS:
            break  # a few steps of a large model are enough
    return (time.perf_counter() - start_time) / count * scale


def _limit_batch(context: PlanContext) -> tuple[Recipe, float]:
    """The recipe with a batch that a CPU finishes in seconds, and how many times larger the plan's own batch is."""
    plan = context.plan
    recipe = dataclasses.replace(plan.recipe, steps=TRIAL_STEPS, steps_history=())
    parts = recipe.grad_accum_steps * recipe.repeated_augmentation
    images = MAX_MEASURED_TOKENS // plan.model.tokens // parts * parts
    if context.group.world_size > 1 or plan.compute.device != "cpu" or recipe.batch_size <= max(images, parts):
        return recipe, 1.0
    batch_size = max(images, parts)
    return dataclasses.replace(recipe, batch_size=batch_size), recipe.batch_size / batch_size
