"""Every figure against scikit-learn or a value counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from vitrail.config import read
from vitrail.errors import DataError
from vitrail.evaluate.metrics import Metrics, calibration_error, measure
from vitrail.evaluate.predictions import Predictions
from vitrail.stats.intervals import wilson


def table(targets, probabilities, classes=None) -> Predictions:
    probabilities = np.asarray(probabilities, np.float32)
    n, K = probabilities.shape
    return Predictions(
        paths=("",) * n,
        ids=tuple(map(str, range(n))),
        split="test",
        targets=None if targets is None else np.asarray(targets),
        probabilities=probabilities,
        classes=classes or tuple("abcdefgh"[:K]),
    )


def drawn(n: int = 300, K: int = 4, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    targets = generator.choice(K, n, p=np.arange(1, K + 1) / (K * (K + 1) / 2))
    logits = generator.normal(size=(n, K)) + 2 * np.eye(K)[targets]
    return table(targets, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def test_every_figure_is_scikit_learns():
    given = drawn()
    found = measure(given, samples=20)
    targets, labels, probabilities = given.targets, given.labels, given.probabilities.astype(np.float64)
    assert found.accuracy == pytest.approx(sk.accuracy_score(targets, labels))
    assert found.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(targets, labels))
    assert found.macro_f1 == pytest.approx(sk.f1_score(targets, labels, average="macro"))
    whole = probabilities / probabilities.sum(1, keepdims=True)
    assert found.log_loss == pytest.approx(sk.log_loss(targets, whole), rel=1e-6)
    assert found.auroc == pytest.approx(sk.roc_auc_score(targets, whole, multi_class="ovr", average="macro"), rel=1e-6)
    np.testing.assert_array_equal(found.confusion, sk.confusion_matrix(targets, labels))
    precision, recall, f1, support = sk.precision_recall_fscore_support(targets, labels)
    for k, one in enumerate(found.per_class):
        assert (one.precision, one.recall, one.f1, one.n) == pytest.approx((precision[k], recall[k], f1[k], support[k]))


def test_intervals_hold_their_figures_and_accuracy_has_wilsons():
    found = measure(drawn(), samples=200)
    assert found.accuracy_interval == wilson(round(found.accuracy * 300), 300)
    for figure, (low, high) in (
        (found.accuracy, found.accuracy_interval),
        (found.balanced_accuracy, found.balanced_accuracy_interval),
        (found.macro_f1, found.macro_f1_interval),
        (found.log_loss, found.log_loss_interval),
    ):
        assert low < figure < high


def test_a_class_that_never_occurs_has_no_recall_and_hurts_nobody():
    found = measure(table([0, 0, 1, 1], [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.7, 0], [0.6, 0.4, 0]]), samples=5)
    assert found.balanced_accuracy == pytest.approx(0.75)
    ghost = found.per_class[2]
    assert (ghost.n, ghost.precision, ghost.recall, ghost.recall_interval, ghost.f1, ghost.auroc) == (0, *[None] * 5)
    assert found.auroc == pytest.approx(1.0)
    assert found.macro_f1 == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_one_class_alone_has_no_ranking():
    assert measure(table([0, 0], [[0.9, 0.1], [0.2, 0.8]]), samples=5).auroc is None


def test_a_certain_mistake_has_a_finite_loss():
    assert measure(table([1], [[1.0, 0.0]]), samples=2).log_loss == pytest.approx(87.336, abs=0.01)


def test_calibration_error_is_the_one_counted_by_hand():
    confidences = np.array([0.95, 0.95, 0.65, 0.65, 0.65])  # two of 15 bins
    hits = np.array([True, True, True, False, False])
    assert calibration_error(confidences, hits) == pytest.approx(2 / 5 * 0.05 + 3 / 5 * abs(1 / 3 - 0.65))
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


def test_pictures_without_a_target_are_left_out():
    assert measure(table([0, -1, 1], [[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]), samples=5).accuracy == 0.5


def test_without_targets_there_is_nothing_to_measure():
    with pytest.raises(DataError, match=r"Got 2 pictures, none with a target"):
        measure(table(None, [[0.9, 0.1]] * 2))
    with pytest.raises(DataError, match=r"Got 1 pictures, none with a target"):
        measure(table([-1], [[0.9, 0.1]]))


def test_metrics_survive_json():
    found = measure(table([0, 1, 1], [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0]]), samples=5)
    assert read(Metrics, found.to_json(), "report.json") == found


def test_the_table_says_accuracy_first_and_has_a_line_per_class():
    given = drawn()
    text = measure(given, samples=5).table()
    assert text.startswith(f"accuracy          {100 * (given.labels == given.targets).mean():.2f} %  (95 % interval")
    assert "n = 300" in text.splitlines()[0]
    assert [line.split()[0] for line in text.splitlines()[-4:]] == ["a", "b", "c", "d"]
    assert len({len(line) for line in text.splitlines()[-4:]}) == 1


def test_the_same_seed_gives_the_same_intervals():
    given = drawn()
    assert measure(given, seed=1, samples=10) == measure(given, seed=1, samples=10)
    assert measure(given, seed=1, samples=10) != measure(given, seed=2, samples=10)
