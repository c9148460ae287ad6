"""A threshold that is assigned to an estimator is a decision of its run, which every answer follows."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitrail.errors import UsageError
from vitrail.estimators import ViTClassifier, ViTMultiLabel


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:120], y[:120] == 8


@pytest.fixture(scope="module")
def labels(digits):
    X, eights = digits
    return ViTMultiLabel(steps=2, validation_fraction=0.3).fit(X, np.stack([eights, ~eights], 1))


@pytest.mark.wide
def test_a_threshold_that_is_assigned_decides_and_is_kept(digits):
    X, eights = digits
    classifier = ViTClassifier(steps=4, validation_fraction=0.3).fit(X, eights)
    before = classifier.predict(X)
    share = classifier.predict_proba(X)[:, 1]
    classifier.threshold_ = np.median(share)
    np.testing.assert_array_equal(classifier.predict(X), share >= np.median(share))
    assert (classifier.positive_, classifier.decision_) == (True, "threshold-1")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(classifier)).predict(X), classifier.predict(X))
    classifier.run_.decide(use="training")
    np.testing.assert_array_equal(classifier.predict(X), before)


@pytest.mark.parametrize("wrong", [2, -1, "a", None, float("nan"), [0.1, 0.2]])
def test_a_threshold_that_is_no_probability_is_refused_and_nothing_changes(wrong, labels):
    before = labels.threshold_
    with pytest.raises(UsageError, match="threshold_"):
        labels.threshold_ = [0.2, wrong]
    assert labels.decision_ == "training"
    np.testing.assert_array_equal(labels.threshold_, before)


def test_labels_take_one_threshold_for_all_or_one_for_each(labels):
    labels.threshold_ = [0.2, 0.7]
    assert labels.threshold_.tolist() == [0.2, 0.7]
    labels.threshold_ = 0.4
    assert (labels.threshold_.tolist(), labels.decision_) == ([0.4, 0.4], "threshold-2")
    labels.run_.decide(use="training")


@pytest.mark.wide
def test_one_threshold_does_not_decide_among_three_classes(digits):
    X, _ = digits
    classifier = ViTClassifier(steps=2).fit(X, np.arange(len(X)) % 3)
    with pytest.raises(UsageError, match="for two classes, and there are 3"):
        classifier.threshold_ = 0.3
