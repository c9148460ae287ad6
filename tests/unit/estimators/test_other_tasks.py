"""`ViTMultiLabel` and `ViTRegressor`."""

from __future__ import annotations

import pickle

import numpy as np
import pandas
import pytest
from sklearn.metrics import roc_auc_score

import vitrail
from quick_fits import LEARNING, QUICK, digits, threads_kept  # noqa: F401 - a fixture
from vitrail.data.settings import DataSettings
from vitrail.data.sources.label_input import NamedLabels, infer_labels
from vitrail.errors import UsageError
from vitrail.estimators import parse_label_table

pytestmark = pytest.mark.usefixtures("threads_kept")


def labelled(count: int) -> tuple[np.ndarray, pandas.DataFrame]:
    """Digits, whether they are even and whether they are above four; some of it is not known."""
    X, y = digits(count)
    table = pandas.DataFrame({"even": (y % 2 == 0).astype(float), "large": (y > 4).astype(float)})
    table.loc[::7, "large"] = np.nan
    return X, table


@pytest.mark.wide
def test_labels_are_answered_by_the_run_s_own_thresholds():
    X, y = labelled(300)
    asked = {**LEARNING, "settings": {**LEARNING["settings"], "decisions.threshold_rule": "sensitivity 0.95"}}
    estimator = vitrail.ViTMultiLabel(validation_fraction=0.3, **asked).fit(X, y)
    assert estimator.classes_.tolist() == ["even", "large"] == list(estimator.run_.predictor.classes)
    cuts = np.array(estimator.run_.predictor.decisions.thresholds)
    assert (cuts != 0.5).all()
    chances = estimator.predict_proba(X)
    np.testing.assert_array_equal(estimator.predict(X), chances >= cuts)
    np.testing.assert_array_equal(estimator.run_.predict(list(X)).probabilities, chances)
    known = y["even"].to_numpy()
    assert roc_auc_score(known, chances[:, 0]) > 0.65
    opened = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(opened.predict(X), estimator.predict(X))


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, 1, 1], r"one column for each label\. Got the shape \[3\]; for one class a picture"),
        ([[0, 1], [2, 0]], r"must hold 1, 0, or NaN .* Got 2 in row 1, column 0"),
        ([["a"], ["b"]], r"could not be read"),
    ],
)
def test_labels_that_are_none_say_where(y, words):
    with pytest.raises(UsageError, match=words):
        parse_label_table(y)


@pytest.mark.wide
def test_numbers_come_in_their_units_and_as_many_as_there_were():
    X, y = digits(200, 2)
    one = vitrail.ViTRegressor(**LEARNING).fit(X, 100.0 + 50 * y)
    answers = one.predict(X)
    assert answers.shape == (len(X),) and one.score(X, 100.0 + 50 * y) > 0.5
    np.testing.assert_array_equal(one.run_.predict(list(X)).values[:, 0], answers)
    assert one.run_.predictor.classes == ("value",)
    two = vitrail.ViTRegressor(**QUICK).fit(X, pandas.DataFrame({"kind": y, "double": 2.0 * y}))
    assert two.predict(X[:5]).shape == (5, 2) and two.run_.predictor.classes == ("kind", "double")
    assert vitrail.ViTRegressor(**QUICK).fit(X, y[:, None].astype(float)).predict(X[:5]).shape == (5, 1)


def test_numbers_that_are_not_finite_are_refused():
    X, y = digits(50)
    with pytest.raises(ValueError, match="contains NaN"):
        vitrail.ViTRegressor(**QUICK).fit(X, np.where(y == 3, np.nan, y))


@pytest.mark.parametrize("kind", [vitrail.ViTClassifier, vitrail.ViTMultiLabel, vitrail.ViTRegressor])
def test_nothing_is_learnt_without_targets(kind):
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        kind(**QUICK).fit(digits(10)[0], None)


def test_names_that_are_given_are_not_guessed_at():
    numbers = NamedLabels(np.array([1, 0, 1]), ("-1", "1"))  # which elsewhere would be asked whether -1 means unknown
    found = infer_labels(numbers, 3, DataSettings(task="classification"), "labels")
    assert found.classes == ("-1", "1") and found.targets.tolist() == [1, 0, 1]
    column = NamedLabels(np.array([[0.5], [1.5]], np.float32), ("weight",))
    assert infer_labels(column, 2, DataSettings(task="regression"), "labels").classes == ("weight",)
