"""Promised shares: kept on average over random splits, by class too, and refused where pictures are too few."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from vitrail.errors import DataError, UsageError
from vitrail.evaluate.conformal import conformal_quantile, fit_conformal_sets, min_calibration_size


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
        held = fit_conformal_sets(probabilities[fitted], targets[fitted], miss).predict_sets(probabilities[fresh])
        covered.append(held[np.arange(len(fresh)), targets[fresh]].mean())
    assert np.mean(covered) == pytest.approx(1 - miss, abs=0.005)


def test_by_class_the_promise_holds_for_rare_ones_too():
    probabilities, targets = answered(2, n=40_000)
    half = len(targets) // 2
    shares = {}
    for by_class in (False, True):
        held = fit_conformal_sets(probabilities[:half], targets[:half], 0.1, by_class).predict_sets(
            probabilities[half:]
        )
        right = held[np.arange(half), targets[half:]]
        shares[by_class] = [right[targets[half:] == k].mean() for k in range(4)]
    assert min(shares[False]) < 0.85
    assert shares[True] == pytest.approx([0.9] * 4, abs=0.02)


def test_classes_with_too_few_pictures_share_the_cut_of_all():
    probabilities, targets = answered(3, n=200)
    found = fit_conformal_sets(probabilities, targets, 0.1, class_conditional=True)
    counts = np.bincount(targets, minlength=4)
    assert found.has_own_threshold == tuple(bool(count >= 9) for count in counts)
    plain = fit_conformal_sets(probabilities, targets, 0.1)
    assert all(
        cut == plain.thresholds[0]
        for cut, mine in zip(found.thresholds, found.has_own_threshold, strict=True)
        if not mine
    )


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
