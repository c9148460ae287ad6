"""Augmentation policies: RandAugment, TrivialAugment and 3-Augment, and their operations.

A policy turns the random numbers of each image into rounds of one operation per image. They are applied to all images
with the same operation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from . import color, geometry
from .geometry import to_device


class Operation(IntEnum):
    """Operations on an image; the unit of their amounts is documented in `geometry` and `color`."""

    IDENTITY = auto()
    SHEAR_X = auto()
    SHEAR_Y = auto()
    TRANSLATE_X = auto()
    TRANSLATE_Y = auto()
    ROTATE = auto()
    BRIGHTNESS = auto()
    SATURATION = auto()
    CONTRAST = auto()
    SHARPNESS = auto()
    POSTERIZE = auto()
    SOLARIZE = auto()
    AUTOCONTRAST = auto()
    EQUALIZE = auto()
    INVERT = auto()
    GRAYSCALE = auto()
    BLUR = auto()


OPERATION_FUNCTIONS: dict[Operation, Callable[[Tensor, np.ndarray], Tensor]] = {
    Operation.SHEAR_X: geometry.shear_x,
    Operation.SHEAR_Y: geometry.shear_y,
    Operation.TRANSLATE_X: geometry.translate_x,
    Operation.TRANSLATE_Y: geometry.translate_y,
    Operation.ROTATE: geometry.rotate,
    Operation.BRIGHTNESS: color.adjust_brightness,
    Operation.SATURATION: color.adjust_saturation,
    Operation.CONTRAST: color.adjust_contrast,
    Operation.SHARPNESS: color.adjust_sharpness,
    Operation.POSTERIZE: color.posterize,
    Operation.SOLARIZE: color.solarize,
    Operation.AUTOCONTRAST: color.autocontrast,
    Operation.EQUALIZE: color.equalize,
    Operation.INVERT: color.invert,
    Operation.GRAYSCALE: color.to_grayscale,
    Operation.BLUR: color.gaussian_blur,
}


@dataclass(frozen=True)
class AugmentationOps:
    """The operations of each image, round after round."""

    operations: Int64[np.ndarray, "B rounds"]
    """Values of `Operation`."""
    amounts: Float64[np.ndarray, "B rounds"]
    """Amounts in the operations' own units."""


def apply_operations(images: Integer[Tensor, "B C H W"], ops: AugmentationOps) -> Integer[Tensor, "B C H W"]:
    """Apply the operations. An image's result depends on its own pixels and operations alone."""
    for operations, amounts in zip(ops.operations.T, ops.amounts.T, strict=True):
        changed = images.clone()
        for operation, function in OPERATION_FUNCTIONS.items():
            rows = np.flatnonzero(operations == operation)
            if len(rows):
                place = to_device(rows, images.device)
                changed.index_copy_(0, place, function(images[place], amounts[rows]))
        images = changed
    return images


RANDAUGMENT_OPERATIONS = tuple(Operation)[: Operation.EQUALIZE]
"""The fourteen operations of RandAugment and TrivialAugment."""
TRIVIAL_LEVELS = 31
"""Number of strengths of TrivialAugment, from none to full."""
RAND_DRAWS = 2
"""Random numbers per operation of RandAugment, and per image of TrivialAugment and 3-Augment."""
TRIVIAL_DRAWS = 3
THREE_DRAWS = 6
THREE_JITTER = 0.3
"""Largest distance from 1 of the factors of brightness, contrast and saturation in 3-Augment."""


def draw_rand_augment(keys: Float64[np.ndarray, "B draws"], magnitude: float, size: tuple[int, int]) -> AugmentationOps:
    """RandAugment (Cubuk et al. 2020): one of fourteen operations per pair of keys, all of one magnitude.

    Args:
        magnitude: 0..10, the paper's scale: at 10 turns by 30 degrees, shears by 0.3, moves by 45 % of the side,
            factors of 0.1 or 1.9. torchvision counts the same range to 30: its 9 is 3 here.
        size: (height, width) of the images.

    Source: Cubuk et al. 2020, "RandAugment"; operations and ranges of torchvision's RandAugment.
    """
    operations = (keys[:, 0::2] * len(RANDAUGMENT_OPERATIONS)).astype(np.int64) + Operation.IDENTITY
    strengths = np.full(operations.shape, magnitude / 10)
    shift = 150 / 331 * np.array(size)
    amounts = _operation_amounts(
        operations, strengths, keys[:, 1::2], shift, shear=0.3, angle=30.0, factor=0.9, dropped_bits=4
    )
    return AugmentationOps(operations, amounts)


def draw_trivial_augment(keys: Float64[np.ndarray, "B 3"], size: tuple[int, int]) -> AugmentationOps:
    """TrivialAugment (Müller and Hutter 2021): one of fourteen operations, of any strength.

    Translations reach 32 pixels, but at most the side, as for the paper's images of 32 x 32: otherwise more than a
    third of all translations would leave nothing of an image of 20 pixels.

    Source: Müller and Hutter 2021, "TrivialAugment", its wide space.
    """
    operations = (keys[:, :1] * len(RANDAUGMENT_OPERATIONS)).astype(np.int64) + Operation.IDENTITY
    strengths = (keys[:, 1:2] * TRIVIAL_LEVELS).astype(np.int64) / (TRIVIAL_LEVELS - 1)
    shift = np.minimum(32, size)
    amounts = _operation_amounts(
        operations, strengths, keys[:, 2:], shift, shear=0.99, angle=135.0, factor=0.99, dropped_bits=6
    )
    return AugmentationOps(operations, amounts)


def draw_three_augment(keys: Float64[np.ndarray, "B 6"]) -> AugmentationOps:
    """3-Augment (Touvron et al. 2022): grey, solarise (from 128) or blur (0.1 to 2 pixels), then colour jitter.

    Source: Touvron et al. 2022, "DeiT III", section 3.1, with its colour jitter of 0.3.
    """
    first = np.array([Operation.GRAYSCALE, Operation.SOLARIZE, Operation.BLUR])[(keys[:, 0] * 3).astype(np.int64)]
    strength = np.where(first == Operation.SOLARIZE, 128.0, 0.1 + 1.9 * keys[:, 1])
    order = _JITTER_ORDERS[(keys[:, 2] * len(_JITTER_ORDERS)).astype(np.int64)]  # [B, 3]
    factors = np.take_along_axis(1 + THREE_JITTER * (2 * keys[:, 3:] - 1), order, 1)
    operations = np.concatenate([first[:, None], _JITTER_OPERATIONS[order]], axis=1)
    return AugmentationOps(operations, np.concatenate([strength[:, None], factors], axis=1))


_JITTER_OPERATIONS = np.array([Operation.BRIGHTNESS, Operation.CONTRAST, Operation.SATURATION])
_JITTER_ORDERS = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])


def _operation_amounts(
    operations: Int64[np.ndarray, "B rounds"],
    strengths: Float64[np.ndarray, "B rounds"],
    signs: Float64[np.ndarray, "B rounds"],
    shift: np.ndarray,
    shear: float,
    angle: float,
    factor: float,
    dropped_bits: int,
) -> Float64[np.ndarray, "B rounds"]:
    """The amount of each operation for a strength in 0..1 of the largest ones; half of the signed ones are negative."""
    signed = np.where(signs < 0.5, -strengths, strengths)
    by_operation = {
        Operation.SHEAR_X: signed * shear,
        Operation.SHEAR_Y: signed * shear,
        Operation.TRANSLATE_X: signed * shift[1],
        Operation.TRANSLATE_Y: signed * shift[0],
        Operation.ROTATE: signed * angle,
        Operation.BRIGHTNESS: 1 + signed * factor,
        Operation.SATURATION: 1 + signed * factor,
        Operation.CONTRAST: 1 + signed * factor,
        Operation.SHARPNESS: 1 + signed * factor,
        Operation.POSTERIZE: np.rint(8 - strengths * dropped_bits),
        Operation.SOLARIZE: 255 * (1 - strengths),
    }
    amounts = np.zeros_like(strengths)
    for operation, values in by_operation.items():
        amounts = np.where(operations == operation, values, amounts)
    return amounts
