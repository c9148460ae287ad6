"""One figure for each task, by hand, and what nothing can be said about."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.evaluate.label_predictions import LabelPredictions
from vitrail.evaluate.number_predictions import NumberPredictions
from vitrail.evaluate.predictions import Predictions
from vitrail.evaluate.yardstick import worth, yardstick_of


def rows(n: int) -> dict[str, object]:
    return {"paths": ("",) * n, "ids": tuple(map(str, range(n))), "split": "test"}


def classes(targets: np.ndarray | None, answers: list[int]) -> Predictions:
    return Predictions(**rows(len(answers)), targets=targets, probabilities=np.eye(3)[answers], classes=("a", "b", "c"))


def labels(targets: np.ndarray, probabilities: np.ndarray) -> LabelPredictions:
    return LabelPredictions(**rows(len(targets)), targets=targets, probabilities=probabilities, classes=("x", "y"))


def numbers(targets: np.ndarray, values: np.ndarray) -> NumberPredictions:
    names = ("age", "weight")[: values.shape[1]]
    return NumberPredictions(**rows(len(values)), targets=targets, values=values, columns=names)


def test_accuracy_counts_known_classes():
    assert worth(classes(np.array([0, 1, -1, 2]), [0, 2, 2, 2])) == pytest.approx(2 / 3)


def test_auroc_is_the_mean_of_labels_that_are_not_rare():
    generator = np.random.default_rng(0)
    targets = np.stack([np.repeat([0, 1], 20), np.repeat([0, 1], [35, 5])], axis=1).astype(float)
    chances = np.stack([np.linspace(0, 1, 40), generator.random(40)], axis=1)
    assert worth(labels(targets, chances)) == 1
    targets[0, 0] = np.nan
    assert worth(labels(targets, 1 - chances)) == 0
    assert worth(labels(targets[:, [0, 0]], np.stack([chances[:, 0], 1 - chances[:, 0]], axis=1))) == 0.5


def test_errors_have_the_unit_of_one_column_and_that_of_the_deviation_of_several():
    targets, values = np.array([[1.0], [3.0], [np.nan]]), np.array([[2.0], [5.0], [9.0]])
    assert worth(numbers(targets, values)) == pytest.approx(1.5)
    both = np.concatenate([targets, 100 * targets], axis=1)
    told = np.concatenate([values, 100 * values], axis=1)
    assert worth(numbers(both, told)) == pytest.approx(1.5)  # the deviation of 1 and 3 is 1
    both[:, 0] = 7
    assert worth(numbers(both, told)) == pytest.approx(1.5), "targets without deviation count for nothing"


def test_every_task_has_its_figure():
    table = classes(np.array([0, 1]), [0, 2])
    found = yardstick_of("classes", 3, lambda outputs: table)
    assert (found.name, found.higher_is_better, found.of(np.zeros((2, 3)))) == ("accuracy", True, 0.5)
    names = [yardstick_of(*task, lambda outputs: table).name for task in (("labels", 2), ("number", 1), ("number", 2))]
    assert names == ["mean AUROC", "mean absolute error", "mean absolute error in deviations of the targets"]
    assert not yardstick_of("number", 1, lambda outputs: table).higher_is_better


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(DataError, match=r"known class\. Got 2 pictures"):
        worth(classes(None, [0, 1]))
    with pytest.raises(DataError, match=r"known label\. Got 2 pictures"):
        worth(labels(np.full((2, 2), np.nan), np.zeros((2, 2))))
    with pytest.raises(DataError, match=r"known number\. Got 1 pictures"):
        worth(numbers(np.array([[np.nan]]), np.zeros((1, 1))))
    with pytest.raises(DataError, match=r"10 known pictures that have it and 10 that do not\. None of the 2 .* 12 pi"):
        worth(labels(np.eye(2)[[0, 1] * 6], np.zeros((12, 2))))
    with pytest.raises(DataError, match=r"All targets of each of the 2 known columns are equal among 3 pictures"):
        worth(numbers(np.ones((3, 2)), np.zeros((3, 2))))
    with pytest.raises(DataError, match=r"1 of 2 answers are NaN"):
        worth(numbers(np.ones((2, 1)), np.array([[np.nan], [1]])))
