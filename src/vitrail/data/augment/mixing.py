"""Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019) and random erasing (Zhong et al. 2020) of a batch.

Each image of a batch is mixed with the next one in the cyclic order of their keys: weight and rectangle depend on the
image alone, the partner on the batch. Images stay whole levels: mixup weights are multiples of 1/256, so that images
and targets are mixed by exactly the same weights.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64, Integer, Shaped
from torch import Tensor

from ..random_crop import CROP_DRAWS, draw_positions, first_fitting_size
from .geometry import to_device

MIXING_DRAWS = 5
"""Random numbers per image: its place in the order, mixup or cutmix, its weight, and the centre of its rectangle."""


def apply_mixup_cutmix(
    images: Integer[Tensor, "B C H W"],
    targets: Shaped[Tensor, " B *K"],
    keys: Float64[np.ndarray, "B 5"],
    mixup: float,
    cutmix: float,
    outputs: int,
) -> tuple[Integer[Tensor, "B C H W"], Float[Tensor, "B K"]]:
    """Mix every image with another one of the batch, and their targets by the same weights.

    Args:
        targets: class indices [B], or float [B, K], in which NaN is unknown and makes the mixture unknown.
        mixup, cutmix: alpha of the Beta(alpha, alpha) distributions of the weights; 0 turns one off, and with both
            each image gets either with equal probability.
        outputs: number of classes, K.

    Source: Zhang et al. 2018, "mixup"; Yun et al. 2019, "CutMix", whose rectangle is cut off at the image's edge
    and counts by its remaining area.
    """
    B, _, H, W = images.shape
    partner = _pair_in_ring(keys[:, 0])
    is_mixup = keys[:, 1] < 0.5 if mixup and cutmix else np.full(B, bool(mixup))
    shares = np.where(is_mixup, _beta(keys[:, 2], mixup), 1.0)
    boxes = _cutmix_boxes(1 - _beta(keys[:, 2], cutmix), keys[:, 3:], H, W)
    boxes[is_mixup] = 0
    others = images[to_device(partner, images.device)]
    mixed = torch.where(boxes_to_masks(boxes, H, W, images.device), others, images)
    rows = np.flatnonzero(is_mixup)
    if len(rows):
        place = to_device(rows, images.device)
        weights = to_device(shares[rows] * 256, images.device).round_()[:, None, None, None]
        sums = images[place].float().mul_(weights).add_(others[place].float().mul_(256 - weights))  # exact integers
        mixed.index_copy_(0, place, sums.add_(128).mul_(1 / 256).to(images.dtype))
    kept = np.where(is_mixup, np.rint(shares * 256) / 256, 1 - boxes[:, 2:].prod(1) / (H * W))
    share = to_device(kept, targets.device)[:, None]
    soft = F.one_hot(targets, outputs).float() if targets.ndim == 1 else targets.float()
    other = soft[to_device(partner, targets.device)]
    return mixed, torch.where(share == 1, soft, soft * share + other * (1 - share))


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


def random_erasing(
    images: Integer[Tensor, "B C H W"], keys: Float64[np.ndarray, "B draws"], probability: float
) -> Integer[Tensor, "B C H W"]:
    """Random erasing (Zhong et al. 2020): cover a rectangle of 2 to 33 % of the area with noise.

    Ten tries for a rectangle smaller than the image, as in torchvision's RandomErasing; an image too small for any
    is not erased.

    Args:
        keys: in [0, 1), ERASING_DRAWS for each image.
        probability: of erasing an image.
    """
    B, _, H, W = images.shape
    size = np.broadcast_to(np.array([H, W]), (B, 2))
    sides, fits = first_fitting_size(keys, size, size - 1, AREAS, RATIOS)
    rows = np.flatnonzero(fits & (keys[:, CROP_DRAWS] < probability))
    if len(rows) == 0:
        return images
    boxes = np.concatenate([draw_positions(keys, size - sides), sides], axis=1)[rows]
    place = to_device(rows, images.device)
    seeds = to_device((keys[rows, CROP_DRAWS + 1] * 2.0**32).astype(np.int64), images.device)
    noise = _hash_noise(seeds, images[0].shape) >> (24 if images.dtype == torch.uint8 else 16)
    covered = torch.where(boxes_to_masks(boxes, H, W, images.device), noise.to(images.dtype), images[place])
    return images.index_copy(0, place, covered)


def boxes_to_masks(boxes: Int64[np.ndarray, "n 4"], height: int, width: int, device: torch.device) -> Tensor:
    """bool [n, 1, height, width]: the pixels of each image's box (top, left, height, width)."""
    tops, lefts, heights, widths = to_device(boxes, device)[..., None].unbind(1)  # 4 x [n, 1]
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    within_rows = (rows >= tops) & (rows < tops + heights)  # [n, height]
    within_columns = (columns >= lefts) & (columns < lefts + widths)  # [n, width]
    return within_rows[:, None, :, None] & within_columns[:, None, None, :]


def _hash_noise(starts: Int64[Tensor, " n"], shape: torch.Size) -> Int64[Tensor, "n C H W"]:
    """32 pseudo-random bits for every pixel, from its image's seed and its position; the same on every device.

    Source: the 32-bit mixing function "lowbias32" of C. Wellons, in 64-bit integers masked to 32 bits.
    """
    pixels = torch.arange(shape.numel(), device=starts.device).view(1, *shape)
    bits = starts[:, None, None, None] + pixels * 0x9E3779B9 & _MASK_32_BITS
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & _MASK_32_BITS
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & _MASK_32_BITS
    return bits ^ (bits >> 16)


_MASK_32_BITS = 0xFFFFFFFF
