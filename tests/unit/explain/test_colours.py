"""X14: the colours of maps: even steps to the eye, two sides that the colour-blind tell apart, a golden picture."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.explain.overlay import NEGATIVE_COLOR, POSITIVE_COLOR, blend_map, map_colors

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
BLIND = {
    "to red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "to green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "to blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What whoever is blind to a colour sees, on linear red, green and blue (Machado, Oliveira and Fernandes 2009)."""


def lab(colours: np.ndarray, blindness: str | None = None) -> np.ndarray:
    """CIELAB of sRGB colours 0..1: lightness 0..100 and two axes of hue."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    if blindness is not None:
        linear = np.clip(linear @ np.array(BLIND[blindness]).T, 0, 1)
    white = TO_XYZ @ np.ones(3)
    ratio = linear @ TO_XYZ.T / white
    bent = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(bent, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def test_X14_equal_steps_of_a_map_are_equal_steps_of_lightness():
    steps = np.diff(lab(map_colors(np.linspace(0, 1, 9), "positive"))[:, 0])
    assert steps.min() > 3 and steps.max() < 2.2 * steps.min()


@pytest.mark.parametrize("blindness", BLIND)
def test_X14_who_is_blind_to_a_colour_sees_the_same_order_and_both_sides(blindness):
    lightness = lab(map_colors(np.linspace(0, 1, 9), "positive"), blindness)[:, 0]
    assert (np.diff(lightness) > 2).all()
    two = lab(np.array([POSITIVE_COLOR, NEGATIVE_COLOR]), blindness)
    assert np.linalg.norm(two[0] - two[1]) > 40


def test_X14_a_golden_picture():
    """Grey 100 under a map of three patches: silent, half as strong, strongest."""
    image = np.full((1, 3, 1), 100, np.uint8)
    mixed = blend_map(image, np.array([[0.0, 1.0, 2.0]], np.float32), "positive", (1, 1), shorter=1)
    np.testing.assert_allclose(mixed[0], GOLDEN, atol=1)


GOLDEN = [[100, 100, 100], [152, 103, 75], [214, 216, 148]]
