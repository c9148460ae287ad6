"""The draft of a plan, whichever way the training begins."""

from __future__ import annotations

from ...runtime import Runtime
from ..plan import Plan
from ..planning import planner
from ..planning.wishes import Fingerprint, Reasons, Wishes
from . import planned, selecting


def draft(found: Fingerprint, wishes: Wishes, runtime: Runtime) -> tuple[Plan, Reasons, tuple[str, ...]]:
    """The plan but for what is measured, its reasons, and what to tell about the checkpoint that it begins from.

    Raises:
        as `planner.draft` and `weights.open_checkpoint`.
    """
    selected = selecting.selected(found, wishes, runtime)
    if selected.checkpoint is None:
        plan, reasons = planner.draft(found, wishes, runtime)
    else:
        plan, reasons = planned.draft(found, wishes, runtime, selected.checkpoint)
    return plan, reasons | {"start.weights": selected.reason}, selected.notes
