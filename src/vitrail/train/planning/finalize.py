"""Finish a plan from real images and measured steps: a smaller model, augmentation, and the step count."""

from __future__ import annotations

from ..context import PlanContext
from ..plan import Plan
from ..request import Reasons, TrainRequest
from . import augmentation_rules, flip_invariance, model_size, throughput
from .planner import fix_steps, space_evaluations
from .throughput import Throughput

MEASURE_FROM_STEPS = 500
"""Steps from which the throughput of a run with a requested number of steps is measured, to predict its duration."""
NO_THROUGHPUT = Throughput(())
"""The throughput of a plan without steps, a linear probe."""


def is_measured(plan: Plan, dry_run: bool) -> bool:
    """Whether to measure the throughput first: for a budget of minutes, a dry run, or many steps."""
    return bool(plan.minutes) or dry_run or plan.recipe.steps >= MEASURE_FROM_STEPS


def finalize_plan(
    draft: PlanContext, request: TrainRequest, reasons: Reasons, spent: float = 0.0, dry_run: bool = False
) -> tuple[Plan, Reasons, Throughput | None]:
    """The final plan, new reasons, and the measured throughput; None if the run is too short to measure it.

    The number of steps decides the model's size and augmentation, and these decide the throughput: with a budget of
    minutes, it is measured again after each change of the plan.

    Args:
        reasons: of the draft.
        spent: seconds of the budget that something else takes.
        dry_run: measure the throughput of a short run too.
    """
    plan, images, dataset = draft.plan, draft.images, draft.dataset
    new: Reasons = {}
    count = len(images.indices)
    measured, timed = None, plan
    if plan.minutes:
        measured = throughput.measure_throughput(draft)
        timed, _ = fix_steps(plan, measured, spent)
        smaller, why = model_size.shrink_for_few_steps(timed, request)
        if smaller is not timed:
            new |= why
            measured = throughput.measure_throughput(draft.with_plan(smaller))
            timed, _ = fix_steps(smaller, measured, spent)
    final, why = augmentation_rules.choose_augmentation(timed, count, dataset.source.task, request, reasons | new)
    new |= why
    if augmentation_rules.is_long_training(timed, count):
        final, why = flip_invariance.choose_flips(final, images, dataset, request)
        new |= why
    if measured is None:
        if is_measured(final, dry_run):
            measured = throughput.measure_throughput(draft.with_plan(final))
        return final, new, measured
    if final != timed and draft.measuring_seconds():
        measured = throughput.measure_throughput(draft.with_plan(final))
    final, why = fix_steps(final, measured, spent)
    before, after = (augmentation_rules.describe_length(each, count) for each in (timed, final))
    new = {name: reason.replace(before, after) for name, reason in (new | why).items()}
    final, why = space_evaluations(final, len(dataset.splits["val"]), request)
    return final, new | why, measured
