"""Refuse explicit settings that have no effect in the plan, instead of ignoring them."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UsageError
from ..plan import Plan

PROBE_SETTINGS = ("recipe.flip", "recipe.tta_flip", "recipe.tta_shift", "recipe.tta_shift_vertical", "recipe.steps")
"""Fields of [recipe] that a linear probe uses."""
STEP_ONLY_SETTINGS = (
    "model.dropout",
    "model.attention_dropout",
    "model.mlp_dropout",
    "model.drop_path",
    "model.grad_checkpointing",
)
"""Fields of [model] that only training steps use."""


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
    recipe, model = plan.recipe, plan.model
    uses_muon, uses_randaugment = recipe.optimizer == "muon", recipe.auto_augment == "rand"
    drops_patches, shrinks = recipe.patch_keep_rate < 1, recipe.progressive_size < 1
    has_dropout_steps, has_small_steps = recipe.patch_keep_until > 0, recipe.progressive_until > 0
    has_projects = bool(set(plan.track.report_to) - {"tensorboard"})
    requirements = {
        "recipe.muon_lr": (uses_muon, "--recipe.optimizer muon"),
        "recipe.muon_momentum": (uses_muon, "--recipe.optimizer muon"),
        "recipe.randaugment_num_ops": (uses_randaugment, "--recipe.auto_augment rand"),
        "recipe.randaugment_magnitude": (uses_randaugment, "--recipe.auto_augment rand"),
        "recipe.patch_keep_rate": (has_dropout_steps or not drops_patches, "a --recipe.patch_keep_until above 0"),
        "recipe.patch_keep_until": (drops_patches or not has_dropout_steps, "a --recipe.patch_keep_rate below 1"),
        "recipe.progressive_size": (has_small_steps or not shrinks, "a --recipe.progressive_until above 0"),
        "recipe.progressive_until": (shrinks or not has_small_steps, "a --recipe.progressive_size below 1"),
        "model.pool_every": (model.pool_blocks > 1, "a --model.pool_blocks above 1"),
        "finetune.head_fraction": (model.is_dense, "--task segmentation"),
        "finetune.head_patches": (model.is_dense, "--task segmentation"),
        "model.class_position": (model.class_token, "--model.class_token true"),
        "track.project": (has_projects, "--track.report_to wandb, mlflow or trackio"),
    }  # whether the plan uses a field, and what it needs otherwise
    for name, (is_used, need) in requirements.items():
        if name in overrides and not is_used:
            raise UsageError(f"--{name} has no effect here without {need}. Give that too, or leave it out.")
    rows, columns = model.grid
    for name, fraction, counts in (
        ("recipe.progressive_size", recipe.progressive_size, (rows, columns)),
        ("recipe.patch_keep_rate", recipe.patch_keep_rate, (model.grid.patches,)),
    ):
        if name in overrides and fraction < 1 and all(round(fraction * count) == count for count in counts):
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
