"""Linear probes and neighbours against scikit-learn, and against formulas written out where it has nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from vitrail.evaluate import probe

SCALES = np.linspace(0.5, 4, 6)


def drawn(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(n, 6)) * SCALES + 3).astype(np.float32), generator


def fitted(features: np.ndarray, targets: np.ndarray, task: str, outputs: int, c: float) -> probe.LinearProbe:
    return list(probe.fit_probe_path(features, targets, task, outputs, (c / 100, c)))[-1]


@pytest.mark.parametrize("c", [0.01, 1.0])
def test_a_probe_of_three_classes_is_scikit_learn_s_logistic_regression(c):
    features, generator = drawn()
    targets = (features[:, 0] + generator.normal(size=120)).argsort().argsort() // 40
    scaled = StandardScaler().fit_transform(features.astype(np.float64))
    oracle = LogisticRegression(C=c, max_iter=5000, tol=1e-10).fit(scaled, targets)
    ours = probe_chances(fitted(features, targets, "classification", 3, c).predict_outputs(features))
    np.testing.assert_allclose(ours, oracle.predict_proba(scaled), atol=2e-4)


@pytest.mark.parametrize("c", [0.001, 1.0])
def test_without_standardisation_the_penalty_is_that_of_the_features_as_they_are(c):
    """There the gradient of C * loss + |weight|^2 / 2 is zero."""
    features, generator = drawn()
    features = features * np.array([100, 10, 1, 1, 0.1, 0.01], np.float32)
    targets = (features[:, 2] + generator.normal(size=120)).argsort().argsort() // 40
    path = probe.fit_probe_path(features, targets, "classification", 3, (c / 100, c), standardize=False)
    ours = list(path)[-1]
    errors = probe_chances(features.astype(np.float64) @ ours.weight.T + ours.bias) - np.eye(3)[targets]
    gradient = c * errors.T @ features + ours.weight
    curvature = c * 120 * features.var(0) / 4 + 1
    assert np.abs(gradient / np.sqrt(curvature)).max() < 1e-3 * np.sqrt(c * 120)
    assert np.abs(errors.mean(0)).max() < 1e-4


def test_of_two_classes_scikit_learn_s_c_is_twice_ours():
    features, generator = drawn()
    targets = (features[:, 1] + generator.normal(size=120) > 3).astype(np.int64)
    scaled = StandardScaler().fit_transform(features.astype(np.float64))
    oracle = LogisticRegression(C=0.2, max_iter=5000, tol=1e-10).fit(scaled, targets)
    ours = probe_chances(fitted(features, targets, "classification", 2, 0.1).predict_outputs(features))
    np.testing.assert_allclose(ours, oracle.predict_proba(scaled), atol=2e-4)


def test_certain_chances_teach_the_same_as_classes_and_uncertain_ones_less():
    features, generator = drawn()
    targets = generator.integers(0, 3, 120)
    certain = np.eye(3, dtype=np.float32)[targets]
    plain = fitted(features, targets, "classification", 3, 1.0)
    np.testing.assert_allclose(fitted(features, certain, "classification", 3, 1.0).weight, plain.weight, atol=1e-4)
    halved = fitted(features, (certain + 1 / 3) / 2, "classification", 3, 1.0)
    assert np.abs(halved.weight).sum() < np.abs(plain.weight).sum()


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_a_whole_weight_is_so_many_copies_of_the_picture(task):
    """Weights have mean 1, so C is that of the copies times copies per picture."""
    features, generator = drawn()
    targets = (features[:, :2] + generator.normal(size=(120, 2)) > 3).astype(np.float32)
    targets[generator.random((120, 2)) < 0.2] = np.nan
    targets = generator.integers(0, 2, 120) if task == "classification" else targets
    times = generator.integers(1, 5, 120)
    weights, copies = (times / times.mean()).astype(np.float32), np.arange(120).repeat(times)
    ours = list(probe.fit_probe_path(features, targets, task, 2, (0.01, 1.0), weights))[-1]
    theirs = fitted(features[copies], targets[copies], task, 2, 1.0 / times.mean())
    np.testing.assert_allclose(ours.weight, theirs.weight, atol=2e-4)
    np.testing.assert_allclose(ours.bias, theirs.bias, atol=1e-3)
    assert np.abs(ours.weight - fitted(features, targets, task, 2, 1.0).weight).max() > 0.01


def test_every_label_is_a_logistic_regression_on_the_pictures_where_it_is_known():
    features, generator = drawn()
    targets = (features[:, :2] + generator.normal(size=(120, 2)) > 3).astype(np.float32)
    targets[generator.random((120, 2)) < 0.4] = np.nan
    ours = fitted(features, targets, "multilabel", 2, 0.3).predict_outputs(features)
    scaled = StandardScaler().fit_transform(features.astype(np.float64))
    for label, column in enumerate(targets.T):
        known = ~np.isnan(column)
        oracle = LogisticRegression(C=0.3, max_iter=5000, tol=1e-10).fit(scaled[known], column[known])
        np.testing.assert_allclose(expit(ours[:, label]), oracle.predict_proba(scaled)[:, 1], atol=2e-4)


def test_every_number_is_a_ridge_regression_on_the_pictures_where_it_is_known():
    features, generator = drawn()
    targets = (features[:, :2] @ [[1, 2], [-1, 0]] + generator.normal(size=(120, 2))).astype(np.float32)
    targets[generator.random((120, 2)) < 0.4] = np.nan
    ours = fitted(features, targets, "regression", 2, 0.02).predict_outputs(features)
    scaled = StandardScaler().fit_transform(features.astype(np.float64))
    for place, column in enumerate(targets.T):
        known = ~np.isnan(column)
        oracle = Ridge(alpha=50.0).fit(scaled[known], column[known])
        np.testing.assert_allclose(ours[:, place], oracle.predict(scaled), atol=1e-4)


def test_a_label_or_number_of_which_nothing_is_known_gets_no_weight():
    features, _ = drawn()
    for task in ("multilabel", "regression"):
        linear = fitted(features, np.full((120, 1), np.nan, np.float32), task, 1, 1.0)
        assert not linear.weight.any() and not linear.bias.any()


def test_a_feature_that_never_changes_gets_no_weight():
    features, generator = drawn()
    features[:, 2] = 7
    linear = fitted(features, generator.integers(0, 2, 120), "classification", 2, 1.0)
    assert np.abs(linear.weight[:, 2]).max() < 1e-3 and np.isfinite(linear.weight).all()


def probe_chances(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_neighbours_answer_as_their_formula_says():
    known, generator = drawn(30)
    asked, targets = drawn(7, seed=1)[0], generator.integers(0, 3, 30)
    found = probe.knn_outputs(known, targets, asked, "classification", 3, 4)
    for row, answer in zip(asked, found, strict=True):
        likeness = known @ row / np.linalg.norm(known, axis=1) / np.linalg.norm(row)
        nearest = likeness.argsort()[::-1][:4]
        weights = np.exp(likeness[nearest] / 0.07)
        chances = np.bincount(targets[nearest], weights, 3) / weights.sum()
        np.testing.assert_allclose(np.exp(answer), chances, atol=2e-5)


def test_neighbours_that_know_nothing_of_a_label_are_not_asked():
    known, _ = drawn(3)
    targets = np.float32([[1, np.nan], [np.nan, np.nan], [1, np.nan]])
    logits = probe.knn_outputs(known, targets, known, "multilabel", 2, 10)
    assert (logits[:, 0] > 10).all() and (expit(logits[:, 1]) < 0.01).all()
    values = probe.knn_outputs(known, targets * 5, known, "regression", 2, 10)
    np.testing.assert_allclose(values, [[5, 0]] * 3, rtol=1e-6)
