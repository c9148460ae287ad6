"""The table of answers of any task: made from a model's outputs, joined, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data.source import Task
from ..errors import UsageError
from . import predictions
from .calibration import TargetScaling
from .conformal import ConformalSets, min_calibration_size
from .decisions import UNLIKE, UNSURE, Decisions
from .predictions import UNKNOWN_CLASS, ClassificationPredictions, MultilabelPredictions, RegressionPredictions

TaskPredictions = ClassificationPredictions | MultilabelPredictions | RegressionPredictions


def predictions_from_outputs(
    task: Task,
    outputs: np.ndarray,
    names: tuple[str, ...],
    scaling: TargetScaling | None,
    rows: Sequence[tuple[str, str]],
    split: str = "",
    targets: np.ndarray | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    decisions: Decisions | None = None,
    distances: np.ndarray | None = None,
) -> TaskPredictions:
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
        return RegressionPredictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, columns=names,
            values=outputs if scaling is None else scaling.unstandardize(outputs),
            abstain_reasons=by.abstain_reasons(None, distances, len(rows)),
        )  # fmt: skip
    probabilities = by.predict_proba(task, outputs)
    if task == "labels":
        return MultilabelPredictions(
            paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
            probabilities=probabilities, predicted=by.predict_labels(probabilities),
            abstain_reasons=by.abstain_reasons(None, distances, len(rows)),
        )  # fmt: skip
    return ClassificationPredictions(
        paths=paths, ids=ids, split=split, targets=targets, skipped=left, classes=names,
        probabilities=probabilities, predicted=by.predict_classes(probabilities, names),
        abstain_reasons=by.abstain_reasons(probabilities, distances, len(rows)),
    )  # fmt: skip


def concat_predictions(parts: Sequence[TaskPredictions]) -> TaskPredictions:
    """One table from several of one task, in the order given.

    Raises:
        UsageError: no parts, or parts of different tasks, names or splits.
    """
    classes = [part for part in parts if isinstance(part, ClassificationPredictions)]
    labels = [part for part in parts if isinstance(part, MultilabelPredictions)]
    numbers = [part for part in parts if isinstance(part, RegressionPredictions)]
    if (len(classes) > 0) + (len(labels) > 0) + (len(numbers) > 0) > 1:
        raise UsageError("Predictions to join must be of one task. Got several.")
    if labels:
        return predictions.concat_label_predictions(labels)
    return (
        predictions.concat_regression_predictions(numbers) if numbers else predictions.concat_class_predictions(classes)
    )


def output_names(predictions: TaskPredictions) -> tuple[str, ...]:
    """Of its classes, labels or columns."""
    return predictions.columns if isinstance(predictions, RegressionPredictions) else predictions.classes


def reorder_outputs(predictions: TaskPredictions, names: tuple[str, ...]) -> TaskPredictions:
    """The same answers with classes, labels or columns in the order of `names`, which are the same names."""
    if output_names(predictions) == names:
        return predictions
    places = [output_names(predictions).index(name) for name in names]
    if isinstance(predictions, ClassificationPredictions):
        new = np.append(np.argsort(places), UNKNOWN_CLASS)  # the new number of each class, and of an unknown one
        targets = None if predictions.targets is None else new[predictions.targets]
        shown = predictions.probabilities[:, places]
        sets = None if predictions.sets is None else predictions.sets[:, places]
        said = new[predictions.labels]
        return replace(predictions, classes=names, probabilities=shown, targets=targets, predicted=said, sets=sets)
    targets = None if predictions.targets is None else predictions.targets[:, places]
    if isinstance(predictions, MultilabelPredictions):
        shown, said = predictions.probabilities[:, places], predictions.labels[:, places]
        return replace(predictions, classes=names, probabilities=shown, targets=targets, predicted=said)
    ranges = None if predictions.ranges is None else predictions.ranges[:, places]
    return replace(predictions, columns=names, values=predictions.values[:, places], targets=targets, ranges=ranges)


def read_predictions_csv(path: Path, task: Task) -> TaskPredictions:
    """Read the table that answers to this task were written to.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    if task == "classes":
        return predictions.read_class_predictions_csv(path)
    return (
        predictions.read_label_predictions_csv(path)
        if task == "labels"
        else predictions.read_regression_predictions_csv(path)
    )


# Several models as one: the mean of their answers, and what they have decided together.


def average_decisions(decisions: Sequence[Decisions]) -> Decisions:
    """The means of what several models have decided; what not all have decided, none has.

    Distances of several models have no common cut: a picture is unlike where half of the models or more say so.
    """
    first, *rest = decisions
    if not rest:
        return first

    def means(values: list[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean(values, axis=0).tolist()) if all(values) else ()

    return replace(
        first,
        temperature=(),
        unlike=None,
        thresholds=means([one.thresholds for one in decisions]),
        cuts=means([one.cuts for one in decisions]),
        reach=means([one.reach for one in decisions]),
        sure=float(np.mean([one.sure for one in decisions])),
    )


def average_predictions(tables: Sequence[TaskPredictions], decisions: Decisions) -> TaskPredictions:
    """One table from those of several models about the same pictures.

    Args:
        decisions: what they have decided together.
    """
    first, *rest = tables
    if not rest:
        return first
    said = [np.array([why == UNLIKE for why in one.abstain_column()], np.float64) for one in tables]
    unlike = np.asarray(np.mean(said, axis=0) >= 0.5)
    if isinstance(first, RegressionPredictions):
        values = np.asarray(np.mean([one.values for one in tables if isinstance(one, RegressionPredictions)], axis=0))
        return replace(first, values=values, abstain_reasons=_merge_abstain_reasons(unlike, np.zeros(len(first), bool)))
    several = [one.probabilities for one in tables if not isinstance(one, RegressionPredictions)]
    probabilities = np.asarray(np.mean(several, axis=0, dtype=np.float64)).astype(np.float32)
    if isinstance(first, MultilabelPredictions):
        told = _merge_abstain_reasons(unlike, np.zeros(len(first), bool))
        return replace(
            first, probabilities=probabilities, predicted=decisions.predict_labels(probabilities), abstain_reasons=told
        )
    assert isinstance(first, ClassificationPredictions)
    unsure = probabilities.max(1) < decisions.sure if len(first) else np.zeros(0, bool)
    answered = decisions.predict_classes(probabilities, first.classes)
    return replace(
        first, probabilities=probabilities, predicted=answered, abstain_reasons=_merge_abstain_reasons(unlike, unsure)
    )


def _merge_abstain_reasons(unlike: np.ndarray, unsure: np.ndarray) -> tuple[str, ...]:
    if not (unlike.any() or unsure.any()):
        return ()
    return tuple(np.where(unlike, UNLIKE, np.where(unsure, UNSURE, "")).tolist())


# Answers with what surrounds them, sets of classes and ranges of numbers that hold the truth as often as promised.


def require_sets_support(task: Task, decisions: Decisions) -> None:
    """Refuse to surround answers with nothing, before a picture is answered.

    Raises:
        UsageError: labels, which have thresholds instead; or nothing was fitted, as on too few validation pictures.
    """
    if task == "labels":
        raise _no_label_sets_error()
    if not (decisions.cuts if task == "classes" else decisions.reach):
        raise UsageError(
            f"This model has no {'sets' if task == 'classes' else 'ranges'}: to hold the truth in "
            f"{1 - decisions.miss:.0%} of all cases they are fitted on at least {min_calibration_size(decisions.miss)} "
            f"validation "
            "pictures with a known target, and its training had fewer, or was not ours. Train with a larger "
            "--data.val_fraction, or promise less by a larger --decisions.conformal_alpha."
        )


def add_prediction_sets(predictions: TaskPredictions, decisions: Decisions) -> TaskPredictions:
    """The same answers with a set of classes for each picture, or a range for each number.

    The promise is that of `conformal`: of pictures like the validation ones all but a share of `decided.miss` have
    their truth inside.

    Args:
        decisions: what was fitted on validation pictures; of several models, what they have decided together.

    Raises:
        UsageError: as `refuse_without_sets`.
    """
    if isinstance(predictions, ClassificationPredictions):
        require_sets_support("classes", decisions)
        return replace(
            predictions, sets=ConformalSets(decisions.miss, decisions.cuts, ()).predict_sets(predictions.probabilities)
        )
    if isinstance(predictions, RegressionPredictions):
        require_sets_support("number", decisions)
        around = np.array([-1.0, 1.0]) * np.array(decisions.reach)[:, None]  # [K, 2]
        return replace(predictions, ranges=(predictions.values[..., None] + around).astype(np.float32))
    raise _no_label_sets_error()


def _no_label_sets_error() -> UsageError:
    return UsageError(
        "Sets are of classes, and ranges of numbers. This model answers each label by itself, from a threshold of its "
        'own on; train with --decisions.threshold_rule "sensitivity 0.95" to miss fewer of them.'
    )
