"""Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019) and random erasing (Zhong et al. 2020) of a batch.

Each image of a batch is mixed with the next one in the cyclic order of their keys: weight and rectangle depend on the
image alone, the partner on the batch. Images stay uint8: mixup weights are multiples of 1/256, so that images and
targets are mixed by exactly the same weights.
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
"""Random numbers per image: its place in the order, mixup or cutmix, its weight, and the centre of its rectangle."""


def mix_batch(
    images: UInt8[Tensor, "B C H W"],
    targets: Shaped[Tensor, " B *K"],
    keys: Float64[np.ndarray, "B 5"],
    mixup: float,
    cutmix: float,
    outputs: int,
) -> tuple[UInt8[Tensor, "B C H W"], Float[Tensor, "B K"]]:
    """Mix every image with another one of the batch, and their targets by the same weights.

    Args:
        targets: class indices [B], or float [B, K], in which NaN is unknown and makes the mixture unknown.
        mixup, cutmix: alpha of the Beta(alpha, alpha) distributions of the weights; 0 turns one off, and with both
            each image gets either with equal probability.
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
    """Weighted sum of images and partners, rounded; all sums are integers, so float32 is exact."""
    weights = to_device(shares * 256, images.device).round_()[:, None, None, None]
    sums = images.float().mul_(weights).add_(others.float().mul_(256 - weights))
    return sums.add_(128).mul_(1 / 256).to(torch.uint8)


def _mix_targets(
    targets: Shaped[Tensor, " B *K"], partner: np.ndarray, own_weights: np.ndarray, outputs: int
) -> Float[Tensor, "B K"]:
    """Targets times `own_weights` plus the partners' targets times the rest, in float32."""
    soft = F.one_hot(targets, outputs).float() if targets.ndim == 1 else targets.float()
    share = to_device(own_weights, targets.device)[:, None]
    other = soft[to_device(partner, targets.device)]
    return torch.where(share == 1, soft, soft * share + other * (1 - share))


def _pair_in_ring(keys: Float64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
    """The partner of each image: the next one in the cyclic order of the keys."""
    order = np.argsort(keys, kind="stable")
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    return following


def _beta(keys: Float64[np.ndarray, " n"], alpha: float) -> Float64[np.ndarray, " n"]:
    """Draws from Beta(alpha, alpha): its quantiles at the keys; 1 where alpha is 0."""
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


# -- Random erasing.

ERASING_DRAWS = CROP_DRAWS + 2
"""Random numbers per image: those of its rectangle, whether it is erased, and the seed of its noise."""
AREAS = (0.02, 0.33)
RATIOS = (1 / 3.3, 1 / 0.3)  # width over height; torchvision counts height over width, 0.3 to 3.3
Fill = Literal["noise", "zero", "mean"]


def random_erasing(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B draws"], probability: float, fill: Fill = "noise"
) -> UInt8[Tensor, "B C H W"]:
    """Random erasing (Zhong et al. 2020): cover a rectangle of 2 to 33 % of the area with a probability.

    Ten tries for a rectangle smaller than the image, as in torchvision's RandomErasing; an image too small for any
    is not erased.

    Args:
        keys: in [0, 1), ERASING_DRAWS for each image.
        fill: noise is uniform in 0..255; zero is black; mean is each image's own mean per channel, rounded.
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
    """A pseudo-random byte for every pixel, from its image's seed and its position; the same on every device.

    Source: the 32-bit mixing function "lowbias32" of C. Wellons, in 64-bit integers masked to 32 bits.
    """
    pixels = torch.arange(shape.numel(), device=starts.device).view(1, *shape)
    bits = starts[:, None, None, None] + pixels * 0x9E3779B9 & _MASK_32_BITS
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & _MASK_32_BITS
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & _MASK_32_BITS
    return ((bits ^ (bits >> 16)) >> 24).to(torch.uint8)


_MASK_32_BITS = 0xFFFFFFFF
