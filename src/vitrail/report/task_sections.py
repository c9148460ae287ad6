"""Page sections of each task: confusion matrix, scatter plots, AUROC by label, and captioned images."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from ..evaluate.calibration import MIN_IMAGES
from ..evaluate.metrics import CASES_SUFFIX, ClassificationMetrics
from ..evaluate.multilabel_metrics import MIN_PER_SIDE, MultilabelMetrics
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from ..evaluate.segmentation_metrics import image_ious, known_areas
from ..evaluate.task_metrics import TaskMetrics
from ..explain.mask_overlay import mask_palette
from . import charts, image_selection, thumbnails
from .cards import compare_with_cases
from .image_selection import wrong_label_mask
from .provenance import ReportFacts
from .thumbnails import StoredThumbnail, Thumbnails

MAX_MATRIX_CLASSES = 24
"""Largest confusion matrix on a page; of larger ones only the largest confusions are listed."""


class ClassThumbnail(NamedTuple):
    """One image on the page."""

    uri: str
    target: str
    predicted: str
    confidence: float
    name: str
    """Its id."""
    small: bool
    """Drawn with sharp pixels."""


class Confusion(NamedTuple):
    """Images of one class that were predicted as another."""

    target: str
    predicted: str
    n: int
    share: float
    """Fraction of the images of that class."""


def classification_context(
    metrics: ClassificationMetrics, predictions: ClassificationPredictions, images: Thumbnails
) -> dict[str, Any]:
    """Context of `classification.html.j2`, beyond that of every page."""
    shown = []
    for row, image in images.items():
        assert predictions.targets is not None
        shown.append(
            ClassThumbnail(
                uri=image.uri,
                target=predictions.classes[int(predictions.targets[row])],
                predicted=predictions.classes[int(predictions.indices[row])],
                confidence=float(predictions.confidences[row]),
                name=predictions.ids[row],
                small=image.small,
            )
        )
    return {
        "fewest": MIN_IMAGES,
        "matrix": _shaded_confusion_rows(metrics),
        "confusions": find_largest_confusions(metrics, 8),
        "mistakes": [one for one in shown if one.target != one.predicted][: thumbnails.MAX_THUMBNAILS],
        "right": [one for one in shown if one.target == one.predicted],
    }


def find_largest_confusions(metrics: ClassificationMetrics, max_confusions: int) -> list[Confusion]:
    """The most frequent confusions, largest first."""
    matrix = np.array(metrics.confusion)
    sums = matrix.sum(1)
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:max_confusions]
    names = [one.name for one in metrics.per_class]
    pairs = [divmod(int(index), len(names)) for index in order]
    return [Confusion(names[t], names[a], int(matrix[t, a]), matrix[t, a] / sums[t]) for t, a in pairs if matrix[t, a]]


def _shaded_confusion_rows(metrics: ClassificationMetrics) -> list[dict[str, Any]] | None:
    """Rows of the confusion matrix; the shade of a cell grows with its fraction, five times faster off the diagonal."""
    if len(metrics.confusion) > MAX_MATRIX_CLASSES:
        return None
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


# -- Cases

MAX_CASES = 10
"""Wrong cases that are named, and others beside them."""


class CaseRow(NamedTuple):
    """One case on the page."""

    name: str
    pictures: int
    answer: str
    loudest: str
    """The id of the image with the largest share."""
    share: float


class OutputRates(NamedTuple):
    """How often a class or label is found, and how often its absence."""

    name: str
    n: int
    """Images or cases that have it."""
    sensitivity: tuple[float | None, tuple[float, float] | None]
    """With its interval."""
    specificity: tuple[float | None, tuple[float, float] | None]
    """Of one of two classes or of a label; None of one of several classes."""


def case_context(
    facts: ReportFacts, metrics: TaskMetrics, predictions: TaskPredictions, cases: TaskPredictions | None
) -> dict[str, Any] | None:
    """Context of `cases.html.j2`; None where the model answers images alone.

    Args:
        metrics, predictions: of the images.
    """
    case_metrics = facts.metrics_for_split(f"{metrics.split}{CASES_SUFFIX}")
    shares = predictions.shares
    if cases is None or case_metrics is None or shares is None:
        return None
    named: dict[str, list[int]] = {}
    for row, name in enumerate(predictions.case_names):
        named.setdefault(name, []).append(row)
    rows = []
    for case in image_selection.select_images(cases, MAX_CASES)[: 2 * MAX_CASES].tolist():
        members = named[cases.ids[case]]
        loudest = max(members, key=lambda row: float(shares[row]))
        share = float(shares[loudest])
        rows.append(
            CaseRow(cases.ids[case], len(members), describe_answer(cases, case), predictions.ids[loudest], share)
        )
    wrong = None
    if not isinstance(cases, RegressionPredictions):
        are_wrong, known = image_selection.wrong_and_known_masks(cases)
        wrong = int((are_wrong & known).sum())
    return {
        "pool": facts.case_pool,
        "metrics": case_metrics,
        "lines": compare_with_cases(metrics, case_metrics),
        "matrix": _shaded_confusion_rows(case_metrics) if isinstance(case_metrics, ClassificationMetrics) else None,
        "rates": list_rates(case_metrics),
        "rows": rows,
        "wrong": wrong,
    }


def list_rates(metrics: TaskMetrics) -> list[OutputRates]:
    """Sensitivity and specificity of every label, or of every class against the others; none of numbers."""
    if isinstance(metrics, MultilabelMetrics):
        return [
            OutputRates(
                one.name,
                one.positives,
                (one.sensitivity, one.sensitivity_interval),
                (one.specificity, one.specificity_interval),
            )
            for one in metrics.per_label
        ]
    if not isinstance(metrics, ClassificationMetrics):
        return []
    recalls, two = [(one.recall, one.recall_interval) for one in metrics.per_class], len(metrics.per_class) == 2
    return [
        OutputRates(one.name, one.n, recalls[k], recalls[1 - k] if two else (None, None))
        for k, one in enumerate(metrics.per_class)
    ]


def describe_answer(predictions: TaskPredictions, row: int) -> str:
    """What is true of an image or case and what was predicted."""
    if isinstance(predictions, ClassificationPredictions):
        p_values = predictions.p_values
        figure = f"{predictions.confidences[row]:.1%}" if p_values is None else f"p {p_values[row]:.3g}"
        return f"{predictions.target_names[row]}, answered {predictions.labels[row]} ({figure})"
    if isinstance(predictions, MultilabelPredictions):
        lines = label_lines(predictions, row)
    else:
        lines = column_lines(predictions, row)
    return "; ".join(f"{line.before} {line.name}{line.after}".strip() for line in lines)


# -- Anomaly


def anomaly_context(predictions: ClassificationPredictions, images: Thumbnails) -> dict[str, Any]:
    """Context of `anomaly.html.j2`, beyond that of every page."""
    captioned = {
        row: _caption_image(image, predictions, row, _score_lines(predictions, row)) for row, image in images.items()
    }
    targets, scores, found = predictions.targets, predictions.scores, predictions.indices
    assert targets is not None and scores is not None
    order = np.array(list(captioned), np.int64)
    order = order[np.argsort(-scores[order], kind="stable")].tolist()
    return {
        "scores": draw_scores(predictions),
        "counts": {
            "missed": int(((targets == 1) & (found == 0)).sum()),
            "alarms": int(((targets == 0) & (found == 1)).sum()),
        },
        "missed": [captioned[row] for row in order[::-1] if targets[row] == 1 and found[row] == 0],
        "alarms": [captioned[row] for row in order if targets[row] == 0 and found[row] == 1],
        "others": [captioned[row] for row in order if targets[row] == found[row]],
    }


def draw_scores(predictions: ClassificationPredictions) -> str:
    """Scores of good images and of defects by rank, as an SVG element."""
    assert predictions.scores is not None and predictions.targets is not None
    lines = []
    for name, target, style in (("good", 0, "second"), ("defect", 1, "first")):
        scores = np.sort(predictions.scores[predictions.targets == target])[-MAX_SCATTER_POINTS:].astype(np.float64)
        shares = (100 * (np.arange(len(scores)) + 0.5) / max(1, len(scores))).tolist()
        if len(scores):
            points = list(zip(scores.tolist(), shares, strict=True))
            lines.append(charts.ChartLine(name=name, points=points, style=cast(Any, style), dots=len(scores) <= 50))
    span = charts.axis_range([x for line in lines for x, _ in line.points])
    title = "Share of good pictures and of defects up to each score"
    return charts.draw_line_chart(lines, "score", "{:g} %".format, span, (0.0, 100.0), title)


def _score_lines(predictions: ClassificationPredictions, row: int) -> tuple[CaptionLine, ...]:
    assert predictions.targets is not None and predictions.p_values is not None and predictions.scores is not None
    wrong = bool(predictions.targets[row] != predictions.indices[row])
    figures = f", p {predictions.p_values[row]:.3g}, score {predictions.scores[row]:.3g}"
    return (
        CaptionLine("is", predictions.target_names[row]),
        CaptionLine("called", predictions.labels[row], figures, wrong),
    )


# -- Segmentation

MAX_MASK_SIDE = 900
"""Longer side of a mask beside its answer, in pixels."""


def segmentation_context(predictions: RegressionPredictions, images: Thumbnails) -> dict[str, Any]:
    """Context of `segmentation.html.j2`, beyond that of every page."""
    shown = [
        CaptionedImage(
            thumbnails.to_data_uri(image.image, image.aspect, MAX_MASK_SIDE), predictions.ids[row], image.small,
            column_lines(predictions, row),
        )
        for row, image in images.items()
    ]  # fmt: skip
    colors = [
        f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in mask_palette(len(predictions.columns)).tolist()
    ]
    return {"pictures": shown, "colors": colors}


# -- Regression

MAX_SCATTER_POINTS = 1000
"""Points of a scatter plot, evenly taken from the table, which limits the size of the page."""
MAX_SCATTER_COLUMNS = 8
"""Columns with a scatter plot."""
MAX_COLUMN_LINES = 3


def regression_context(predictions: RegressionPredictions, images: Thumbnails) -> dict[str, Any]:
    """Context of `regression.html.j2`, beyond that of every page."""

    def first_known_target(row: int) -> float:
        assert predictions.targets is not None
        return float(predictions.targets[row][predictions.known_mask[row]][0])

    captioned = {
        row: _caption_image(image, predictions, row, column_lines(predictions, row)) for row, image in images.items()
    }
    rows = list(images)
    worst = len(rows) - len(rows) // 2  # `select_regression_images` gives equally many of both
    return {
        "scatters": [
            (name, draw_scatter(predictions, k))
            for k, name in enumerate(predictions.columns[:MAX_SCATTER_COLUMNS])
            if predictions.known_mask[:, k].any()
        ],
        "points": MAX_SCATTER_POINTS,
        "mistakes": [captioned[row] for row in rows[:worst]],
        "others": [captioned[row] for row in sorted(rows[worst:], key=first_known_target)],
    }


def draw_scatter(predictions: RegressionPredictions, column: int) -> str:
    """Scatter plot of predictions by targets as an SVG element, with a dashed identity line."""
    assert predictions.targets is not None
    rows = np.flatnonzero(predictions.known_mask[:, column])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(MAX_SCATTER_POINTS, len(rows))).astype(np.int64))]
    targets, values = predictions.targets[rows, column].tolist(), predictions.values[rows, column].tolist()
    pairs, span = list(zip(targets, values, strict=True)), charts.axis_range([*targets, *values])
    lines = [
        charts.ChartLine(name="equal", points=[(span[0], span[0]), (span[1], span[1])], style="guide"),
        charts.ChartLine(name="pictures", points=pairs, style="points", dots=True),
    ]
    name = predictions.columns[column]
    return charts.draw_line_chart(lines, f"true {name}", "{:.6g}".format, span, span, f"Answered {name} by true {name}")


def column_lines(predictions: RegressionPredictions, row: int) -> tuple[CaptionLine, ...]:
    """A caption line per known column; of a mask its IoU, and the area of each class where a pixel has a size."""
    assert predictions.targets is not None
    if predictions.overlaps is not None:
        overlaps = predictions.overlaps[row][None]
        lines = (CaptionLine("mean IoU", f"{image_ious(overlaps)[0]:.3f}"),)
        if predictions.extents is None:
            return lines
        answered, true = (each[0] * predictions.extents[row] for each in known_areas(overlaps))
        return lines + tuple(
            CaptionLine(f"the area of {name} is", f"{area:.4g}", f", answered {given:.4g}")
            for name, area, given in zip(predictions.columns, true, answered, strict=True)
            if area or given
        )
    several = len(predictions.columns) > 1
    return tuple(
        CaptionLine(
            f"{predictions.columns[k]} is" if several else "is",
            f"{predictions.targets[row, k]:.4g}",
            f", predicted {predictions.values[row, k]:.4g}",
        )
        for k in np.flatnonzero(predictions.known_mask[row]).tolist()[:MAX_COLUMN_LINES]
    )


# -- Multilabel

MAX_LABEL_LINES = 3
"""Caption lines below an image, the most confidently wrong labels first."""


def multilabel_context(
    metrics: MultilabelMetrics, predictions: MultilabelPredictions, images: Thumbnails
) -> dict[str, Any]:
    """Context of `multilabel.html.j2`, beyond that of every page."""
    captioned = [
        (row, _caption_image(image, predictions, row, label_lines(predictions, row))) for row, image in images.items()
    ]
    wrong = np.asarray(wrong_label_mask(predictions).any(1))
    ranked = [
        charts.DotPlotRow(one.name, one.auroc, one.auroc_interval) for one in metrics.per_label if one.auroc is not None
    ]
    ranked.sort(key=lambda dot: -dot.value)
    lowest = min([0.5, *(low for dot in ranked for low in (dot.value, *(dot.interval or ())))])
    span = (max(0.0, lowest - 0.05), 1.0)
    title = "AUROC of each label with its 95 % interval"
    return {
        "fewest": MIN_PER_SIDE,
        "dots": charts.draw_dot_plot(ranked, span, title, guide=0.5) if ranked else None,
        "mistakes": [image for row, image in captioned if wrong[row]][: thumbnails.MAX_THUMBNAILS],
        "right": [image for row, image in captioned if not wrong[row]],
    }


def label_lines(predictions: MultilabelPredictions, row: int) -> tuple[CaptionLine, ...]:
    """Caption lines of the wrong labels of an image, or else of its true and its unknown labels."""
    assert predictions.targets is not None
    targets, chances = predictions.targets[row], predictions.probabilities[row]
    wrong = np.flatnonzero(wrong_label_mask(predictions)[row])
    if len(wrong):
        errors = np.abs(chances[wrong] - (targets[wrong] >= LABEL_THRESHOLD))
        order = wrong[np.argsort(-errors, kind="stable")][:MAX_LABEL_LINES].tolist()
        words = ["has" if targets[k] >= LABEL_THRESHOLD else "no" for k in order]
        return tuple(
            CaptionLine(word, predictions.classes[k], f", predicted {chances[k]:.0%}", True)
            for word, k in zip(words, order, strict=True)
        )
    present, known = np.flatnonzero(targets >= LABEL_THRESHOLD).tolist(), predictions.known_mask[row]
    lines = [CaptionLine("", predictions.classes[k], f" {chances[k]:.0%}") for k in present]
    if not lines:
        names = "the labels" if known.all() else "the known labels"
        lines = [CaptionLine("none of", names, f", highest {chances[known].max():.0%}")]
    lines += [
        CaptionLine("not known:", predictions.classes[k], f" {chances[k]:.0%}") for k in np.flatnonzero(~known).tolist()
    ]
    return tuple(lines[:MAX_LABEL_LINES])


# -- Images with captions, for multilabel and regression


class CaptionLine(NamedTuple):
    """One line of a caption; the name is set in bold."""

    before: str
    name: str
    after: str = ""
    wrong: bool = False


class CaptionedImage(NamedTuple):
    """A thumbnail with caption lines."""

    uri: str
    name: str
    """Its id."""
    small: bool
    """Drawn with sharp pixels."""
    lines: tuple[CaptionLine, ...]

    @property
    def alt(self) -> str:
        """Alternative text for screen readers."""
        return ", ".join(f"{line.before} {line.name}{line.after}".strip() for line in self.lines)


def _caption_image(
    image: StoredThumbnail,
    predictions: ClassificationPredictions | MultilabelPredictions | RegressionPredictions,
    row: int,
    lines: tuple[CaptionLine, ...],
) -> CaptionedImage:
    return CaptionedImage(image.uri, predictions.ids[row], image.small, lines)
