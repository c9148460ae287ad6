"""Noise against the moments of its distribution, blur against what becomes of a point and of a plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.evaluate.corruption_filters import CorruptionRandom, convolve, disc_kernel, gaussian_blur, motion_kernel
from vitrail.evaluate.robustness import corrupt_images


def level(value: int, *shape: int) -> Tensor:
    return torch.full(shape or (1, 1, 160, 160), value, dtype=torch.uint8)


def of(images: Tensor, kind: str, severity: int) -> np.ndarray:
    """float64 [n, C, H, W], 1 white."""
    return corrupt_images(images, kind, severity, 3, np.arange(len(images))).numpy() / 255.0


def test_draws_have_the_moments_of_their_distributions_and_purposes_of_their_own():
    draws = CorruptionRandom(0, "fog", 1, 0)
    even, normal = draws.uniform("one", 200, 200), draws.normal("two", 200, 200)
    assert even.mean() == pytest.approx(0.5, abs=0.005) and even.std() == pytest.approx(12**-0.5, abs=0.005)
    assert normal.mean() == pytest.approx(0, abs=0.02) and normal.std() == pytest.approx(1, abs=0.01)
    assert not np.array_equal(draws.uniform("one", 9), draws.uniform("other", 9))
    tosses = [CorruptionRandom(0, "fog", 1, index).random_sign("side") for index in range(400)]
    assert set(tosses) == {-1, 1} and abs(sum(tosses)) < 60
    assert {2.0 <= CorruptionRandom(0, "fog", 1, index).uniform_between(2, 3, "x") < 3 for index in range(50)} == {True}


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.08), (2, 0.12), (3, 0.18)])
def test_gaussian_noise_has_the_deviation_of_the_table(severity, deviation):
    found = of(level(128), "gaussian_noise", severity)
    assert found.mean() == pytest.approx(128 / 255, abs=0.004)
    assert found.std() == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize(("severity", "photons"), [(1, 60), (3, 12), (5, 3)])
def test_shot_noise_counts_photons(severity, photons):
    found = of(level(51), "shot_noise", severity)  # a fifth of white
    assert found.mean() == pytest.approx(0.2, rel=0.03)
    assert (found == 0).mean() == pytest.approx(math.exp(-0.2 * photons), abs=0.012)
    two = round(255 * 2 / photons) / 255
    assert (found == two).mean() == pytest.approx((0.2 * photons) ** 2 / 2 * math.exp(-0.2 * photons), abs=0.012)
    assert of(level(0), "shot_noise", severity).max() == 0


def test_impulse_noise_is_as_often_black_as_white():
    found = of(level(128), "impulse_noise", 5)
    assert [(found == value).mean() for value in (0, 1)] == pytest.approx([0.135, 0.135], abs=0.01)
    assert (found == 128 / 255).mean() == pytest.approx(0.73, abs=0.015)


def test_a_point_out_of_focus_becomes_a_disc():
    image = level(0, 1, 1, 225, 225)
    image[..., 112, 112] = 255
    found = of(image, "defocus_blur", 2)[0, 0]
    radius = 4 * 225 / 224
    assert found[112, 112] == pytest.approx(1 / (math.pi * radius**2), abs=1 / 255)
    rows, columns = np.nonzero(found)
    assert np.hypot(rows - 112, columns - 112).max() < radius + 1
    assert (found > found[112, 112] / 2).sum() == pytest.approx(math.pi * radius**2, rel=0.15)


@pytest.mark.parametrize("radius", [0.0, 0.05, 0.4, 1.0, 3.7, 10.0])
def test_a_disc_has_the_spread_of_a_disc(radius):
    kernel = disc_kernel(radius)
    places = np.arange(len(kernel)) - len(kernel) // 2
    spread = (kernel.sum(0) * places**2).sum()
    assert kernel.sum() == pytest.approx(1) and np.allclose(kernel, kernel.T)
    if radius > 3:  # sharing every point between two pixels of an axis adds a sixth
        assert spread == pytest.approx(radius**2 / 4 + 1 / 6, rel=0.05)
    elif radius <= 0.4:  # mean distance of the points from the middle of the pixel, along an axis
        assert spread == pytest.approx(4 * radius / (3 * np.pi), rel=0.1)


def test_a_streak_fades_to_one_side():
    kernel = motion_kernel(20, 5, 0.0)
    middle = len(kernel) // 2
    assert kernel.sum() == pytest.approx(1)
    assert np.allclose(kernel.sum(1)[middle], 1) and np.allclose(kernel[middle, : middle - 1], 0)
    assert kernel[middle, middle + 5] / kernel[middle, middle + 10] == pytest.approx(math.exp(1.5), rel=0.02)
    down = motion_kernel(20, 5, math.pi / 2)
    assert np.allclose(down, kernel.T)


def test_smoothing_a_wave_weakens_it_as_the_heat_equation_says():
    places = np.arange(64)
    wave = np.cos(np.pi * 6 * (places + 0.5) / 64)[None, None, :].repeat(5, 1)
    found = gaussian_blur(wave, 2.5)
    assert np.allclose(found, wave * math.exp(-0.5 * (2.5 * np.pi * 6 / 64) ** 2))
    noise = np.random.default_rng(0).random((1, 20, 30))
    assert np.allclose(gaussian_blur(noise, 0), noise) and np.allclose(
        gaussian_blur(noise, 99), noise.mean(), atol=0.01
    )


def test_smoothing_is_that_of_scipy_with_mirrored_edges():
    from scipy.ndimage import gaussian_filter

    noise = np.random.default_rng(0).random((30, 40))
    assert np.allclose(gaussian_blur(noise, 2.0), gaussian_filter(noise, 2.0, mode="reflect", truncate=8), atol=1e-6)


def test_a_kernel_that_moves_moves():
    image = np.random.default_rng(0).random((2, 6, 7))
    kernel = np.zeros((3, 3))
    kernel[2, 1] = 1
    assert np.allclose(convolve(image, kernel)[:, 1:], image[:, :-1])
    assert np.allclose(convolve(image, kernel)[:, 0], image[:, 0]), "beyond the edge stands the mirror image"


@pytest.mark.parametrize("kind", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "lens_blur"])
def test_a_plane_stays_a_plane(kind):
    assert (of(level(77, 1, 3, 40, 50), kind, 5) == 77 / 255).all()


def test_glass_moves_pixels_no_further_than_it_is_rough():
    image = level(0, 1, 1, 224, 224)
    image[..., :112] = 255
    found = of(image, "glass_blur", 4)[0, 0]  # twice up to three pixels, and two Gaussians of deviation 1.1
    assert (found[:, :98] == 1).all() and (found[:, 126:] == 0).all()
    assert found[:, 106:118].std() > 0.1
    assert 0.9 < found[:, 104].mean() < 1


def test_zooming_leaves_the_middle_and_moves_the_rest_outwards():
    image = level(0, 1, 1, 101, 101)
    image[..., 50, 50] = 255
    image[..., 50, 90] = 255
    found = of(image, "zoom_blur", 3)[0, 0]  # enlarged 1.0, 1.02, ... 1.2, and once more as it is
    assert found[50, 50] == 1
    assert (found[50, 80:90] == 0).all() and (found[50, 91:99] > 0).any()
