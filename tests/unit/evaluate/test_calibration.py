"""Temperatures and calibration errors: simulations with a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from vitrail.errors import UsageError
from vitrail.evaluate.calibration import (
    debiased_calibration_error,
    fit_temperature,
    reliability_curve,
    summarize_calibration,
)


def calibrated(seed, n, spread=2.0, K=5):
    """Logits [n, K] whose softmax is exactly how targets come about."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, spread, (n, K))
    cumulated = softmax(logits, axis=1).cumsum(1)
    return logits, (generator.random((n, 1)) > cumulated).sum(1).clip(max=K - 1)


def loss(logits, targets):
    return -log_softmax(logits, axis=1)[np.arange(len(targets)), targets].mean()


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_V3_the_temperature_is_recovered_within_two_per_cent(factor):
    found = [fit_temperature("classification", (factor * logits).astype(np.float32), targets)[0] for logits, targets in
             (calibrated(seed, 20_000) for seed in range(3))]  # fmt: skip
    assert np.mean(found) == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("n", [100, 300, 5000])
def test_V3_the_loss_never_rises_on_the_pictures_it_was_fitted_to(n):
    for seed in range(20):
        logits, targets = calibrated(seed, n)
        for factor in (0.3, 1.0, 4.0):
            found = fit_temperature("classification", factor * logits, targets)
            scaled = factor * logits / np.array(found or (1.0,))
            assert loss(scaled, targets) <= loss(factor * logits, targets) + 1e-12
            assert (scaled.argmax(1) == logits.argmax(1)).all()


def test_pictures_that_are_all_answered_rightly_ask_for_no_endless_confidence():
    logits = np.eye(3)[np.arange(150) % 3] * 4.0
    (value,) = fit_temperature("classification", logits, np.arange(150) % 3)
    assert 0.4 < value < 1


def test_too_few_pictures_have_no_temperature_and_unknown_ones_do_not_count():
    logits, targets = calibrated(0, 150)
    assert fit_temperature("classification", logits[:99], targets[:99]) == ()
    targets[:60] = -1
    assert fit_temperature("classification", logits, targets) == ()
    assert fit_temperature("regression", logits, logits) == ()


def test_each_label_has_its_own_temperature_if_it_has_pictures_enough():
    generator = np.random.default_rng(2)
    true = generator.normal(0, 2, (20_000, 3))
    targets = (generator.random(true.shape) < expit(true)).astype(np.float32)
    targets[200:, 2] = np.nan
    targets[:200, 2] = np.arange(200) < 5  # five with the label
    found = fit_temperature("multilabel", true * [2.0, 0.5, 1.0], targets)
    assert found[:2] == (pytest.approx(2.0, rel=0.03), pytest.approx(0.5, rel=0.03))
    assert found[2] == 1.0
    assert fit_temperature("multilabel", true[:50], targets[:50]) == ()


@pytest.mark.first(1)
@pytest.mark.parametrize(("n", "most"), [(200, 0.02), (2000, 0.0065), (20_000, 0.002)])
@pytest.mark.parametrize("spread", [1.0, 2.5, 5.0])
def test_V3_the_error_of_calibrated_answers_is_nothing_but_chance(n, most, spread):
    found = []
    for seed in range(200):
        logits, targets = calibrated(seed, n, spread)
        chances = softmax(logits, axis=1)
        found.append(debiased_calibration_error(chances.max(1), chances.argmax(1) == targets))
    assert np.mean(found) < most


def test_the_error_of_overconfident_answers_keeps_its_size():
    chances = np.full(5000, 0.9)
    hits = np.arange(5000) % 10 < 7
    assert debiased_calibration_error(chances, hits) == pytest.approx(0.2, abs=0.005)


def test_a_small_error_of_one_sign_and_one_of_few_pictures_are_not_called_nothing():
    generator = np.random.default_rng(0)
    few = summarize_calibration(generator.uniform(0.6, 0.84, 20), np.ones(20, bool))  # 72 % against 100 %
    assert few.error == pytest.approx(0.28, abs=0.03) and few.in_the_large == pytest.approx(0.28, abs=0.03)
    assert few.error_interval[0] > 0.05 and few.error_interval[1] >= few.error
    assert few.in_the_large_interval[0] > 0.05 and few.slope is None
    chances = np.full(359, 0.95)
    hits = generator.permutation(359) >= 9  # 97.5 %: beyond chance in all of them, and not in a fifteenth
    found = summarize_calibration(chances, hits)
    assert 0.015 < found.error < 0.03 and found.error_interval[0] < found.error < found.error_interval[1]
    assert found.in_the_large == pytest.approx(350 / 359 - 0.95)
    assert found.in_the_large_interval[0] < found.in_the_large < found.in_the_large_interval[1] < 0.04


@pytest.mark.first(2)
@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("factor", [1.0, 0.6, 2.0])
def test_intervals_of_calibration_cover(n, factor):
    big, truth = calibrated(99, 200_000, 2.0)
    chances = softmax(factor * big, axis=1)
    hits = chances.argmax(1) == truth
    whole = summarize_calibration(chances.max(1), hits)
    covered, sets = {"error": 0, "in_the_large": 0, "slope": 0}, 600
    for seed in range(sets):
        logits, targets = calibrated(seed, n, 2.0)
        some = softmax(factor * logits, axis=1)
        found = summarize_calibration(some.max(1), some.argmax(1) == targets)
        for name in covered:
            low, high = getattr(found, f"{name}_interval")
            covered[name] += low <= getattr(whole, name) <= high
    assert min(covered.values()) / sets >= 0.93, covered


def test_the_slope_is_that_of_the_log_odds():
    generator = np.random.default_rng(1)
    odds = generator.normal(0.5, 1.5, 20_000)
    there = generator.random(20_000) < expit(0.4 + 0.7 * odds)
    found = summarize_calibration(expit(odds), there)
    assert found.slope == pytest.approx(0.7, abs=0.03)
    assert found.slope_interval[0] < 0.7 < found.slope_interval[1] < 0.76
    apart = summarize_calibration(np.repeat([0.2, 0.8], 50), np.repeat([False, True], 50))
    assert apart.slope is None and apart.slope_interval is None  # separated: no slope is steep enough


def test_groups_widen_every_interval_of_calibration():
    generator = np.random.default_rng(2)
    chances = generator.uniform(0.5, 1, 100)
    hits = generator.random(100) < chances
    alone = summarize_calibration(chances, hits)
    together = summarize_calibration(chances.repeat(4), hits.repeat(4), np.arange(100).repeat(4))
    naive = summarize_calibration(chances.repeat(4), hits.repeat(4))
    for name in ("error_interval", "in_the_large_interval", "slope_interval"):
        widths = [float(np.diff(getattr(one, name))[0]) for one in (alone, together, naive)]
        assert widths[2] < 0.75 * widths[1] and widths[1] == pytest.approx(widths[0], rel=0.25)


def test_the_error_needs_pictures():
    with pytest.raises(UsageError, match="at least one"):
        debiased_calibration_error(np.zeros(0), np.zeros(0, bool))


def test_reliability_bins_hold_as_many_pictures_each():
    chances = np.linspace(0, 1, 100)
    bins = reliability_curve(chances, chances > 0.5, bins=10)
    assert [one.n for one in bins] == [10] * 10
    assert [one.observed_rate for one in bins] == [0.0] * 5 + [1.0] * 5
    assert bins[0].mean_probability == pytest.approx(chances[:10].mean())
    assert bins[0].interval.low == 0.0
    assert [one.n for one in reliability_curve(chances[:3], chances[:3] > 0)] == [1, 1, 1]
