"""What the plan says of a teacher: its share of the budget, and what it cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...data.source import Task
from ...errors import UsageError
from ...model.config import T2T_PATCHES
from ..plan import Plan
from .settings import CNN, Teacher

SHARES = {"logits": 0.15, "features": 0.4}
"""Of the budget for what comes first, where nobody says another."""
FOR = {"width": "cnn", "share": "first", "steps": "first", "weight": "logits", "temperature": "logits"}


def wished(overrides: Mapping[str, str], reasons: dict[str, str]) -> Teacher:
    """The section before single fields are overruled: what comes first has a share of the budget unless one is said."""
    model, kind = overrides.get("teacher.model", "").strip(), overrides.get("teacher.kind", "logits").strip()
    said = {"teacher.share", "teacher.steps"} & overrides.keys()
    if said or kind not in SHARES or not (model == CNN or (model and kind == "features")):
        return Teacher()
    reasons["teacher.steps"] = "a teacher need not be perfect, and the model has the rest of the time"
    return Teacher(share=SHARES[kind])


def check(plan: Plan, task: Task) -> None:
    """Refuse settings of [teacher] that have no effect, or contradict each other.

    Raises:
        UsageError: with the name of the field.
    """
    teacher, usual = plan.teacher, Teacher()
    changed = [one.name for one in dataclasses.fields(Teacher) if vars(teacher)[one.name] != vars(usual)[one.name]]
    if not teacher.wanted:
        if changed:
            raise UsageError(f"teacher.{changed[0]} was set, but there is no teacher. Name one by --teacher.model.")
        return
    if teacher.model == CNN and teacher.kind == "features":
        raise UsageError("A CNN has no patches whose features could be learnt. Leave out --teacher.kind features.")
    serves = {
        "cnn": teacher.model == CNN,
        "first": teacher.first,
        "logits": teacher.kind == "logits",
    }
    for name in changed:
        if name in FOR and not serves[FOR[name]]:
            raise UsageError(
                f"teacher.{name} has no use with teacher.model={teacher.model} and teacher.kind={teacher.kind}. "
                "Leave it out."
            )
    if task == "number" and "temperature" in changed:
        raise UsageError("teacher.temperature softens probabilities, which numbers are not. Leave it out.")
    if teacher.first and not (teacher.share or teacher.steps):
        raise UsageError("A teacher that takes time first needs --teacher.share or --teacher.steps above 0.")
    if teacher.share and teacher.steps:
        raise UsageError(
            f"teacher.steps={teacher.steps} and teacher.share={teacher.share:g} say the same in two ways. "
            "Leave one of them out."
        )
    if teacher.kind == "features" and plan.start.from_checkpoint:
        raise UsageError(
            "--teacher.kind features teaches a model that begins from random values, and --weights begins from a "
            "checkpoint. Leave one of them out."
        )
    if plan.start.from_checkpoint and plan.start.method == "probe":
        raise UsageError("start.method probe makes no steps in which a teacher could be asked. Leave one of them out.")
    if teacher.kind == "features" and plan.model.patches in T2T_PATCHES:
        raise UsageError(f'Features are learnt patch by patch, which patches="{plan.model.patches}" do not keep apart.')
