"""From minutes to steps where the training begins with features: what they take is measured, the rest is for steps."""

from __future__ import annotations

import dataclasses
import time

from ...data.loader import ImageStore
from ...errors import UsageError
from ...evaluate.collect import collect, made_ready
from ...evaluate.pooled import Pooled
from ...model.vit import create_model
from ..dataset import Dataset
from ..engines.team import ALONE, Team
from ..plan import Plan
from ..planning import idle, orientation, pace
from ..planning.pace import Pace
from ..planning.settle import NO_STEPS, is_measured
from ..planning.wishes import Reasons, Wishes
from .begin import mirrored
from .extracting import BATCH
from .planned import unread, without_steps
from .probing import MOST_NUMBERS
from .settings import ONLY_FOR, StartSettings

EVALUATIONS = 3
LEAST_STEPS = 10
"""Fewer are not worth beginning."""
MEASURED = 32
PROBE_SECONDS = 2.0, 1.5e-6
"""For all probes: at least, and for each number of the features."""


def settle(
    plan: Plan,
    wishes: Wishes,
    reasons: Reasons,
    pictures: ImageStore,
    dataset: Dataset,
    spent: float = 0.0,
    dry_run: bool = False,
    team: Team = ALONE,
) -> tuple[Plan, Pace | None, float]:
    """The plan as it will be followed, what its steps take, None if not measured, and the seconds of all before them.

    The counterpart of `settle.settle` for runs from a checkpoint. A probe has no steps to fix, so that its features are
    measured in a dry run alone.

    Args:
        spent: seconds that something else takes before the steps.
    """
    if plan.start.method == "probe":
        return (plan, NO_STEPS, spent + seconds_before(plan, pictures, dataset)) if dry_run else (plan, None, spent)
    plan = orientation.turned(plan, pictures, dataset, wishes, reasons)
    if not is_measured(plan, dry_run):
        return _seldom(plan, reasons), None, spent
    spent += seconds_before(plan, pictures, dataset)
    found = pace.measure(plan, pictures, dataset, team)
    plan = fixed(plan, spent, found, wishes, reasons, team.world) if plan.minutes else _seldom(plan, reasons)
    return plan, found if plan.recipe.steps else NO_STEPS, spent


def seconds_before(plan: Plan, pictures: ImageStore, dataset: Dataset) -> float:
    """Seconds for what comes before the steps: all features, some of which are measured now, and all probes."""
    looked = len(dataset.splits["train"]) * (1 + mirrored(plan, dataset)) + len(dataset.splits["val"])
    probes = PROBE_SECONDS[0] + PROBE_SECONDS[1] * min(looked * plan.model.pooled_width, MOST_NUMBERS)
    return feature_seconds(plan, pictures) * looked + probes


def feature_seconds(plan: Plan, pictures: ImageStore) -> float:
    """Seconds that the features of one picture take, after one batch that warms up."""
    compute = plan.compute
    pooled = made_ready(Pooled(create_model(plan.model, plan.seed).to(compute.device)), compute.number_format)
    rows, seconds = pictures.indices[:MEASURED], 0.0
    for _ in range(2):
        began = time.perf_counter()
        collect(pooled, pictures, rows, plan.image, BATCH, compute.device, compute.number_format)
        seconds = time.perf_counter() - began
    return seconds / len(rows)


def fixed(plan: Plan, spent: float, found: Pace, wishes: Wishes, reasons: Reasons, world: int = 1) -> Plan:
    """The plan with as many steps as its minutes leave; with none worth beginning, the probe is the end.

    Args:
        spent: seconds of all features and probes, and of the teacher that is trained before them.
        world: processes; several cannot end with the probe and make the fewest steps that are worth beginning.

    Raises:
        UsageError: the probe is the end, and something was asked for that only steps make use of.
    """
    recipe, seconds = plan.recipe, plan.minutes * 60
    steps = round((seconds - spent) / found.mean)
    first = "features and the teacher" if plan.teacher.first else "features"
    why = f"{plan.minutes:g} minutes less {spent:.0f} s for {first}, {found.mean:.3f} s a step"
    if steps < LEAST_STEPS and world > 1:
        why = f"at least, for {world} processes cannot end with the probe yet: {why}, are {max(steps, 0)}"
        steps = LEAST_STEPS
    if steps < LEAST_STEPS:
        reason = f"{first} take {spent:.0f} s of {seconds:g}, too little is left to tune"
        if plan.teacher.wanted:
            raise UsageError(f"F{reason[1:]}, so no step asks the teacher. Give more --minutes, or leave it out.")
        tunes = [f"start.{name}" for name in ("method", *ONLY_FOR)]
        if useless := [*(name for name in wishes.overrides if name in tunes), *idle.of_steps(wishes.overrides)]:
            raise UsageError(
                f"F{reason[1:]}, which --{useless[0]} is for. Give more --minutes, leave it out, or begin without the "
                "checkpoint: --weights none."
            )
        reasons["start.method"] = reason
        reasons |= unread("probe")
        asked = plan.start
        start = StartSettings(
            weights=asked.weights, digest=asked.digest, channels_policy=asked.channels_policy, method="probe"
        )
        return dataclasses.replace(plan, start=start, recipe=without_steps(recipe, reasons))
    reasons["recipe.steps"] = why
    return _seldom(dataclasses.replace(plan, recipe=dataclasses.replace(recipe, steps=steps)), reasons)


def _seldom(plan: Plan, reasons: Reasons) -> Plan:
    """Evaluations cost as much as many steps, and the probe has told already what to expect."""
    if plan.recipe.evaluate_every:
        return plan
    reasons["recipe.evaluate_every"] = "rarely: the probe has told already what to expect"
    every = max(1, -(-plan.recipe.steps // EVALUATIONS))
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, evaluate_every=every))
