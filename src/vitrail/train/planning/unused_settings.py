"""Refuse explicit settings that have no effect in the plan, instead of ignoring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import UsageError
from ..plan import Plan

PROBE_SETTINGS = ("recipe.flip", "recipe.tta_flip", "recipe.tta_shift", "recipe.steps")
"""Fields of [recipe] that a linear probe uses."""
STEP_ONLY_SETTINGS = (
    "model.dropout",
    "model.attention_dropout",
    "model.mlp_dropout",
    "model.drop_path",
    "model.grad_checkpointing",
)
"""Fields of [model] that only training steps use."""
REQUIREMENTS: dict[str, tuple[Callable[[Plan], bool], str]] = {
    "recipe.muon_lr": (lambda plan: plan.recipe.optimizer == "muon", "--recipe.optimizer muon"),
    "recipe.muon_momentum": (lambda plan: plan.recipe.optimizer == "muon", "--recipe.optimizer muon"),
    "recipe.randaugment_num_ops": (lambda plan: plan.recipe.auto_augment == "rand", "--recipe.auto_augment rand"),
    "recipe.randaugment_magnitude": (lambda plan: plan.recipe.auto_augment == "rand", "--recipe.auto_augment rand"),
    "recipe.patch_keep_rate": (
        lambda plan: plan.recipe.patch_keep_rate == 1 or plan.recipe.patch_keep_until > 0,
        "a --recipe.patch_keep_until above 0",
    ),
    "recipe.patch_keep_until": (
        lambda plan: plan.recipe.patch_keep_until == 0 or plan.recipe.patch_keep_rate < 1,
        "a --recipe.patch_keep_rate below 1",
    ),
    "recipe.progressive_size": (
        lambda plan: plan.recipe.progressive_size == 1 or plan.recipe.progressive_until > 0,
        "a --recipe.progressive_until above 0",
    ),
    "recipe.progressive_until": (
        lambda plan: plan.recipe.progressive_until == 0 or plan.recipe.progressive_size < 1,
        "a --recipe.progressive_size below 1",
    ),
    "model.pool_every": (lambda plan: plan.model.pool_blocks > 1, "a --model.pool_blocks above 1"),
    "model.class_position": (lambda plan: plan.model.class_token, "--model.class_token true"),
    "track.project": (
        lambda plan: bool(set(plan.track.report_to) - {"tensorboard"}),
        "--track.report_to wandb, mlflow or trackio",
    ),
}
"""By field: whether the plan uses it, and the setting that it needs otherwise."""


def check_unused_settings(plan: Plan, overrides: Mapping[str, str]) -> None:
    """Refuse explicit settings that have no effect.

    Args:
        overrides: the explicit fields by their dotted names, as text.

    Raises:
        UsageError: there is one; the message names the setting that it needs.
    """
    if plan.finetune.from_checkpoint and "model.init" in overrides:
        raise UsageError("--model.init has no effect on weights that come from a checkpoint. Leave one of them out.")
    if plan.finetune.from_checkpoint and plan.finetune.method == "probe" and (unused := find_step_settings(overrides)):
        raise UsageError(f"finetune.method probe makes no step, which --{unused[0]} is for. Leave one of them out.")
    for name, (is_read, need) in REQUIREMENTS.items():
        if name in overrides and not is_read(plan):
            raise UsageError(f"--{name} has no effect here without {need}. Give that too, or leave it out.")
    for name, fraction, counts in (
        ("recipe.progressive_size", plan.recipe.progressive_size, plan.model.grid),
        ("recipe.patch_keep_rate", plan.recipe.patch_keep_rate, (plan.model.grid.patches,)),
    ):
        if name in overrides and fraction < 1 and all(round(fraction * count) == count for count in counts):
            rows, columns = plan.model.grid
            raise UsageError(
                f"--{name} {fraction:g} of {rows} x {columns} patches rounds to all of them and has no effect. "
                "Give less."
            )


def describe_reduced_settings(plan: Plan, overrides: Mapping[str, str], count: int) -> tuple[str, ...]:
    """Notes about explicit settings that are reduced; `count` is the number of training images."""
    distinct = plan.recipe.batch_size // plan.recipe.repeated_augmentation
    if "recipe.batch_size" in overrides and distinct > count:
        return (f"A step sees a picture once, so it has all {count:,} and not the {distinct:,} of recipe.batch_size.",)
    return ()


def find_step_settings(overrides: Mapping[str, str]) -> list[str]:
    """The fields that only training steps use."""
    recipe = (name for name in overrides if name.startswith("recipe.") and name not in PROBE_SETTINGS)
    return [*recipe, *(name for name in overrides if name in STEP_ONLY_SETTINGS)]
