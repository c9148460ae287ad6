"""Promised shares: kept on average over random splits, and refused where pictures are too few."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from vitrail.errors import DataError, UsageError
from vitrail.evaluate.conformal import conformal_quantile, fit_set_threshold, min_calibration_size, predict_sets


def answered(seed, n=4000, K=4):
    """Probabilities of a poor model, and the truth."""
    generator = np.random.default_rng(seed)
    targets = generator.choice(K, n, p=[0.55, 0.3, 0.1, 0.05])
    logits = generator.normal(0, 1, (n, K)) + 1.5 * np.eye(K)[targets] * generator.random((n, 1))
    logits[:, 0] += 1
    return softmax(3 * logits, axis=1).astype(np.float32), targets


@pytest.mark.parametrize("miss", [0.05, 0.1])
def test_V5_sets_hold_the_truth_as_often_as_promised(miss):
    probabilities, targets = answered(0)
    generator, covered = np.random.default_rng(1), []
    for _ in range(1000):
        order = generator.permutation(len(targets))
        fitted, fresh = order[:400], order[400:]
        cut = fit_set_threshold(probabilities[fitted], targets[fitted], miss)
        held = predict_sets(probabilities[fresh], (cut,) * 4)
        covered.append(held[np.arange(len(fresh)), targets[fresh]].mean())
    assert np.mean(covered) == pytest.approx(1 - miss, abs=0.005)


@pytest.mark.parametrize("miss", [0.05, 0.1])
def test_V5_ranges_of_numbers_hold_the_truth_as_often_as_promised(miss):
    errors = np.abs(np.random.default_rng(4).standard_cauchy(4000))
    generator, covered = np.random.default_rng(5), []
    for _ in range(1000):
        order = generator.permutation(len(errors))
        covered.append((errors[order[400:]] <= conformal_quantile(errors[order[:400]], miss)).mean())
    assert np.mean(covered) == pytest.approx(1 - miss, abs=0.005)


def test_sixty_pictures_promise_the_share_that_they_can():
    generator, covered = np.random.default_rng(4), []
    for _ in range(2000):
        errors = np.abs(generator.standard_cauchy(60))
        covered.append(abs(generator.standard_cauchy()) <= conformal_quantile(errors, 0.1))
    assert np.mean(covered) == pytest.approx(0.902, abs=0.02)  # 55 of 61


@pytest.mark.parametrize(("miss", "needed"), [(0.05, 19), (0.01, 99), (0.1, 9), (0.5, 1)])
def test_too_few_pictures_are_refused_by_number(miss, needed):
    assert min_calibration_size(miss) == needed
    conformal_quantile(np.zeros(needed), miss)
    with pytest.raises(DataError, match=rf"at least {needed} validation pictures.*Got {needed - 1}\."):
        conformal_quantile(np.zeros(needed - 1), miss)


def test_a_share_outside_the_unit_interval_is_refused():
    with pytest.raises(UsageError, match=r"Got 95\."):
        min_calibration_size(95)
