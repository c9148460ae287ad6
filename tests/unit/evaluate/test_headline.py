"""The one figure of a task, of some pictures, against the figures of the whole table."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from vitrail.evaluate.headline import constant, headline, per_picture
from vitrail.evaluate.label_predictions import LabelPredictions
from vitrail.evaluate.number_predictions import NumberPredictions
from vitrail.evaluate.predictions import Predictions
from vitrail.stats.intervals import wilson


def named(n: int) -> dict[str, object]:
    names = tuple(map(str, range(n)))
    return {"paths": names, "ids": names, "split": "test"}


def classes(right: np.ndarray, targets: np.ndarray | None = None) -> Predictions:
    truth = np.zeros(len(right), np.int64) if targets is None else targets
    chances = np.where(right[:, None], [0.9, 0.1], [0.2, 0.8]).astype(np.float32)
    return Predictions(**named(len(right)), targets=truth, probabilities=chances, classes=("a", "b"))


def labels(targets: np.ndarray, chances: np.ndarray) -> LabelPredictions:
    names = tuple("abcdef"[: targets.shape[1]])
    return LabelPredictions(**named(len(targets)), targets=targets, probabilities=chances, classes=names)


def numbers(targets: np.ndarray, values: np.ndarray) -> NumberPredictions:
    columns = ("age", "height")[: targets.shape[1]]
    return NumberPredictions(**named(len(targets)), targets=targets, values=values, columns=columns)


def test_accuracy_has_wilson_s_interval_and_counts_what_is_known():
    right = np.arange(50) < 40
    truth = np.where(np.arange(50) < 45, 0, -1)
    found = headline(classes(right, truth))
    assert (found.name, found.n, found.groups) == ("accuracy", 45, 45)
    assert found.value == pytest.approx(40 / 45) and found.interval == wilson(40, 45)
    some = headline(classes(right, truth), np.arange(50) >= 30)
    assert (some.n, some.value) == (15, pytest.approx(10 / 15))


def test_groups_widen_the_interval_and_one_group_has_none():
    right = np.repeat(np.arange(20) < 12, 10)
    groups = np.repeat(np.arange(20), 10)
    plain, grouped = headline(classes(right)), headline(classes(right), groups=groups)
    assert grouped.groups == 20 and grouped.value == plain.value
    assert grouped.interval[1] - grouped.interval[0] > 2 * (plain.interval[1] - plain.interval[0])
    assert headline(classes(right), groups == 0, groups).interval is None


def test_mean_auroc_goes_over_labels_with_ten_of_either_kind():
    generator = np.random.default_rng(0)
    targets = (generator.random((120, 3)) < [0.5, 0.3, 0.02]).astype(np.float32)
    targets[:20, 0] = np.nan
    chances = generator.random((120, 3)).astype(np.float32)
    found = headline(labels(targets, chances))
    known = ~np.isnan(targets[:, 0])
    each = [roc_auc_score(targets[known, 0], chances[known, 0]), roc_auc_score(targets[:, 1], chances[:, 1])]
    assert (found.name, found.labels, found.n) == ("mean AUROC", (0, 1), 120)
    assert found.value == pytest.approx(np.mean(each)) and found.interval[0] < found.value < found.interval[1]
    assert headline(labels(targets, chances), labels=(1,)).value == pytest.approx(each[1])
    few = headline(labels(targets, chances), np.arange(120) < 12)
    assert (few.value, few.interval, few.labels) == (None, None, ())


def test_errors_of_several_columns_are_counted_in_their_deviations():
    targets = np.float32([[1, 100], [3, 300], [5, np.nan]])
    values = targets + np.float32([1, 10])
    one = headline(numbers(targets[:, :1], values[:, :1]))
    assert (one.name, one.value) == ("mean absolute error of age", pytest.approx(1))
    name, errors = per_picture(numbers(targets, np.where(np.isnan(values), 7, values)))
    spreads = targets[:, 0].std(), targets[:2, 1].std()
    assert name == "mean absolute error in deviations"
    assert errors == pytest.approx([(1 / spreads[0] + 10 / spreads[1]) / 2] * 2 + [1 / spreads[0]])
    always = constant(numbers(targets[:, :1], values[:, :1]))
    assert always == pytest.approx([2, 0, 2])


def test_nothing_known_is_no_figure():
    found = headline(classes(np.ones(4, bool), np.full(4, -1)))
    assert (found.n, found.value, found.interval) == (0, None, None)
