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
    for name in ("pretrain.share", "pretrain.steps"):
        said = overrides.get(name)
        if said is not None and said.strip("0. ") == "":
            raise UsageError(f"--pretrain asks for pre-training and --{name} {said} for none. Leave one of them out.")
    if "pretrain.steps" in overrides:
        return Pretrain()
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
