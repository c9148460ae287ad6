"""What the page of a run says for the task `classes`: confusions, and the pictures it is most wrong about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from ..evaluate.calibration import MIN_IMAGES
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.predictions import ClassificationPredictions
from . import thumbnails
from .thumbnails import Kept

MOST_CLASSES = 24
"""A larger confusion matrix does not fit a page; its largest confusions are listed instead."""


class Thumbnail(NamedTuple):
    """One picture on the page."""

    uri: str
    target: str
    answer: str
    confidence: float
    path: str
    small: bool
    """Drawn with sharp pixels."""


class Confusion(NamedTuple):
    """Pictures of one class that were taken for another."""

    target: str
    answer: str
    n: int
    share: float
    """Of the pictures of that class."""


def contents(
    metrics: ClassificationMetrics,
    predictions: ClassificationPredictions,
    images: Sequence[Kept],
    indices: Int64[np.ndarray, " k"],
) -> dict[str, Any]:
    """What `classes.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    shown = pictures(predictions, images, indices)
    return {
        "fewest": MIN_IMAGES,
        "matrix": _shaded(metrics) if len(metrics.confusion) <= MOST_CLASSES else None,
        "confusions": largest_confusions(metrics, 8),
        "mistakes": [picture for picture in shown if picture.target != picture.answer][: thumbnails.MOST],
        "right": [picture for picture in shown if picture.target == picture.answer],
    }


def pictures(
    predictions: ClassificationPredictions, images: Sequence[Kept], indices: Int64[np.ndarray, " k"]
) -> list[Thumbnail]:
    """Thumbnails with what the table says of them, in their stored order.

    Raises:
        UsageError: an index beyond the table, as when thumbnails and predictions come from different runs.
    """
    targets, labels = predictions.targets, predictions.labels
    thumbnails.check_rows(indices, len(predictions), targets is not None)
    if targets is None:
        return []
    found = []
    for image, i in zip(images, indices, strict=True):
        target, answer = int(targets[i]), int(labels[i])
        found.append(
            Thumbnail(
                uri=image.uri,
                target=predictions.classes[target],
                answer=predictions.classes[answer],
                confidence=float(predictions.confidences[i]),
                path=predictions.paths[i] or predictions.ids[i],
                small=image.small,
            )
        )
    return found


def largest_confusions(metrics: ClassificationMetrics, most: int) -> list[Confusion]:
    """The most frequent mistakes, largest first."""
    matrix = np.array(metrics.confusion)
    sums = matrix.sum(1)
    np.fill_diagonal(matrix, 0)
    places = np.argsort(-matrix, axis=None, kind="stable")[:most]
    names = [one.name for one in metrics.per_class]
    pairs = [divmod(int(place), len(names)) for place in places]
    return [Confusion(names[t], names[a], int(matrix[t, a]), matrix[t, a] / sums[t]) for t, a in pairs if matrix[t, a]]


def _shaded(metrics: ClassificationMetrics) -> list[dict[str, Any]]:
    """Rows of the confusion matrix; a cell's shade in per cent grows with its share, five times faster if wrong."""
    rows = []
    for k, (one, row) in enumerate(zip(metrics.per_class, metrics.confusion, strict=True)):
        shares = [n / max(1, one.n) for n in row]
        shades = [8 + 62 * (share if k == j else min(1, 5 * share)) for j, share in enumerate(shares)]
        cells = [
            {"n": n, "share": share, "shade": round(shade), "right": k == j}
            for j, (n, share, shade) in enumerate(zip(row, shares, shades, strict=True))
        ]
        rows.append({"name": one.name, "cells": cells})
    return rows
