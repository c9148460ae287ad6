"""Wrong labels are found: by the paper's own formulas, and where one knows which labels were changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

import glyphs
from vitrail.data.sources import synthetic
from vitrail.evaluate.label_errors import (
    LabelErrorCandidates,
    find_class_label_errors,
    find_label_errors,
    find_multilabel_errors,
    find_poor_judges,
    find_regression_label_errors,
)
from vitrail.evaluate.probabilities import sigmoid, softmax
from vitrail.evaluate.probe import predict_out_of_fold

SHARE = 0.1


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Probes are many small steps, which a second thread only slows down."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


def flipped(targets: np.ndarray, classes: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A tenth of the labels changed to any other class, and which."""
    wrong = np.zeros(len(targets), bool)
    wrong[generator.permutation(len(targets))[: round(SHARE * len(targets))]] = True
    return np.where(wrong, (targets + generator.integers(1, classes, len(targets))) % classes, targets), wrong


def in_order(found: LabelErrorCandidates, wrong: np.ndarray) -> tuple[float, float]:
    """Area under precision by recall, and the precision among the first tenth."""
    right = wrong[found.rows] if wrong.ndim == 1 else wrong[found.rows, found.outputs]
    first = right[: round(SHARE * wrong.size)]
    return average_precision_score(right, found.scores), first.mean()


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    pictures, targets = load_digits(return_X_y=True)
    return pictures.astype(np.float32), targets.astype(np.int64)


def test_V9_flipped_digits_are_found(digits):
    features, targets = digits
    given, wrong = flipped(targets, 10, np.random.default_rng(0))
    found = find_class_label_errors(softmax(predict_out_of_fold(features, given, "classification", 10)), given)
    area, precision = in_order(found, wrong)
    assert area >= 0.8 and precision >= 0.75
    assert 0.5 * wrong.sum() < found.flagged.sum() < 1.5 * wrong.sum()
    mended = found.suggested_label[found.flagged] == targets[found.rows[found.flagged]]
    assert mended.mean() > 0.75


def test_V9_flipped_planted_pictures_are_found():
    made = synthetic.make_synthetic_images(800, seed=1)
    given, wrong = flipped(made.targets, 4, np.random.default_rng(0))
    chances = softmax(predict_out_of_fold(glyphs.seen(made.images), given, "classification", 4))
    area, precision = in_order(find_class_label_errors(chances, given), wrong)
    assert area >= 0.8 and precision >= 0.75


def test_V9_flipped_cells_of_any_of_K_labels_are_found(digits):
    features, targets = digits
    truth = np.stack([np.isin(targets, members) for members in ((0, 6, 8, 9), (1, 4, 7), (3, 8), (5, 6))], axis=1)
    wrong = np.random.default_rng(0).random(truth.shape) < SHARE
    given = (truth ^ wrong).astype(np.float32)
    found = find_multilabel_errors(sigmoid(predict_out_of_fold(features, given, "multilabel", 4)), given)
    area, _ = in_order(found, wrong)
    assert area >= 0.6


def test_numbers_that_were_typed_wrong_are_found():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 5)).astype(np.float32)
    targets = (features[:, :1] * 3 + generator.normal(size=(400, 1))).astype(np.float32)
    targets[::40] += 12
    found = find_regression_label_errors(predict_out_of_fold(features, targets, "regression", 1), targets)
    assert sorted(found.rows[:10].tolist()) == list(range(0, 400, 40))
    assert found.flagged[:10].all() and found.flagged.sum() <= 14
    assert np.isnan(found.probabilities).all()


def test_classes_are_judged_as_the_paper_says():
    generator = np.random.default_rng(3)
    targets = generator.integers(0, 3, 60)
    chances = generator.dirichlet([1, 1, 1], 60) + 0.1 * np.eye(3)[targets]
    chances /= chances.sum(1, keepdims=True)
    found = find_class_label_errors(chances.astype(np.float32), targets)
    thresholds = [chances[targets == j, j].mean() for j in range(3)]
    for row, flagged, suggested, score in zip(
        found.rows, found.flagged, found.suggested_label, found.scores, strict=True
    ):
        p, given = chances[row], targets[row]
        confident = [j for j in range(3) if p[j] >= thresholds[j] - 1e-6]
        likeliest = max(confident, key=lambda j: p[j]) if confident else given
        others = [j for j in range(3) if j != given]
        best = max(others, key=lambda j: p[j])
        assert flagged == (likeliest != given and score >= 0.6)
        assert suggested == (likeliest if flagged else best)
        assert score == pytest.approx((1 - (p[given] - p[best])) / 2, abs=1e-6)
    assert (np.diff(found.scores) <= 0).all() and len(found) == 60 and found.flagged.any()


def test_classes_that_cannot_be_told_apart_are_not_flagged_by_the_hundred():
    generator = np.random.default_rng(0)
    targets = np.repeat([0, 1], 200)
    chances = 0.5 + 0.02 * generator.normal(size=400)
    chances[:5] = 0.03
    found = find_class_label_errors(np.stack([chances, 1 - chances], axis=1).astype(np.float32), targets)
    assert sorted(found.rows[found.flagged].tolist()) == [0, 1, 2, 3, 4]


def test_judges_that_know_too_little_contradict_no_label(digits):
    _, targets = digits
    generator = np.random.default_rng(0)
    guessed = np.where(generator.random(len(targets)) < 0.37, targets, generator.integers(0, 10, len(targets)))
    chances = softmax(4.0 * np.eye(10)[guessed] * generator.uniform(0.2, 1, (len(targets), 1))).astype(np.float32)
    found = find_class_label_errors(chances, targets)
    assert found.flagged.sum() > 300  # of labels that are all right
    poor = find_poor_judges("classification", found)
    assert list(poor) == [0] and poor[0] < 0.6


def test_judges_that_know_enough_are_not_silenced_by_wrong_labels(digits):
    features, targets = digits
    given, _ = flipped(targets, 10, np.random.default_rng(0))
    chances = softmax(predict_out_of_fold(features, given, "classification", 10))
    assert find_poor_judges("classification", find_class_label_errors(chances, given)) == {}


def test_labels_and_columns_have_judges_of_their_own():
    generator = np.random.default_rng(1)
    labels = (generator.random((400, 2)) < 0.5).astype(np.float32)
    chances = np.stack([0.1 + 0.8 * labels[:, 0], generator.choice([0.1, 0.9], 400)], axis=1).astype(np.float32)
    assert list(find_poor_judges("multilabel", find_multilabel_errors(chances, labels))) == [1]
    numbers = generator.normal(0, 1, (400, 2)).astype(np.float32)
    judged = numbers * np.float32([1, 0]) + 0.1 * generator.normal(0, 1, (400, 2)).astype(np.float32)
    assert list(find_poor_judges("regression", find_regression_label_errors(judged, numbers))) == [1]


def test_what_nobody_knows_or_has_answered_is_no_suspect():
    chances = np.float32([[0.9, 0.1], [np.nan, np.nan], [0.2, 0.8], [0.5, 0.5]])
    found = find_class_label_errors(chances, np.array([0, 1, 1, -1]))
    assert sorted(found.rows.tolist()) == [0, 2] and not found.flagged.any()
    labels = np.float32([[1, np.nan], [0, 1], [1, 0], [0, np.nan]])
    cells = find_multilabel_errors(np.where(np.eye(4, 2) > 0, np.nan, np.float32(0.5)).astype(np.float32), labels)
    assert sorted(zip(cells.rows.tolist(), cells.outputs.tolist(), strict=True)) == [(1, 0), (2, 0), (2, 1), (3, 0)]
    nothing = find_label_errors("classification", np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
    assert len(nothing) == 0


def test_every_task_has_its_own_judge():
    targets = np.float32([[1.0], [0.0]])
    chances = np.float32([[0.1], [0.2]])
    assert find_label_errors("multilabel", chances, targets).scores[0] == pytest.approx(0.9)
    assert find_label_errors("regression", chances, targets).given_label.tolist() == [1, 0]
    assert find_label_errors("classification", np.float32([[0.1, 0.9]]), np.array([0])).suggested_label.tolist() == [1]


def test_equal_errors_make_no_suspects():
    targets = np.full((9, 1), 5, np.float32)
    found = find_regression_label_errors(targets - 1, targets)
    assert not found.flagged.any() and (found.scores == 0).all()
