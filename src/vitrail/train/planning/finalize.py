"""The last lines of a plan, which need real pictures and real steps: a smaller model, what augments, how many steps."""

from __future__ import annotations

from ...data.loader import ImageStore
from ..dataset import Dataset
from ..distributed.collectives import SINGLE_PROCESS, RankGroup
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
    plan: Plan,
    request: TrainRequest,
    reasons: Reasons,
    images: ImageStore,
    dataset: Dataset,
    spent: float = 0.0,
    dry_run: bool = False,
    group: RankGroup = SINGLE_PROCESS,
) -> tuple[Plan, Throughput | None]:
    """The plan as it will be followed, and what its steps take; None where that was not worth measuring.

    The length of the run decides which model learns and what it is fed with, and these again how long a step takes:
    where minutes were asked for and one of them is not the draft's, the pace is measured once more.

    Args:
        spent: seconds of the minutes that something else takes.
        dry_run: measure the pace of a short run too.
        group: all measure together, and all hear what the first of them measured.
    """
    by_time = bool(plan.minutes)
    found = throughput.measure_throughput(plan, images, dataset, group) if by_time else None
    fixed, count = plan if found is None else fix_steps(plan, found, {}, spent), len(images.indices)
    if found is not None and (smaller := model_size.shrink_for_few_steps(fixed, request, reasons)) is not fixed:
        found = throughput.measure_throughput(smaller, images, dataset, group)
        fixed = fix_steps(smaller, found, {}, spent)
    settled = augmentation_rules.choose_augmentation(fixed, count, dataset.source.task, request, reasons)
    if augmentation_rules.is_long_training(fixed, count):
        settled = flip_invariance.choose_flips(settled, images, dataset, request, reasons)
    if found is not None:
        found = found if settled == fixed else throughput.measure_throughput(settled, images, dataset, group)
        final = fix_steps(settled, found, reasons, spent)
        drafted, told = (
            augmentation_rules.describe_length(fixed, count),
            augmentation_rules.describe_length(final, count),
        )
        reasons |= {name: why.replace(drafted, told) for name, why in reasons.items()}
        return space_evaluations(final, len(dataset.splits["val"]), request, reasons), found
    if is_measured(settled, dry_run):
        found = throughput.measure_throughput(settled, images, dataset, group)
    return settled, found
