"""What the plan says of pre-training: its share of the budget, its number of steps, and what it cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...errors import UsageError
from ...model.config import T2T_PATCHES
from ..plan import Plan
from .settings import Pretrain

SHARE = 0.4
"""Of the budget, where nobody says another."""
REASONS = {
    "pretrain.mask": "three quarters hidden make the task worth learning and the encoder cheap (He et al. 2021)",
    "pretrain.decoder_depth": "the decoder is thrown away: it need only be good enough to ask the encoder well",
    "pretrain.crop_scale": "crops of half the area or more: hidden patches already change the picture",
}


def wished(wanted: bool, overrides: Mapping[str, str], reasons: dict[str, str]) -> Pretrain:
    """The section as `--pretrain` leaves it, before single fields are overruled.

    Raises:
        UsageError: it was asked for and forbidden at once.
    """
    if not wanted:
        return Pretrain()
    if "pretrain.steps" in overrides:
        return Pretrain()
    share = overrides.get("pretrain.share")
    if share is not None and share.strip("0. ") == "":
        raise UsageError(
            f"--pretrain asks for pre-training and --pretrain.share {share} for none. Leave one of them out."
        )
    reasons |= REASONS
    return Pretrain(share=SHARE)


def check(plan: Plan) -> None:
    """Refuse what cannot be pre-trained so.

    Raises:
        UsageError: settings of a phase that does not happen, or a model that shows hidden patches to visible ones.
    """
    settings, model = plan.pretrain, plan.model
    if not settings.wanted:
        changed = [
            field.name
            for field in dataclasses.fields(Pretrain)
            if vars(settings)[field.name] != vars(Pretrain())[field.name]
        ]
        if changed:
            raise UsageError(
                f"pretrain.{changed[0]} was set, but there is no pre-training. Add --pretrain, or leave it out."
            )
        return
    if settings.share and settings.steps:
        raise UsageError(
            f"pretrain.steps={settings.steps} and pretrain.share={settings.share:g} say the same in two ways. "
            "Leave one of them out."
        )
    if model.patches in T2T_PATCHES:
        raise UsageError(
            f'Masked autoencoding needs patches that do not overlap; with patches="{model.patches}" every patch has '
            "seen its neighbours before any is hidden. Leave --pretrain out, or choose another --model."
        )
    if model.grid.patches < 2:
        raise UsageError(
            f"Masked autoencoding hides some patches and shows others, and the model has {model.grid.patches}. "
            "Choose a smaller patch, or leave --pretrain out."
        )
    if settings.normalise and model.patch_numbers < 2:
        raise UsageError(
            "A patch of a single number has no deviation to be normalised by. Add --pretrain.normalise false."
        )


def settled(plan: Plan, seconds_per_step: float | None, reasons: dict[str, str]) -> tuple[Plan, float]:
    """The plan with its number of steps of pre-training, and the seconds they will take of the minutes.

    Args:
        seconds_per_step: as measured; None where the budget is steps, of which `share` is then a fraction.

    Raises:
        UsageError: the steps that were asked for leave no time for the training.
    """
    settings = plan.pretrain
    if seconds_per_step is None:
        steps = settings.steps or max(1, round(settings.share / (1 - settings.share) * plan.recipe.steps))
        if not settings.steps:
            reasons["pretrain.steps"] = f"{settings.share:g} of all steps, {plan.recipe.steps:,} of training on top"
        return _with_steps(plan, steps), 0.0
    steps = settings.steps or max(1, round(settings.share * plan.minutes * 60 / seconds_per_step))
    seconds = steps * seconds_per_step
    if not settings.steps:
        minutes = f"{settings.share * plan.minutes:.3g} of {plan.minutes:g} minutes"
        reasons["pretrain.steps"] = f"{minutes} at {seconds_per_step:.3f} s a step, measured before the first one"
    elif seconds >= plan.minutes * 60:
        raise UsageError(
            f"{steps:,} steps of pre-training take {seconds / 60:.1f} minutes here, which leaves nothing of "
            f"{plan.minutes:g} for the training. Give more --minutes, or fewer --pretrain.steps."
        )
    return _with_steps(plan, steps), seconds


def check_written(plan: Plan) -> None:
    """Refuse a written plan that leaves open how many steps there are.

    Raises:
        UsageError: there is a share of minutes, and none of steps.
    """
    if plan.pretrain.share:
        raise UsageError(
            "A plan that is followed has its steps written down, and pretrain.share is none. "
            "Change pretrain.steps, which is 0 for no pre-training."
        )


def _with_steps(plan: Plan, steps: int) -> Plan:
    """The share has done its work: a written plan says steps alone."""
    return dataclasses.replace(plan, pretrain=dataclasses.replace(plan.pretrain, steps=steps, share=0.0))
