"""Affine operations on batches of images (shear, translate, rotate, scale), and gathering pixels by row and column.

Sampling is bilinear, pixels outside the image are black by default, results are rounded to grey levels. An image's
result is the same bits in any batch: coordinates are computed element by element, never by matrix products.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64, Integer
from torch import Tensor


def shear_x(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Shear rows to the left by `amounts` pixels per row; the top edge stays."""
    H = images.shape[-2]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return affine_transform(images, np.stack([one, amounts, amounts * H / 2, zero, one, zero], axis=1))


def shear_y(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Shear columns upwards by `amounts` pixels per column; the left edge stays."""
    W = images.shape[-1]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return affine_transform(images, np.stack([one, zero, zero, amounts, one, amounts * W / 2], axis=1))


def translate_x(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Translate to the right by `amounts` pixels, truncated."""
    return _translate(images, np.zeros_like(amounts), amounts)


def translate_y(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Translate down by `amounts` pixels, truncated."""
    return _translate(images, amounts, np.zeros_like(amounts))


def rotate(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Rotate counter-clockwise about the centre by `amounts` degrees."""
    cosines, sines = np.cos(np.radians(amounts)), np.sin(np.radians(amounts))
    zero = np.zeros_like(amounts)
    return affine_transform(images, np.stack([cosines, -sines, zero, sines, cosines, zero], axis=1))


def _translate(
    images: Integer[Tensor, "n C H W"], down: Float64[np.ndarray, " n"], right: Float64[np.ndarray, " n"]
) -> Integer[Tensor, "n C H W"]:
    H, W = images.shape[-2:]
    shifts = to_device(np.stack([down, right]).astype(np.int64)[..., None], images.device)  # [2, n, 1]
    return gather_pixels_or_black(
        images, arange_batch(H, images.device) - shifts[0], arange_batch(W, images.device) - shifts[1]
    )


def affine_transform(
    images: Integer[Tensor, "n C H W"],
    matrices: Float64[np.ndarray, "n 6"],
    border: Literal["zeros", "border"] = "zeros",
    mode: Literal["bilinear", "nearest"] = "bilinear",
) -> Integer[Tensor, "n C H W"]:
    """Affine transform: output pixel (x, y) is sampled at (a x + b y + c, d x + e y + f), both from the centre.

    Args:
        matrices: a, b, c, d, e, f of each image.
        border: padding outside the image: zeros is black, border the nearest pixel.
        mode: nearest for masks, whose values have nothing between them.
    """
    H, W = images.shape[-2:]
    x = _centered_coordinates(W, images.device)[None, None]  # [1, 1, W]
    y = _centered_coordinates(H, images.device)[None, :, None]  # [1, H, 1]
    a, b, c, d, e, f = to_device(matrices, images.device)[..., None, None].unbind(1)  # 6 x [n, 1, 1]
    columns = (a * x + c) + b * y  # [n, H, W]
    rows = (d * x + f) + e * y
    places = torch.stack([columns * (2 / W), rows * (2 / H)], dim=-1)  # -1..1 from outer edge to outer edge
    sampled = F.grid_sample(images.float(), places, mode=mode, padding_mode=border, align_corners=False)
    return sampled.round_().to(images.dtype)


def _centered_coordinates(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device) - (length - 1) / 2


# -- Random affine augmentation: rotation, scale and translation in one resampling.

AFFINE_DRAWS = 5


def random_affine(
    images: Integer[Tensor, "B C H W"],
    keys: Float64[np.ndarray, "B 5"],
    rotate: float,
    scale: float,
    translate: float,
    mode: Literal["bilinear", "nearest"] = "bilinear",
) -> Integer[Tensor, "B C H W"]:
    """Rotate, scale and translate every image at random; outside the image the edge pixels are repeated.

    Keys lie in [0, 1) and choose angle, height, width, vertical and horizontal translation; 0.5 changes nothing.

    Args:
        rotate: largest angle in degrees.
        scale: a side is scaled by 1 / (1 + scale) to 1 + scale; height and width each by their own key.
        translate: largest translation as a fraction of the side, also by fractions of a pixel.
        mode: nearest for masks.

    Source: the affine distortions of Simard, Steinkraus and Platt 2003, section 2.
    """
    H, W = images.shape[-2:]
    sides = 2 * keys - 1  # [B, 5] in -1..1
    angles = np.radians(rotate * sides[:, 0])
    tall, wide = (1 + scale) ** sides[:, 1], (1 + scale) ** sides[:, 2]
    down, right = translate * H * sides[:, 3], translate * W * sides[:, 4]
    cosines, sines = np.cos(angles), np.sin(angles)
    places = [cosines / wide, -sines / tall, -right, sines / wide, cosines / tall, -down]
    return affine_transform(images, np.stack(places, axis=1), border="border", mode=mode)


# -- Gathering pixels by row and column: shifts, flips and padding.


def gather_pixels(
    images: Integer[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> Integer[Tensor, "B C H W"]:
    """Gather the pixels at each image's rows and columns, all of which must lie inside the image."""
    B, C, H, W = images.shape
    places = rows[:, :, None] * W + columns[:, None, :]  # [B, H, W]
    places = places.view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, places).view(B, C, H, W)


def gather_pixels_or_black(
    images: Integer[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> Integer[Tensor, "B C H W"]:
    """As `gather_pixels`, but black where a row or a column is outside the image."""
    H, W = images.shape[-2:]
    inside = ((rows >= 0) & (rows < H))[:, None, :, None] & ((columns >= 0) & (columns < W))[:, None, None]
    return gather_pixels(images, rows.clamp(0, H - 1), columns.clamp(0, W - 1)) * inside


def arange_batch(length: int, device: torch.device) -> Int64[Tensor, "1 length"]:
    """0, 1, 2 ... length - 1, with a batch axis."""
    return torch.arange(length, device=device)[None]


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy values to a device without synchronising with it; float64 becomes float32."""
    tensor = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32) if values.dtype == np.float64 else values))
    return tensor.to(device, non_blocking=device.type == "cuda")
