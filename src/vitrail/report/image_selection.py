"""Selection of the images of a report, for each task: the worst predictions, and others by a fixed rule."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from jaxtyping import Bool

from ..evaluate.decisions import Decisions
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from ..evaluate.segmentation_metrics import image_ious
from . import operating_points, thumbnails
from .operating_points import binary_targets


def select_with_worst(predictions: TaskPredictions, decisions: Decisions, k: int) -> np.ndarray:
    """`select_images`, then the worst misses and false alarms that are not among them."""
    rows = select_images(predictions, k)
    if isinstance(predictions, RegressionPredictions) or predictions.targets is None or decisions.calibration:
        return rows
    more = operating_points.worst_rows(binary_targets(predictions, decisions))
    return np.concatenate([rows, more[~np.isin(more, rows)]]).astype(np.int64)


def select_images(predictions: TaskPredictions, k: int) -> np.ndarray:
    """Rows of the k worst predictions, then of up to k others; rows without a known target are left out."""
    if isinstance(predictions, ClassificationPredictions):
        if predictions.scores is not None and predictions.targets is not None:
            return select_scored_images(predictions.scores, predictions.targets, predictions.indices, k)
        return thumbnails.select_class_images(predictions, k)
    if isinstance(predictions, MultilabelPredictions):
        return select_multilabel_images(predictions, k)
    return select_regression_images(predictions, k)


def select_scored_images(scores: np.ndarray, targets: np.ndarray, called: np.ndarray, k: int) -> np.ndarray:
    """Rows of an anomaly table: good images that are called defects, the largest scores first, and defects that are
    called good, the smallest first, k in turn; then of those that are called right k / 2 defects and k / 2 good ones,
    the largest scores first. Of good images alone 2k by their scores.
    """
    order = np.argsort(-scores, kind="stable")
    if not (targets == 1).any():
        return order[: 2 * k]
    alarms, escapes = order[(targets[order] == 0) & (called[order] == 1)], order[::-1]
    escapes = escapes[(targets[escapes] == 1) & (called[escapes] == 0)]
    turns = [row for pair in zip_longest(alarms.tolist(), escapes.tolist()) for row in pair if row is not None]
    right = [order[(targets[order] == kind) & (called[order] == kind)][: k // 2] for kind in (1, 0)]
    return np.concatenate([np.array(turns[:k], np.int64), *right])


def select_multilabel_images(predictions: MultilabelPredictions, k: int) -> np.ndarray:
    """Rows of the most confidently wrong labels, then rows without a wrong label.

    The latter alternate by their first positive label: the first row of each in the table's order, then the second.
    """
    wrong = wrong_label_mask(predictions)  # [n, K]
    if predictions.targets is None or not len(predictions):
        return np.zeros(0, np.int64)
    far = np.where(wrong, np.abs(predictions.probabilities - (predictions.targets >= LABEL_THRESHOLD)), -1).max(1)
    worst = np.flatnonzero(wrong.any(1))
    worst = worst[np.argsort(-far[worst], kind="stable")]
    right = np.flatnonzero(predictions.known_mask.any(1) & ~wrong.any(1))
    present = predictions.targets[right] >= LABEL_THRESHOLD
    kind = np.where(present.any(1), present.argmax(1), present.shape[1])
    return np.concatenate([worst[:k], thumbnails.alternate_by_kind(right, kind)[:k]]).astype(np.int64)


def wrong_label_mask(predictions: MultilabelPredictions) -> np.ndarray:
    """bool [n, K]: known labels that are predicted wrongly."""
    if predictions.targets is None:
        return np.zeros(predictions.probabilities.shape, bool)
    return np.asarray(predictions.known_mask & ((predictions.targets >= LABEL_THRESHOLD) != predictions.indicators))


def wrong_and_known_masks(
    predictions: ClassificationPredictions | MultilabelPredictions,
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Images with a wrong prediction, in any label, and images with a known target."""
    if isinstance(predictions, MultilabelPredictions):
        return np.asarray(wrong_label_mask(predictions).any(1)), np.asarray(predictions.known_mask.any(1))
    targets = np.full(len(predictions), UNKNOWN_CLASS) if predictions.targets is None else predictions.targets
    return np.asarray(predictions.indices != targets), np.asarray(targets != UNKNOWN_CLASS)


def select_regression_images(predictions: RegressionPredictions, k: int) -> np.ndarray:
    """Rows of the largest errors in standard deviations of their column, then rows spread over the target values; of
    masks those of the lowest IoU first.
    """
    known = np.asarray(predictions.known_mask.any(1))
    if predictions.targets is None or not known.any():
        return np.zeros(0, np.int64)
    spread = np.array([_std_or_one(column) for column in predictions.targets.astype(np.float64).T])
    errors = np.abs(predictions.values.astype(np.float64) - predictions.targets) / spread
    far = np.where(predictions.known_mask, errors, -1).max(1)
    if predictions.overlaps is not None:
        far = 1 - image_ious(predictions.overlaps)
        known = ~np.isnan(far)
    order = np.argsort(-far, kind="stable")
    worst, others = order[:k][known[order[:k]]], np.sort(order[k:])
    others = others[known[others]]
    first = predictions.targets[others, predictions.known_mask[others].argmax(1)]
    others = others[np.argsort(first, kind="stable")]
    even = np.unique(np.linspace(0, len(others) - 1, min(k, len(others))).round().astype(np.int64))
    return np.concatenate([worst, others[even]]).astype(np.int64)


def _std_or_one(column: np.ndarray) -> float:
    known = column[~np.isnan(column)]
    return float(known.std()) if len(known) and known.min() < known.max() else 1.0
