"""Weather and storage against values by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unit.evaluate.sample_pictures import photographs
from vitrail.evaluate.corruption_filters import CorruptionRandom
from vitrail.evaluate.corruptions_weather import make_flakes, make_ice, plasma_fractal, upsample_smoothly
from vitrail.evaluate.robustness import corrupt_images


def of(images: Tensor, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    return corrupt_images(images, kind, severity, seed, np.arange(len(images))).numpy()


def pixel(*levels: int) -> Tensor:
    return torch.tensor(levels, dtype=torch.uint8).view(1, -1, 1, 1).repeat(1, 1, 6, 6)


def test_more_light_keeps_the_hue():
    assert of(pixel(100, 40, 0), "brightness", 2)[0, :, 3, 3].tolist() == [151, 60, 0]  # V + 0.2: times 1.51
    assert of(pixel(250, 125, 0), "brightness", 1)[0, :, 3, 3].tolist() == [255, 128, 0]
    assert of(pixel(100), "brightness", 2)[0, :, 3, 3].tolist() == [151]
    assert of(pixel(0, 0, 0, 0), "brightness", 4)[0, :, 3, 3].tolist() == [102] * 4


def test_fog_leaves_the_brightest_place_and_takes_the_depth_of_the_rest():
    white = of(torch.full((1, 3, 90, 90), 255, dtype=torch.uint8), "fog", 1)
    assert (white.min(), white.max()) == (102, 255)  # 1 / (1 + 1.5)
    assert np.array_equal(white[:, 0], white[:, 2])
    assert of(pixel(0), "fog", 5).max() == 0


def test_frost_lies_over_what_is_left_of_the_picture():
    dark = of(torch.zeros(1, 3, 90, 90, dtype=torch.uint8), "frost", 1)[0]
    assert dark[2].max() <= 102 and dark[2].max() > 60  # 0.4 of white
    assert np.abs(dark[0] - 0.88 * dark[2]).max() <= 1, "ice is bluish"
    grey = of(torch.zeros(1, 2, 90, 90, dtype=torch.uint8), "frost", 1)[0]
    assert np.array_equal(grey[0], grey[1]) and grey.max() > 60
    assert of(torch.full((1, 1, 90, 90), 255, dtype=torch.uint8), "frost", 2).min() >= 204


def test_snow_whitens_and_falls():
    ground = of(torch.zeros(12, 1, 96, 96, dtype=torch.uint8), "snow", 2)
    assert ground.min() == 38  # (1 - 0.7) * 0.5 of white
    assert 0.05 < (ground > 60).mean() < 0.9
    down, across = (np.abs(np.diff(ground.astype(float), axis=axis)).mean() for axis in (2, 3))
    assert across > 1.3 * down, "streaks fall"


def test_clouds_reach_from_0_to_1_and_get_rougher():
    draws = CorruptionRandom(0, "fog", 1, 0)
    smooth, rough = plasma_fractal(100, 80, 4.0, draws), plasma_fractal(100, 80, 1.4, draws)
    assert smooth.shape == (100, 80) and (smooth.min(), smooth.max()) == (rough.min(), rough.max()) == (0, 1)
    assert np.abs(np.diff(rough)).mean() > 2 * np.abs(np.diff(smooth)).mean()


def test_ice_is_dense_in_places_and_thin_in_others():
    found = np.stack([make_ice(96, 96, CorruptionRandom(0, "frost", 1, index)) for index in range(8)])
    assert found.min() == 0 and 0.9 < found.max() <= 1
    assert 0.2 < found.mean() < 0.5


def test_flakes_are_what_reaches_the_least_height():
    draws = CorruptionRandom(0, "snow", 1, 0)
    found = make_flakes(200, 200, 0.2, 0.3, 1.0, 0.5, draws)
    assert found[found > 0].min() >= 0.5 and found.max() == 1
    for size in (0.5, 4.0, 12.0):  # of a normal distribution, what lies above its mean by a deviation
        assert (make_flakes(300, 300, 0.2, 0.3, size, 0.5, draws) > 0).mean() == pytest.approx(0.1587, abs=0.03)
    assert not make_flakes(50, 50, 0.2, 0.3, 1.0, 9.0, draws).any()


def test_a_grid_is_stretched_from_edge_to_edge():
    found = upsample_smoothly(np.array([[0.0, 1.0], [2.0, 3.0]]), 1, 4)
    assert found == pytest.approx(np.array([[1 + t * t * (3 - 2 * t) for t in (0.125, 0.375, 0.625, 0.875)]]))


def test_contrast_is_taken_from_the_mean_of_every_channel():
    image = pixel(100, 10)
    image[:, :, :3] = torch.tensor([200, 50], dtype=torch.uint8).view(1, 2, 1, 1)
    found = of(image, "contrast", 1)[0]
    assert found[:, 0, 0].tolist() == [170, 38] and found[:, 5, 5].tolist() == [130, 22]


def test_pixels_become_blocks_of_their_mean():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 2, 224, 224), dtype=np.uint8))
    found = of(images, "pixelate", 5)
    blocks = images.numpy().reshape(1, 2, 56, 4, 56, 4).mean((3, 5))
    assert np.abs(found - blocks.repeat(4, 2).repeat(4, 3)).max() <= 0.5
    small = of(images[:, :, :32, :32], "pixelate", 5)[0, 0]  # blocks of 1 + 3 / 7 pixels: 22 of them
    assert [np.unique(small, axis=axis).shape for axis in (0, 1)] == [(22, 32), (32, 22)]


def test_jpeg_is_that_of_pillow():
    image = photographs(72, 1)
    kept = io.BytesIO()
    Image.fromarray(image[0].permute(1, 2, 0).numpy()).save(kept, "JPEG", quality=10)
    expected = np.asarray(Image.open(kept)).transpose(2, 0, 1)
    assert np.abs(of(image, "jpeg_compression", 4)[0].astype(int) - expected).mean() < 1
    kept = io.BytesIO()
    Image.fromarray(image[0, 1].numpy()).save(kept, "JPEG", quality=10)
    found = of(image[:, [1, 0]], "jpeg_compression", 4)[0, 0]
    assert np.abs(found.astype(int) - np.asarray(Image.open(kept))).mean() < 1


def test_elastic_pictures_are_moved_by_as_much_as_the_tables_say():
    ramp = torch.arange(224, dtype=torch.uint8).expand(40, 1, 224, 224).contiguous()
    moved = [of(ramp, "elastic_transform", severity).astype(float) - ramp.numpy() for severity in (1, 3)]
    inner = [gap[..., 80:144, 80:144] for gap in moved]
    steps = [gap - gap.mean((2, 3), keepdims=True) for gap in inner]
    # Noise of deviation 1 / sqrt(3), smoothed over 2.44 pixels, times 12.2 and 29.28; the shear adds a little.
    expected = [strength / 3**0.5 / (2 * np.pi**0.5 * 2.44) for strength in (12.2, 29.28)]
    assert steps[0].std() > expected[0] and steps[1].std() == pytest.approx(expected[1], rel=0.4)
    assert 1 < np.abs(inner[0].mean((2, 3))).mean() < 4.88
