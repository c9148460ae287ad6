"""What the page of a run says for the task `classes`: confusions, and the pictures it is most wrong about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from ..evaluate.calibration import MIN_IMAGES
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MIN_PER_SIDE, MultilabelMetrics
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
)
from ..evaluate.regression_metrics import RegressionMetrics
from . import charts, thumbnails
from .image_selection import wrong_label_mask
from .thumbnails import StoredThumbnail

MAX_MATRIX_CLASSES = 24
"""A larger confusion matrix does not fit a page; its largest confusions are listed instead."""


class ClassThumbnail(NamedTuple):
    """One picture on the page."""

    uri: str
    target: str
    predicted: str
    confidence: float
    path: str
    small: bool
    """Drawn with sharp pixels."""


class Confusion(NamedTuple):
    """Pictures of one class that were taken for another."""

    target: str
    predicted: str
    n: int
    share: float
    """Of the pictures of that class."""


def classification_context(
    metrics: ClassificationMetrics,
    predictions: ClassificationPredictions,
    images: Sequence[StoredThumbnail],
    indices: Int64[np.ndarray, " k"],
) -> dict[str, Any]:
    """What `classes.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    shown = classification_thumbnails(predictions, images, indices)
    return {
        "fewest": MIN_IMAGES,
        "matrix": _shaded_confusion_rows(metrics) if len(metrics.confusion) <= MAX_MATRIX_CLASSES else None,
        "confusions": find_largest_confusions(metrics, 8),
        "mistakes": [picture for picture in shown if picture.target != picture.predicted][: thumbnails.MAX_THUMBNAILS],
        "right": [picture for picture in shown if picture.target == picture.predicted],
    }


def classification_thumbnails(
    predictions: ClassificationPredictions, images: Sequence[StoredThumbnail], indices: Int64[np.ndarray, " k"]
) -> list[ClassThumbnail]:
    """Thumbnails with what the table says of them, in their stored order.

    Raises:
        UsageError: an index beyond the table, as when thumbnails and predictions come from different runs.
    """
    targets, labels = predictions.targets, predictions.labels
    thumbnails.check_thumbnail_rows(indices, len(predictions), targets is not None)
    if targets is None:
        return []
    found = []
    for image, i in zip(images, indices, strict=True):
        target, answer = int(targets[i]), int(labels[i])
        found.append(
            ClassThumbnail(
                uri=image.uri,
                target=predictions.classes[target],
                predicted=predictions.classes[answer],
                confidence=float(predictions.confidences[i]),
                path=predictions.paths[i] or predictions.ids[i],
                small=image.small,
            )
        )
    return found


def find_largest_confusions(metrics: ClassificationMetrics, max_confusions: int) -> list[Confusion]:
    """The most frequent mistakes, largest first."""
    matrix = np.array(metrics.confusion)
    sums = matrix.sum(1)
    np.fill_diagonal(matrix, 0)
    places = np.argsort(-matrix, axis=None, kind="stable")[:max_confusions]
    names = [one.name for one in metrics.per_class]
    pairs = [divmod(int(place), len(names)) for place in places]
    return [Confusion(names[t], names[a], int(matrix[t, a]), matrix[t, a] / sums[t]) for t, a in pairs if matrix[t, a]]


def _shaded_confusion_rows(metrics: ClassificationMetrics) -> list[dict[str, Any]]:
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


# What the page of a run says for the task `number`: answers against the truth, and the largest errors.

MAX_SCATTER_POINTS = 1000
"""Pictures in one scatter, evenly taken from the table: more make the page large and the picture no clearer."""
MAX_SCATTER_COLUMNS = 8
"""Columns that have a scatter."""
MAX_COLUMN_LINES = 3


def regression_context(
    metrics: RegressionMetrics,
    predictions: RegressionPredictions,
    images: Sequence[StoredThumbnail],
    indices: Int64[np.ndarray, " k"],
) -> dict[str, Any]:
    """What `number.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    thumbnails.check_thumbnail_rows(indices, len(predictions), predictions.targets is not None)
    worst = len(indices) - len(indices) // 2  # `choice.of_numbers` gives as many of both, or all that there are
    pictures = [
        caption_image(image, predictions.paths[row] or predictions.ids[row], _column_lines(predictions, row))
        for image, row in zip(images, indices.tolist(), strict=True)
    ]
    rising = sorted(range(worst, len(indices)), key=lambda place: _first_known_target(predictions, int(indices[place])))
    return {
        "scatters": [
            (name, draw_scatter(predictions, k))
            for k, name in enumerate(predictions.columns[:MAX_SCATTER_COLUMNS])
            if _has_known_targets(predictions, k)
        ],
        "points": MAX_SCATTER_POINTS,
        "mistakes": pictures[:worst],
        "others": [pictures[place] for place in rising],
    }


def draw_scatter(predictions: RegressionPredictions, column: int) -> str:
    """Answers by true values as an SVG element; on the dashed line they are equal."""
    assert predictions.targets is not None
    rows = np.flatnonzero(predictions.known_mask[:, column])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(MAX_SCATTER_POINTS, len(rows))).astype(np.int64))]
    pairs = list(
        zip(predictions.targets[rows, column].tolist(), predictions.values[rows, column].tolist(), strict=True)
    )
    span = charts.axis_range([number for pair in pairs for number in pair])
    lines = [
        charts.ChartLine(name="equal", points=[(span[0], span[0]), (span[1], span[1])], style="guide"),
        charts.ChartLine(name="pictures", points=pairs, style="points", dots=True),
    ]
    name = predictions.columns[column]
    return charts.draw_line_chart(lines, f"true {name}", "{:.6g}".format, span, span, f"Answered {name} by true {name}")


def _has_known_targets(predictions: RegressionPredictions, column: int) -> bool:
    return bool(predictions.known_mask[:, column].any())


def _first_known_target(predictions: RegressionPredictions, row: int) -> float:
    """The first known number of a picture."""
    assert predictions.targets is not None
    return float(predictions.targets[row][predictions.known_mask[row]][0])


def _column_lines(predictions: RegressionPredictions, row: int) -> tuple[CaptionLine, ...]:
    """One line per known column."""
    assert predictions.targets is not None
    several = len(predictions.columns) > 1
    return tuple(
        CaptionLine(
            f"{predictions.columns[k]} is" if several else "is",
            f"{predictions.targets[row, k]:.4g}",
            f", said {predictions.values[row, k]:.4g}",
        )
        for k in np.flatnonzero(predictions.known_mask[row]).tolist()[:MAX_COLUMN_LINES]
    )


# What the page of a run says for the task `labels`: how well each is told, and where it is most wrong.

MAX_LABEL_LINES = 3
"""Wrong labels that are written below a picture, the most confident first."""


def multilabel_context(
    metrics: MultilabelMetrics,
    predictions: MultilabelPredictions,
    images: Sequence[StoredThumbnail],
    indices: Int64[np.ndarray, " k"],
) -> dict[str, Any]:
    """What `labels.html.j2` needs beside what every page has.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    pictures, wrong = (
        _multilabel_thumbnails(predictions, images, indices),
        np.asarray(wrong_label_mask(predictions).any(1)),
    )
    ranked = [
        charts.DotPlotRow(one.name, one.auroc, one.auroc_interval) for one in metrics.per_label if one.auroc is not None
    ]  # fmt: skip
    ranked.sort(key=lambda dot: -dot.value)
    lowest = min([0.5, *(low for dot in ranked for low in (dot.value, *(dot.interval or ())))])
    span = (max(0.0, lowest - 0.05), 1.0)
    title = "AUROC of each label with its 95 % interval"
    return {
        "fewest": MIN_PER_SIDE,
        "dots": charts.draw_dot_plot(ranked, span, title, guide=0.5) if ranked else None,
        "mistakes": [picture for row, picture in pictures if wrong[row]][: thumbnails.MAX_THUMBNAILS],
        "right": [picture for row, picture in pictures if not wrong[row]],
    }


def _multilabel_thumbnails(
    predictions: MultilabelPredictions, images: Sequence[StoredThumbnail], indices: Int64[np.ndarray, " k"]
) -> list[tuple[int, CaptionedImage]]:
    """Thumbnails with their rows, in their stored order."""
    thumbnails.check_thumbnail_rows(indices, len(predictions), predictions.targets is not None)
    return [
        (row, caption_image(image, predictions.paths[row] or predictions.ids[row], _label_lines(predictions, row)))
        for image, row in zip(images, indices.tolist(), strict=True)
    ]


def _label_lines(predictions: MultilabelPredictions, row: int) -> tuple[CaptionLine, ...]:
    """The wrong labels of a picture, or those that it rightly has and those that nobody knows."""
    assert predictions.targets is not None
    targets, chances = predictions.targets[row], predictions.probabilities[row]
    wrong = np.flatnonzero(wrong_label_mask(predictions)[row])
    if len(wrong):
        order = wrong[np.argsort(-np.abs(chances[wrong] - (targets[wrong] >= LABEL_THRESHOLD)), kind="stable")][
            :MAX_LABEL_LINES
        ]
        return tuple(
            CaptionLine(
                "has" if targets[k] >= LABEL_THRESHOLD else "no",
                predictions.classes[k],
                f", said {chances[k]:.0%}",
                True,
            )
            for k in order.tolist()
        )
    there, known = np.flatnonzero(targets >= LABEL_THRESHOLD).tolist(), predictions.known_mask[row]
    lines = [CaptionLine("", predictions.classes[k], f" {chances[k]:.0%}") for k in there]
    if not lines:
        of = "the labels" if known.all() else "the known labels"
        lines = [CaptionLine("none of", of, f", highest {chances[known].max():.0%}")]
    lines += [
        CaptionLine("not known:", predictions.classes[k], f" {chances[k]:.0%}") for k in np.flatnonzero(~known).tolist()
    ]
    return tuple(lines[:MAX_LABEL_LINES])


# A picture on the page with a few lines below it, as labels and numbers need them.


class CaptionLine(NamedTuple):
    """One line below a picture; only the name is set in bold."""

    before: str
    name: str
    after: str = ""
    wrong: bool = False


class CaptionedImage(NamedTuple):
    """One picture."""

    uri: str
    path: str
    small: bool
    """Drawn with sharp pixels."""
    lines: tuple[CaptionLine, ...]

    @property
    def alt(self) -> str:
        """What a screen reader says."""
        return ", ".join(f"{line.before} {line.name}{line.after}".strip() for line in self.lines)


def caption_image(image: StoredThumbnail, path: str, lines: tuple[CaptionLine, ...]) -> CaptionedImage:
    """A stored thumbnail with its lines."""
    return CaptionedImage(image.uri, path, image.small, lines)
