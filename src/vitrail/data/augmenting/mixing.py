"""Two pictures in one: mixup shows both through each other, cutmix a rectangle of one in the other; targets follow.

A batch's pictures stand in a ring, in the order of their keys, and each is mixed with the next: how much and where
depends on the picture alone, with whom on who else is in the batch. Pictures stay uint8: mixup's shares are whole
256ths, so that pictures and targets are mixed by exactly the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64, Shaped, UInt8
from torch import Tensor

from .erasing import inside
from .onto import onto

MIXING_DRAWS = 5
"""Numbers that a picture takes: its place in the ring, which way, its share, and the middle of its rectangle."""


def mix(
    images: UInt8[Tensor, "B C H W"],
    targets: Shaped[Tensor, " B *K"],
    keys: Float64[np.ndarray, "B 5"],
    mixup: float,
    cutmix: float,
    outputs: int,
) -> tuple[UInt8[Tensor, "B C H W"], Float[Tensor, "B K"]]:
    """Every picture mixed with another one of the batch, and the targets of both in the same shares.

    Args:
        targets: class numbers [B], or float [B, K], in which NaN is unknown and makes the mixture unknown.
        mixup, cutmix: parameters of the Beta distributions that shares are drawn from; 0 leaves that way out, and
            with both each picture goes either way with equal chance.
        outputs: number of classes, K.

    Source: Zhang et al. 2018, "mixup"; Yun et al. 2019, "CutMix", whose rectangle is cut off at the picture's edge
    and counts by what is left of it.
    """
    B, _, H, W = images.shape
    partner = _next_in_ring(keys[:, 0])
    through = keys[:, 1] < 0.5 if mixup and cutmix else np.full(B, bool(mixup))
    shares = np.where(through, _beta(keys[:, 2], mixup), 1.0)
    boxes = _boxes(1 - _beta(keys[:, 2], cutmix), keys[:, 3:], H, W)
    boxes[through] = 0
    others = images[onto(partner, images.device)]
    mixed = torch.where(inside(boxes, H, W, images.device), others, images)
    rows = np.flatnonzero(through)
    if len(rows):
        place = onto(rows, images.device)
        mixed.index_copy_(0, place, _blended(images[place], others[place], shares[rows]))
    kept = np.where(through, np.rint(shares * 256) / 256, 1 - boxes[:, 2:].prod(1) / (H * W))
    return mixed, _mixed_targets(targets, partner, kept, outputs)


def _blended(
    images: UInt8[Tensor, "n C H W"], others: UInt8[Tensor, "n C H W"], shares: Float64[np.ndarray, " n"]
) -> UInt8[Tensor, "n C H W"]:
    """`shares` of the pictures and the rest of the others, rounded; all sums are whole, so float32 makes no error."""
    weights = onto(shares * 256, images.device).round_()[:, None, None, None]
    sums = images.float().mul_(weights).add_(others.float().mul_(256 - weights))
    return sums.add_(128).mul_(1 / 256).to(torch.uint8)


def _mixed_targets(
    targets: Shaped[Tensor, " B *K"], partner: np.ndarray, kept: np.ndarray, outputs: int
) -> Float[Tensor, "B K"]:
    """The targets' own share `kept` and the partner's rest, in float32."""
    soft = F.one_hot(targets, outputs).float() if targets.ndim == 1 else targets.float()
    share = onto(kept, targets.device)[:, None]
    other = soft[onto(partner, targets.device)]
    return torch.where(share == 1, soft, soft * share + other * (1 - share))


def _next_in_ring(keys: Float64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
    """For each picture the one that follows it in the order of the keys; after the last comes the first."""
    order = np.argsort(keys, kind="stable")
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    return following


def _beta(keys: Float64[np.ndarray, " n"], alpha: float) -> Float64[np.ndarray, " n"]:
    """Numbers distributed as Beta(alpha, alpha): its quantiles at the keys; 1 where alpha is 0."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(alpha, alpha, keys)) if alpha else np.ones_like(keys)


def _boxes(
    areas: Float64[np.ndarray, " n"], middles: Float64[np.ndarray, "n 2"], height: int, width: int
) -> Int64[np.ndarray, "n 4"]:
    """Rectangles (top, left, height, width) of these fractions of the area, cut off at the picture's edge."""
    size = np.array([height, width])
    half = (0.5 * np.sqrt(areas)[:, None] * size).astype(np.int64)
    middle = (middles * size).astype(np.int64)
    corner, end = np.maximum(middle - half, 0), np.minimum(middle + half, size)
    return np.concatenate([corner, end - corner], axis=1)
