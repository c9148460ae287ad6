"""How long a step takes here: a few real ones on a copy of the model, before the number of steps is fixed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from dataclasses import dataclass

from ...data.loader import ImageStore
from ...errors import ResourceError
from ...model.vit import create_model
from ...runtime import memory_is_full
from ..dataset import Dataset
from ..engines.team import ALONE, Team
from ..loop import prepare, train
from ..plan import Plan
from ..recipe import Phase
from ..stepping import memory
from ..teacher.teaching import lesson

MEASURED_STEPS, WARM_UP = 12, 2
FEWEST_MEASURED, ENOUGH_SECONDS = 3, 5.0
FINE = 1_000_000  # steps of the trial's recipe: enough to begin a phase anywhere


@dataclass(frozen=True)
class Pace:
    """Mean seconds of a step in each phase of a recipe, making the batch included."""

    phases: tuple[tuple[Phase, float], ...]

    @property
    def mean(self) -> float:
        """Seconds of a step, over the whole training."""
        return sum(phase.share * seconds for phase, seconds in self.phases)


def measure(plan: Plan, pictures: ImageStore, dataset: Dataset, team: Team = ALONE) -> Pace:
    """Train a copy of the model for at most fourteen steps in each phase; the last, with all to see, comes first.

    Raises:
        ResourceError: the memory is full; the message says what would fit.
    """
    long = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=FINE))
    phases = plan.recipe.phases()
    try:
        found = {phase: team.told(_seconds(long, pictures, dataset, phase, team)) for phase in reversed(phases)}
        return Pace(tuple((phase, found[phase]) for phase in phases))
    except (MemoryError, RuntimeError) as error:
        if not memory_is_full(error):
            raise
    # Outside of the handler: the exception holds the frames that hold the memory.
    count = memory.at_once(plan, team.world)
    advice = memory.advice(prepare(create_model(plan.model, plan.seed), plan, team), plan, "the same with", team.world)
    raise ResourceError(f"The memory is full in the first steps: {count} pictures at once do not fit. {advice}")


def _seconds(plan: Plan, pictures: ImageStore, dataset: Dataset, phase: Phase, team: Team) -> float:
    """The first steps warm up and are not counted."""
    learner = prepare(create_model(plan.model, plan.seed), plan, team)
    learner.lesson = lesson(plan, dataset)
    steps = train(
        learner, pictures, dataset.learnt("train"), plan,
        math.ceil(phase.begin * plan.recipe.steps), dataset.blocks("train"), dataset.source.task, team=team,
        brought=dataset.brought,
    )  # fmt: skip
    list(itertools.islice(steps, WARM_UP))
    began, counted = time.perf_counter(), 0
    for counted, _ in enumerate(itertools.islice(steps, MEASURED_STEPS), 1):
        if team.world == 1 and counted >= FEWEST_MEASURED and time.perf_counter() - began > ENOUGH_SECONDS:
            break  # of a large model few steps tell as much
    return (time.perf_counter() - began) / counted
