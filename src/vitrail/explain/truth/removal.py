"""Three ways of taking patches away: dropped for real, blurred, or painted in the picture's mean.

Whoever paints over a patch also shows the model something that it has never seen, and the answer may move because of
the paint. A plain ViT can do without: a dropped patch is no token, the others keep their positions. A method is called
better only where all three ways agree.

Source: Jain et al. 2022, "Missingness bias in model debugging", for dropped patches; Petsiuk, Das and Saenko 2018
(RISE), section 4.2, for blur; the mean as in Ancona et al. 2018.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import UsageError
from ...model.config import T2T_PATCHES, ViTConfig
from ...model.tokens import patch_grid
from ...model.vit import ViT

Way = Literal["drop", "blur", "mean"]
WAYS: tuple[Way, ...] = get_args(Way)
REACH = 3
"""Standard deviations after which a blur is cut off."""


def ways_of(config: ViTConfig) -> tuple[Way, ...]:
    """The ways that are honest for a model: after soft splits every patch has seen its neighbours before it is dropped,
    so there only what is painted over is really gone."""
    return tuple(way for way in WAYS if way != "drop" or config.patches not in T2T_PATCHES)


def stand_in(images: Float[Tensor, "B C H W"], patch: tuple[int, int], way: Way) -> Float[Tensor, "B C H W"] | None:
    """What stands where a patch was taken away; None where nothing does.

    `blur`: the picture through a Gaussian whose standard deviation is a patch's side, along each axis its own.
    `mean`: each channel's mean over the picture.
    """
    if way == "drop":
        return None
    if way == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    down, across = (_gaussian(side).to(images) for side in patch)
    return _along(_along(images, down, axis=2), across, axis=3)


def answer(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    kept: Int[Tensor, "B n"],
    way: Way,
    instead: Float[Tensor, "B C H W"] | None,
) -> Float[Tensor, "B K"]:
    """The outputs when only the kept patches of each picture are there.

    Args:
        images: sides are whole patches.
        kept: patch numbers in reading order, from 0.
        instead: what `stand_in` made of the images.

    Raises:
        UsageError: dropping was asked of a model with soft splits.
    """
    if way not in ways_of(model.config):
        raise UsageError(
            f'Patches of a model with patches="{model.config.patches}" cannot be dropped: each has seen its '
            'neighbours before. Use the ways "blur" and "mean".'
        )
    kept = kept.sort(dim=1).values
    if instead is None:
        return model(images, kept)
    return model(torch.where(_pixels(kept, images, model.config.patch), images, instead))


def _pixels(kept: Int[Tensor, "B n"], images: Float[Tensor, "B C H W"], patch: tuple[int, int]) -> Tensor:
    """Which pixels lie in kept patches: bool [B, 1, H, W]."""
    grid = patch_grid(images.shape[-2:], patch)
    there = torch.zeros(len(images), grid.patches, dtype=torch.bool, device=images.device).scatter(1, kept, True)
    cells = there.view(-1, 1, grid.rows, grid.columns)
    return cells.repeat_interleave(patch[0], dim=2).repeat_interleave(patch[1], dim=3)


def _gaussian(deviation: int) -> Float[Tensor, " taps"]:
    place = torch.arange(-REACH * deviation, REACH * deviation + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (place / deviation) ** 2)
    return weights / weights.sum()


def _along(images: Float[Tensor, "B C H W"], weights: Float[Tensor, " taps"], axis: int) -> Float[Tensor, "B C H W"]:
    """Every line of pixels along an axis averaged by the weights; pixels beyond the border repeat it."""
    lines = images.movedim(axis, -1)
    half = len(weights) // 2
    flat = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (half, half), mode="replicate")
    return F.conv1d(flat, weights.view(1, 1, -1)).view(lines.shape).movedim(-1, axis)
