"""The window: panes as light as their share of the map, lead between them, and the picture otherwise as it was."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.explain.attribution import AttributionMap
from vitrail.explain.paper_figures.position_figures import METAL_COLOR, PANE_SIDE, pane_light, render_window
from vitrail.spec import Grid

GRID = Grid(2, 3)
PICTURE = np.full((20, 30, 3), 200, np.uint8)


def middles(window: np.ndarray) -> np.ndarray:
    """The brightness in the middle of each pane: [2, 3]."""
    border = PANE_SIDE // 2
    inner = window[border:-border, border:-border].astype(float).mean(2)
    return inner[PANE_SIDE // 2 :: PANE_SIDE, PANE_SIDE // 2 :: PANE_SIDE]


def test_by_day_panes_are_the_picture_and_between_them_is_lead():
    window = render_window(PICTURE, GRID)
    assert window.shape == (2 * PANE_SIDE + PANE_SIDE, 3 * PANE_SIDE + PANE_SIDE, 3), (
        "half a pane of frame on every side"
    )
    np.testing.assert_allclose(middles(window), 200, atol=1)
    lead = np.round(255 * METAL_COLOR)
    border = PANE_SIDE // 2
    for pixel in (window[0, 0], window[border + PANE_SIDE, border + 5], window[border + 7, border + PANE_SIDE]):
        np.testing.assert_allclose(pixel, lead, atol=1)


def test_by_night_a_pane_is_as_bright_as_its_share_and_one_without_is_dark():
    shares = np.array([[0, 0.25, 0.5], [0.75, 1, 0]])
    night = middles(render_window(PICTURE, GRID, shares))
    order = np.argsort(shares[:, :2].ravel())
    assert (np.diff(night[:, :2].ravel()[order]) > 20).all()
    dark = middles(render_window(PICTURE, GRID, np.zeros((2, 3))))
    assert dark.max() < 45 and dark.min() > 10
    np.testing.assert_allclose(middles(render_window(PICTURE, GRID, np.ones((2, 3)))), 200, atol=35)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pictures_of_any_channels_and_panes_that_are_not_square(channels):
    picture = np.random.default_rng(0).integers(0, 256, (12, 8, channels), dtype=np.uint8)
    window = render_window(picture, Grid(3, 4), np.ones((3, 4)))
    assert window.dtype == np.uint8 and window.shape[2] == 3 and min(window.shape[:2]) > 3 * PANE_SIDE


def test_the_largest_hundredth_has_full_light_and_what_speaks_against_has_none():
    values = np.arange(-10, 190, dtype=np.float32).reshape(1, 10, 20)
    found = pane_light(
        AttributionMap(
            values=values, method="lens", layer="block 1", unit="score", description="A line.", scale="signed"
        )
    )
    assert found[0, :11].max() == 0 and (found.ravel()[-2:] == 1).all() and 0.4 < found[5, 0] < 0.6
    assert (np.diff(found.ravel()[10:]) >= 0).all()
