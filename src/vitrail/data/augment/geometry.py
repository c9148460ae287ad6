"""Sheared, moved and turned images: for every pixel of the result, the place in the image that it is taken from.

Places between pixels are bilinear, places outside the image are black unless said otherwise, results are rounded to
grey levels. An image's result is the same bits in any batch: places are worked out number by number, never by matrix
products.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor


def shear_x(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Rows slide to the left by `amounts` pixels a row, more and more downwards; the top edge stays."""
    H = images.shape[-2]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return affine_transform(images, np.stack([one, amounts, amounts * H / 2, zero, one, zero], axis=1))


def shear_y(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Columns slide upwards by `amounts` pixels a column, more and more to the right; the left edge stays."""
    W = images.shape[-1]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return affine_transform(images, np.stack([one, zero, zero, amounts, one, amounts * W / 2], axis=1))


def translate_x(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Images move to the right by `amounts` pixels, of which the fraction is dropped."""
    return _translate(images, np.zeros_like(amounts), amounts)


def translate_y(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Images move down by `amounts` pixels, of which the fraction is dropped."""
    return _translate(images, amounts, np.zeros_like(amounts))


def rotate(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Images turn counter-clockwise about their middle by `amounts` degrees."""
    cosines, sines = np.cos(np.radians(amounts)), np.sin(np.radians(amounts))
    zero = np.zeros_like(amounts)
    return affine_transform(images, np.stack([cosines, -sines, zero, sines, cosines, zero], axis=1))


def _translate(
    images: UInt8[Tensor, "n C H W"], down: Float64[np.ndarray, " n"], right: Float64[np.ndarray, " n"]
) -> UInt8[Tensor, "n C H W"]:
    H, W = images.shape[-2:]
    shifts = to_device(np.stack([down, right]).astype(np.int64)[..., None], images.device)  # [2, n, 1]
    return gather_pixels_or_black(
        images, arange_batch(H, images.device) - shifts[0], arange_batch(W, images.device) - shifts[1]
    )


def affine_transform(
    images: UInt8[Tensor, "n C H W"], matrices: Float64[np.ndarray, "n 6"], border: Literal["zeros", "border"] = "zeros"
) -> UInt8[Tensor, "n C H W"]:
    """For the pixel at (x, y) from the middle, the image at (a x + b y + c, d x + e y + f) from the middle.

    Args:
        matrices: a, b, c, d, e, f of each image.
        border: what lies outside: zeros is black, border the nearest pixel.
    """
    H, W = images.shape[-2:]
    x = _centered_coordinates(W, images.device)[None, None]  # [1, 1, W]
    y = _centered_coordinates(H, images.device)[None, :, None]  # [1, H, 1]
    a, b, c, d, e, f = to_device(matrices, images.device)[..., None, None].unbind(1)  # 6 x [n, 1, 1]
    columns = (a * x + c) + b * y  # [n, H, W]
    rows = (d * x + f) + e * y
    places = torch.stack([columns * (2 / W), rows * (2 / H)], dim=-1)  # -1..1 from outer edge to outer edge
    found = F.grid_sample(images.float(), places, mode="bilinear", padding_mode=border, align_corners=False)
    return found.round_().to(torch.uint8)


def _centered_coordinates(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device) - (length - 1) / 2


# Small changes of place that most subjects survive: turned, stretched and moved a little, in one resampling.

AFFINE_DRAWS = 5


def random_affine(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B 5"], rotate: float, scale: float, translate: float
) -> UInt8[Tensor, "B C H W"]:
    """Every image turned, made larger or smaller, and moved, each to either side; beyond its edge the edge goes on.

    Keys lie in [0, 1) and choose the angle, the height, the width, the way down and the way right; 0.5 changes nothing.

    Args:
        rotate: most degrees.
        scale: a side becomes at most 1 + stretch times as long, at least 1 / (1 + stretch) times; height and width
            each by their own key.
        translate: most, as a fraction of the side; images move between pixels too.

    Source: the affine distortions of Simard, Steinkraus and Platt 2003, section 2.
    """
    H, W = images.shape[-2:]
    sides = 2 * keys - 1  # [B, 5] in -1..1
    angles = np.radians(rotate * sides[:, 0])
    tall, wide = (1 + scale) ** sides[:, 1], (1 + scale) ** sides[:, 2]
    down, right = translate * H * sides[:, 3], translate * W * sides[:, 4]
    cosines, sines = np.cos(angles), np.sin(angles)
    places = [cosines / wide, -sines / tall, -right, sines / wide, cosines / tall, -down]
    return affine_transform(images, np.stack(places, axis=1), border="border")


# Images made of their own pixels at other places: what shifts, mirrors and paddings all come down to.


def gather_pixels(
    images: UInt8[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> UInt8[Tensor, "B C H W"]:
    """Each image made of the pixels at its own rows and columns, all of which must be its own."""
    B, C, H, W = images.shape
    places = rows[:, :, None] * W + columns[:, None, :]  # [B, H, W]
    places = places.view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, places).view(B, C, H, W)


def gather_pixels_or_black(
    images: UInt8[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> UInt8[Tensor, "B C H W"]:
    """As `picked`, but black where a row or a column lies outside the image."""
    H, W = images.shape[-2:]
    inside = ((rows >= 0) & (rows < H))[:, None, :, None] & ((columns >= 0) & (columns < W))[:, None, None]
    return gather_pixels(images, rows.clamp(0, H - 1), columns.clamp(0, W - 1)) * inside


def arange_batch(length: int, device: torch.device) -> Int64[Tensor, "1 length"]:
    """0, 1, 2 ... length - 1, for images of one batch."""
    return torch.arange(length, device=device)[None]


# Numbers that were drawn on the processor, brought to where the images lie without waiting for anything.


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """The values on a device; float64 becomes float32. A GPU goes on working while they travel."""
    tensor = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32) if values.dtype == np.float64 else values))
    return tensor.to(device, non_blocking=device.type == "cuda")
