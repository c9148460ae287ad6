"""Uncertainty sections of a page: calibration, selective prediction, conformal sets, thresholds, and abstention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from ..evaluate import thresholds
from ..evaluate.calibration import risk_coverage_curve
from ..evaluate.conformal import predict_sets
from ..evaluate.decisions import UNLIKE, UNSURE, Decisions
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)
from ..evaluate.segmentation_metrics import known_areas
from ..stats.intervals import proportion_interval
from . import charts
from .charts import MIN_IMAGES
from .image_selection import wrong_and_known_masks
from .proportions import Proportion, estimate_proportion
from .task_sections import MAX_SCATTER_COLUMNS

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
MAX_RISK_POINTS = 200
MAX_SET_SIZE = 3


class SelectiveRisk(NamedTuple):
    """Risk-coverage curve and error rates at fixed coverages."""

    chart: str
    rows: list[tuple[float, Proportion]]
    """(coverage, error rate of the answered images)."""


class SetCoverage(NamedTuple):
    """Coverage and sizes of the conformal sets."""

    nominal_coverage: float
    coverage: Proportion
    size: float
    """Mean number of classes in a set."""
    sizes: list[tuple[str, float]]


class ThresholdRow(NamedTuple):
    """A threshold with its rates on the held-out images."""

    name: str
    threshold: float
    is_fitted: bool
    """Whether the rule was applied; otherwise the threshold is 0.5."""
    sensitivity: Proportion | None
    specificity: Proportion | None
    precision: Proportion | None
    """Positive predictive value."""


def uncertainty_context(
    predictions: TaskPredictions, decisions: Decisions, groups: np.ndarray | None = None
) -> dict[str, Any]:
    """Context of `uncertainty.html.j2`; parts that cannot be shown are None.

    Args:
        groups: group of each image, such as its patient; intervals of thresholds, sets and ranges resample groups.
    """
    context: dict[str, Any] = {
        "calibration": None, "label_calibration": [], "selective_risk": None, "set_coverage": None, "thresholds": [],
        "ranges": [], "agreement": [], "extent": None,
        "abstained": estimate_proportion(predictions.abstained, groups) if predictions.abstain_reasons else None,
        "wrong_answered": None,
    }  # fmt: skip
    if predictions.targets is None or decisions.calibration:  # of anomaly, whose p-values are no probabilities
        return context
    if isinstance(predictions, ClassificationPredictions):
        return context | _classification_uncertainty(predictions, decisions, groups)
    if isinstance(predictions, MultilabelPredictions):
        return context | {
            "thresholds": _label_threshold_rows(predictions, decisions, groups),
            "label_calibration": charts.multilabel_calibration(predictions, decisions, groups),
        }
    if predictions.overlaps is not None:
        extent = None if predictions.extents is None else float(np.median(predictions.extents))
        return context | {"ranges": _area_ranges(predictions, decisions, groups), "extent": extent}
    return context | _regression_uncertainty(predictions, decisions, groups)


def _classification_uncertainty(
    predictions: ClassificationPredictions, decisions: Decisions, groups: np.ndarray | None
) -> dict[str, Any]:
    assert predictions.targets is not None
    known = predictions.targets != UNKNOWN_CLASS
    probabilities, targets = predictions.probabilities[known].astype(np.float64), predictions.targets[known]
    if not len(targets):
        return {}
    wrong = probabilities.argmax(1) != targets
    own = None if groups is None else groups[known]
    many, by_threshold = len(wrong) >= MIN_IMAGES, bool(decisions.positive and decisions.thresholds)
    answered = known & ~predictions.abstained
    return {
        "wrong_answered": estimate_proportion(predictions.indices != predictions.targets, groups, answered),
        "calibration": charts.classification_calibration(probabilities, ~wrong, decisions, own) if many else None,
        "selective_risk": _selective_risk(probabilities.max(1), wrong, own) if many and not by_threshold else None,
        "set_coverage": _set_coverage(predictions, decisions, groups) if decisions.cuts else None,
        "thresholds": [_binary_threshold_row(predictions, decisions, groups)] if by_threshold else [],
    }


def _selective_risk(confidences: np.ndarray, wrong: np.ndarray, groups: np.ndarray | None) -> SelectiveRisk:
    curve = risk_coverage_curve(confidences, wrong.astype(np.float64))
    n = len(wrong)
    indices = np.unique(np.linspace(max(0, n // 50), n - 1, MAX_RISK_POINTS).astype(np.int64))
    points = [(100 * float(curve.coverage[index]), 100 * float(curve.risk[index])) for index in indices]
    span = (0.0, max(1.0, 1.1 * max(y for _, y in points)))
    title = "Share of wrong answers by the share of pictures that are answered"
    line = charts.ChartLine(name="risk", points=points)
    drawing = charts.draw_line_chart([line], "answered, %", "{:g} %".format, (0.0, 100.0), span, title)
    rows = []
    for coverage in COVERAGES:
        answered = math.ceil(coverage * n - 1e-9)
        errors = round(curve.risk_at(coverage) * answered)  # images of equal confidence share their mean error
        surest = np.argsort(-confidences, kind="stable")[:answered]
        interval = proportion_interval(np.arange(answered) < errors, None if groups is None else groups[surest])
        rows.append((coverage, Proportion(errors / answered, interval, answered)))
    return SelectiveRisk(drawing, rows)


def _set_coverage(
    predictions: ClassificationPredictions, decisions: Decisions, groups: np.ndarray | None
) -> SetCoverage:
    assert predictions.targets is not None
    rows = np.flatnonzero(predictions.targets != UNKNOWN_CLASS)
    probabilities = predictions.probabilities[rows].astype(np.float32)
    sets = predict_sets(probabilities, decisions.cuts)
    sizes = sets.sum(1)
    counts = [(str(size or "none"), float((sizes == size).mean())) for size in range(MAX_SET_SIZE)]
    counts.append((f"{MAX_SET_SIZE} or more", float((sizes >= MAX_SET_SIZE).mean())))
    in_set = sets[np.arange(len(rows)), predictions.targets[rows]]
    coverage = estimate_proportion(in_set, None if groups is None else groups[rows])
    assert coverage is not None
    return SetCoverage(1 - decisions.miss, coverage, float(sizes.mean()), counts)


def _binary_threshold_row(
    predictions: ClassificationPredictions, decisions: Decisions, groups: np.ndarray | None
) -> ThresholdRow:
    assert predictions.targets is not None
    known, index = predictions.targets != UNKNOWN_CLASS, predictions.classes.index(decisions.positive)
    positive, predicted = predictions.targets == index, predictions.indices == index
    threshold, is_fitted = decisions.thresholds[0], all(decisions.chosen)
    return _make_threshold_row(decisions.positive, threshold, is_fitted, known, positive, predicted, groups)


def _label_threshold_rows(
    predictions: MultilabelPredictions, decisions: Decisions, groups: np.ndarray | None
) -> list[ThresholdRow]:
    assert predictions.targets is not None
    values = decisions.thresholds or (thresholds.DEFAULT_THRESHOLD,) * len(predictions.classes)
    chosen = decisions.chosen or (False,) * len(values)
    rows = []
    for k, name in enumerate(predictions.classes):
        known, positive = predictions.known_mask[:, k], predictions.targets[:, k] >= LABEL_THRESHOLD
        predicted = predictions.indicators[:, k]
        rows.append(_make_threshold_row(name, values[k], chosen[k], known, positive, predicted, groups))
    return rows


def _make_threshold_row(
    name: str,
    threshold: float,
    is_fitted: bool,
    known: np.ndarray,
    positive: np.ndarray,
    predicted: np.ndarray,
    groups: np.ndarray | None,
) -> ThresholdRow:
    return ThresholdRow(
        name=name,
        threshold=threshold,
        is_fitted=is_fitted,
        sensitivity=estimate_proportion(predicted, groups, known & positive),
        specificity=estimate_proportion(~predicted, groups, known & ~positive),
        precision=estimate_proportion(positive, groups, known & predicted),
    )


def _regression_uncertainty(
    predictions: RegressionPredictions, decisions: Decisions, groups: np.ndarray | None
) -> dict[str, Any]:
    """Coverage of the conformal ranges, and a Bland-Altman plot for each column."""
    assert predictions.targets is not None
    ranges, drawings = [], []
    for k, name in enumerate(predictions.columns[:MAX_SCATTER_COLUMNS]):
        known = predictions.known_mask[:, k]
        targets = predictions.targets[known, k].astype(np.float64)
        values = predictions.values[known, k].astype(np.float64)
        if not len(targets):
            continue
        if decisions.reach:
            inside = np.abs(values - targets) <= decisions.reach[k]
            coverage = estimate_proportion(inside, None if groups is None else groups[known])
            ranges.append((name, decisions.reach[k], 1 - decisions.miss, coverage))
        if len(targets) > 1:
            drawings.append((name, _draw_bland_altman(name, targets, values)))
    return {"ranges": ranges, "agreement": drawings}


def _area_ranges(
    predictions: RegressionPredictions, decisions: Decisions, groups: np.ndarray | None
) -> list[tuple[str, float, float, Proportion | None]]:
    """Coverage of the conformal ranges of areas, as fractions of the known pixels."""
    assert predictions.overlaps is not None
    answered, true = known_areas(predictions.overlaps)
    errors = np.abs(answered - true)
    known = ~np.isnan(errors[:, 0])
    own = None if groups is None else groups[known]
    return [
        (f"The area of {name}", reach, 1 - decisions.miss, estimate_proportion(column[known] <= reach, own))
        for name, reach, column in zip(predictions.columns, decisions.reach, errors.T, strict=False)
        if known.any()
    ]


def _draw_bland_altman(name: str, targets: np.ndarray, values: np.ndarray) -> str:
    means, errors = (targets + values) / 2, values - targets
    middle, reach = float(errors.mean()), 1.96 * float(errors.std(ddof=1))
    levels = (middle - reach, middle, middle + reach)
    x, y = charts.axis_range(means.tolist()), charts.axis_range([*errors.tolist(), *levels, 0.0])
    rows = np.unique(np.linspace(0, len(errors) - 1, min(1000, len(errors))).astype(np.int64))
    lines = [charts.ChartLine(name="level", points=[(x[0], at), (x[1], at)], style="guide") for at in levels]
    points: Sequence[tuple[float, float]] = list(zip(means[rows].tolist(), errors[rows].tolist(), strict=True))
    lines.append(charts.ChartLine(name="pictures", points=points, style="points", dots=True))
    title = f"Answer less truth of {name} by their mean"
    return charts.draw_line_chart(lines, f"mean of answer and true {name}", "{:.4g}".format, x, y, title)


# -- Abstention

MAX_NAMED = 6
"""Abstained images listed for each reason; the predictions file has all."""


class AbstentionSummary(NamedTuple):
    """Number, reasons and error rates of the abstained images."""

    share: Proportion
    """Fraction of all images."""
    unsure: int
    unlike: int
    unsure_examples: tuple[str, ...]
    """Ids of the first ones."""
    unlike_examples: tuple[str, ...]
    table: str
    """The file with the column `abstain`."""
    wrong_abstained: Proportion | None
    """Error rate of the abstained images, had they been answered."""
    wrong_answered: Proportion | None
    """Error rate of the answered images."""
    wrong: str
    """What an error means here, as text."""
    can_be_unsure: bool
    can_be_unlike: bool


def summarize_abstention(
    predictions: TaskPredictions, decisions: Decisions, groups: Shaped[np.ndarray, " n"] | None = None
) -> AbstentionSummary:
    """Summarize the abstention of a table of classes or labels with at least one row."""
    assert not isinstance(predictions, RegressionPredictions)
    wrong, known = wrong_and_known_masks(predictions)
    reasons, abstained = predictions.abstain_reasons, predictions.abstained
    unsure = [name for name, reason in zip(predictions.ids, reasons, strict=False) if reason == UNSURE]
    unlike = [name for name, reason in zip(predictions.ids, reasons, strict=False) if reason == UNLIKE]
    share = estimate_proportion(abstained, groups)
    assert share is not None
    return AbstentionSummary(
        share=share,
        unsure=len(unsure),
        unlike=len(unlike),
        unsure_examples=tuple(unsure[:MAX_NAMED]),
        unlike_examples=tuple(unlike[:MAX_NAMED]),
        table=f"predictions/{predictions.split}.csv",
        wrong_abstained=estimate_proportion(wrong, groups, abstained & known),
        wrong_answered=estimate_proportion(wrong, groups, ~abstained & known),
        wrong="wrong in some label" if isinstance(predictions, MultilabelPredictions) else "wrong",
        can_be_unsure=decisions.sure > 0 or bool(unsure),
        can_be_unlike=decisions.unlike is not None or bool(unlike),
    )
