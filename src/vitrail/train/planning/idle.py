"""Settings that were asked for by name and would do nothing in the plan that came of it: refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import UsageError
from ..plan import Plan
from ..recipe import Recipe

PROBE_READS = ("recipe.flip", "recipe.mirror", "recipe.shift", "recipe.steps")
"""Of a recipe, all that a probe without steps makes use of."""
STEPS_READ = ("model.dropout", "model.attention_dropout", "model.mlp_dropout", "model.drop_path", "model.recompute")
"""Of a model's shape, what only steps make use of."""
# fmt: off
NEEDS: dict[str, tuple[Callable[[Recipe], bool], str]] = {  # of a field that was asked for: when it is read, its need
    "muon_rate":         (lambda one: one.optimizer == "muon", "--recipe.optimizer muon"),
    "momentum":          (lambda one: one.optimizer == "muon", "--recipe.optimizer muon"),
    "augment_count":     (lambda one: one.augment == "rand", "--recipe.augment rand"),
    "augment_magnitude": (lambda one: one.augment == "rand", "--recipe.augment rand"),
    "keep_patches":      (lambda one: one.keep_patches == 1 or one.keep_until > 0, "a --recipe.keep_until above 0"),
    "keep_until":        (lambda one: one.keep_until == 0 or one.keep_patches < 1, "a --recipe.keep_patches below 1"),
    "small_size":        (lambda one: one.small_size == 1 or one.small_until > 0, "a --recipe.small_until above 0"),
    "small_until":       (lambda one: one.small_until == 0 or one.small_size < 1, "a --recipe.small_size below 1"),
}
# fmt: on


def check(plan: Plan, overrides: Mapping[str, str]) -> None:
    """Refuse what somebody has set and nothing would read.

    Args:
        overrides: fields by their dotted names, as they were asked for.

    Raises:
        UsageError: there is one, and what it would need.
    """
    if plan.start.from_checkpoint and "model.init" in overrides:
        raise UsageError("--model.init has no effect on weights that come from a checkpoint. Leave one of them out.")
    if plan.start.from_checkpoint and plan.start.method == "probe" and (useless := of_steps(overrides)):
        raise UsageError(f"start.method probe makes no step, which --{useless[0]} is for. Leave one of them out.")
    for name, (is_read, need) in NEEDS.items():
        if f"recipe.{name}" in overrides and not is_read(plan.recipe):
            raise UsageError(f"--recipe.{name} has no effect here without {need}. Give that too, or leave it out.")


def of_steps(overrides: Mapping[str, str]) -> list[str]:
    """Those that only steps make use of."""
    recipe = (name for name in overrides if name.startswith("recipe.") and name not in PROBE_READS)
    return [*recipe, *(name for name in overrides if name in STEPS_READ)]
