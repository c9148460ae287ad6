"""Two tables of answers: what differs, and what is only luck."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unit.evaluate import (
    test_metrics,
    test_multilabel_metrics,
    test_multilabel_predictions,
    test_regression_predictions,
)
from vitrail.config import read
from vitrail.errors import DataError
from vitrail.evaluate.compare import Comparison, compare_predictions
from vitrail.evaluate.metrics import compute_classification_metrics
from vitrail.evaluate.predictions import output_names, reorder_outputs


def noisy(seed, noise, n=400):
    """A model of three classes: the truth and an amount of noise of its own."""
    targets = np.random.default_rng(0).integers(0, 3, n)
    logits = 2 * np.eye(3)[targets] + np.random.default_rng(seed).normal(0, noise, (n, 3))
    return test_metrics.table(targets, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def test_a_better_model_is_found_and_called_so():
    first, second = noisy(1, 0.7), noisy(2, 2.0)
    found = compare_predictions(first, second)
    accuracy, loss = found.differences
    expected = (
        compute_classification_metrics(first, samples=2).accuracy
        - compute_classification_metrics(second, samples=2).accuracy
    )
    assert (accuracy.name, loss.name) == ("accuracy", "log loss")
    assert accuracy.difference == pytest.approx(expected)
    assert accuracy.interval[0] > 0 and accuracy.is_significant and loss.is_significant and loss.difference < 0
    assert found.verdict("A", "B") == "A is better in accuracy, log loss."
    assert compare_predictions(second, first).verdict("B", "A") == "A is better in accuracy, log loss."
    assert "*" in found.table() and "<0.001" in found.table() and " 0.000" not in found.table()
    assert read(Comparison, found.to_json(), "json") == found


def test_a_model_is_not_better_than_itself():
    found = compare_predictions(noisy(1, 1.0), noisy(1, 1.0))
    assert {one.p_value for one in found.differences} == {1.0}
    assert found.verdict("A", "B") == "No evidence of a difference between A and B on these 400 pictures."


@pytest.mark.wide
def test_V13_equal_models_are_told_apart_in_five_of_a_hundred_cases():
    told, sets = {"accuracy": 0, "log loss": 0}, 4000
    for seed in range(sets):
        pair = noisy(2 * seed + 1, 1.5, 60), noisy(2 * seed + 2, 1.5, 60)
        for one in compare_predictions(*pair, seed=seed, samples=1).differences:
            told[one.name] += one.p_value < 0.05
    assert 0.04 <= told["log loss"] / sets <= 0.06
    assert 0.04 <= told["accuracy"] / sets <= 0.06


def test_several_questions_make_each_p_value_larger():
    found = compare_predictions(noisy(1, 1.0), noisy(2, 1.2))
    assert all(one.adjusted >= one.p_value for one in found.differences)
    smallest = min(found.differences, key=lambda one: one.p_value)
    assert 0 < smallest.p_value < 0.5 and smallest.adjusted == pytest.approx(2 * smallest.p_value)


def test_pictures_of_one_patient_make_a_difference_less_sure():
    first, second = noisy(1, 1.0, 120), noisy(2, 1.6, 120)
    many = lambda table: replace(  # noqa: E731
        table,
        ids=tuple(f"{id}-{copy}" for id in table.ids for copy in range(5)), paths=table.paths * 5,
        targets=table.targets.repeat(5), probabilities=table.probabilities.repeat(5, 0),
    )  # fmt: skip
    alone, naive = compare_predictions(first, second), compare_predictions(many(first), many(second))
    grouped = compare_predictions(many(first), many(second), np.arange(120).repeat(5))
    assert naive.differences[0].p_value < alone.differences[0].p_value
    assert grouped.differences[0].p_value == pytest.approx(alone.differences[0].p_value, abs=0.02)
    assert (grouped.n, grouped.groups) == (600, 120)


def test_labels_are_compared_by_their_areas_and_rare_ones_are_left_out():
    first = test_multilabel_metrics.drawn()
    noise = np.random.default_rng(5).normal(0, 0.4, (400, 3))
    worse = replace(first, probabilities=np.clip(first.probabilities + noise, 0, 1))
    found = compare_predictions(first, worse)
    assert [one.name for one in found.differences] == ["mean AUROC", "AUROC of mass", "AUROC of oedema", "log loss"]
    figures = [test_multilabel_metrics.compute_multilabel_metrics(one, samples=2).auroc for one in (first, worse)]
    assert (found.differences[0].first, found.differences[0].second) == pytest.approx(figures)
    assert all(one.is_significant for one in found.differences)


def test_labels_of_a_few_patients_are_not_compared():
    first = test_multilabel_metrics.drawn()
    found = compare_predictions(first, replace(first, probabilities=first.probabilities**2), np.arange(400) // 80)
    assert [one.name for one in found.differences] == ["log loss"] and found.groups == 5


def test_numbers_are_compared_by_their_errors():
    truth = np.arange(100.0)
    first = test_regression_predictions.table(truth, truth + 1, ("age",))
    second = test_regression_predictions.table(truth, truth + np.random.default_rng(0).normal(0, 5, 100), ("age",))
    (one,) = compare_predictions(first, second).differences
    assert one.name == "mean absolute error of age" and one.first == pytest.approx(1) and one.is_significant
    assert compare_predictions(first, second).verdict("A", "B") == "A is better in mean absolute error of age."


def test_classes_in_another_order_are_brought_into_one():
    first = noisy(1, 1.0)
    turned = reorder_outputs(first, ("c", "a", "b"))
    assert output_names(turned) == ("c", "a", "b")
    assert [turned.classes[k] for k in turned.targets] == [first.classes[k] for k in first.targets]
    assert turned.labels == first.labels
    assert {one.difference for one in compare_predictions(first, turned).differences} == {0.0}
    labels = test_multilabel_metrics.drawn()
    assert {
        one.difference for one in compare_predictions(labels, reorder_outputs(labels, labels.classes[::-1])).differences
    } == {0.0}


def test_what_cannot_be_compared_is_refused():
    first = noisy(1, 1.0)
    with pytest.raises(DataError, match="answer different"):
        compare_predictions(first, test_regression_predictions.table([1], [1], ("a",)))
    with pytest.raises(DataError, match="These differ in 'c', 'x'"):
        compare_predictions(first, replace(first, classes=("a", "b", "x")))
    with pytest.raises(DataError, match=r"same pictures with the same targets\. These differ"):
        compare_predictions(first, replace(first, ids=first.ids[::-1]))
    unknown = test_multilabel_predictions.table(None, [[0.1, 0.2]])
    with pytest.raises(DataError, match="whose answers are known"):
        compare_predictions(unknown, unknown)
