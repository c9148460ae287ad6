"""Prediction tables of any task: built from outputs, concatenated, reordered, read, averaged, extended with sets."""

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
    """Build the table of predictions from model outputs.

    Args:
        outputs: of the model, [n, K]; without images any empty array.
        names: of the K outputs.
        scaling: target scaling of regression; None if outputs have the user's units.
        rows: (path, id) of each image.
        targets: int64 [n] for classes, float32 [n, K] for the other tasks.
        decisions: calibration, thresholds and abstention; None applies none.
        distances: out-of-distribution distances, if they were computed.
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
    """Concatenate tables of one task in the given order.

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
    """Names of the classes, labels or columns."""
    return predictions.columns if isinstance(predictions, RegressionPredictions) else predictions.classes


def reorder_outputs(predictions: TaskPredictions, names: tuple[str, ...]) -> TaskPredictions:
    """Reorder classes, labels or columns as in `names`, a permutation of the table's names."""
    if output_names(predictions) == names:
        return predictions
    places = [output_names(predictions).index(name) for name in names]
    if isinstance(predictions, ClassificationPredictions):
        new = np.append(np.argsort(places), UNKNOWN_CLASS)  # old class index -> new one; -1 stays -1
        targets = None if predictions.targets is None else new[predictions.targets]
        probabilities = predictions.probabilities[:, places]
        sets = None if predictions.sets is None else predictions.sets[:, places]
        labels = new[predictions.labels]
        return replace(
            predictions, classes=names, probabilities=probabilities, targets=targets, predicted=labels, sets=sets
        )
    targets = None if predictions.targets is None else predictions.targets[:, places]
    if isinstance(predictions, MultilabelPredictions):
        probabilities, labels = predictions.probabilities[:, places], predictions.labels[:, places]
        return replace(predictions, classes=names, probabilities=probabilities, targets=targets, predicted=labels)
    ranges = None if predictions.ranges is None else predictions.ranges[:, places]
    return replace(predictions, columns=names, values=predictions.values[:, places], targets=targets, ranges=ranges)


def read_predictions_csv(path: Path, task: Task) -> TaskPredictions:
    """Read a predictions file of this task.

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


# -- Ensembles


def average_decisions(decisions: Sequence[Decisions]) -> Decisions:
    """Mean decisions of an ensemble; a decision that not every model has is dropped.

    Distances of several models have no common threshold: `average_predictions` takes a majority vote instead.
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
    """Average the predictions of an ensemble on the same images; at least half of the models decide on `unlike`.

    Args:
        decisions: from `average_decisions`.
    """
    first, *rest = tables
    if not rest:
        return first
    votes = [np.array([why == UNLIKE for why in one.abstain_column()], np.float64) for one in tables]
    unlike = np.asarray(np.mean(votes, axis=0) >= 0.5)
    if isinstance(first, RegressionPredictions):
        values = np.asarray(np.mean([one.values for one in tables if isinstance(one, RegressionPredictions)], axis=0))
        return replace(first, values=values, abstain_reasons=_merge_abstain_reasons(unlike, np.zeros(len(first), bool)))
    several = [one.probabilities for one in tables if not isinstance(one, RegressionPredictions)]
    probabilities = np.asarray(np.mean(several, axis=0, dtype=np.float64)).astype(np.float32)
    if isinstance(first, MultilabelPredictions):
        return replace(
            first,
            probabilities=probabilities,
            predicted=decisions.predict_labels(probabilities),
            abstain_reasons=_merge_abstain_reasons(unlike, np.zeros(len(first), bool)),
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


# -- Conformal sets and ranges


def require_sets_support(task: Task, decisions: Decisions) -> None:
    """Check that the model has conformal sets or ranges, before inference.

    Raises:
        UsageError: labels, which have thresholds instead; or nothing was fitted, for example with too few images.
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
    """Add the conformal set of classes of each image, or the range of each number; see `conformal` for the guarantee.

    Args:
        decisions: of the model; of an ensemble, from `average_decisions`.

    Raises:
        UsageError: as `require_sets_support`.
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
