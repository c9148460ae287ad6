"""Pictures unlike those of the training: told by both scores, and the cut keeps what it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from vitrail.errors import DamagedFileError
from vitrail.evaluate.ood import FeatureStats, fit_feature_stats, fit_ood_threshold


def features(seed, n=1200, D=12, K=3, at=4.0):
    """Features of K classes that lie apart in the first K directions."""
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, K, n)
    return (at * np.eye(D)[classes] + generator.normal(0, 1, (n, D)) + 1).astype(np.float32), classes


def test_the_distance_is_mahalanobis_on_features_of_length_one():
    found, classes = features(0)
    known = fit_feature_stats(found, classes)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    means = np.stack([unit[classes == k].mean(0) for k in range(3)])
    inverse = np.linalg.inv(ledoit_wolf(unit - means[classes], assume_centered=True)[0])
    fresh, _ = features(1, n=50)
    fresh = fresh / np.linalg.norm(fresh, axis=1, keepdims=True)
    expected = [min((x - m) @ inverse @ (x - m) for m in means) for x in fresh]
    ours = known.mahalanobis_distances(7 * fresh)  # any length
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


def test_the_remoteness_is_that_of_the_fiftieth_neighbour():
    found, classes = features(2)
    fresh, _ = features(3, n=30)
    finder = NearestNeighbors(n_neighbors=50, metric="cosine").fit(found)
    expected = finder.kneighbors(fresh)[0][:, -1]
    np.testing.assert_allclose(fit_feature_stats(found, classes).knn_distances(fresh), expected, atol=5e-4)


def test_both_scores_tell_pictures_of_another_kind():
    known = fit_feature_stats(*features(4))
    near, _ = features(5, n=300)
    far = np.random.default_rng(6).normal(-1, 1, (300, 12)).astype(np.float32)
    truth, both = np.repeat([False, True], 300), np.concatenate([near, far])
    assert roc_auc_score(truth, known.mahalanobis_distances(both)) > 0.99
    assert roc_auc_score(truth, known.knn_distances(both)) > 0.99


def test_pictures_without_classes_have_one_mean():
    found, _ = features(7, n=300)
    assert fit_feature_stats(found, None).means.shape == (1, 12)


def test_few_pictures_in_many_directions_still_have_finite_distances():
    found, classes = features(8, n=40, D=64)
    assert np.isfinite(fit_feature_stats(found, classes).mahalanobis_distances(features(9, n=5, D=64)[0])).all()


def test_pictures_that_do_not_scatter_say_nothing():
    assert fit_feature_stats(np.ones((1, 5), np.float32), None) is None
    assert fit_feature_stats(np.eye(3, dtype=np.float32), np.arange(3)) is None


def test_what_a_bundle_keeps_comes_back_and_other_arrays_are_refused():
    known = fit_feature_stats(*features(11))
    again = FeatureStats.from_tensors(known.to_tensors(), 12, "file")
    fresh, _ = features(12, n=20)
    np.testing.assert_array_equal(again.mahalanobis_distances(fresh), known.mahalanobis_distances(fresh))
    np.testing.assert_array_equal(again.knn_distances(fresh), known.knn_distances(fresh))
    assert FeatureStats.from_tensors({}, 12, "file") is None
    for tensors, width in ((known.to_tensors(), 13), ({"whitening": torch.tensor(1.0)}, 12)):
        with pytest.raises(DamagedFileError, match=r"file must hold means \[K, \d+\]"):
            FeatureStats.from_tensors(tensors, width, "file")


def test_the_cut_keeps_what_it_promises():
    generator, beyond = np.random.default_rng(10), []
    for _ in range(300):
        cut = fit_ood_threshold(generator.exponential(size=1000))
        beyond.append((generator.exponential(size=1000) > cut).mean())
    assert np.mean(beyond) == pytest.approx(0.01, abs=0.002)
    assert fit_ood_threshold(np.arange(98.0)) is None
    assert fit_ood_threshold(np.arange(99.0)) == pytest.approx(98.098)
    assert fit_ood_threshold(np.arange(300.0)) == 297.5, "half-way between two pictures"
