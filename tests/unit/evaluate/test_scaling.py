"""The scale of numbers: mean 0 and deviation 1 on what is known, and the same numbers back in their unit."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import DamagedFileError
from vitrail.evaluate.scaling import KEY, Scaling, scaling_in, scaling_of

TARGETS = np.array([[300, 1, np.nan], [340, 1, np.nan], [np.nan, 1, np.nan], [320, np.nan, np.nan]], np.float32)


def test_known_targets_get_mean_0_and_deviation_1():
    scaling = scaling_of(TARGETS)
    assert scaling == Scaling((320.0, 1.0, 0.0), (float(np.std([300, 320, 340])), 1.0, 1.0))
    scaled = scaling.standardised(TARGETS)
    assert scaled.dtype == np.float32 and np.isnan(scaled).sum() == np.isnan(TARGETS).sum()
    assert np.nanmean(scaled[:, 0]) == pytest.approx(0, abs=1e-6) and np.nanstd(scaled[:, 0]) == pytest.approx(1)
    assert scaled[0, 1] == 0


def test_values_are_back_in_their_unit():
    scaling = scaling_of(TARGETS)
    np.testing.assert_allclose(scaling.values(scaling.standardised(TARGETS)), TARGETS, rtol=1e-6)


def test_a_constant_that_float32_cannot_hold_exactly_is_not_blown_up():
    assert scaling_of(np.full((1000, 1), 0.1, np.float32)).deviation == (1.0,)


def test_the_order_of_the_pictures_changes_no_bit():
    drawn = np.random.default_rng(0).normal(1e4, 1, (1001, 2)).astype(np.float32)
    assert scaling_of(drawn) == scaling_of(drawn[::-1]) == scaling_of(np.random.default_rng(1).permutation(drawn))


def test_a_bundle_keeps_it_and_one_without_is_refused():
    scaling = scaling_of(TARGETS)
    assert scaling_in({KEY: scaling.to_json()}, 3, "config.json") == scaling
    assert scaling_in({}, 3, "config.json") is None
    broken = (
        {KEY: None},
        {KEY: {"mean": [1.0]}},
        {KEY: {"mean": [1.0], "deviation": [0.0]}},
        {KEY: {**scaling.to_json()}},
    )
    for noted in broken:
        with pytest.raises(DamagedFileError, match="mean and deviation of 1 training targets"):
            scaling_in(noted, 1, "config.json")
