"""Two images in one: mixup shows both through each other, cutmix a rectangle of one in the other; targets follow.

A batch's images stand in a ring, in the order of their keys, and each is mixed with the next: how much and where
depends on the image alone, with whom on who else is in the batch. Images stay uint8: mixup's shares are whole
256ths, so that images and targets are mixed by exactly the same numbers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64, Shaped, UInt8
from torch import Tensor

from ..random_crop import CROP_DRAWS, draw_positions, first_fitting_size
from .geometry import to_device

MIXING_DRAWS = 5
"""Numbers that an image takes: its place in the ring, which way, its share, and the middle of its rectangle."""


def mix_batch(
    images: UInt8[Tensor, "B C H W"],
    targets: Shaped[Tensor, " B *K"],
    keys: Float64[np.ndarray, "B 5"],
    mixup: float,
    cutmix: float,
    outputs: int,
) -> tuple[UInt8[Tensor, "B C H W"], Float[Tensor, "B K"]]:
    """Every image mixed with another one of the batch, and the targets of both in the same shares.

    Args:
        targets: class numbers [B], or float [B, K], in which NaN is unknown and makes the mixture unknown.
        mixup, cutmix: parameters of the Beta distributions that shares are drawn from; 0 leaves that way out, and
            with both each image goes either way with equal chance.
        outputs: number of classes, K.

    Source: Zhang et al. 2018, "mixup"; Yun et al. 2019, "CutMix", whose rectangle is cut off at the image's edge
    and counts by what is left of it.
    """
    B, _, H, W = images.shape
    partner = _pair_in_ring(keys[:, 0])
    through = keys[:, 1] < 0.5 if mixup and cutmix else np.full(B, bool(mixup))
    shares = np.where(through, _beta(keys[:, 2], mixup), 1.0)
    boxes = _cutmix_boxes(1 - _beta(keys[:, 2], cutmix), keys[:, 3:], H, W)
    boxes[through] = 0
    others = images[to_device(partner, images.device)]
    mixed = torch.where(boxes_to_masks(boxes, H, W, images.device), others, images)
    rows = np.flatnonzero(through)
    if len(rows):
        place = to_device(rows, images.device)
        mixed.index_copy_(0, place, _blend_images(images[place], others[place], shares[rows]))
    kept = np.where(through, np.rint(shares * 256) / 256, 1 - boxes[:, 2:].prod(1) / (H * W))
    return mixed, _mix_targets(targets, partner, kept, outputs)


def _blend_images(
    images: UInt8[Tensor, "n C H W"], others: UInt8[Tensor, "n C H W"], shares: Float64[np.ndarray, " n"]
) -> UInt8[Tensor, "n C H W"]:
    """`shares` of the images and the rest of the others, rounded; all sums are whole, so float32 makes no error."""
    weights = to_device(shares * 256, images.device).round_()[:, None, None, None]
    sums = images.float().mul_(weights).add_(others.float().mul_(256 - weights))
    return sums.add_(128).mul_(1 / 256).to(torch.uint8)


def _mix_targets(
    targets: Shaped[Tensor, " B *K"], partner: np.ndarray, own_weights: np.ndarray, outputs: int
) -> Float[Tensor, "B K"]:
    """The targets' own share `own_weights` and the partner's rest, in float32."""
    soft = F.one_hot(targets, outputs).float() if targets.ndim == 1 else targets.float()
    share = to_device(own_weights, targets.device)[:, None]
    other = soft[to_device(partner, targets.device)]
    return torch.where(share == 1, soft, soft * share + other * (1 - share))


def _pair_in_ring(keys: Float64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
    """For each image the one that follows it in the order of the keys; after the last comes the first."""
    order = np.argsort(keys, kind="stable")
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    return following


def _beta(keys: Float64[np.ndarray, " n"], alpha: float) -> Float64[np.ndarray, " n"]:
    """Numbers distributed as Beta(alpha, alpha): its quantiles at the keys; 1 where alpha is 0."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(alpha, alpha, keys)) if alpha else np.ones_like(keys)


def _cutmix_boxes(
    areas: Float64[np.ndarray, " n"], middles: Float64[np.ndarray, "n 2"], height: int, width: int
) -> Int64[np.ndarray, "n 4"]:
    """Rectangles (top, left, height, width) of these fractions of the area, cut off at the image's edge."""
    size = np.array([height, width])
    half = (0.5 * np.sqrt(areas)[:, None] * size).astype(np.int64)
    middle = (middles * size).astype(np.int64)
    corner, end = np.maximum(middle - half, 0), np.minimum(middle + half, size)
    return np.concatenate([corner, end - corner], axis=1)


# Random erasing: a rectangle of some images is covered, so that no single part of an object is all there is to it.
#
# Source: Zhong et al. 2020, "Random Erasing Data Augmentation".

ERASING_DRAWS = CROP_DRAWS + 2
"""Numbers that an image takes: those of its rectangle, whether it is erased, and its noise."""
AREAS = (0.02, 0.33)
RATIOS = (1 / 3.3, 1 / 0.3)  # width over height; torchvision counts height over width, 0.3 to 3.3
Fill = Literal["noise", "zero", "mean"]


def random_erasing(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B draws"], probability: float, fill: Fill = "noise"
) -> UInt8[Tensor, "B C H W"]:
    """Cover a rectangle of 2 to 33 % of the area in each image with this probability.

    Ten tries for a rectangle smaller than the image, as torchvision's RandomErasing; an image too small for any
    stays whole.

    Args:
        keys: in [0, 1), ERASING_DRAWS for each image.
        fill: noise, each value 0..255 as likely; zero, black; mean, each image's own mean per channel, rounded.
    """
    B, _, H, W = images.shape
    size = np.broadcast_to(np.array([H, W]), (B, 2))
    sides, found = first_fitting_size(keys, size, size - 1, AREAS, RATIOS)
    rows = np.flatnonzero(found & (keys[:, CROP_DRAWS] < probability))
    if len(rows) == 0:
        return images
    boxes = np.concatenate([draw_positions(keys, size - sides), sides], axis=1)[rows]
    place = to_device(rows, images.device)
    chosen = images[place]
    covered = torch.where(
        boxes_to_masks(boxes, H, W, images.device), _make_fill(chosen, keys[rows, CROP_DRAWS + 1], fill), chosen
    )
    return images.index_copy(0, place, covered)


def boxes_to_masks(boxes: Int64[np.ndarray, "n 4"], height: int, width: int, device: torch.device) -> Tensor:
    """bool [n, 1, height, width]: the pixels of each image's box (top, left, height, width)."""
    tops, lefts, heights, widths = to_device(boxes, device)[..., None].unbind(1)  # 4 x [n, 1]
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    within_rows = (rows >= tops) & (rows < tops + heights)  # [n, height]
    within_columns = (columns >= lefts) & (columns < lefts + widths)  # [n, width]
    return within_rows[:, None, :, None] & within_columns[:, None, None, :]


def _make_fill(images: UInt8[Tensor, "n C H W"], keys: Float64[np.ndarray, " n"], fill: Fill) -> Tensor:
    if fill == "zero":
        return torch.zeros_like(images[:1])
    if fill == "mean":
        pixels = images[0, 0].numel()
        total = images.sum(dim=(2, 3), keepdim=True, dtype=torch.int64)
        return (total + pixels // 2).div(pixels, rounding_mode="floor").to(torch.uint8)
    return _hash_noise(to_device((keys * 2.0**32).astype(np.int64), images.device), images[0].shape)


def _hash_noise(starts: Int64[Tensor, " n"], shape: torch.Size) -> UInt8[Tensor, "n C H W"]:
    """A byte for every pixel out of its image's start and its place; the same on every device.

    Source: the 32-bit mixing function "lowbias32" of C. Wellons, in 64-bit whole numbers cut to 32 bits.
    """
    pixels = torch.arange(shape.numel(), device=starts.device).view(1, *shape)
    bits = starts[:, None, None, None] + pixels * 0x9E3779B9 & _MASK_32_BITS
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & _MASK_32_BITS
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & _MASK_32_BITS
    return ((bits ^ (bits >> 16)) >> 24).to(torch.uint8)


_MASK_32_BITS = 0xFFFFFFFF
