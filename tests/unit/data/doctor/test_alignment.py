"""One sketch is laid on another before they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from unit.data.doctored import SPEC, textures
from vitrail.data.doctor.alignment import inner, laid, normal, started, stretched
from vitrail.data.doctor.looks import look


def sketch(values: np.ndarray) -> np.ndarray:
    return look(np.ascontiguousarray(values), SPEC).sketch.astype(np.float32)[None]


def fit(first: np.ndarray, second: np.ndarray, moves: np.ndarray) -> float:
    return float((inner(first) * inner(stretched(second, moves))).mean())


NOWHERE = np.zeros((1, 4), np.float32)


@pytest.mark.parametrize("ends", [(4, 4, 4, 4), (6, 0, 0, 6), (0, 6, 6, 0), (0, 0, 8, 0)])
def test_a_cropped_picture_is_laid_on_the_whole_one_and_back(ends):
    top, bottom, left, right = ends
    picture = textures(1, side=192)[0]
    whole, crop = sketch(picture), sketch(picture[top : 192 - bottom, left : 192 - right])
    for first, second in ((whole, crop), (crop, whole)):
        moves = laid(first, second, started(first, second))
        assert fit(first, second, moves) > 0.98 > fit(first, second, NOWHERE)


def test_the_moves_are_those_of_the_crop():
    picture = textures(1, side=200)[0]
    whole, crop = sketch(picture), sketch(picture[10:, :190])  # what was seen at -0.9..1 down, -1..0.9 across
    (down, taller, across, wider) = laid(whole, crop, started(whole, crop))[0].tolist()
    np.testing.assert_allclose([taller, wider], 200 / 190 - 1, atol=0.01)
    np.testing.assert_allclose([down, across], [-10 / 190, 10 / 190], atol=0.01)


def test_rounds_never_make_a_fit_worse():
    first, second = (np.concatenate([sketch(values) for values in textures(20, seed)]) for seed in (1, 2))
    start = started(first, second)
    before = (inner(first) * inner(stretched(second, start))).mean((1, 2))
    after = (inner(first) * inner(stretched(second, laid(first, second, start)))).mean((1, 2))
    assert (after >= before - 1e-5).all()


def test_standing_still_changes_nothing():
    first = sketch(textures(1)[0])
    np.testing.assert_allclose(stretched(first, NOWHERE), first, atol=1e-3)


def test_flat_pictures_stay_flat():
    flat = np.full((1, 40, 40), 90, np.float32)
    assert not normal(flat).any()
    assert np.isfinite(laid(flat, flat, started(flat, flat))).all()
