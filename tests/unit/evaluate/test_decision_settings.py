"""One way from outputs to a table of answers for all three tasks, and the glance at it during a training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from unit.evaluate import test_multilabel_predictions as labels
from unit.evaluate import test_regression_predictions as numbers
from vitrail.errors import UsageError
from vitrail.evaluate.calibration import TargetScaling
from vitrail.evaluate.decisions import predictions_from_outputs
from vitrail.evaluate.inference import average_outputs
from vitrail.evaluate.metrics import ClassificationMetrics
from vitrail.evaluate.multilabel_metrics import MultilabelMetrics
from vitrail.evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    concat_predictions,
    read_predictions_csv,
)
from vitrail.evaluate.probabilities import sigmoid
from vitrail.evaluate.probabilities import softmax as inference_softmax
from vitrail.evaluate.quick_metrics import compute_quick_metrics
from vitrail.evaluate.regression_metrics import RegressionMetrics
from vitrail.evaluate.task_metrics import compute_metrics

OUTPUTS = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
ROWS = [(f"{row}.png", str(row)) for row in range(6)]
SCALE = TargetScaling((40.0, -3.0), (10.0, 0.5))
TARGETS = {
    "classification": np.array([0, 1, 0, 1, -1, 1]),
    "multilabel": np.array([[1, 0], [0, 1], [1, np.nan], [0, 1], [np.nan, np.nan], [1, 0]], np.float32),
    "regression": np.array([[40, 1], [0, 1], [1, np.nan], [0, 2], [np.nan, np.nan], [1, 0]], np.float32),
}
KINDS = {
    "classification": (ClassificationPredictions, ClassificationMetrics),
    "multilabel": (MultilabelPredictions, MultilabelMetrics),
    "regression": (RegressionPredictions, RegressionMetrics),
}


@pytest.mark.parametrize("task", TARGETS)
def test_every_task_has_a_table_that_reads_back_and_can_be_measured(task, tmp_path):
    scale = SCALE if task == "regression" else None
    table = predictions_from_outputs(
        task, OUTPUTS, ("a", "b"), scale, ROWS, "test", TARGETS[task], [("bad.png", "empty")]
    )
    kind, figures = KINDS[task]
    assert isinstance(table, kind) and table.skipped == (("bad.png", "empty"),) and len(table) == 6
    table.write_csv(tmp_path / "a.csv")
    again = read_predictions_csv(tmp_path / "a.csv", task)
    assert isinstance(again, kind) and again.csv_bytes() == table.csv_bytes()
    found = compute_metrics(again, scale)
    assert isinstance(found, figures) and found == compute_metrics(table, scale) and found.n == 5
    assert concat_predictions([again, again]).ids == again.ids * 2


def test_answers_are_softmax_sigmoid_and_numbers_in_their_unit():
    classes = predictions_from_outputs("classification", OUTPUTS, ("a", "b"), None, ROWS)
    several = predictions_from_outputs("multilabel", OUTPUTS, ("a", "b"), None, ROWS)
    values = predictions_from_outputs("regression", OUTPUTS, ("a", "b"), SCALE, ROWS)
    np.testing.assert_array_equal(classes.probabilities, inference_softmax(OUTPUTS))
    np.testing.assert_allclose(several.probabilities, 1 / (1 + np.exp(-OUTPUTS)), rtol=1e-6)
    np.testing.assert_allclose(values.values, OUTPUTS * [10, 0.5] + [40, -3], rtol=1e-6)
    assert len(predictions_from_outputs("multilabel", np.zeros((0, 0), np.float32), ("a", "b"), None, [])) == 0


def test_numbers_without_a_scale_are_in_their_unit_already():
    np.testing.assert_array_equal(
        predictions_from_outputs("regression", OUTPUTS, ("a", "b"), None, ROWS).values, OUTPUTS
    )


def test_tables_of_several_tasks_cannot_be_joined():
    with pytest.raises(UsageError, match=r"of one task\. Got several"):
        concat_predictions([labels.table(None, [[0.1, 0.2]]), numbers.table(None, [[1, 2]])])


def test_the_mirror_averages_what_each_task_answers():
    both = torch.tensor(np.stack([OUTPUTS, OUTPUTS[::-1] * 3]))
    one, other = both.numpy()
    mean = {task: average_outputs(both, task).numpy() for task in TARGETS}
    softmax = (inference_softmax(one) + inference_softmax(other)) / 2
    np.testing.assert_allclose(inference_softmax(mean["classification"]), softmax, rtol=1e-5)
    np.testing.assert_allclose(sigmoid(mean["multilabel"]), (sigmoid(one) + sigmoid(other)) / 2, rtol=1e-5)
    np.testing.assert_allclose(mean["regression"], (one + other) / 2, rtol=1e-6)
    far = torch.tensor([[[200.0]], [[-200.0]]])
    assert average_outputs(far, "multilabel").item() == pytest.approx(0, abs=1e-4)


def test_a_glance_is_the_figure_and_the_loss_over_known_cells():
    found = compute_quick_metrics("multilabel", OUTPUTS, TARGETS["multilabel"])
    known = ~np.isnan(TARGETS["multilabel"])
    areas = [sk.roc_auc_score(TARGETS["multilabel"][known[:, k], k], OUTPUTS[known[:, k], k]) for k in range(2)]
    p, t = sigmoid(OUTPUTS)[known].astype(np.float64), TARGETS["multilabel"][known]
    assert found == ("AUROC", pytest.approx(np.mean(areas)), pytest.approx(sk.log_loss(t, p)))
    scaled = SCALE.standardize(TARGETS["regression"])
    found = compute_quick_metrics("regression", OUTPUTS, scaled)
    shares = [sk.r2_score(scaled[known[:, k], k], OUTPUTS[known[:, k], k]) for k in range(2)]
    squares = np.square(OUTPUTS - scaled)[known].mean()
    assert found == ("R2", pytest.approx(np.mean(shares), rel=1e-5), pytest.approx(squares, rel=1e-5))
    assert compute_quick_metrics("classification", OUTPUTS, OUTPUTS.argmax(1))[:2] == ("accuracy", 1.0)


def test_a_glance_at_nothing_known_is_none_and_without_both_kinds_it_has_no_figure():
    assert compute_quick_metrics("multilabel", OUTPUTS, np.full((6, 2), np.nan, np.float32)) is None
    assert compute_quick_metrics("multilabel", OUTPUTS, np.ones((6, 2), np.float32)).value is None
    assert compute_quick_metrics("regression", OUTPUTS, np.ones((6, 2), np.float32)).value is None
