"""The draft of a plan and its last lines, whichever way the training begins."""

from __future__ import annotations

from ...data.loader import ImageStore
from ...errors import UsageError
from ...runtime import Runtime
from ..dataset import Dataset
from ..engines.team import Team
from ..plan import Plan
from ..planning import idle, planner, settle
from ..planning.pace import Pace
from ..planning.wishes import Fingerprint, Reasons, Wishes
from . import budget, planned, selecting


def draft(
    found: Fingerprint, wishes: Wishes, runtime: Runtime, world: int = 1
) -> tuple[Plan, Reasons, tuple[str, ...]]:
    """The plan but for what is measured, its reasons, and what to tell a person about it.

    A checkpoint that nobody has named gives way where it contradicts what was asked for.

    Args:
        world: processes that train together.

    Raises:
        as `planner.draft` and `weights.open_checkpoint`.
    """
    selected = selecting.selected(found, wishes, runtime)
    reason, notes = selected.reason, selected.notes
    if selected.checkpoint is not None:
        try:
            plan, reasons = planned.draft(found, wishes, runtime, selected.checkpoint, world)
            notes += idle.told(plan, wishes.overrides, found.count)
            return plan, reasons | {"start.weights": reason}, notes
        except UsageError as error:
            if wishes.weights != "auto":
                raise
            reason = f"{selected.checkpoint.name} is on this machine, but does not suit what was asked for: {error}"
            notes = (f"From scratch: {reason}",)
    plan, reasons = planner.draft(found, wishes, runtime)
    notes += idle.told(plan, wishes.overrides, found.count)
    return plan, reasons | {"start.weights": reason}, notes


def settled(
    plan: Plan,
    wishes: Wishes,
    reasons: Reasons,
    pictures: ImageStore,
    dataset: Dataset,
    spent: float,
    dry_run: bool,
    team: Team,
) -> tuple[Plan, Pace | None, float]:
    """The plan as it will be followed, what its steps take, None if not measured, and the seconds of all before them.

    Args:
        spent: seconds of pre-training and teacher.

    Raises:
        as `budget.settle` and `settle.settle`.
    """
    if plan.start.from_checkpoint:
        return budget.settle(plan, wishes, reasons, pictures, dataset, spent, dry_run, team)
    return (*settle.settle(plan, wishes, reasons, pictures, dataset, spent, dry_run, team), spent)
