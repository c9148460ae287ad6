"""The scale of numbers: mean 0 and deviation 1 on what is known, and the same numbers back in their unit."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import DamagedFileError
from vitrail.evaluate.calibration import SCALING_KEY, TargetScaling, fit_scaling, read_scaling

TARGETS = np.array([[300, 1, np.nan], [340, 1, np.nan], [np.nan, 1, np.nan], [320, np.nan, np.nan]], np.float32)


def test_known_targets_get_mean_0_and_deviation_1():
    scaling = fit_scaling(TARGETS)
    assert scaling == TargetScaling((320.0, 1.0, 0.0), (float(np.std([300, 320, 340])), 1.0, 1.0))
    scaled = scaling.standardize(TARGETS)
    assert scaled.dtype == np.float32 and np.isnan(scaled).sum() == np.isnan(TARGETS).sum()
    assert np.nanmean(scaled[:, 0]) == pytest.approx(0, abs=1e-6) and np.nanstd(scaled[:, 0]) == pytest.approx(1)
    assert scaled[0, 1] == 0


def test_values_are_back_in_their_unit():
    scaling = fit_scaling(TARGETS)
    np.testing.assert_allclose(scaling.unstandardize(scaling.standardize(TARGETS)), TARGETS, rtol=1e-6)


def test_a_constant_that_float32_cannot_hold_exactly_is_not_blown_up():
    assert fit_scaling(np.full((1000, 1), 0.1, np.float32)).deviation == (1.0,)


def test_the_order_of_the_pictures_changes_no_bit():
    drawn = np.random.default_rng(0).normal(1e4, 1, (1001, 2)).astype(np.float32)
    assert fit_scaling(drawn) == fit_scaling(drawn[::-1]) == fit_scaling(np.random.default_rng(1).permutation(drawn))


def test_a_bundle_keeps_it_and_one_without_is_refused():
    scaling = fit_scaling(TARGETS)
    assert read_scaling({SCALING_KEY: scaling.to_json()}, 3, "config.json") == scaling
    assert read_scaling({}, 3, "config.json") is None
    broken = (
        {SCALING_KEY: None},
        {SCALING_KEY: {"mean": [1.0]}},
        {SCALING_KEY: {"mean": [1.0], "deviation": [0.0]}},
        {SCALING_KEY: {**scaling.to_json()}},
    )
    for noted in broken:
        with pytest.raises(DamagedFileError, match="mean and deviation of 1 training targets"):
            read_scaling(noted, 1, "config.json")


@pytest.mark.parametrize(
    ("targets", "wide"),
    [
        ([0.5, 1, 2.25], False),
        ([1250, 3641, 6032], False),
        ([1e6, 1e6 + 3, 1e6 + 7], True),  # serial numbers
        ([1700000000.25, 1700000001.25, 1700000039.25], True),  # seconds of Unix
        ([1e30, 2e30, 3e30], False),
    ],
)
def test_numbers_that_float32_would_round_are_answered_in_float64(targets, wide):
    column = np.array(targets, np.float64)[:, None]
    scaling = fit_scaling(column)
    back = scaling.unstandardize(scaling.standardize(column))
    assert scaling.needs_float64 == wide and back.dtype == (np.float64 if wide else np.float32)
    np.testing.assert_allclose(back, column, atol=1e-5 * column.std())


def test_a_whole_weight_is_so_many_copies_of_the_target():
    generator = np.random.default_rng(2)
    drawn = generator.normal(5, 3, (50, 2)).astype(np.float32)
    drawn[::4, 1] = np.nan
    times = generator.integers(1, 5, 50)
    ours, theirs = fit_scaling(drawn, times / times.mean()), fit_scaling(drawn.repeat(times, axis=0))
    assert ours.mean == pytest.approx(theirs.mean) and ours.deviation == pytest.approx(theirs.deviation)
    order = generator.permutation(50)
    assert fit_scaling(drawn[order], (times / times.mean())[order]) == ours
