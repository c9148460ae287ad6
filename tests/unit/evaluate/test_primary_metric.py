"""The one figure of a task, of some pictures, against the figures of the whole table."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from vitrail.errors import DataError
from vitrail.evaluate.predictions import ClassificationPredictions, MultilabelPredictions, RegressionPredictions
from vitrail.evaluate.primary_metric import (
    compute_mean_primary_metric,
    compute_primary_metric,
    constant_baseline_errors,
    per_image_metric,
    primary_metric_value,
)
from vitrail.stats.intervals import bootstrap_interval, wilson_interval


def named(n: int) -> dict[str, object]:
    names = tuple(map(str, range(n)))
    return {"paths": names, "ids": names, "split": "test"}


def classes(right: np.ndarray, targets: np.ndarray | None = None) -> ClassificationPredictions:
    truth = np.zeros(len(right), np.int64) if targets is None else targets
    chances = np.where(right[:, None], [0.9, 0.1], [0.2, 0.8]).astype(np.float32)
    return ClassificationPredictions(**named(len(right)), targets=truth, probabilities=chances, classes=("a", "b"))


def labels(targets: np.ndarray, chances: np.ndarray) -> MultilabelPredictions:
    names = tuple("abcdef"[: targets.shape[1]])
    return MultilabelPredictions(**named(len(targets)), targets=targets, probabilities=chances, classes=names)


def numbers(targets: np.ndarray, values: np.ndarray) -> RegressionPredictions:
    columns = ("age", "height")[: targets.shape[1]]
    return RegressionPredictions(**named(len(targets)), targets=targets, values=values, columns=columns)


def test_accuracy_has_wilson_s_interval_and_counts_what_is_known():
    right = np.arange(50) < 40
    truth = np.where(np.arange(50) < 45, 0, -1)
    found = compute_primary_metric(classes(right, truth))
    assert (found.name, found.n, found.groups) == ("accuracy", 45, 45)
    assert found.value == pytest.approx(40 / 45) and found.interval == wilson_interval(40, 45)
    some = compute_primary_metric(classes(right, truth), np.arange(50) >= 30)
    assert (some.n, some.value) == (15, pytest.approx(10 / 15))


def test_groups_widen_the_interval_and_one_group_counts_as_one_picture():
    right = np.repeat(np.arange(20) < 12, 10)
    groups = np.repeat(np.arange(20), 10)
    plain, grouped = compute_primary_metric(classes(right)), compute_primary_metric(classes(right), groups=groups)
    assert grouped.groups == 20 and grouped.value == plain.value
    assert grouped.interval[1] - grouped.interval[0] > 2 * (plain.interval[1] - plain.interval[0])
    assert compute_primary_metric(classes(right), groups == 0, groups).interval == pytest.approx(wilson_interval(1, 1))


def test_mean_auroc_goes_over_labels_with_ten_of_either_kind():
    generator = np.random.default_rng(0)
    targets = (generator.random((120, 3)) < [0.5, 0.3, 0.02]).astype(np.float32)
    targets[:20, 0] = np.nan
    chances = generator.random((120, 3)).astype(np.float32)
    found = compute_primary_metric(labels(targets, chances))
    known = ~np.isnan(targets[:, 0])
    each = [roc_auc_score(targets[known, 0], chances[known, 0]), roc_auc_score(targets[:, 1], chances[:, 1])]
    assert (found.name, found.labels, found.n) == ("mean AUROC", (0, 1), 120)
    assert found.value == pytest.approx(np.mean(each)) and found.interval[0] < found.value < found.interval[1]
    assert compute_primary_metric(labels(targets, chances), labels=(1,)).value == pytest.approx(each[1])
    few = compute_primary_metric(labels(targets, chances), np.arange(120) < 12)
    assert (few.value, few.interval, few.labels) == (None, None, ())


def test_errors_of_several_columns_are_counted_in_their_deviations():
    targets = np.float32([[1, 100], [3, 300], [5, np.nan]])
    values = targets + np.float32([1, 10])
    one = compute_primary_metric(numbers(targets[:, :1], values[:, :1]))
    assert (one.name, one.value) == ("mean absolute error of age", pytest.approx(1))
    name, errors = per_image_metric(numbers(targets, np.where(np.isnan(values), 7, values)))
    spreads = targets[:, 0].std(), targets[:2, 1].std()
    assert name == "mean absolute error in deviations"
    assert errors == pytest.approx([(1 / spreads[0] + 10 / spreads[1]) / 2] * 2 + [1 / spreads[0]])
    always = constant_baseline_errors(numbers(targets[:, :1], values[:, :1]))
    assert always == pytest.approx([2, 0, 2])


def test_nothing_known_is_no_figure():
    found = compute_primary_metric(classes(np.ones(4, bool), np.full(4, -1)))
    assert (found.n, found.value, found.interval) == (0, None, None)


def test_the_value_alone_is_that_of_the_headline():
    generator = np.random.default_rng(3)
    truth = (generator.random((80, 2)) < 0.5).astype(np.float32)
    tables = [
        classes(np.arange(50) < 40, np.where(np.arange(50) < 45, 0, -1)),
        labels(truth, generator.random((80, 2)).astype(np.float32)),
        numbers(truth, generator.random((80, 2)).astype(np.float32)),
    ]
    for table in tables:
        assert primary_metric_value(table) == pytest.approx(compute_primary_metric(table).value)


def test_columns_whose_targets_are_all_equal_count_for_nothing():
    targets, values = np.float32([[1], [3], [np.nan]]), np.float32([[2], [5], [9]])
    assert primary_metric_value(numbers(targets, values)) == pytest.approx(1.5)
    both = np.concatenate([targets, 100 * targets], axis=1)
    told = np.concatenate([values, 100 * values], axis=1)
    assert primary_metric_value(numbers(both, told)) == pytest.approx(1.5)  # the deviation of 1 and 3 is 1
    both[:, 0] = 7
    assert primary_metric_value(numbers(both, told)) == pytest.approx(1.5)


def test_the_mean_of_several_tables_draws_each_picture_with_all_its_answers():
    first, second = np.arange(60) < 50, np.arange(60) % 3 > 0
    both = compute_mean_primary_metric([classes(first), classes(second)])
    share = (first.astype(float) + second) / 2
    assert both.value == pytest.approx(share.mean()) and both.n == 60
    assert both.interval == pytest.approx(bootstrap_interval(share, lambda rows: float(rows.mean()), 0))
    assert compute_mean_primary_metric([classes(first)]) == compute_primary_metric(classes(first))
    assert compute_primary_metric(classes(first)).interval == wilson_interval(50, 60)


def test_the_mean_of_areas_of_equal_tables_is_as_uncertain_as_one():
    generator = np.random.default_rng(4)
    truth = (generator.random((90, 1)) < 0.5).astype(np.float32)
    table = labels(truth, generator.random((90, 1)).astype(np.float32))
    one, both = compute_primary_metric(table), compute_mean_primary_metric([table, table])
    assert both.value == pytest.approx(one.value) and both.interval == pytest.approx(one.interval)


def test_what_cannot_be_measured_is_refused():
    unknown = numbers(np.float32([[np.nan]]), np.zeros((1, 1), np.float32))
    with pytest.raises(DataError, match=r"known class\. Got 4 pictures, none with one\."):
        primary_metric_value(classes(np.ones(4, bool), np.full(4, -1)))
    with pytest.raises(DataError, match=r"known label\. Got 2 pictures"):
        primary_metric_value(labels(np.full((2, 2), np.nan), np.zeros((2, 2))))
    with pytest.raises(DataError, match=r"known number\. Got 1 picture"):
        primary_metric_value(unknown)
    with pytest.raises(DataError, match=r"10 known pictures that have it and 10 that do not\. None of the 2 .* 12 pi"):
        primary_metric_value(labels(np.eye(2)[[0, 1] * 6], np.zeros((12, 2))))
    with pytest.raises(DataError, match=r"All targets of each of the 2 known columns are equal among 3 pictures"):
        primary_metric_value(numbers(np.ones((3, 2)), np.zeros((3, 2))))
    with pytest.raises(DataError, match=r"1 of 2 answers are NaN"):
        primary_metric_value(numbers(np.ones((2, 1)), np.array([[np.nan], [1]])))


def test_several_tables_without_an_error_still_have_an_interval_with_a_width():
    right = np.ones(40, bool)
    found = compute_mean_primary_metric([classes(right), classes(right)])
    assert found.value == 1 and found.interval == pytest.approx(wilson_interval(40, 40))
