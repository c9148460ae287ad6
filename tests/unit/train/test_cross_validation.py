"""The answers of folds as one table, and the labels that they contradict."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unit.train.test_dataset import drawn
from vitrail.evaluate.predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from vitrail.train.cross_validation import OutOfFoldPredictions
from vitrail.train.dataset import Dataset
from vitrail.train.run_folder import RunFolder

FOLDS = (np.arange(0, 20, 2), np.arange(1, 20, 2))


def named(rows: np.ndarray) -> dict[str, object]:
    names = tuple(f"{row}.png" for row in rows.tolist())
    return {"paths": names, "ids": names, "split": "test"}


def together(parts: list[TaskPredictions], **fields: object) -> OutOfFoldPredictions:
    whole = drawn(20, **fields)
    splits = {"train": np.arange(20), "val": np.zeros(0, np.int64), "test": np.zeros(0, np.int64)}
    return OutOfFoldPredictions(
        Dataset(whole, splits), (RunFolder(Path("a")), RunFolder(Path("b"))), tuple(parts), False
    )


def of_classes(rows: np.ndarray, targets: np.ndarray, truth: np.ndarray) -> ClassificationPredictions:
    chances = np.where(truth[rows, None] == [0, 1], 0.9, 0.1).astype(np.float32)
    return ClassificationPredictions(**named(rows), targets=targets[rows], probabilities=chances, classes=("a", "b"))


def test_folds_list_the_labels_that_models_contradict_which_have_not_seen_them():
    truth = np.arange(20) // 10
    given = truth.copy()
    given[[3, 14]] = 1 - given[[3, 14]]
    whole = together([of_classes(rows, given, truth) for rows in FOLDS], targets=given)
    found = whole.label_errors()
    assert {one.id for one in found.suspects} == {"3.png", "14.png"}
    assert found.judges == "2 models" and (found.figure, found.worth) == ("accuracy", 0.9)
    assert found.suspects[0].reason.startswith("models that have not seen it give")
    assert "20 labels of 20 pictures judged by 2 models, each on what it has not seen" in found.summary(Path("x.csv"))
    assert (
        whole.source_rows(whole.predictions).tolist() == [*FOLDS[0], *FOLDS[1]]
        and whole.predictions.split == "out-of-fold"
    )
    assert whole.metrics().accuracy == 0.9


def test_a_class_that_no_other_fold_shows_is_not_suspected():
    given = np.zeros(20, np.int64)
    given[4] = 1
    whole = together([of_classes(rows, given, np.zeros(20, np.int64)) for rows in FOLDS], targets=given)
    found = whole.label_errors()
    assert found.suspects == () and found.cells == 19


def test_folds_judge_labels_and_numbers_cell_by_cell():
    generator = np.random.default_rng(0)
    truth = np.stack([np.arange(20) % 4 < 2, np.arange(20) < 9], axis=1).astype(np.float32)
    given = truth.copy()
    given[6, 1], given[2, 0] = 0, np.nan
    parts: list[TaskPredictions] = [
        MultilabelPredictions(
            **named(rows), targets=given[rows], probabilities=0.1 + 0.8 * truth[rows], classes=("mass", "oedema")
        )
        for rows in FOLDS
    ]
    found = together(parts, task="multilabel", classes=("mass", "oedema"), targets=given).label_errors()
    assert [(one.id, one.given, one.suggested) for one in found.suspects] == [
        ("6.png", "without oedema", "with oedema")
    ]
    assert found.cells == 39
    values = generator.normal(50, 5, (20, 1)).astype(np.float32)
    told = values + generator.normal(0, 1, (20, 1)).astype(np.float32)
    told[13] += 40
    parts = [
        RegressionPredictions(**named(rows), targets=told[rows], values=values[rows], columns=("age",))
        for rows in FOLDS
    ]
    found = together(parts, task="regression", classes=("age",), targets=told).label_errors()
    assert found.suspects[0].id == "13.png" and found.figure == "mean absolute error of age"
