"""results.csv holds every figure of the JSON files, on a line of its own."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from unit.evaluate import test_multilabel_predictions as labels
from unit.evaluate import test_regression_predictions as numbers
from unit.evaluate.test_metrics import table
from vitrail.evaluate import task_metrics
from vitrail.evaluate.metrics import ClassificationMetrics, compute_classification_metrics
from vitrail.evaluate.multilabel_metrics import compute_multilabel_metrics as measure_labels
from vitrail.evaluate.regression_metrics import compute_regression_metrics as measure_numbers

DRAW = np.random.default_rng(7)


def of_classes(names: tuple[str, ...] = ("a", "b", "=c")) -> ClassificationMetrics:
    targets = np.arange(60) % 3
    weights = DRAW.random((60, 3)) + np.eye(3)[targets]
    return compute_classification_metrics(table(targets, weights / weights.sum(1, keepdims=True), names), samples=20)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_stand_with_their_intervals_first_of_all_pictures_then_of_each_class(tmp_path):
    found = of_classes()
    task_metrics.write_results_csv(tmp_path / "results.csv", [found])
    rows = read(tmp_path / "results.csv")
    assert list(rows[0]) == task_metrics.RESULTS_HEADER
    by_name = {(row["of"], row["figure"]): row for row in rows}
    assert len(by_name) == len(rows)
    accuracy, recall = by_name["", "accuracy"], by_name["'=c", "recall"]
    assert float(accuracy["value"]) == found.accuracy and accuracy["n"] == "60"
    assert (float(accuracy["low"]), float(accuracy["high"])) == found.accuracy_interval
    assert float(recall["value"]) == found.per_class[2].recall and recall["n"] == "20"
    assert ("", "calibration_error") not in by_name, "60 pictures do not show it"
    assert float(by_name["", "calibration_in_the_large"]["low"]) == found.calibration_in_the_large_interval[0]
    assert [row["of"] for row in rows] == sorted((row["of"] for row in rows), key=["", "a", "b", "'=c"].index)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_no_figure_of_the_json_is_missing(kind):
    figures = {"classification": of_classes, "multilabel": of_labels, "regression": of_numbers}[kind]()
    rows = list(task_metrics.iter_results(figures))
    values = figures.to_json()
    whole = {name for name, value in values.items() if isinstance(value, float)}
    assert {row.metric for row in rows if not row.scope} == whole
    (part,) = (values[name] for name in task_metrics.RESULTS_PARTS if name in values)
    numbers = sum(isinstance(value, float) for one in part for value in one.values())
    ranges = sum(name == "agreement" for one in part for name in one)
    assert len([row for row in rows if row.scope]) == numbers + ranges and numbers > 3


def of_labels():
    targets = (DRAW.random((60, 2)) < 0.5).astype(np.float32)
    probabilities = 0.6 * targets + 0.4 * DRAW.random((60, 2))
    return measure_labels(labels.table(targets, probabilities))


def of_numbers():
    targets = DRAW.random((60, 1))
    return measure_numbers(numbers.table(targets, targets + DRAW.random((60, 1)) / 10, ("age",)))


def test_limits_of_agreement_are_a_range_without_a_value():
    (row,) = [row for row in task_metrics.iter_results(of_numbers()) if row.metric == "agreement"]
    assert row.value is None and row.low is not None and row.high is not None and row.low <= row.high
