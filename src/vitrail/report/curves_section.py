"""Curves of a page: ROC, precision and recall, net benefit, cost, reliability and operating points of each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..data.labels.defects import DEFECT
from ..evaluate import threshold_curves as curves
from ..evaluate.calibration import MIN_IMAGES, CalibrationSummary, calibration_intercept, summarize_calibration
from ..evaluate.decision_figures import apply_decisions, estimate_rate
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    read_predictions_csv,
)
from ..evaluate.rule_optimism import USUAL_RULES
from ..evaluate.threshold_curves import CurveBand, CurveSample, DecisionCurve
from ..evaluate.thresholds import MIN_PER_SIDE, ThresholdRule, choose_threshold
from ..stats.predictive import LikelihoodRatios, Rate, likelihood_ratios
from . import charts
from .charts import Chart, ChartLine
from .operating_points import BinaryTarget, binary_targets
from .provenance import ReportFacts

MAX_TARGETS = 24
"""Classes or labels with curves, those that are found least often."""
MAX_DRAWN = 2
"""Of them drawn on the page, those with the lowest AUROC; files show all."""
FIXED_RATES = (0.9, 0.95, 0.99)
MOST_WIDTH = 0.9
"""Width of an interval of a rate from which on the page has a mark in its place."""
PLACES = np.linspace(0.0, 1.0, 101)
"""Horizontal places of a drawn curve."""


class PointRow(NamedTuple):
    """One threshold with its rates on the held-out images."""

    rule: str
    threshold: float | None
    """None where the most probable class is predicted."""
    sensitivity: Rate
    specificity: Rate
    ratios: LikelihoodRatios


class BenefitRanges(NamedTuple):
    """Threshold probabilities at which acting by the model is better than acting on all images or on none."""

    better: str
    """By the curve; a dash where it never is."""
    shown: str
    """By the band that holds for all thresholds together."""


class FixedRow(NamedTuple):
    """The curve at one rate."""

    rate: float
    sensitivity: Rate
    """At this specificity."""
    specificity: Rate
    """At this sensitivity."""


@dataclass(frozen=True, kw_only=True)
class TargetCurves:
    """The curves of one label, or of one class against the others."""

    name: str
    positives: int
    negatives: int
    reason: str = ""
    """Why there are none; empty if there are."""
    benefit_reason: str = ""
    """Why there are no net benefit, cost and calibration."""
    auroc: float = 0.0
    charts: dict[str, Chart]
    """By name: roc, precision-recall, net-benefit, cost, reliability."""
    points: tuple[PointRow, ...] = ()
    """The threshold in use, then those that rules choose on the validation images."""
    fixed: tuple[FixedRow, ...] = ()
    benefit: BenefitRanges | None = None
    calibration: CalibrationSummary | None = None
    intercept: Rate | None = None


@dataclass(frozen=True, kw_only=True)
class CurvesSection:
    """The curves of a page."""

    targets: list[TargetCurves]
    """Those that can be drawn first, the lowest AUROC first."""
    left_out: int
    """Further ones."""
    on_validation: bool
    """Whether rules choose thresholds on validation images; otherwise on those that they are measured on."""

    @property
    def shown_targets(self) -> list[TargetCurves]:
        """Those with curves on the page."""
        return [one for one in self.targets if not one.reason][:MAX_DRAWN]

    @property
    def has_unknown_rates(self) -> bool:
        """Whether the page marks a rate as one that so few images cannot estimate."""
        rows: list[PointRow | FixedRow] = [row for one in self.targets for row in one.points]
        rows += [row for one in self.targets for row in one.fixed]
        return not all(is_estimable(rate) for row in rows for rate in (row.sensitivity, row.specificity))


def curves_context(
    facts: ReportFacts, predictions: TaskPredictions, folder: Path, groups: np.ndarray | None
) -> CurvesSection | None:
    """The curves of every target that can be drawn, the lowest AUROC first; None for numbers or without targets.

    Args:
        groups: group of each image, such as its patient.

    Raises:
        DataError: stored validation predictions that cannot be read.
    """
    if isinstance(predictions, RegressionPredictions) or predictions.targets is None or not len(predictions):
        return None
    assert isinstance(predictions, ClassificationPredictions | MultilabelPredictions)
    targets = _targets(predictions, facts, groups)
    validation = read_validation(facts, folder)
    found = [
        _target_curves(one, None if validation is None else _same_target(validation, facts, one.name), facts)
        for one in targets
    ]
    found.sort(key=lambda one: (bool(one.reason), one.auroc))
    return CurvesSection(
        targets=found,
        left_out=max(0, len(predictions.classes) - MAX_TARGETS),
        on_validation=validation is not None,
    )


def read_validation(facts: ReportFacts, folder: Path) -> TaskPredictions | None:
    """The stored validation predictions under the decision in use; None if there are none beside the held-out ones.

    Raises:
        DataError: a file that cannot be read.
    """
    path = folder / "predictions" / "val.csv"
    if facts.held_out_split == "val" or not path.is_file():
        return None
    validation = read_predictions_csv(path, facts.task)
    return apply_decisions(validation, facts.decisions) if facts.decisions.version else validation


def _targets(
    predictions: ClassificationPredictions | MultilabelPredictions, facts: ReportFacts, groups: np.ndarray | None
) -> list[BinaryTarget]:
    """The targets, of more than MAX_TARGETS the least often found ones; of anomaly the defect, by its score."""
    if facts.task == "anomaly" and isinstance(predictions, ClassificationPredictions):
        (target,) = binary_targets(predictions, facts.decisions, DEFECT, groups=groups)
        assert predictions.scores is not None
        return [replace(target, probabilities=predictions.scores[target.rows].astype(np.float64), threshold=None)]
    if len(predictions.classes) <= MAX_TARGETS:
        return binary_targets(predictions, facts.decisions, groups=groups)
    found = []
    assert predictions.targets is not None
    for k in range(len(predictions.classes)):  # one after another: all at once may not fit the memory
        if isinstance(predictions, ClassificationPredictions):
            present, called = predictions.targets == k, predictions.indices == k
        else:
            present, called = predictions.targets[:, k] >= LABEL_THRESHOLD, predictions.indicators[:, k]
        found.append((present.sum() < MIN_PER_SIDE, called[present].mean() if present.any() else 1.0))
    order = sorted(range(len(found)), key=found.__getitem__)[:MAX_TARGETS]
    return [binary_targets(predictions, facts.decisions, predictions.classes[k], groups=groups)[0] for k in order]


def _same_target(validation: TaskPredictions, facts: ReportFacts, name: str) -> BinaryTarget | None:
    """The target on the validation images; None for anomaly, whose threshold is a promise and no rule."""
    return None if facts.task == "anomaly" else binary_targets(validation, facts.decisions, name)[0]


def _target_curves(target: BinaryTarget, validation: BinaryTarget | None, facts: ReportFacts) -> TargetCurves:
    sample = CurveSample(target.present, target.probabilities, target.groups)
    shared: dict[str, Any] = {"name": target.name, "positives": target.positives, "negatives": target.negatives}
    if reason := sample.unsupported_reason(target.name):
        return TargetCurves(**shared, reason=reason, charts={})
    rows = [_point_row("as it answers", target.threshold, target.predicted, target)]
    is_probability = facts.task != "anomaly"
    has_rules = is_probability and (facts.task == "multilabel" or len(facts.classes) == 2)
    basis = target if validation is None else validation
    base = CurveSample(basis.present, basis.probabilities)
    if has_rules and not base.unsupported_reason(target.name):
        for text in USUAL_RULES:
            value = choose_threshold(ThresholdRule.parse(text), basis.present, basis.probabilities).value
            rows.append(_point_row(text, value, target.probabilities >= value, target))
    points = tuple(rows)
    roc = curves.roc_band(sample, PLACES)
    precision = curves.precision_recall_band(sample, PLACES[1:])
    drawn = {"roc": _roc_chart(target, roc, points), "precision-recall": _precision_chart(target, precision, points[0])}
    reason, benefit, calibration, intercept = "", None, None, None
    if not is_probability:
        reason = "Net benefit and calibration need probabilities, and an anomaly score is none."
    elif facts.decisions.prior_ratio:
        reason = (
            "Probabilities are those at the stated prevalence and these pictures have another one, so net benefit and "
            "calibration are not measured here: vitrail decide RUN --use training shows them at the prevalence of "
            "the pictures."
        )
    else:
        decided = curves.decision_curve(sample)
        drawn["net-benefit"], benefit = _benefit_chart(target, decided), list_benefit(decided)
        calibration = summarize_calibration(target.probabilities, target.present, target.groups)
        intercept = calibration_intercept(target.probabilities, target.present, target.groups)
        if len(target.present) >= MIN_IMAGES:
            words = (f"probability of {target.name}, %", f"Share of pictures with {target.name} by its probability")
            parts = (target.probabilities, target.present, None, None)
            drawn["reliability"] = charts.make_calibration_chart(target.name, *parts, words, target.groups).figure
        if not base.unsupported_reason(target.name):
            drawn["cost"] = _cost_chart(target, curves.cost_curve(sample, base), points[0], sample)
    area = np.trapezoid(roc.y, roc.x)
    return TargetCurves(
        **shared,
        benefit_reason=reason,
        auroc=float(area),
        charts=drawn,
        points=points,
        fixed=tuple(
            FixedRow(one, curves.sensitivity_at(sample, one), curves.specificity_at(sample, one)) for one in FIXED_RATES
        ),
        benefit=benefit,
        calibration=calibration,
        intercept=intercept,
    )


def _point_row(rule: str, threshold: float | None, predicted: np.ndarray, target: BinaryTarget) -> PointRow:
    rates = []
    for mask, right in ((target.present, predicted), (~target.present, ~predicted)):
        rates.append(estimate_rate(right[mask], None if target.groups is None else target.groups[mask]))
    sensitivity, specificity = rates
    assert sensitivity is not None and specificity is not None  # a curve has images of both kinds
    return PointRow(rule, threshold, sensitivity, specificity, likelihood_ratios(sensitivity, specificity))


def is_estimable(rate: Rate) -> bool:
    """Whether the interval of a rate leaves out more than a tenth of all rates."""
    return rate.interval[1] - rate.interval[0] < MOST_WIDTH


def list_benefit(decided: DecisionCurve) -> BenefitRanges:
    """Where a model helps, in per cent."""
    return BenefitRanges(_format_ranges(decided.helpful_ranges()), _format_ranges(decided.helpful_ranges(certain=True)))


def _format_ranges(ranges: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{100 * low:.0f} to {100 * high:.0f}\u202f%" for low, high in ranges) or "\u2013"


# -- Charts


def _banded(band: CurveBand, name: str, unit: float = 100.0) -> list[ChartLine]:
    """A curve with its two bands, in per cent."""
    x, y = (unit * band.x).tolist(), (unit * band.y).tolist()
    points = list(zip(x, y, strict=True))
    wide = list(zip((unit * band.all_low).tolist(), (unit * band.all_high).tolist(), strict=True))
    near = list(zip((unit * band.low).tolist(), (unit * band.high).tolist(), strict=True))
    return [
        ChartLine(name="95 %, whole curve", points=points, style="faint", band=wide),
        ChartLine(name=name, points=points, style="first", band=near),
    ]


def _point(row: PointRow, style: Literal["second", "points"]) -> ChartLine:
    place = (100 * (1 - row.specificity.value), 100 * row.sensitivity.value)
    return ChartLine(name=row.rule, points=[place], style=style, dots=True)


_PERCENT_RANGE = (0.0, 100.0)


def _roc_chart(target: BinaryTarget, band: CurveBand, points: Sequence[PointRow]) -> Chart:
    guide = ChartLine(name="guessing", points=[(0.0, 0.0), (100.0, 100.0)], style="guide")
    rules = [_point(row, "points") for row in points[1:]]
    return Chart(
        lines=[guide, *_banded(band, "ROC curve"), *rules, _point(points[0], "second")],
        x_label="false positive rate, %",
        y_label="sensitivity, %",
        x=_PERCENT_RANGE,
        y=_PERCENT_RANGE,
        title=f"ROC curve of {target.name}",
        y_format="{:g} %",
    )


def _precision_chart(target: BinaryTarget, band: CurveBand, point: PointRow) -> Chart:
    share = 100 * target.positives / (target.positives + target.negatives)
    lines = [
        ChartLine(name="guessing", points=[(0.0, share), (100.0, share)], style="guide"),
        *_banded(band, "precision"),
    ]
    called = target.predicted
    if called.any():
        place = (100 * point.sensitivity.value, 100 * float(target.present[called].mean()))
        lines.append(ChartLine(name=point.rule, points=[place], style="second", dots=True))
    return Chart(
        lines=lines,
        x_label="recall, %",
        y_label="precision, %",
        x=_PERCENT_RANGE,
        y=_PERCENT_RANGE,
        title=f"Precision by recall of {target.name}",
        y_format="{:g} %",
    )


def _benefit_chart(target: BinaryTarget, decided: DecisionCurve) -> Chart:
    top = 100 * decided.prevalence
    low, high = -0.35 * top, 1.15 * top
    x = (100 * decided.model.x).tolist()
    on_all = [(place, y) for place, y in zip(x, (100 * decided.act_on_all).tolist(), strict=True) if y >= low]
    return Chart(
        lines=[
            ChartLine(name="act on none", points=[(0.0, 0.0), (100.0, 0.0)], style="guide"),
            ChartLine(name="act on all", points=on_all, style="second"),
            *_banded(decided.model, "act by the model"),
        ],
        x_label="threshold probability, %",
        y_label="net benefit, true positives in 100 pictures",
        x=_PERCENT_RANGE,
        y=(low, high),
        title=f"Net benefit of {target.name} by threshold probability",
    )


def _cost_chart(target: BinaryTarget, band: CurveBand, point: PointRow, sample: CurveSample) -> Chart:
    ends = np.array([0.0, 1.0])
    misses, alarms = np.full(2, 1 - point.sensitivity.value), np.full(2, 1 - point.specificity.value)
    used = curves.cost_band(misses, alarms, sample, ends)
    _, curve = _banded(band, "cheapest threshold")
    top = max(50.0, 105 * float(band.high.max()), 105 * float(used.y.max()))
    return Chart(
        lines=[
            ChartLine(name="always or never", points=[(0.0, 0.0), (50.0, 50.0), (100.0, 0.0)], style="guide"),
            curve,
            ChartLine(
                name=point.rule, points=[(0.0, 100 * float(used.y[0])), (100.0, 100 * float(used.y[1]))], style="second"
            ),
        ],
        x_label="share of misses in the cost, %",
        y_label="expected cost, % of the largest",
        x=_PERCENT_RANGE,
        y=(0.0, min(100.0, top)),
        title=f"Expected cost of {target.name} by what misses cost",
        y_format="{:g} %",
    )
