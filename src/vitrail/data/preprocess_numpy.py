"""The resize and crop of `preprocess` in NumPy alone, for interfaces that must start without torch.

Antialiased images of 8 bits are byte for byte those of torch, whose uint8 kernel also computes in integers. Without
antialiasing, and of 16 bits, sums are rounded once, and a value halfway between two levels may be rounded either way.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, UInt

from ..spec import ImageSpec, Interpolation

KERNEL_SUPPORT: dict[Interpolation, float] = {"bilinear": 1.0, "bicubic": 2.0}
"""Half-width of each interpolation kernel, in pixels of the smaller image."""
MAX_WEIGHT = 1 << 15
"""Integer weights are below this."""


def fit_array(image: UInt[np.ndarray, "H W C"], spec: ImageSpec) -> UInt[np.ndarray, "h w C"]:
    """Fit a decoded image to the spec's size, as `preprocess.fit_images` does."""
    if image.shape[:2] == spec.size and spec.crop_fraction == 1:
        return image
    inner = spec.resized(image.shape[0], image.shape[1])
    resized = resize_array(image, inner, spec.interpolation, spec.antialias)
    if spec.fit == "pad":
        top, left = (spec.height - inner[0]) // 2, (spec.width - inner[1]) // 2
        below, right = spec.height - inner[0] - top, spec.width - inner[1] - left
        return np.pad(resized, ((top, below), (left, right), (0, 0)))
    top, left = spec.start(inner[0], spec.height), spec.start(inner[1], spec.width)
    return resized[top : top + spec.height, left : left + spec.width]


def resize_array(
    image: UInt[np.ndarray, "H W C"], size: tuple[int, int], interpolation: Interpolation, antialias: bool = True
) -> UInt[np.ndarray, "h w C"]:
    """Resize as `preprocess.resize_batch` does: columns first, then rows; an equal size returns the image untouched."""
    if image.shape[:2] == size:
        return image
    if not antialias or image.dtype != np.uint8:
        resize_axis = _resize_axis_exact if antialias else _resize_axis_plain
        columns = resize_axis(image.astype(np.float64), 1, size[1], interpolation)
        exact = resize_axis(columns, 0, size[0], interpolation)
        return np.rint(exact).clip(0, np.iinfo(image.dtype).max).astype(image.dtype)
    return _resize_axis_antialiased(
        _resize_axis_antialiased(image, 1, size[1], interpolation), 0, size[0], interpolation
    )


def _resize_axis_antialiased(
    values: UInt[np.ndarray, "H W C"], axis: int, size: int, interpolation: Interpolation
) -> np.ndarray:
    """Resize one axis with antialiasing: a weighted sum of all pixels covered, rounded to whole grey levels."""
    old = values.shape[axis]
    if old == size:
        return values
    first, weights = resize_coefficients(old, size, interpolation)
    whole, precision = quantize_weights(weights)
    shape = list(values.shape)
    shape[axis] = size
    total = np.full(shape, 1 << (precision - 1), np.int32)  # one half, so that truncation rounds
    for tap in range(whole.shape[1]):
        pixels = np.take(values, np.minimum(first + tap, old - 1), axis).astype(np.int32)
        total += pixels * _broadcast_along(whole[:, tap], axis)
    return (total >> precision).clip(0, 255).astype(np.uint8)


def _resize_axis_exact(values: np.ndarray, axis: int, size: int, interpolation: Interpolation) -> np.ndarray:
    """Resize one axis of float64 values with antialiasing, without rounding."""
    old = values.shape[axis]
    if old == size:
        return values
    first, weights = resize_coefficients(old, size, interpolation)
    total = np.zeros((), np.float64)
    for tap in range(weights.shape[1]):
        pixels = np.take(values, np.minimum(first + tap, old - 1), axis)
        total = total + pixels * _broadcast_along(weights[:, tap], axis)
    return total


def resize_coefficients(
    old: int, size: int, interpolation: Interpolation
) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, "n t"]]:
    """For each output pixel the first input pixel that it covers, and the weights from there on, which sum to 1."""
    scale = old / size
    reach = KERNEL_SUPPORT[interpolation] * max(scale, 1.0)
    centre = scale * (np.arange(size) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    beyond = np.minimum((centre + reach + 0.5).astype(np.int64), old)
    taps = np.arange(int((beyond - first).max()))
    distance = np.abs((first[:, None] + taps - centre[:, None] + 0.5) / max(scale, 1.0))
    weights = _interpolation_kernel(distance, interpolation, -0.5) * (taps < (beyond - first)[:, None])
    return first, weights / weights.sum(1, keepdims=True)


def quantize_weights(weights: Float64[np.ndarray, "n t"]) -> tuple[np.ndarray, int]:
    """Fixed-point weights, int32, and their number of fractional bits: the most that fit 16 bits."""
    largest, precision = float(weights.max()), 0
    while precision < 22 and int(0.5 + largest * (1 << (precision + 1))) < MAX_WEIGHT:
        precision += 1
    scaled = weights * (1 << precision)
    return np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32), precision


def _resize_axis_plain(values: np.ndarray, axis: int, size: int, interpolation: Interpolation) -> np.ndarray:
    """Resize one axis without antialiasing, from the nearest pixels alone; the edge is repeated."""
    old = values.shape[axis]
    place = (np.arange(size) + 0.5) * (old / size) - 0.5
    if interpolation == "bilinear":
        place = np.maximum(place, 0)
    first = np.floor(place).astype(np.int64)
    near = int(KERNEL_SUPPORT[interpolation])
    total = np.zeros((), np.float64)
    for tap in range(1 - near, near + 1):
        weight = _interpolation_kernel(np.abs(place - first - tap), interpolation, -0.75)
        pixels = np.take(values, np.clip(first + tap, 0, old - 1), axis)
        total = total + pixels * _broadcast_along(weight, axis)
    return total


def _interpolation_kernel(distance: np.ndarray, interpolation: Interpolation, a: float) -> np.ndarray:
    """The kernel at a distance (bicubic: Keys 1981, with its free parameter a)."""
    if interpolation == "bilinear":
        return np.maximum(1 - distance, 0)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def _broadcast_along(weights: np.ndarray, axis: int) -> np.ndarray:
    """Weights of rows or columns in the shape of an image."""
    return weights[:, None, None] if axis == 0 else weights[None, :, None]
