"""Turned, stretched and moved pictures against SciPy's resampling, and where nothing needs to be resampled, exactly."""

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from vitrail.data.augment.crops import crop_and_flip
from vitrail.data.augment.geometry import AFFINE_DRAWS, random_affine
from vitrail.randomness import uniform

IMAGES = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
STILL = np.full((6, AFFINE_DRAWS), 0.5)


def keys(column: int, value: float) -> np.ndarray:
    found = STILL.copy()
    found[:, column] = value
    return found


def test_the_middle_of_every_range_changes_nothing():
    assert torch.equal(random_affine(IMAGES, STILL, 30.0, 0.5, 0.5), IMAGES)


def test_a_quarter_turn_is_one():
    assert torch.equal(random_affine(IMAGES, keys(0, 0.0), 90.0, 0.0, 0.0), torch.rot90(IMAGES, -1, (2, 3)))


@pytest.mark.parametrize(("column", "row_key", "column_key"), [(3, 0.0, 0.5), (4, 0.5, 0.0)])
def test_a_move_by_whole_pixels_repeats_the_edge(column, row_key, column_key):
    # crop_and_flip's key 0 cuts its window from above or left of the picture: the picture goes down or right
    by_hand = crop_and_flip(IMAGES, np.tile([0.9, row_key, column_key], (6, 1)), 3, False)
    assert torch.equal(random_affine(IMAGES, keys(column, 1.0), 0.0, 0.0, 3 / 12), by_hand)


def test_a_picture_stretched_to_twice_its_height_shows_its_middle_rows():
    shown = random_affine(IMAGES, keys(1, 1.0), 0.0, 1.0, 0.0)
    rows = 5.5 + (np.arange(12) - 5.5) / 2
    low = np.floor(rows).astype(int)
    share = (rows - low)[None, None, :, None]
    exact = IMAGES.numpy()[:, :, low] * (1 - share) + IMAGES.numpy()[:, :, low + 1] * share
    assert np.abs(shown.numpy() - exact).max() <= 0.5 + 1e-3


def test_all_at_once_is_what_scipy_resamples():
    drawn = uniform(3, "wander", 0, np.arange(6), AFFINE_DRAWS)
    shown = random_affine(IMAGES, drawn, 25.0, 0.3, 0.1).numpy()
    for picture, key, found in zip(IMAGES.numpy(), 2 * drawn - 1, shown, strict=True):
        angle = np.radians(25.0 * key[0])
        turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # of (row, column)
        matrix = turned @ np.diag(1.3 ** -key[1:3])
        offset = 5.5 - matrix @ np.array([5.5, 5.5]) - 0.1 * 12 * key[3:]
        for channel, plane in zip(picture, found, strict=True):
            exact = affine_transform(channel.astype(float), matrix, offset, order=1, mode="nearest")
            assert np.abs(plane - exact).max() <= 0.51


def test_the_keys_of_a_picture_are_its_own():
    drawn = uniform(3, "wander", 0, np.arange(6), AFFINE_DRAWS)
    whole = random_affine(IMAGES, drawn, 25.0, 0.3, 0.1)
    assert torch.equal(random_affine(IMAGES[2:4], drawn[2:4], 25.0, 0.3, 0.1), whole[2:4])
    assert (whole != IMAGES).flatten(1).any(1).all()
