"""The table of answers of any task: made from a model's outputs, joined, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data.source import Task
from ..errors import UsageError
from . import label_predictions, number_predictions, predictions
from .decisions import Decisions
from .label_predictions import LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import UNKNOWN, Predictions
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
    decisions: Decisions | None = None,
    distances: np.ndarray | None = None,
) -> Answers:
    """The table of a model's answers.

    Args:
        outputs: of the model, [n, K]; of no pictures, any empty array.
        names: of the K outputs.
        scaling: of the task `number`, the scale that its numbers were learnt on; None if outputs have their unit.
        rows: (path, id) of each picture.
        targets: int64 [n] for classes, float32 [n, K] for the others.
        decisions: what turns outputs into answers; None takes them at their word.
        distances: of the pictures from those of the training, if they were measured.
    """
    paths, ids = tuple(path for path, _ in rows), tuple(id for _, id in rows)
    outputs, left, by = outputs.reshape(len(rows), len(names)), tuple(skipped), decisions or Decisions()
    if task == "number":
        return NumberPredictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, columns=names,
            values=outputs if scaling is None else scaling.values(outputs),
            abstained=by.abstained(None, distances, len(rows)),
        )  # fmt: skip
    probabilities = by.probabilities(task, outputs)
    if task == "labels":
        return LabelPredictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
            probabilities=probabilities, answered=by.labels(probabilities),
            abstained=by.abstained(None, distances, len(rows)),
        )  # fmt: skip
    return Predictions(
        paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
        probabilities=probabilities, answered=by.classes(probabilities, names),
        abstained=by.abstained(probabilities, distances, len(rows)),
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


def names_of(answers: Answers) -> tuple[str, ...]:
    """Of its classes, labels or columns."""
    return answers.columns if isinstance(answers, NumberPredictions) else answers.classes


def reordered(answers: Answers, names: tuple[str, ...]) -> Answers:
    """The same answers with classes, labels or columns in the order of `names`, which are the same names."""
    if names_of(answers) == names:
        return answers
    places = [names_of(answers).index(name) for name in names]
    if isinstance(answers, Predictions):
        new = np.append(np.argsort(places), UNKNOWN)  # the new number of each class, and of an unknown one
        targets = None if answers.targets is None else new[answers.targets]
        shown = answers.probabilities[:, places]
        sets = None if answers.sets is None else answers.sets[:, places]
        said = new[answers.labels]
        return replace(answers, classes=names, probabilities=shown, targets=targets, answered=said, sets=sets)
    targets = None if answers.targets is None else answers.targets[:, places]
    if isinstance(answers, LabelPredictions):
        shown, said = answers.probabilities[:, places], answers.labels[:, places]
        return replace(answers, classes=names, probabilities=shown, targets=targets, answered=said)
    ranges = None if answers.ranges is None else answers.ranges[:, places]
    return replace(answers, columns=names, values=answers.values[:, places], targets=targets, ranges=ranges)


def read_csv(path: Path, task: Task) -> Answers:
    """Read the table that answers to this task were written to.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    if task == "classes":
        return predictions.read_csv(path)
    return label_predictions.read_csv(path) if task == "labels" else number_predictions.read_csv(path)
