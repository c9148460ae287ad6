"""Every operation against torchvision's on the same pictures with the same amounts, and its rule for other channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as theirs

from vitrail.data.augment import color, geometry

Function = Callable[[Tensor, np.ndarray], Tensor]
SIGNED = [-0.9, -0.31, 0.0, 0.27, 0.9]
FACTORS = [0.0, 0.1, 0.55, 1.0, 1.37, 1.9]


def affine(image: Tensor, move: tuple[float, float], shear: tuple[float, float], corner: bool) -> Tensor:
    degrees = [float(np.degrees(np.arctan(tangent))) for tangent in shear]
    center = [0.0, 0.0] if corner else None
    return theirs.affine(image, 0.0, list(move), 1.0, degrees, InterpolationMode.BILINEAR, center=center)


def turned(image: Tensor, angle: float) -> Tensor:
    return theirs.rotate(image, angle, InterpolationMode.BILINEAR)


ORACLES: list[tuple[Function, Callable[[Tensor, float], Tensor], list[float], int]] = [
    (geometry.shear_x, lambda image, a: affine(image, (0, 0), (a, 0), True), SIGNED, 1),
    (geometry.shear_y, lambda image, a: affine(image, (0, 0), (0, a), True), SIGNED, 1),
    (geometry.translate_x, lambda image, a: affine(image, (int(a), 0), (0, 0), False), [-9.7, -3, 0, 1.2, 40], 0),
    (geometry.translate_y, lambda image, a: affine(image, (0, int(a)), (0, 0), False), [-9.7, -3, 0, 1.2, 40], 0),
    (geometry.rotate, turned, [-135, -30, -7.5, 0, 12, 90, 135], 1),
    (color.adjust_brightness, theirs.adjust_brightness, FACTORS, 0),
    (color.adjust_contrast, theirs.adjust_contrast, FACTORS, 1),
    (color.posterize, lambda image, a: theirs.posterize(image, int(a)), [0, 1, 2, 4, 7, 8], 0),
    (color.solarize, theirs.solarize, [0, 25.5, 127.5, 128, 254.5, 255], 0),
    (color.invert, lambda image, _: theirs.invert(image), [0], 0),
    (color.autocontrast, lambda image, _: theirs.autocontrast(image), [0], 1),
    (color.equalize, lambda image, _: theirs.equalize(image), [0], 0),
    (color.adjust_saturation, theirs.adjust_saturation, FACTORS, 1),
    (color.adjust_sharpness, theirs.adjust_sharpness, FACTORS, 1),
    (color.gaussian_blur, lambda image, a: theirs.gaussian_blur(image, [13, 13], [a, a]), [0.1, 0.5, 1.0, 2.0], 1),
]
"""Ours, theirs, amounts, and the largest difference in grey levels."""


def pictures(channels: int) -> Tensor:
    """Noise, a dark smooth picture, a bright one with an edge, one of few levels, a flat one: [5, C, 31, 44]."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (channels, 31, 44))
    rows, columns = np.mgrid[0:31, 0:44]
    smooth = np.stack([20 + rows + (columns * (1 + c)) % 61 for c in range(channels)])
    edge = np.stack([np.where(columns > 20 + c, 240, 130) - rows for c in range(channels)])
    few = rng.integers(0, 3, (channels, 31, 44)) * 90 + 10
    flat = np.broadcast_to(np.arange(77, 77 + channels)[:, None, None], (channels, 31, 44))
    return torch.from_numpy(np.stack([noise, smooth, edge, few, flat]).astype(np.uint8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("ours", "oracle", "amounts", "levels"), ORACLES, ids=[o[0].__name__ for o in ORACLES])
def test_an_operation_is_torchvisions_for_every_picture_and_amount(ours, oracle, amounts, levels, channels):
    images = pictures(channels)
    many = images.repeat(len(amounts), 1, 1, 1)
    each = np.repeat(np.array(amounts, np.float64), len(images))
    found = ours(many, each)
    expected = torch.stack([oracle(image, float(amount)) for image, amount in zip(many, each, strict=True)])
    assert found.dtype == torch.uint8 and found.shape == many.shape
    assert (found.int() - expected.int()).abs().max() <= levels


def test_grey_is_pillows():
    images = pictures(3)
    grey = [np.array(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")) for image in images]
    found = color.to_grayscale(images, np.zeros(len(images)))
    assert np.array_equal(found.numpy(), np.stack(grey)[:, None].repeat(3, 1))
    assert (found.int() - theirs.rgb_to_grayscale(images, 3).int()).abs().max() <= 1


def test_equalising_and_stretching_are_pillows_too():
    images, none = pictures(3), np.zeros(5)
    for ours, pillow, levels in (
        (color.equalize, ImageOps.equalize, 0),
        (color.autocontrast, ImageOps.autocontrast, 1),
    ):
        expected = [np.array(pillow(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in images]
        found = ours(images, none).permute(0, 2, 3, 1).numpy()
        assert np.abs(found.astype(int) - np.stack(expected)).max() <= levels


@pytest.mark.parametrize(
    ("function", "amount"),
    [
        (geometry.shear_x, 0.0),
        (geometry.shear_y, 0.0),
        (geometry.translate_x, 0.4),
        (geometry.translate_y, -0.4),
        (geometry.rotate, 0.0),
        (color.adjust_brightness, 1.0),
        (color.adjust_contrast, 1.0),
        (color.posterize, 8.0),
        (color.solarize, 256.0),
        (color.adjust_saturation, 1.0),
        (color.adjust_sharpness, 1.0),
    ],
)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_an_amount_of_nothing_changes_no_pixel(function, amount, channels):
    images = pictures(channels)
    assert torch.equal(function(images, np.full(len(images), amount)), images)


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_what_has_no_colour_keeps_it(channels):
    images, half = pictures(channels), np.full(5, 0.5)
    assert torch.equal(color.adjust_saturation(images, half), images)
    assert torch.equal(color.to_grayscale(images, half), images)


def test_contrast_of_many_channels_is_drawn_to_the_mean_of_all_values():
    images = pictures(4)
    found = color.adjust_contrast(images, np.zeros(5))
    assert torch.equal(found, images.float().mean((1, 2, 3), keepdim=True).to(torch.uint8).expand_as(images))


@pytest.mark.parametrize("side", [1, 2])
def test_pictures_without_neighbours_are_welcome(side):
    images = torch.randint(0, 256, (3, 3, side, side), dtype=torch.uint8)
    assert torch.equal(color.adjust_sharpness(images, np.full(3, 1.9)), images)
    assert color.gaussian_blur(images, np.full(3, 1.0)).shape == images.shape


def test_a_flat_picture_survives_every_blur():
    images = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 1, 9, 14)
    assert torch.equal(color.gaussian_blur(images, np.linspace(0.1, 2.0, 256)), images)
