"""Compare a plan with that of a saved run: report each difference, and refuse those that break the run.

People can edit a run's plan, and a run may continue on another machine or with another version. Learning rates, batch
size, augmentation and compute settings may change; the results are then no longer bit-identical. The splits, the
model's architecture and the reading of images may not change: it would have no effect, or invalidate the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .. import config
from ..errors import UsageError
from .plan import Plan

PLACES = ("data.source", "data.val_source", "data.test_source", "data.data_root")
"""Where the images lie; --resume takes a new place of the same ones."""
CHANGEABLE = ("recipe.", "compute.", "track.", *PLACES, "minutes", "model_name")
HARMLESS = (
    "compute.num_workers",
    "track.",
    *PLACES,
    "model_name",
    "recipe.save_every",
)
"""Fields that do not change the results; a hash of the data detects other data."""
FIXED_SETTINGS = {
    "recipe.steps": "the rates of every step depend on it; train longer with --extend",
    "recipe.steps_history": "the rates of every step depend on it; train longer with --extend",
    "recipe.optimizer": "its moments are saved and another has others",
}
EXTENSION_FIELDS = (
    "recipe.steps",
    "recipe.steps_history",
    "recipe.extended_at",
    "recipe.extended_lr_factor",
    "minutes",
)
"""Fields that --extend changes."""
REPLANNED_FIELDS = ("steps", "steps_history")
"""Fields of a section that a training with minutes changes."""
NOT_BIT_IDENTICAL = "The results are no longer bit for bit those of the unbroken run."


class PlanChange(NamedTuple):
    """A field that differs between two plans."""

    name: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.name} {self.old!r} -> {self.new!r}"


def diff_plans(old: Plan, new: Plan, step: int = 0) -> list[PlanChange]:
    """Every field that differs between two plans, without steps that the training replanned by its clock or to finish.

    Args:
        step: the steps done under the old plan; a later decision concerns those to come.
    """
    ours, theirs = config.flatten(old), config.flatten(new)
    names = [*ours, *(name for name in theirs if name not in ours)]
    changes = [PlanChange(name, ours.get(name), theirs.get(name)) for name in names]
    replanned = {f"{name}.{field}" for name in _replanned_sections(old, new, step) for field in REPLANNED_FIELDS}
    if "recipe.steps" in replanned and not new.minutes:
        replanned.add("minutes")
    return [change for change in changes if change.old != change.new and change.name not in replanned]


def _replanned_sections(old: Plan, new: Plan, step: int) -> Iterator[str]:
    """The sections whose step counts go on from those of the old plan."""
    for name, before, after in (
        ("recipe", old.recipe, new.recipe),
        ("pretrain", old.pretrain, new.pretrain),
        ("distill", old.distill, new.distill),
    ):
        decided, later = before.steps_history or ((0, before.steps),), after.steps_history
        if len(later) > len(decided) and later[: len(decided)] == decided and later[len(decided)][0] >= step:
            yield name


def drop_extension_changes(changes: list[PlanChange]) -> list[PlanChange]:
    """The changes without those of --extend, which the plan itself records."""
    return [change for change in changes if change.name not in EXTENSION_FIELDS]


def check_plan_changes(changes: list[PlanChange]) -> list[str]:
    """A sentence that lists the changes of the plan since the checkpoint and their consequence; empty if none.

    Raises:
        UsageError: changes without effect, or that would invalidate the weights; all of them are named.
    """
    refused = [change for change in changes if not _is_allowed(change)]
    if refused:
        reasons = [FIXED_SETTINGS[change.name] for change in refused if change.name in FIXED_SETTINGS]
        why = reasons[0] if reasons else "it has had its effect already, or the weights would lose their meaning"
        raise UsageError(
            f"The plan was changed since this run was saved: {'; '.join(map(str, refused))}. That cannot be changed in "
            f"a run that has begun: {why}. Put it back in plan.toml, or begin a new run with --plan."
        )
    if not changes:
        return []
    listed = f"Changed since the run was saved: {'; '.join(map(str, changes))}."
    if all(change.name.startswith(HARMLESS) for change in changes):
        return [f"{listed} The results stay the same bit for bit."]
    return [f"{listed} {NOT_BIT_IDENTICAL}"]


def check_machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence if versions, processor or threads differ from those of the checkpoint."""
    changes = [
        PlanChange(name, then[name], value) for name, value in now.items() if name in then and then[name] != value
    ]
    if not changes:
        return []
    listed = "; ".join(map(str, changes))
    return [f"Not as when the run was saved: {listed}. {NOT_BIT_IDENTICAL}"]


def _is_allowed(change: PlanChange) -> bool:
    if change.name in FIXED_SETTINGS or change.name.startswith("recipe.extended"):
        return False
    if change.name == "recipe.ema_decay":
        return bool(change.old) == bool(change.new)  # an average cannot begin in the middle
    return change.name.startswith(CHANGEABLE)
