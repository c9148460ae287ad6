"""One sketch is laid on another before they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from unit.data.doctored import SPEC, textures
from vitrail.data.checks.image_stats import measure_image
from vitrail.data.checks.near_duplicates import (
    choose_initial_transforms,
    crop_and_standardize,
    refine_transforms,
    standardize,
    warp_sketches,
)


def sketch(values: np.ndarray) -> np.ndarray:
    return measure_image(np.ascontiguousarray(values), SPEC).sketch.astype(np.float32)[None]


def fit(first: np.ndarray, second: np.ndarray, moves: np.ndarray) -> float:
    return float((crop_and_standardize(first) * crop_and_standardize(warp_sketches(second, moves))).mean())


NOWHERE = np.zeros((1, 4), np.float32)


@pytest.mark.parametrize("ends", [(4, 4, 4, 4), (6, 0, 0, 6), (0, 6, 6, 0), (0, 0, 8, 0)])
def test_a_cropped_picture_is_laid_on_the_whole_one_and_back(ends):
    top, bottom, left, right = ends
    picture = textures(1, side=192)[0]
    whole, crop = sketch(picture), sketch(picture[top : 192 - bottom, left : 192 - right])
    for first, second in ((whole, crop), (crop, whole)):
        moves = refine_transforms(first, second, choose_initial_transforms(first, second))
        assert fit(first, second, moves) > 0.98 > fit(first, second, NOWHERE)


def test_the_moves_are_those_of_the_crop():
    picture = textures(1, side=200)[0]
    whole, crop = sketch(picture), sketch(picture[10:, :190])  # what was seen at -0.9..1 down, -1..0.9 across
    (down, taller, across, wider) = refine_transforms(whole, crop, choose_initial_transforms(whole, crop))[0].tolist()
    np.testing.assert_allclose([taller, wider], 200 / 190 - 1, atol=0.01)
    np.testing.assert_allclose([down, across], [-10 / 190, 10 / 190], atol=0.01)


def test_rounds_never_make_a_fit_worse():
    first, second = (np.concatenate([sketch(values) for values in textures(20, seed)]) for seed in (1, 2))
    start = choose_initial_transforms(first, second)
    before = (crop_and_standardize(first) * crop_and_standardize(warp_sketches(second, start))).mean((1, 2))
    after = (
        crop_and_standardize(first)
        * crop_and_standardize(warp_sketches(second, refine_transforms(first, second, start)))
    ).mean((1, 2))
    assert (after >= before - 1e-5).all()


def test_standing_still_changes_nothing():
    first = sketch(textures(1)[0])
    np.testing.assert_allclose(warp_sketches(first, NOWHERE), first, atol=1e-3)


def test_flat_pictures_stay_flat():
    flat = np.full((1, 40, 40), 90, np.float32)
    assert not standardize(flat).any()
    assert np.isfinite(refine_transforms(flat, flat, choose_initial_transforms(flat, flat))).all()
