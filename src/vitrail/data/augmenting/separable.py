"""Filters along rows and columns as two matrix products a picture, with bits that depend on nothing but the picture.

Weights are whole multiples of 2**-15 and grey levels whole numbers below 256, so that every sum of their products is
a whole number below 2**24, which float32 holds exactly: order of summation, batch, device and threads change nothing.
Sums are rounded to grey levels after the columns and again after the rows, as Pillow and torch do for uint8.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Float64, Int64, UInt8
from torch import Tensor

from ...spec import Interpolation
from .onto import onto

UNIT = 2.0**15


def filtered(
    images: UInt8[Tensor, "n C H W"], down: Float32[Tensor, "n h H"], across: Float32[Tensor, "n w W"]
) -> UInt8[Tensor, "n C h w"]:
    """Each picture's columns mixed by its `across`, then its rows by its `down`; each row of weights sums to 1.

    The sum of a row's weights without their signs must stay below 2, which every resize and blur keeps.
    """
    n, C, H, W = images.shape
    h, w = down.shape[1], across.shape[1]
    rows = images.reshape(n, C * H, W).float() @ _whole(across).transpose(1, 2)  # [n, C * H, w]
    columns = _levels(rows).view(n, C, H, w).transpose(2, 3).reshape(n, C * w, H)
    mixed = _levels(columns @ _whole(down).transpose(1, 2))  # [n, C * w, h]
    return mixed.view(n, C, w, h).transpose(2, 3).to(torch.uint8).contiguous()


def cut_and_resized(
    images: UInt8[Tensor, "n C H W"], boxes: Int64[Tensor, "n 4"], size: tuple[int, int], interpolation: Interpolation
) -> UInt8[Tensor, "n C h w"]:
    """Each picture's box (top, left, height, width), antialiased, as (height, width) pixels."""
    tops, lefts, heights, widths = boxes.unbind(1)
    down = _resize_weights(tops, heights, images.shape[2], size[0], interpolation)
    return filtered(images, down, _resize_weights(lefts, widths, images.shape[3], size[1], interpolation))


def blurred(
    images: UInt8[Tensor, "n C H W"], sigmas: Float64[np.ndarray, " n"], radius: int
) -> UInt8[Tensor, "n C H W"]:
    """Each picture blurred by a normal curve cut off `radius` pixels away, and mirrored at its edge.

    On a CPU by convolutions, which are faster there; the bits are those of the products.
    """
    H, W = images.shape[2:]
    if images.device.type != "cpu":
        down = gaussian_weights(sigmas, H, radius, images.device)
        return filtered(images, down, gaussian_weights(sigmas, W, radius, images.device))
    values = images.flatten(0, 1)[None].float()  # [1, n * C, H, W]
    for dimension, side in ((3, W), (2, H)):
        curves = onto(_curves(sigmas, min(radius, side - 1)), images.device) * UNIT  # [n, taps]
        values = _convolved(values, curves.repeat_interleave(images.shape[1], 0), dimension)
    return values.view(images.shape).to(torch.uint8)


def gaussian_weights(
    sigmas: Float64[np.ndarray, " n"], side: int, radius: int, device: torch.device
) -> Float32[Tensor, "n side side"]:
    """Weights that blur a side; its edge pixels are not repeated, and a radius without room is cut to side - 1."""
    radius = min(radius, side - 1)
    curves = _curves(sigmas, radius)
    places = np.abs(np.arange(side)[:, None] + np.arange(-radius, radius + 1))  # [side, taps]
    places = onto((side - 1) - np.abs((side - 1) - places), device)
    taps = onto(curves, device)[:, None].expand(-1, side, -1)  # [n, side, taps]
    weights = torch.zeros(len(sigmas), side, side, device=device)
    return weights.scatter_add_(2, places.expand(len(sigmas), -1, -1), taps)


def _resize_weights(
    starts: Int64[Tensor, " n"], lengths: Int64[Tensor, " n"], inputs: int, outputs: int, interpolation: Interpolation
) -> Float32[Tensor, "n outputs inputs"]:
    """Weights that stretch the pixels start .. start + length of a side of `inputs` pixels to `outputs` pixels.

    Antialiased: where the side shrinks, the kernel widens with it. Pixels outside the cut have no part in it.

    Source: the triangle and the cubic kernel (a = -0.5) of Pillow, and of torch with antialias=True.
    """
    scale = lengths.float() / outputs  # [n] input pixels per output pixel
    wide = scale.clamp(min=1)[:, None, None]
    middles = scale[:, None] * (torch.arange(outputs, device=starts.device) + 0.5)  # [n, outputs], from the cut's edge
    pixels = torch.arange(inputs, device=starts.device) - starts[:, None]  # [n, inputs], from the cut's edge
    inside = (pixels >= 0) & (pixels < lengths[:, None])
    kernel = _cubic if interpolation == "bicubic" else _triangle
    weights = kernel((pixels[:, None] + 0.5 - middles[:, :, None]) / wide) * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def _curves(sigmas: Float64[np.ndarray, " n"], radius: int) -> Float64[np.ndarray, "n taps"]:
    """Normal curves that sum to 1, of whole multiples of 2**-15, so that what the mirror adds to them stays whole."""
    curves = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigmas[:, None]) ** 2)
    return np.rint(curves / curves.sum(1, keepdims=True) * UNIT) / UNIT


def _convolved(
    values: Float32[Tensor, "1 channels H W"], curves: Float32[Tensor, "channels taps"], dimension: int
) -> Float32[Tensor, "1 channels H W"]:
    """Grey levels of each channel weighed by its own curve along rows (3) or columns (2)."""
    radius = curves.shape[1] // 2
    border = (radius, radius, 0, 0) if dimension == 3 else (0, 0, radius, radius)
    kernels = curves[:, None, None, :] if dimension == 3 else curves[:, None, :, None]
    return _levels(F.conv2d(F.pad(values, border, mode="reflect"), kernels, groups=len(curves)))


def _whole(weights: Tensor) -> Tensor:
    """The weights as whole numbers of 2**-15."""
    return (weights * UNIT).round_()


def _levels(sums: Tensor) -> Tensor:
    """Grey levels of sums of 2**-15, halves rounded up."""
    return sums.add_(UNIT / 2).mul_(1 / UNIT).floor_().clamp_(0, 255)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
