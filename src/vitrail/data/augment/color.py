"""Separable filters (crop and resize, blur), colour and tone operations on batches of uint8 or int32 images.

An image's result is the same bits in any batch, on any device, with any number of threads. For filters, weights are
multiples of 2**-15 and grey levels integers below 256, so every sum of products is an integer below 2**24, which
float32 holds exactly. Sums are rounded to grey levels after the columns and again after the rows, as Pillow and torch
do for uint8. Deeper images, int32 of levels 0..65535, take float64.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Float64, Int64, Integer, Shaped
from torch import Tensor

from ...spec import Interpolation
from ..preprocess import float_type, white_level
from .geometry import to_device

UNIT = 2.0**15
BLUR_RADIUS = 6
"""Radius of the blur kernel in pixels: three standard deviations of the strongest blur, 2."""


def separable_filter(
    images: Integer[Tensor, "n C H W"], down: Float32[Tensor, "n h H"], across: Float32[Tensor, "n w W"]
) -> Integer[Tensor, "n C h w"]:
    """Filter each image's columns by its `across`, then its rows by its `down`; each row of weights sums to 1.

    The sum of the absolute weights of a row must stay below 2, which holds for every resize and blur.
    """
    n, C, H, W = images.shape
    h, w = down.shape[1], across.shape[1]
    dtype, white = float_type(images), white_level(images)
    across, down = (_to_integer_weights(weights).to(dtype).transpose(1, 2) for weights in (across, down))
    rows = images.reshape(n, C * H, W).to(dtype) @ across  # [n, C * H, w]
    columns = _to_grey_levels(rows, white).view(n, C, H, w).transpose(2, 3).reshape(n, C * w, H)
    mixed = _to_grey_levels(columns @ down, white)  # [n, C * w, h]
    return mixed.view(n, C, w, h).transpose(2, 3).to(images.dtype).contiguous()


def crop_and_resize(
    images: Integer[Tensor, "n C H W"], boxes: Int64[Tensor, "n 4"], size: tuple[int, int], interpolation: Interpolation
) -> Integer[Tensor, "n C h w"]:
    """Crop each image's box (top, left, height, width) and resize it, antialiased, to (height, width) pixels."""
    tops, lefts, heights, widths = boxes.unbind(1)
    down = _resize_weights(tops, heights, images.shape[2], size[0], interpolation)
    return separable_filter(images, down, _resize_weights(lefts, widths, images.shape[3], size[1], interpolation))


def gaussian_blur(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Gaussian blur with a standard deviation of `amounts` pixels, above 0 and up to 2, mirrored at the edge.

    On a CPU by convolutions, which are faster there and give the same bits.
    """
    H, W = images.shape[2:]
    if images.device.type != "cpu":
        down = gaussian_blur_weights(amounts, H, images.device)
        return separable_filter(images, down, gaussian_blur_weights(amounts, W, images.device))
    values = images.flatten(0, 1)[None].to(float_type(images))  # [1, n * C, H, W]
    for dimension, side in ((3, W), (2, H)):
        curves = to_device(_gaussian_kernels(amounts, min(BLUR_RADIUS, side - 1)), images.device) * UNIT  # [n, taps]
        curves = curves.to(values.dtype).repeat_interleave(images.shape[1], 0)
        values = _to_grey_levels(_convolve_1d(values, curves, dimension), white_level(images))
    return values.view(images.shape).to(images.dtype)


def gaussian_blur_weights(
    sigmas: Float64[np.ndarray, " n"], side: int, device: torch.device
) -> Float32[Tensor, "n side side"]:
    """Weights that blur a side, reflecting without repeating the edge."""
    radius = min(BLUR_RADIUS, side - 1)
    places = np.abs(np.arange(side)[:, None] + np.arange(-radius, radius + 1))  # [side, taps]
    places = to_device((side - 1) - np.abs((side - 1) - places), device)
    taps = to_device(_gaussian_kernels(sigmas, radius), device)[:, None].expand(-1, side, -1)  # [n, side, taps]
    weights = torch.zeros(len(sigmas), side, side, device=device)
    return weights.scatter_add_(2, places.expand(len(sigmas), -1, -1), taps)


def _resize_weights(
    starts: Int64[Tensor, " n"], lengths: Int64[Tensor, " n"], inputs: int, outputs: int, interpolation: Interpolation
) -> Float32[Tensor, "n outputs inputs"]:
    """Weights that resize the pixels start .. start + length of a side of `inputs` pixels to `outputs` pixels.

    Antialiased: where the side shrinks, the kernel widens with it. Pixels outside the crop have weight 0.

    Source: the triangle and the cubic kernel (a = -0.5) of Pillow, and of torch with antialias=True.
    """
    scale = lengths.float() / outputs  # [n] input pixels per output pixel
    wide = scale.clamp(min=1)[:, None, None]
    middles = scale[:, None] * (torch.arange(outputs, device=starts.device) + 0.5)  # [n, outputs], from the crop's edge
    pixels = torch.arange(inputs, device=starts.device) - starts[:, None]  # [n, inputs], from the crop's edge
    inside = (pixels >= 0) & (pixels < lengths[:, None])
    kernel = _cubic_kernel if interpolation == "bicubic" else _triangle_kernel
    weights = kernel((pixels[:, None] + 0.5 - middles[:, :, None]) / wide) * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def _gaussian_kernels(sigmas: Float64[np.ndarray, " n"], radius: int) -> Float64[np.ndarray, "n taps"]:
    """Gaussian kernels that sum to 1, in multiples of 2**-15, so that reflected sums stay such multiples."""
    curves = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigmas[:, None]) ** 2)
    return np.rint(curves / curves.sum(1, keepdims=True) * UNIT) / UNIT


def _convolve_1d(
    values: Float[Tensor, "1 channels H W"], curves: Float[Tensor, "channels taps"], dimension: int
) -> Float[Tensor, "1 channels H W"]:
    """Convolve each channel with its own kernel along rows (3) or columns (2)."""
    radius = curves.shape[1] // 2
    border = (radius, radius, 0, 0) if dimension == 3 else (0, 0, radius, radius)
    kernels = curves[:, None, None, :] if dimension == 3 else curves[:, None, :, None]
    return F.conv2d(F.pad(values, border, mode="reflect"), kernels, groups=len(curves))


def _to_integer_weights(weights: Tensor) -> Tensor:
    """Round weights to multiples of 2**-15."""
    return (weights * UNIT).round_()


def _to_grey_levels(sums: Tensor, white: int) -> Tensor:
    """Round sums in units of 2**-15 to grey levels, halves up."""
    return sums.add_(UNIT / 2).mul_(1 / UNIT).floor_().clamp_(0, white)


def _triangle_kernel(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic_kernel(x: Tensor, a: float = -0.5) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


# -- Point operations: lookup tables of 256 entries per image or channel, made of integers or single float32 products
# and sums, whose bits are the same in any batch. Fractions are truncated, as Pillow and torchvision do. For deeper
# images the same is computed of every pixel: a table would have more entries than most images have pixels.


def adjust_brightness(
    images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]
) -> Integer[Tensor, "n C H W"]:
    """Brightness: levels times `amounts`."""
    return _map_levels(images, _levels(images) * _per_image(amounts, images))


def adjust_contrast(
    images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]
) -> Integer[Tensor, "n C H W"]:
    """Contrast: 0 gives the image's mean grey, 1 the image, 2 twice the distance from the mean grey.

    The mean is that of the grey image; with any number of channels but three, that of all values.
    """
    values = rgb_to_grayscale(images) if images.shape[1] == 3 else images
    total = values.sum(dim=(1, 2, 3), dtype=torch.int64)  # integer, so that the order of summation does not matter
    mean = (total.float() / values[0].numel())[:, None, None]
    amount = _per_image(amounts, images)
    return _map_levels(images, _levels(images) * amount + mean * (1 - amount))


def posterize(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Posterise: keep the first `amounts` bits (0..8) of every level."""
    count = white_level(images) + 1
    masks = count - (count >> amounts.astype(np.int64))
    return images & to_device(masks, images.device).to(images.dtype)[:, None, None, None]


def solarize(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Solarise: invert levels of at least `amounts`, counted to 255 for every depth."""
    levels, white = _levels(images), white_level(images)
    least = _per_image(amounts * (white / 255), images)
    return _map_levels(images, torch.where(levels >= least, white - levels, levels))


def invert(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Invert every level; the amount is ignored."""
    return white_level(images) - images


def autocontrast(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Autocontrast: stretch each channel from its darkest pixel, 0, to its brightest, white; a flat channel stays."""
    flat, white = images.flatten(2), white_level(images)
    low, high = flat.amin(2, keepdim=True).int(), flat.amax(2, keepdim=True).int()  # [n, C, 1]
    levels = _levels(images).long()
    stretched = ((levels - low) * white).div((high - low).clamp(min=1), rounding_mode="floor")
    return _map_levels(images, torch.where(high > low, stretched, levels))


def equalize(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Histogram equalisation of each channel, by Pillow's integer formula; of deeper images by ranks.

    Pillow's formula would leave an image with fewer pixels than levels as it is.
    """
    if images.dtype != torch.uint8:
        return _equalize_by_rank(images)
    flat = images.flatten(2).long()  # [n, C, H * W]
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat[:1, :1, :1]).expand_as(flat))
    below = counts.cumsum(2) - counts  # pixels that are darker
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")  # [n, C, 1]
    spread = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    table = torch.where(step > 0, spread, torch.arange(256, device=images.device))
    return _map_levels(images, table)


def _equalize_by_rank(images: Integer[Tensor, "n C H W"]) -> Integer[Tensor, "n C H W"]:
    """Each level becomes the fraction of darker pixels, from 0 to white; a flat channel stays."""
    flat, white = images.flatten(2), white_level(images)
    below = torch.searchsorted(flat.sort(2).values, flat)  # [n, C, H * W] pixels that are darker
    most = below.amax(2, keepdim=True)
    spread = (below * white + most // 2).div(most.clamp(min=1), rounding_mode="floor")
    return _map_levels(images, torch.where(most > 0, spread, flat))


def rgb_to_grayscale(images: Integer[Tensor, "n 3 H W"]) -> Integer[Tensor, "n 1 H W"]:
    """Luma 0.299 red + 0.587 green + 0.114 blue, in 16-bit fixed point, rounded, as in Pillow."""
    red, green, blue = images.to(torch.int32 if images.dtype == torch.uint8 else torch.int64).unbind(1)
    weighted = red * 19595 + green * 38470 + blue * 7471 + 0x8000
    return (weighted >> 16).to(images.dtype)[:, None]


def _levels(images: Tensor) -> Tensor:
    """All levels [256] that an image of 8 bits can have; the pixels [n, C, H * W] of deeper images."""
    if images.dtype == torch.uint8:
        return torch.arange(256, device=images.device, dtype=torch.float32)
    return images.flatten(2).float()


def _per_image(amounts: np.ndarray, images: Tensor) -> Tensor:
    return to_device(amounts, images.device)[:, None, None]


def _map_levels(images: Integer[Tensor, "n C H W"], values: Shaped[Tensor, "n c levels"]) -> Integer[Tensor, "n C H W"]:
    """The images with the value of each of `_levels`, truncated; one table serves all channels, or each has its own."""
    n, C, H, W = images.shape
    values = values.clamp_(0, white_level(images)).to(images.dtype)
    if images.dtype == torch.uint8:
        values = values.expand(n, C, 256).gather(2, images.reshape(n, C, H * W).long())
    return values.view(n, C, H, W)


# -- Operations on a pixel's channels or neighbours: saturation, grey, sharpness.


def adjust_saturation(
    images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]
) -> Integer[Tensor, "n C H W"]:
    """Saturation: 0 is grey, 1 the image, 2 twice as far from grey. Images without three channels stay."""
    if images.shape[1] != 3:
        return images
    amount = to_device(amounts, images.device)[:, None, None, None]
    blended = images.float().mul_(amount).add_(rgb_to_grayscale(images) * (1 - amount))
    return blended.clamp_(0, white_level(images)).to(images.dtype)


def to_grayscale(images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> Integer[Tensor, "n C H W"]:
    """Replace all three channels by grey; the amount is ignored. Images without three channels stay."""
    return rgb_to_grayscale(images).expand_as(images) if images.shape[1] == 3 else images


def adjust_sharpness(
    images: Integer[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]
) -> Integer[Tensor, "n C H W"]:
    """Sharpness: 0 is smoothed, 1 the image, 2 twice as far from the smoothed one; the outermost pixels stay.

    The smoothing filter is the mean of a 3 x 3 neighbourhood whose centre counts five times, as in Pillow.
    """
    if min(images.shape[-2:]) < 3:
        return images
    whole = images.to(torch.int16 if images.dtype == torch.uint8 else torch.int32)
    rows = whole[..., :-2] + whole[..., 1:-1] + whole[..., 2:]
    around = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]  # at most 9 * white
    inner = whole[..., 1:-1, 1:-1]
    soft = ((around + 4 * inner).float() / 13).round_()  # an integer over 13 is never a half
    amount = to_device(amounts, images.device)[:, None, None, None]
    changed = inner.float().add_((soft - inner) * (1 - amount)).clamp_(0, white_level(images)).to(images.dtype)
    result = images.clone()
    result[..., 1:-1, 1:-1] = changed
    return result
