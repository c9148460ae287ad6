"""Every figure against scikit-learn or a value counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sk

from vitrail.config import read
from vitrail.errors import DataError
from vitrail.evaluate.calibration import expected_calibration_error
from vitrail.evaluate.metrics import ClassificationMetrics, compute_classification_metrics
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.evaluate.task_metrics import iter_results
from vitrail.stats.intervals import wilson_interval


def table(targets, probabilities, classes=None) -> ClassificationPredictions:
    probabilities = np.asarray(probabilities, np.float32)
    n, K = probabilities.shape
    return ClassificationPredictions(
        paths=("",) * n,
        ids=tuple(map(str, range(n))),
        split="test",
        targets=None if targets is None else np.asarray(targets),
        probabilities=probabilities,
        classes=classes or tuple("abcdefgh"[:K]),
    )


def drawn(n: int = 300, K: int = 4, seed: int = 0) -> ClassificationPredictions:
    generator = np.random.default_rng(seed)
    targets = generator.choice(K, n, p=np.arange(1, K + 1) / (K * (K + 1) / 2))
    logits = generator.normal(size=(n, K)) + 2 * np.eye(K)[targets]
    return table(targets, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def test_V1_every_figure_is_scikit_learns():
    given = drawn()
    found = compute_classification_metrics(given, samples=20)
    targets, labels, probabilities = given.targets, given.indices, given.probabilities.astype(np.float64)
    assert found.accuracy == pytest.approx(sk.accuracy_score(targets, labels))
    assert found.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(targets, labels))
    assert found.macro_f1 == pytest.approx(sk.f1_score(targets, labels, average="macro"))
    whole = probabilities / probabilities.sum(1, keepdims=True)
    assert found.log_loss == pytest.approx(sk.log_loss(targets, whole), rel=1e-6)
    assert found.auroc == pytest.approx(sk.roc_auc_score(targets, whole, multi_class="ovr", average="macro"), rel=1e-6)
    assert found.kappa == pytest.approx(sk.cohen_kappa_score(targets, labels), abs=1e-12)
    assert found.top_accuracy == pytest.approx(sk.top_k_accuracy_score(targets, whole, k=2), abs=1e-12)
    assert found.brier == pytest.approx(np.square(whole - np.eye(4)[targets]).sum(1).mean(), rel=1e-6)
    np.testing.assert_array_equal(found.confusion, sk.confusion_matrix(targets, labels))
    precision, recall, f1, support = sk.precision_recall_fscore_support(targets, labels)
    for k, one in enumerate(found.per_class):
        assert (one.precision, one.recall, one.f1, one.n) == pytest.approx((precision[k], recall[k], f1[k], support[k]))


def test_intervals_hold_their_figures_and_accuracy_has_wilsons():
    found = compute_classification_metrics(drawn(), samples=200)
    assert found.accuracy_interval == wilson_interval(round(found.accuracy * 300), 300)
    for figure, (low, high) in (
        (found.accuracy, found.accuracy_interval),
        (found.balanced_accuracy, found.balanced_accuracy_interval),
        (found.macro_f1, found.macro_f1_interval),
        (found.log_loss, found.log_loss_interval),
        (found.kappa, found.kappa_interval),
        (found.brier, found.brier_interval),
        (found.top_accuracy, found.top_accuracy_interval),
        (found.auroc, found.auroc_interval),
        *((one.f1, one.f1_interval) for one in found.per_class),
        *((one.auroc, one.auroc_interval) for one in found.per_class),
    ):
        assert low < figure < high


def test_classes_with_an_order_have_a_kappa_that_counts_how_far_off_an_answer_is():
    given = drawn()
    assert compute_classification_metrics(given, samples=5).quadratic_kappa is None
    found = compute_classification_metrics(given, ordered=True, samples=20)
    expected = sk.cohen_kappa_score(given.targets, given.indices, weights="quadratic")
    assert found.quadratic_kappa == pytest.approx(expected, abs=1e-12)
    assert "quadratic kappa" in found.table()


def test_two_classes_have_the_brier_score_of_one_probability_and_no_top():
    given = drawn(K=2)
    found = compute_classification_metrics(given, samples=5)
    one = given.probabilities[:, 1].astype(np.float64)
    assert found.brier == pytest.approx(sk.brier_score_loss(given.targets, one), rel=1e-6)
    assert (found.top, found.top_accuracy) == (None, None)


def test_the_answered_classes_are_counted_and_not_the_likeliest():
    given = replace(drawn(K=2), predicted=np.zeros(300, np.int64))
    found = compute_classification_metrics(given, samples=5)
    assert found.accuracy == (given.targets == 0).mean() and found.per_class[1].predicted == 0


def test_pictures_of_one_patient_make_wider_intervals():
    given = drawn(200)
    many = replace(
        given, ids=tuple(f"{id}-{k}" for id in given.ids for k in range(4)), paths=given.paths * 4,
        targets=given.targets.repeat(4), probabilities=given.probabilities.repeat(4, 0),
    )  # fmt: skip
    naive, grouped = (
        compute_classification_metrics(many, samples=300),
        compute_classification_metrics(many, np.arange(200).repeat(4), samples=300),
    )
    assert (grouped.groups, grouped.accuracy) == (200, naive.accuracy)
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "log_loss", "auroc"):
        (low, high), (wide_low, wide_high) = (getattr(one, f"{name}_interval") for one in (naive, grouped))
        least = 1.2 if name == "auroc" else 1.6  # without groups the score interval is wider than DeLong's
        assert least < (wide_high - wide_low) / (high - low) < 2.4  # the root of four
    assert "in 200 groups" in grouped.table()


def test_without_an_error_intervals_still_have_a_width():
    targets = np.arange(60) % 3
    given = table(targets, 0.9 * np.eye(3)[targets] + 0.1 / 3)
    for groups, n in ((None, 60), (np.arange(60) // 6, 10)):
        found = compute_classification_metrics(given, groups, samples=400)
        assert found.accuracy_interval == pytest.approx(wilson_interval(n, n))
        for name in ("balanced_accuracy", "macro_f1", "kappa"):
            low, high = getattr(found, f"{name}_interval")
            assert 0.4 < low <= found.accuracy_interval[0] + 0.01 and high == 1
        assert found.per_class[0].recall_interval[0] < 0.9 and found.per_class[0].f1_interval[0] < 0.95


def test_one_error_does_not_narrow_any_interval():
    targets = np.arange(60) % 3
    perfect = table(targets, 0.9 * np.eye(3)[targets] + 0.1 / 3)
    answers = targets.copy()
    answers[0] = 1
    nearly = table(targets, 0.9 * np.eye(3)[answers] + 0.1 / 3)
    for groups in (None, np.arange(60) // 6):
        none, one = (compute_classification_metrics(given, groups, samples=100) for given in (perfect, nearly))
        for name in ("accuracy", "balanced_accuracy", "macro_f1", "kappa", "auroc"):
            assert getattr(one, f"{name}_interval")[0] <= getattr(none, f"{name}_interval")[0] + 1e-9, name


def test_the_most_frequent_class_is_the_figure_to_beat():
    found = compute_classification_metrics(table([0, 0, 0, 1], [[0.9, 0.1]] * 4), samples=5)
    assert (found.majority, found.majority_class) == (0.75, "a")
    assert "majority class    75.00 %  (always a)" in found.table()
    assert compute_classification_metrics(drawn(), samples=5).majority == pytest.approx(
        np.bincount(drawn().targets).max() / 300
    )


def test_classes_that_do_not_occur_are_named_where_they_pull_a_mean():
    given = table([0, 0, 1, 1], [[0.9, 0.1, 0], [0.1, 0.2, 0.7], [0.3, 0.7, 0], [0.6, 0.4, 0]])
    found = compute_classification_metrics(given, samples=5)
    assert found.macro_f1 == pytest.approx((0.5 + 2 / 3 + 0) / 3)
    assert "1 of 3 classes does not occur among these pictures, and of those that were predicted (c)" in found.table()
    unseen = compute_classification_metrics(table([0, 1], [[0.9, 0.1, 0], [0.2, 0.8, 0]]), samples=5)
    assert "so they count in no mean over classes" in unseen.table()
    assert "do not occur" not in compute_classification_metrics(drawn(), samples=5).table()


def test_training_pictures_are_not_called_held_out():
    given = drawn()
    assert "held-out pictures (test)" in compute_classification_metrics(given, samples=5).headline()
    learnt = compute_classification_metrics(replace(given, split="train"), samples=5).headline()
    assert "held-out" not in learnt and "300 pictures that it has learnt with their answers (train)" in learnt
    assert "300 pictures (all)" in compute_classification_metrics(replace(given, split="all"), samples=5).headline()


def test_V1_answers_that_are_no_numbers_are_refused():
    given = table([0, 1], [[0.5, 0.5], [np.nan, 0.5]])
    with pytest.raises(DataError, match=r"1 of 4 answers are NaN"):
        compute_classification_metrics(given)


def test_a_class_that_never_occurs_has_no_recall_and_hurts_nobody():
    found = compute_classification_metrics(
        table([0, 0, 1, 1], [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.7, 0], [0.6, 0.4, 0]]), samples=5
    )
    assert found.balanced_accuracy == pytest.approx(0.75)
    ghost = found.per_class[2]
    assert (ghost.n, ghost.precision, ghost.recall, ghost.recall_interval, ghost.f1, ghost.auroc) == (0, *[None] * 5)
    assert found.auroc == pytest.approx(1.0)
    assert found.macro_f1 == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_V1_one_class_alone_has_no_ranking():
    assert compute_classification_metrics(table([0, 0], [[0.9, 0.1], [0.2, 0.8]]), samples=5).auroc is None


def test_a_certain_mistake_has_a_finite_loss():
    assert compute_classification_metrics(table([1], [[1.0, 0.0]]), samples=2).log_loss == pytest.approx(
        87.336, abs=0.01
    )


def test_the_plain_calibration_error_is_the_one_counted_by_hand():
    confidences = np.array([0.95, 0.95, 0.65, 0.65, 0.65])  # two of 15 bins
    hits = np.array([True, True, True, False, False])
    assert expected_calibration_error(confidences, hits) == pytest.approx(2 / 5 * 0.05 + 3 / 5 * abs(1 / 3 - 0.65))
    assert expected_calibration_error(np.ones(4), np.ones(4, bool)) == 0
    assert expected_calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


def test_of_few_pictures_the_calibration_error_is_unknown_and_not_zero():
    few, enough = (compute_classification_metrics(drawn(n), samples=10) for n in (19, 100))
    assert few.calibration_error is few.plain_calibration_error is None
    assert "calibration error unknown, which takes 100 pictures" in few.table()
    assert not {"calibration_error", "plain_calibration_error"} & few.to_json().keys()
    assert read(ClassificationMetrics, few.to_json(), "metrics") == few
    assert enough.calibration_error is not None and enough.plain_calibration_error > 0
    assert f"calibration error {enough.calibration_error:6.4f}" in enough.table()
    assert [row.metric for row in iter_results(few)].count("calibration_error") == 0


def test_pictures_without_a_target_are_left_out():
    assert (
        compute_classification_metrics(table([0, -1, 1], [[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]), samples=5).accuracy
        == 0.5
    )


def test_without_targets_there_is_nothing_to_measure():
    with pytest.raises(DataError, match=r"Got 2 pictures, none with a target"):
        compute_classification_metrics(table(None, [[0.9, 0.1]] * 2))
    with pytest.raises(DataError, match=r"Got 1 picture, none with a target"):
        compute_classification_metrics(table([-1], [[0.9, 0.1]]))


def test_metrics_survive_json():
    found = compute_classification_metrics(table([0, 1, 1], [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0]]), samples=5)
    assert read(ClassificationMetrics, found.to_json(), "report.json") == found


def test_the_table_says_accuracy_first_and_has_a_line_per_class():
    given = drawn()
    text = str(compute_classification_metrics(given, samples=5))
    assert text.startswith(f"accuracy          {100 * (given.indices == given.targets).mean():.2f} %  (95 % interval")
    assert "n = 300" in text.splitlines()[0]
    assert [line.split()[0] for line in text.splitlines()[-4:]] == ["a", "b", "c", "d"]
    assert len({len(line) for line in text.splitlines()[-4:]}) == 1


def test_the_same_seed_gives_the_same_intervals():
    given = drawn()
    assert compute_classification_metrics(given, seed=1, samples=10) == compute_classification_metrics(
        given, seed=1, samples=10
    )
    assert compute_classification_metrics(given, seed=1, samples=10) != compute_classification_metrics(
        given, seed=2, samples=10
    )


def test_pictures_that_do_not_show_that_anything_was_learnt_are_named():
    generator = np.random.default_rng(0)
    targets = np.arange(24) % 2
    guessed = compute_classification_metrics(table(targets, generator.dirichlet((1, 1), 24)), samples=200)
    assert guessed.kappa_interval[0] <= 0 and guessed.auroc_interval[0] <= 0.5
    assert guessed.describe_doubt().startswith("These 24 pictures do not show that it is better than guessing")
    assert guessed.describe_doubt() in guessed.table()
    assert compute_classification_metrics(drawn(), samples=200).describe_doubt() == ""
    ranked = np.where(targets, 0.4, 0.3) + 0.01 * generator.random(24)  # never the answer, and always in order
    assert (
        compute_classification_metrics(table(targets, np.stack([1 - ranked, ranked], 1)), samples=200).describe_doubt()
        == ""
    )
