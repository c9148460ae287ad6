"""Random shifts, flips and resized crops of a batch of images, on the images' device.

The random numbers are passed in, a few per image, so that an image's augmentation depends on the seed, the epoch and
the image alone, never on its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from ...errors import UsageError
from ...spec import Interpolation
from ..preprocess import resize_batch
from .color import crop_and_resize
from .geometry import arange_batch, gather_pixels, to_device


def crop_and_flip(
    images: Integer[Tensor, "B C H W"],
    keys: Float64[np.ndarray, "B draws"],
    padding: int,
    flip: bool,
    flip_vertical: bool = False,
) -> Integer[Tensor, "B C H W"]:
    """Shift every image by up to `padding` pixels in each direction and flip half of them.

    Equals padding by edge pixels, a random crop of the original size, and a random flip. Keys lie in [0, 1): flip left
    to right if the first is below 0.5 and `flip` is set; the second chooses the row, the third the column; the
    fourth, which only `flip_vertical` needs, flips top to bottom.

    Source: He et al. 2016, section 4.2 (with black in place of edge pixels).
    """
    if padding == 0 and not flip and not flip_vertical:
        return images
    H, W = images.shape[-2:]
    shifts = to_device((keys[:, 1:3] * (2 * padding + 1)).astype(np.int64) - padding, images.device)
    rows = arange_batch(H, images.device) + shifts[:, :1]  # [B, H]
    columns = arange_batch(W, images.device) + shifts[:, 1:]  # [B, W]
    if flip:
        columns = torch.where(to_device(keys[:, :1] < 0.5, images.device), columns.flip(1), columns)
    if flip_vertical:
        rows = torch.where(to_device(keys[:, 3:4] < 0.5, images.device), rows.flip(1), rows)
    return gather_pixels(images, rows.clamp_(0, H - 1), columns.clamp_(0, W - 1))


def resized_crop(
    images: Integer[Tensor, "B C H W"],
    boxes: Int64[np.ndarray, "B 4"],
    size: tuple[int, int],
    interpolation: Interpolation = "bicubic",
    antialias: bool = True,
) -> Integer[Tensor, "B C h w"]:
    """Crop each image's box (top, left, height, width) and resize all crops to one size (height, width).

    Antialiased where a box is larger than the size, if `antialias` is set. On a CPU each image goes through
    `resize_batch`, which is several times as fast there; elsewhere all are resized at once by matrix products, within
    one grey level of that, or two where bicubic overshoots at hard edges. Without antialiasing images are resized one
    by one everywhere. An image's result is the same bits in any batch.

    Raises:
        UsageError: a box is empty or reaches beyond its image.
    """
    H, W = images.shape[-2:]
    ends = boxes[:, :2] + boxes[:, 2:]
    wrong = (boxes[:, :2] < 0).any(1) | (boxes[:, 2:] < 1).any(1) | (ends > (H, W)).any(1)
    if wrong.any():
        raise UsageError(f"Boxes must lie in their pictures of {H} x {W} pixels. Got {boxes[wrong][0].tolist()}.")
    if len(images) == 0 or (images.device.type != "cpu" and antialias):
        return crop_and_resize(images, to_device(boxes, images.device), size, interpolation)
    cuts = (
        image[None, :, top : top + height, left : left + width]
        for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True)
    )
    return torch.cat([resize_batch(cut, size, interpolation, antialias) for cut in cuts])


def resize_images(
    images: Integer[Tensor, "B C H W"], size: tuple[int, int], interpolation: Interpolation, antialias: bool = True
) -> Integer[Tensor, "B C h w"]:
    """Resize whole images to (height, width) on any device: torch resizes whole numbers on a CPU only."""
    if images.device.type == "cpu":
        return resize_batch(images, size, interpolation, antialias)
    whole = np.tile([0, 0, *images.shape[2:]], (len(images), 1))
    return resized_crop(images, whole, size, interpolation, antialias)
