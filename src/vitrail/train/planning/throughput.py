"""Measure the throughput and choose threads: real steps on a copy of the model, before their number is fixed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...caller_state import set_own_threads
from ...errors import ResourceError
from ...model.vit import create_model
from ...runtime import is_out_of_memory
from .. import loop
from ..context import PlanContext
from ..distill.distillation import build_teacher
from ..loop import build_train_state, train_steps
from ..plan import Plan, ProgressiveStage, Recipe
from ..request import Reasons
from ..time_budget import limit_step_seconds

MEASURED_STEPS, WARM_UP = 12, 2
MIN_TRIAL_STEPS = 2
"""Steps that are made even where no time is left to measure them."""
MIN_MEASURED_STEPS, ENOUGH_SECONDS = 3, 5.0
STEADY_RATIO = 1.1
"""Largest ratio of the slowest to the fastest of the last measured steps at which no further ones are made: the number
of steps is planned anew during the training, so a pace that is right to some per cent is enough."""
MAX_MEASURED_TOKENS = 65_536
"""Most patches of a measured batch on one CPU: the pace of larger batches follows from fewer pictures."""
MAX_CONTRADICTION = 1.5
"""How many times longer a stage may take than the others allow, before it is measured once more."""
SHORT_SECONDS = 1.0
"""What takes less is tried even where no time is left to measure it."""
TRIAL_STEPS = 1_000_000  # steps of the trial's recipe: enough to begin a phase anywhere


@dataclass(frozen=True)
class Throughput:
    """Mean seconds of a step in each phase of a recipe, making the batch included."""

    stages: tuple[tuple[ProgressiveStage, float], ...]
    is_tried: bool = True
    """Whether steps were made; else their seconds were estimated."""

    @property
    def mean_seconds(self) -> float:
        """Seconds of a step, over the whole training."""
        return sum(phase.fraction * seconds for phase, seconds in self.stages)


def measure_throughput(context: PlanContext, expected: float = 0.0) -> Throughput:
    """Train a copy of the model for five to fourteen steps in each phase; the last, with all patches, comes first.

    Fourteen only where steps differ by more than a tenth, as beside other programs.

    A measurement takes half of the seconds that are left for measuring, but no fewer than two steps. A stage that took
    much longer than the others and its patches explain, as the first steps of a process do on a busy machine, is
    measured once more. All ranks train together and get rank 0's times.

    Args:
        expected: estimated seconds of a step; a single process that has no time for two such steps makes none.

    Raises:
        ResourceError: the memory is full; the message says what would fit.
    """
    plan, world_size = context.plan, context.group.world_size
    stages = plan.recipe.progressive_stages()
    tokens, left = _limit_batch(context)[0].stage_tokens(plan.model.grid), context.measuring_seconds()
    if world_size == 1 and MIN_TRIAL_STEPS * expected > max(left, SHORT_SECONDS):
        return Throughput(tuple((stage, expected) for stage in stages), is_tried=False)
    until = time.perf_counter() + left / 2
    seconds = [math.inf] * len(stages)
    try:
        for number in range(len(stages))[::-1]:
            limit = (until - time.perf_counter()) / (number + 1)
            seconds[number] = context.group.broadcast_object(_measure_stage(context, stages[number], limit))
        for number, possible in enumerate(limit_step_seconds(seconds, tokens)):
            if seconds[number] > MAX_CONTRADICTION * possible:
                again = _measure_stage(context, stages[number], until - time.perf_counter())
                seconds[number] = min(seconds[number], context.group.broadcast_object(again))
        return Throughput(tuple(zip(stages, limit_step_seconds(seconds, tokens), strict=True)))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler: the exception holds the frames that hold the memory.
    count = loop.images_per_forward(plan, world_size)
    train_state = build_train_state(create_model(plan.model, plan.seed), plan, context.group)
    advice = loop.advise_smaller_batch(train_state, plan, "the same with", world_size)
    raise ResourceError(f"The memory is full in the first steps: {count} pictures at once do not fit. {advice}")


def _measure_stage(context: PlanContext, stage: ProgressiveStage, limit: float) -> float:
    """Mean seconds of the stage's first steps, without those that warm up; a single process stops at the limit."""
    seconds: list[float] = []
    began = before = time.perf_counter()
    for _ in itertools.islice(_make_trial_steps(context, stage), WARM_UP + MEASURED_STEPS):
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
        last = seconds[WARM_UP:][-MIN_MEASURED_STEPS:]
        is_steady = len(last) == MIN_MEASURED_STEPS and max(last) <= STEADY_RATIO * min(last)
        enough = is_steady or (len(last) == MIN_MEASURED_STEPS and sum(seconds[WARM_UP:]) > ENOUGH_SECONDS)
        late = len(seconds) >= MIN_TRIAL_STEPS and now - began > limit
        slow = len(seconds) <= WARM_UP and seconds[-1] > ENOUGH_SECONDS
        if context.group.world_size == 1 and (enough or late or slow):
            break  # a few steps of a large model are enough
    return statistics.fmean(seconds[WARM_UP:] or seconds[-1:]) * _limit_batch(context)[1]


def _make_trial_steps(context: PlanContext, stage: ProgressiveStage) -> Iterator[object]:
    """Steps of a copy of the model, from the beginning of a stage on, with the batches of `_limit_batch`."""
    dataset, group = context.dataset, context.group
    recipe, _ = _limit_batch(context)
    plan = dataclasses.replace(context.plan, recipe=recipe)
    train_state = build_train_state(create_model(plan.model, plan.seed), plan, group)
    train_state.teacher = build_teacher(plan, dataset)
    return train_steps(
        train_state, context.images, dataset.step_targets(plan.image), plan,
        plan.recipe.step_at(stage.begin), dataset.shard_ids("train"), dataset.source.task, group=group,
        custom_functions=dataset.custom_functions,
    )  # fmt: skip


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


# -- Threads: on a machine that other programs keep busy, threads wait for each other, and one of them may be faster

MIN_GAIN = 1.1
"""How many times as fast fewer threads must be, to be taken in the place of all."""
MEASURED_ROUNDS, MIN_MEASURED_ROUNDS = 4, 2
CLEAR_GAIN = 1.5
"""How many times as fast as the next number of threads the fastest must be for no further round."""
THREADS_MEASURED = "measured"
"""First word of the reason for a measured number of threads."""


def choose_threads(context: PlanContext) -> tuple[Plan, Reasons]:
    """The plan with the number of CPU threads whose steps are fastest here and now, and the reason.

    All threads, half of them and one take turns step by step, so that all meet the same other programs. torch keeps the
    chosen number.
    """
    plan, counts = context.plan, sorted({context.plan.compute.threads, context.plan.compute.threads // 2 or 1, 1})
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    until = time.perf_counter() + context.measuring_seconds() / 4
    chosen = plan.compute.threads
    try:
        steps = _make_trial_steps(context, plan.recipe.progressive_stages()[-1])
        for number, count in itertools.product(range(1 + MEASURED_ROUNDS), counts[::-1]):  # the first round warms up
            is_round_over = number > MIN_MEASURED_ROUNDS and count == counts[-1]
            if (time.perf_counter() > until and all(seconds.values())) or (is_round_over and _is_clear(seconds)):
                break
            set_own_threads(count)
            before = time.perf_counter()
            next(steps)
            seconds[count].append(time.perf_counter() - before)
        scale = _limit_batch(context)[1]
        means = {count: statistics.fmean(each[1:] or each) * scale for count, each in seconds.items()}
        fastest = min(means, key=means.__getitem__)
        chosen = fastest if means[fastest] * MIN_GAIN < means[chosen] else chosen
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return plan, {}  # the measurement of the pace says what would fit
    finally:
        set_own_threads(chosen)
    listed = ", ".join(f"{means[count]:.3f} s with {count}" for count in counts)
    compute = dataclasses.replace(plan.compute, threads=chosen)
    return dataclasses.replace(plan, compute=compute), {"compute.threads": f"{THREADS_MEASURED}: a step takes {listed}"}


def _is_clear(seconds: Mapping[int, Sequence[float]]) -> bool:
    """Whether one number of threads is so much faster than the next that further rounds would change nothing."""
    fastest, second = sorted(statistics.fmean(each[1:]) for each in seconds.values())[:2]
    return second > CLEAR_GAIN * fastest
