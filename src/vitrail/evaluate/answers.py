"""The table of answers of any task: made from a model's outputs, joined, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data.source import Task
from ..errors import UsageError
from . import label_predictions, number_predictions, predictions
from .collect import chances_of, probabilities_of
from .label_predictions import LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import Predictions
from .scaling import Scaling

Answers = Predictions | LabelPredictions | NumberPredictions


def answers_of(
    task: Task,
    outputs: np.ndarray,
    names: tuple[str, ...],
    scaling: Scaling | None,
    rows: Sequence[tuple[str, str]],
    split: str = "",
    targets: np.ndarray | None = None,
    skipped: Sequence[tuple[str, str]] = (),
) -> Answers:
    """The table of a model's answers.

    Args:
        outputs: of the model, [n, K]; of no pictures, any empty array.
        names: of the K outputs.
        scaling: of the task `number`, the scale that its numbers were learnt on; None if outputs have their unit.
        rows: (path, id) of each picture.
        targets: int64 [n] for classes, float32 [n, K] for the others.
    """
    paths, ids = tuple(path for path, _ in rows), tuple(id for _, id in rows)
    outputs, left = outputs.reshape(len(rows), len(names)), tuple(skipped)
    if task == "classes":
        return Predictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
            probabilities=probabilities_of(outputs),
        )  # fmt: skip
    if task == "labels":
        return LabelPredictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
            probabilities=chances_of(outputs),
        )  # fmt: skip
    return NumberPredictions(
        paths=paths, ids=ids, split=split, targets=targets, skipped=left, columns=names,
        values=outputs if scaling is None else scaling.values(outputs),
    )  # fmt: skip


def join(parts: Sequence[Answers]) -> Answers:
    """One table from several of one task, in the order given.

    Raises:
        UsageError: no parts, or parts of different tasks, names or splits.
    """
    classes = [part for part in parts if isinstance(part, Predictions)]
    labels = [part for part in parts if isinstance(part, LabelPredictions)]
    numbers = [part for part in parts if isinstance(part, NumberPredictions)]
    if (len(classes) > 0) + (len(labels) > 0) + (len(numbers) > 0) > 1:
        raise UsageError("Predictions to join must be of one task. Got several.")
    if labels:
        return label_predictions.join(labels)
    return number_predictions.join(numbers) if numbers else predictions.join(classes)


def read_csv(path: Path, task: Task) -> Answers:
    """Read the table that answers to this task were written to.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    if task == "classes":
        return predictions.read_csv(path)
    return label_predictions.read_csv(path) if task == "labels" else number_predictions.read_csv(path)
