"""Uncertainty sections of a page: calibration, selective prediction, conformal sets, thresholds, and abstention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from ..evaluate import thresholds
from ..evaluate.calibration import RiskCoverageCurve, risk_coverage_curve
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
from ..stats.intervals import wilson_interval
from . import charts
from .charts import MIN_IMAGES
from .image_selection import wrong_label_mask
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
    """Context of `trust.html.j2`; parts that cannot be shown are None.

    Args:
        groups: group of each image, such as its patient; intervals of thresholds, sets and ranges resample groups.
    """
    context: dict[str, Any] = {
        "calibrated": None, "by_label": [], "answering": None, "held": None, "cuts": [], "ranges": [], "agreement": [],
        "unlike": estimate_proportion(_ood_mask(predictions), groups) if predictions.abstain_reasons else None,
        "silent": estimate_proportion(predictions.abstained_mask, groups) if predictions.abstain_reasons else None,
    }  # fmt: skip
    if predictions.targets is None:
        return context
    if isinstance(predictions, ClassificationPredictions):
        return context | _classification_uncertainty(predictions, decisions, groups)
    if isinstance(predictions, MultilabelPredictions):
        return context | {
            "cuts": _label_threshold_rows(predictions, decisions, groups),
            "by_label": charts.multilabel_calibration(predictions, decisions),
        }
    return context | _regression_uncertainty(predictions, decisions, groups)


def _ood_mask(predictions: TaskPredictions) -> np.ndarray:
    return np.array([why == UNLIKE for why in predictions.abstain_reasons], bool)


def _select_groups(groups: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if groups is None else groups[rows]


def _classification_uncertainty(
    predictions: ClassificationPredictions, decisions: Decisions, groups: np.ndarray | None
) -> dict[str, Any]:
    assert predictions.targets is not None
    known = predictions.targets != UNKNOWN_CLASS
    probabilities, targets = predictions.probabilities[known].astype(np.float64), predictions.targets[known]
    if not len(targets):
        return {}
    wrong = probabilities.argmax(1) != targets
    many, by_threshold = len(wrong) >= MIN_IMAGES, bool(decisions.positive and decisions.thresholds)
    return {
        "calibrated": charts.classification_calibration(probabilities, ~wrong, decisions) if many else None,
        "answering": _selective_risk(probabilities.max(1), wrong) if many and not by_threshold else None,
        "held": _set_coverage(probabilities, targets, decisions, _select_groups(groups, known))
        if decisions.cuts
        else None,
        "cuts": [_binary_threshold_row(predictions, decisions, groups)] if by_threshold else [],
    }


def _selective_risk(confidences: np.ndarray, wrong: np.ndarray) -> SelectiveRisk:
    curve = risk_coverage_curve(confidences, wrong.astype(np.float64))
    n = len(wrong)
    places = np.unique(np.linspace(max(0, n // 50), n - 1, MAX_RISK_POINTS).astype(np.int64))
    points = [(100 * float(curve.coverage[place]), 100 * float(curve.risk[place])) for place in places]
    span = (0.0, max(1.0, 1.1 * max(y for _, y in points)))
    title = "Share of wrong answers by the share of pictures that are answered"
    line = charts.ChartLine(name="risk", points=points)
    drawing = charts.draw_line_chart([line], "answered, %", "{:g} %".format, (0.0, 100.0), span, title)
    return SelectiveRisk(drawing, [(coverage, _error_at_coverage(curve, coverage)) for coverage in COVERAGES])


def _error_at_coverage(curve: RiskCoverageCurve, coverage: float) -> Proportion:
    n = math.ceil(coverage * len(curve.risk) - 1e-9)
    wrong = round(curve.risk_at(coverage) * n)
    return Proportion(wrong / n, wilson_interval(wrong, n), n)


def _set_coverage(
    probabilities: np.ndarray, targets: np.ndarray, decisions: Decisions, groups: np.ndarray | None
) -> SetCoverage:
    held = predict_sets(probabilities.astype(np.float32), decisions.cuts)
    sizes = held.sum(1)
    counts = [(str(size or "none"), float((sizes == size).mean())) for size in range(MAX_SET_SIZE)]
    counts.append((f"{MAX_SET_SIZE} or more", float((sizes >= MAX_SET_SIZE).mean())))
    right = held[np.arange(len(targets)), targets]
    kept = estimate_proportion(right, groups)
    assert kept is not None
    return SetCoverage(1 - decisions.miss, kept, float(sizes.mean()), counts)


def _binary_threshold_row(
    predictions: ClassificationPredictions, decisions: Decisions, groups: np.ndarray | None
) -> ThresholdRow:
    assert predictions.targets is not None
    known, positive = predictions.targets != UNKNOWN_CLASS, predictions.classes.index(decisions.positive)
    is_so, said_so = predictions.targets[known] == positive, predictions.labels[known] == positive
    own = _select_groups(groups, known)
    return _make_threshold_row(decisions.positive, decisions.thresholds[0], all(decisions.chosen), is_so, said_so, own)


def _label_threshold_rows(
    predictions: MultilabelPredictions, decisions: Decisions, groups: np.ndarray | None
) -> list[ThresholdRow]:
    assert predictions.targets is not None
    values = decisions.thresholds or (thresholds.DEFAULT_THRESHOLD,) * len(predictions.classes)
    chosen = decisions.chosen or (False,) * len(values)
    found = []
    for k, name in enumerate(predictions.classes):
        known = predictions.known_mask[:, k]
        has_it, said_so = predictions.targets[known, k] >= LABEL_THRESHOLD, predictions.labels[known, k]
        found.append(_make_threshold_row(name, values[k], chosen[k], has_it, said_so, _select_groups(groups, known)))
    return found


def _make_threshold_row(
    name: str,
    threshold: float,
    is_fitted: bool,
    positive: np.ndarray,
    predicted: np.ndarray,
    groups: np.ndarray | None,
) -> ThresholdRow:
    return ThresholdRow(
        name=name,
        threshold=threshold,
        is_fitted=is_fitted,
        sensitivity=estimate_proportion(predicted[positive], _select_groups(groups, positive)),
        specificity=estimate_proportion(~predicted[~positive], _select_groups(groups, ~positive)),
        precision=estimate_proportion(positive[predicted], _select_groups(groups, predicted)),
    )


def _regression_uncertainty(
    predictions: RegressionPredictions, decisions: Decisions, groups: np.ndarray | None
) -> dict[str, Any]:
    """Coverage of the conformal ranges, and a Bland-Altman plot for each column."""
    assert predictions.targets is not None
    ranges, drawings = [], []
    for k, name in enumerate(predictions.columns[:MAX_SCATTER_COLUMNS]):
        known = predictions.known_mask[:, k]
        targets, values = (
            predictions.targets[known, k].astype(np.float64),
            predictions.values[known, k].astype(np.float64),
        )
        if not len(targets):
            continue
        if decisions.reach:
            inside = np.abs(values - targets) <= decisions.reach[k]
            ranges.append(
                (
                    name,
                    decisions.reach[k],
                    1 - decisions.miss,
                    estimate_proportion(inside, _select_groups(groups, known)),
                )
            )
        if len(targets) > 1:
            drawings.append((name, _draw_bland_altman(name, targets, values)))
    return {"ranges": ranges, "agreement": drawings}


def _draw_bland_altman(name: str, targets: np.ndarray, values: np.ndarray) -> str:
    means, gaps = (targets + values) / 2, values - targets
    middle, reach = float(gaps.mean()), 1.96 * float(gaps.std(ddof=1))
    x, y = charts.axis_range(means.tolist()), charts.axis_range([*gaps.tolist(), middle - reach, middle + reach, 0.0])
    rows = np.unique(np.linspace(0, len(gaps) - 1, min(1000, len(gaps))).astype(np.int64))
    levels = (middle - reach, middle, middle + reach)
    lines = [charts.ChartLine(name="level", points=[(x[0], at), (x[1], at)], style="guide") for at in levels]
    points: Sequence[tuple[float, float]] = list(zip(means[rows].tolist(), gaps[rows].tolist(), strict=True))
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
    silent, wrong, known = predictions.abstained_mask, *_wrong_and_known_masks(predictions)

    def of(rows: np.ndarray) -> Proportion | None:
        return estimate_proportion(wrong[rows], None if groups is None else groups[rows])

    def some(reason: str) -> tuple[str, ...]:
        found = [name for name, why in zip(predictions.ids, predictions.abstain_reasons, strict=False) if why == reason]
        return tuple(found[:MAX_NAMED])

    share = estimate_proportion(silent, groups)
    assert share is not None
    return AbstentionSummary(
        share=share,
        unsure=sum(why == UNSURE for why in predictions.abstain_reasons),
        unlike=sum(why == UNLIKE for why in predictions.abstain_reasons),
        unsure_examples=some(UNSURE),
        unlike_examples=some(UNLIKE),
        table=f"predictions/{predictions.split}.csv",
        wrong_abstained=of(silent & known),
        wrong_answered=of(~silent & known),
        wrong="wrong in some label" if isinstance(predictions, MultilabelPredictions) else "wrong",
        can_be_unsure=decisions.sure > 0 or UNSURE in predictions.abstain_reasons,
        can_be_unlike=decisions.unlike is not None or UNLIKE in predictions.abstain_reasons,
    )


def _wrong_and_known_masks(predictions: TaskPredictions) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] each: images with a wrong prediction in any label, and images with a known target."""
    if isinstance(predictions, MultilabelPredictions):
        return np.asarray(wrong_label_mask(predictions).any(1)), np.asarray(predictions.known_mask.any(1))
    assert isinstance(predictions, ClassificationPredictions)
    targets = np.full(len(predictions), UNKNOWN_CLASS) if predictions.targets is None else predictions.targets
    return np.asarray(predictions.labels != targets), np.asarray(targets != UNKNOWN_CLASS)
