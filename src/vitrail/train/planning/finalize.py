"""Finish a plan from real images and measured steps: a smaller model, augmentation, and the step count."""

from __future__ import annotations

from ..context import PlanContext
from ..plan import Plan
from ..request import Reasons, TrainRequest
from . import augmentation_rules, flip_invariance, model_size, throughput
from .planner import fix_steps, space_evaluations
from .throughput import Throughput

MEASURE_FROM_STEPS = 500
"""Steps from which a run whose number of steps was asked for is measured all the same, to say how long it will take."""
NO_THROUGHPUT = Throughput(())
"""The pace of a plan without steps, a probe: what it takes comes before them."""


def is_measured(plan: Plan, dry_run: bool) -> bool:
    """Whether a run is measured before it begins: for minutes, in a dry run, and where its steps are many."""
    return bool(plan.minutes) or dry_run or plan.recipe.steps >= MEASURE_FROM_STEPS


def finalize_plan(
    draft: PlanContext, request: TrainRequest, reasons: Reasons, spent: float = 0.0, dry_run: bool = False
) -> tuple[Plan, Reasons, Throughput | None]:
    """The plan as it will be followed, new reasons, and the measured throughput, None where it was not worth measuring.

    The length of the run decides which model learns and what it is fed with, and these again how long a step takes:
    where minutes were asked for and one of them is not the draft's, the pace is measured once more.

    Args:
        reasons: of the draft.
        spent: seconds of the minutes that something else takes.
        dry_run: measure the pace of a short run too.
    """
    plan, images, dataset = draft.plan, draft.images, draft.dataset
    new: Reasons = {}
    count = len(images.indices)
    found = throughput.measure_throughput(draft) if plan.minutes else None
    fixed = fix_steps(plan, found, spent)[0] if found is not None else plan
    if found is not None:
        smaller, why = model_size.shrink_for_few_steps(fixed, request)
        if smaller is not fixed:
            new |= why
            found = throughput.measure_throughput(draft.with_plan(smaller))
            fixed, _ = fix_steps(smaller, found, spent)
    settled, why = augmentation_rules.choose_augmentation(fixed, count, dataset.source.task, request, reasons | new)
    new |= why
    if augmentation_rules.is_long_training(fixed, count):
        settled, why = flip_invariance.choose_flips(settled, images, dataset, request)
        new |= why
    if found is None:
        if is_measured(settled, dry_run):
            found = throughput.measure_throughput(draft.with_plan(settled))
        return settled, new, found
    if settled != fixed:
        found = throughput.measure_throughput(draft.with_plan(settled))
    final, why = fix_steps(settled, found, spent)
    drafted, known = (augmentation_rules.describe_length(each, count) for each in (fixed, final))
    new = {name: reason.replace(drafted, known) for name, reason in (new | why).items()}
    final, why = space_evaluations(final, len(dataset.splits["val"]), request)
    return final, new | why, found
