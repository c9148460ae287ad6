"""The draft of a plan, whichever way the training begins."""

from __future__ import annotations

from ...errors import UsageError
from ...runtime import Runtime
from ..plan import Plan
from ..planning import planner
from ..planning.wishes import Fingerprint, Reasons, Wishes
from . import planned, selecting


def draft(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> tuple[Plan, Reasons, tuple[str, ...]]:
    """The plan but for what is measured, its reasons, and what to tell about the checkpoint that it begins from.

    A checkpoint that nobody has named gives way where it contradicts what was asked for.

    Raises:
        as `planner.draft` and `weights.open_checkpoint`.
    """
    selected = selecting.selected(found, wishes, runtime)
    reason, notes = selected.reason, selected.notes
    if selected.checkpoint is not None:
        try:
            plan, reasons = planned.draft(found, wishes, runtime, selected.checkpoint)
            return plan, reasons | {"start.weights": reason}, notes
        except UsageError as error:
            if wishes.weights != "auto":
                raise
            reason = f"{selected.checkpoint.name} is on this machine, but does not suit what was asked for: {error}"
            notes = (f"From scratch: {reason}",)
    plan, reasons = planner.draft(found, wishes, runtime)
    return plan, reasons | {"start.weights": reason}, notes
