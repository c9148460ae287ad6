"""Another prevalence: probabilities moved to it, and its estimate from pictures without labels."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import DataError, UsageError
from vitrail.evaluate.calibration import debiased_calibration_error
from vitrail.evaluate.conformal import conformal_quantile
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions
from vitrail.evaluate.prevalence import (
    complete_prevalences,
    estimate_prevalences,
    measure_prevalences,
    prevalence_ratios,
    shift_probabilities,
)

MEANS = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])


def draw(shares, n, seed):
    """Points of Gaussian classes at these shares, their classes, and the densities of every class there [n, K]."""
    generator = np.random.default_rng(seed)
    K = len(shares)
    targets = generator.choice(K, n, p=shares)
    points = MEANS[targets] + generator.normal(size=(n, 2))
    return targets, np.exp(-0.5 * np.square(points[:, None] - MEANS[:K]).sum(2))


def posterior(densities, shares):
    joint = densities * np.array(shares)
    return (joint / joint.sum(1, keepdims=True)).astype(np.float32)


def table(probabilities, targets=None):
    n, K = probabilities.shape
    names = tuple("abc"[:K])
    ids = tuple(map(str, range(n)))
    return ClassificationPredictions(
        paths=ids, ids=ids, split="val", targets=targets, probabilities=probabilities, classes=names
    )


@pytest.mark.parametrize("new", [(0.99, 0.01), (0.5, 0.5), (0.2, 0.3, 0.5)])
def test_moved_probabilities_are_those_of_a_model_trained_at_that_prevalence(new):
    old = (0.7, 0.3) if len(new) == 2 else (0.6, 0.2, 0.2)
    targets, densities = draw(new, 20_000, 0)
    before = posterior(densities, old)
    ratios = prevalence_ratios("classification", old, new)
    moved = shift_probabilities("classification", before, ratios)
    np.testing.assert_allclose(moved, posterior(densities, new), rtol=2e-5, atol=1e-7)
    errors = [debiased_calibration_error(one[:, -1], targets == len(new) - 1) for one in (before, moved)]
    assert errors[1] < 0.01 < errors[0]


def test_a_label_is_moved_like_one_of_two_classes():
    _, densities = draw((0.9, 0.1), 200, 1)
    before = posterior(densities, (0.7, 0.3))
    ratios = prevalence_ratios("multilabel", (0.3, 0.4), (0.01, 0.4))
    assert ratios[1] == 1.0
    moved = shift_probabilities("multilabel", before[:, [1, 0]], ratios)
    np.testing.assert_allclose(moved[:, 0], posterior(densities, (0.99, 0.01))[:, 1], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(moved[:, 1], before[:, 0])


def test_classes_that_are_not_stated_share_the_rest():
    names, measured = ("a", "b", "c"), (0.2, 0.3, 0.5)
    assert complete_prevalences("classification", names, measured, {"a": 0.6}) == pytest.approx((0.6, 0.15, 0.25))
    assert complete_prevalences("multilabel", names, measured, {"a": 0.6}) == (0.6, 0.3, 0.5)
    with pytest.raises(UsageError, match=r"add up to 1\. Got 1 for a, b"):
        complete_prevalences("classification", names, measured, {"a": 0.6, "b": 0.4})
    with pytest.raises(UsageError, match=r"add up to 1\. Got 0\.9 for a, b, c"):
        complete_prevalences("classification", names, measured, {"a": 0.5, "b": 0.2, "c": 0.2})
    with pytest.raises(DataError, match=r"100% of them have a\. Train with"):
        complete_prevalences("classification", ("a", "b"), (1.0, 0.0), {"a": 0.6})


def test_prevalences_are_measured_on_known_targets():
    targets = np.array([0, 1, 1, -1])
    assert measure_prevalences(table(np.full((4, 2), 0.5, np.float32), targets)) == pytest.approx((1 / 3, 2 / 3))
    with pytest.raises(DataError, match="No val picture has a known target of a"):
        measure_prevalences(table(np.full((4, 2), 0.5, np.float32)))
    ids = ("1", "2", "3")
    labels = MultilabelPredictions(
        paths=ids, ids=ids, split="val", classes=("a", "b"), probabilities=np.full((3, 2), 0.5, np.float32),
        targets=np.array([[1, np.nan], [0, 1], [np.nan, 1]], np.float32),
    )  # fmt: skip
    assert measure_prevalences(labels) == (0.5, 1.0)
    with pytest.raises(DataError, match="have b all or never"):
        estimate_prevalences(labels, labels)


def calibrating(shares, n, seed):
    """Validation images at these shares, whose probabilities are exact."""
    targets, densities = draw(shares, n, seed)
    return table(posterior(densities, shares), targets)


def bend(one):
    """The same images by a model whose log-odds of the second of two classes are half too large, and then by 1."""
    odds = 1.5 * np.log(one.probabilities[:, 1].astype(np.float64) / one.probabilities[:, 0]) + 1
    chances = 1 / (1 + np.exp(-odds))
    return table(np.stack([1 - chances, chances], 1).astype(np.float32), one.targets)


@pytest.mark.parametrize("shares", [(0.95, 0.05), (0.5, 0.5), (0.1, 0.2, 0.7)])
def test_an_unknown_prevalence_is_found_from_probabilities_alone(shares):
    old = (0.7, 0.3) if len(shares) == 2 else (0.4, 0.3, 0.3)
    _, densities = draw(shares, 4000, 3)
    there, here = table(posterior(densities, old)), calibrating(old, 3000, 4)
    found = estimate_prevalences(there, here)
    for one, share in zip(found, shares, strict=True):
        assert abs(one.value - share) < 0.04 and one.interval.low < share < one.interval.high
    assert sum(one.value for one in found) == pytest.approx(1)
    if len(shares) == 2:  # a label is one of two classes
        targets = [None, here.targets[:, None].astype(np.float32)]
        there_too, here_too = (
            MultilabelPredictions(
                paths=one.paths, ids=one.ids, split="", classes=("b",), targets=known,
                probabilities=one.probabilities[:, 1:],
            )
            for one, known in zip((there, here), targets, strict=True)
        )  # fmt: skip
        assert estimate_prevalences(there_too, here_too)[0].value == pytest.approx(found[1].value, abs=1e-3)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_an_estimate_does_not_depend_on_how_the_model_is_calibrated(share):
    _, densities = draw((1 - share, share), 3000, 5)
    there, here = table(posterior(densities, (0.7, 0.3))), calibrating((0.7, 0.3), 3000, 6)
    exact, bent = (estimate_prevalences(*pair)[1] for pair in ((there, here), (bend(there), bend(here))))
    assert bent.value == pytest.approx(exact.value, abs=0.002)
    assert bent.interval == pytest.approx(exact.interval, abs=0.004)


def test_classes_that_probabilities_separate_are_counted():
    sure = np.eye(2, dtype=np.float32)
    found = estimate_prevalences(
        table(sure[np.arange(100) % 10 // 9]), table(sure[np.arange(60) % 2], np.arange(60) % 2)
    )
    assert found[1].value == pytest.approx(0.1, abs=0.001)


@pytest.mark.wide
@pytest.mark.parametrize(("share", "model"), [(0.5, calibrating), (0.05, bend)])
def test_intervals_of_the_estimate_contain_the_prevalence(share, model):
    held = 0
    for seed in range(80):
        _, densities = draw((1 - share, share), 600, 100 + seed)
        there, here = table(posterior(densities, (0.7, 0.3))), calibrating((0.7, 0.3), 600, 1000 + seed)
        if model is bend:
            there, here = bend(there), bend(here)
        one = estimate_prevalences(there, here, seed)[1]
        held += one.interval.low <= share <= one.interval.high
    assert held >= 70  # 76 expected of 80


def test_weighted_sets_hold_the_truth_at_the_stated_prevalence():
    generator, held = np.random.default_rng(0), []
    for _ in range(300):
        positive = generator.random(200) < 0.5
        distances = generator.normal(size=200) + 2 * positive
        weights = np.where(positive, 0.2, 1.8)  # of 50 % to 10 %
        cut = conformal_quantile(distances, 0.1, weights, 1.8)
        further = generator.normal(size=200) + 2 * (generator.random(200) < 0.1)
        held.append((further <= cut).mean())
    assert 0.895 < np.mean(held) < 0.92
    plain = generator.normal(size=50)
    assert conformal_quantile(plain, 0.1, np.ones(50)) == conformal_quantile(plain, 0.1)
