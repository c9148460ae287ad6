"""SVG charts of the report: line charts, learning curves, reliability diagrams, dot plots and icon arrays.

The page's style sheet sets the colours, so that they follow the light or dark theme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from ..evaluate import calibration
from ..evaluate.calibration import MIN_IMAGES_PER_SIDE
from ..evaluate.decisions import Decisions
from ..evaluate.predictions import LABEL_THRESHOLD, MultilabelPredictions
from ..evaluate.probabilities import softmax
from .operating_points import BinaryTarget

CHART_WIDTH, CHART_HEIGHT = 460, 250
CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 52, 22, 12, 42
AxisRange = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A curve; points that are not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), x rising."""
    style: Literal["first", "second", "faint", "guide", "points"] = "first"
    """Class in the style sheet; "points" are not joined."""
    dots: bool = False
    """Mark every point, for curves with few points."""
    error_bars: Sequence[tuple[float, float]] = ()
    """Interval of each point."""
    band: Sequence[tuple[float, float]] = ()
    """Interval of each point, as an area behind the curve."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A line chart as values: the page draws it as SVG, `figure_files` as a file of its own."""

    lines: Sequence[ChartLine]
    x_label: str
    y_label: str
    """For files; on the page it stands above the chart."""
    x: AxisRange
    y: AxisRange
    title: str
    y_format: str = "{:g}"

    def svg(self) -> str:
        """As an SVG element for the page."""
        return draw_line_chart(self.lines, self.x_label, self.y_format.format, self.x, self.y, self.title)


def draw_line_chart(
    lines: Sequence[ChartLine], x_label: str, y_format: Callable[[float], str], x: AxisRange, y: AxisRange, title: str
) -> str:
    """Line chart as an SVG element, with axes and round ticks; `title` is for screen readers."""
    transform = _AxisTransform(x, y)
    right, base = CHART_WIDTH - CHART_RIGHT, CHART_HEIGHT - CHART_BOTTOM
    parts = [f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in axis_ticks(y, 5):
        high = transform.y(tick)
        parts.append(f'<line class="grid" x1="{CHART_LEFT}" x2="{right}" y1="{high:.1f}" y2="{high:.1f}"/>')
        parts.append(_tick_text(CHART_LEFT - 8, f"{high + 4:.1f}", "end", y_format(tick)))
    for tick in axis_ticks(x, 5):
        parts.append(_tick_text(f"{transform.x(tick):.1f}", base + 17, "middle", f"{tick:,.6g}"))
    parts.append(f'<line class="axis" x1="{CHART_LEFT}" x2="{right}" y1="{base}" y2="{base}"/>')
    parts.append(_tick_text((CHART_LEFT + right) / 2, CHART_HEIGHT - 6, "middle", escape(x_label)))
    parts.extend(_draw_curve(line, transform) for line in lines)
    return "\n".join([*parts, "</svg>"])


def _tick_text(x: object, y: object, anchor: str, text: str) -> str:
    return f'<text class="tick" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def axis_range(values: Sequence[float], floor: float | None = None, ceiling: float | None = None) -> AxisRange:
    """Range of the finite values with a margin, clipped to floor and ceiling; never empty."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
    low, high = low - margin, high + margin
    return (low if floor is None else max(low, floor)), (high if ceiling is None else min(high, ceiling))


def axis_ticks(span: AxisRange, target_count: int) -> list[float]:
    """Round numbers inside a range: steps of 1, 2 or 5 times a power of ten."""
    low, high = span
    rough = (high - low) / target_count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


@dataclass(frozen=True)
class _AxisTransform:
    """From values to coordinates of the drawing."""

    x_range: AxisRange
    y_range: AxisRange

    def x(self, value: float) -> float:
        low, high = self.x_range
        return CHART_LEFT + (value - low) / (high - low) * (CHART_WIDTH - CHART_LEFT - CHART_RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (min(max(value, low), high) - low) / (high - low)
        return CHART_HEIGHT - CHART_BOTTOM - share * (CHART_HEIGHT - CHART_TOP - CHART_BOTTOM)


def _draw_curve(line: ChartLine, transform: _AxisTransform) -> str:
    points = [(transform.x(x), transform.y(y)) for x, y in line.points if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = []
    if line.band:
        places = [transform.x(x) for x, _ in line.points]
        ends = [
            [f"{x:.1f},{transform.y(pair[i]):.1f}" for x, pair in zip(places, line.band, strict=True)] for i in (0, 1)
        ]
        parts.append(f'<polygon class="area {line.style}" points="{" ".join([*ends[0], *ends[1][::-1]])}"/>')
    for (value, _), interval in zip(line.points, line.error_bars, strict=bool(line.error_bars)):
        x, (low, high) = transform.x(value), map(transform.y, interval)
        parts.append(f'<line class="bar {line.style}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
    if len(points) > 1 and line.style != "points":
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
    if line.dots or len(points) == 1:
        radius = 4.5 if len(points) == 1 and line.style == "second" else 2.6
        parts += [f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in points]
    return "".join(parts)


# -- Learning curves from metrics.jsonl

MAX_CURVE_POINTS = 240
"""Points of one curve; longer histories are averaged in intervals."""

CurvePoints = list[tuple[float, float]]


def read_history(path: Path) -> dict[str, CurvePoints]:
    """Read every metric of metrics.jsonl as (step, value), sorted by step; empty without a file.

    A step that is written twice, as after a resume, keeps its last value. Lines that are not JSON, such as a truncated
    last line, are skipped.
    """
    history: dict[str, dict[float, float]] = {}
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines() if Path(path).exists() else []
    for line in lines:
        try:
            values = json.loads(line)
            step = float(values.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                history.setdefault(name, {})[step] = float(value)
    return {name: sorted(values.items()) for name, values in history.items()}


def draw_loss_chart(history: dict[str, CurvePoints]) -> str | None:
    """Training loss, raw and smoothed, and validation loss; None without a history."""
    train, val = downsample_points(history.get("loss", [])), history.get("val_loss", [])
    lines = [
        ChartLine(name="training", points=train, style="faint"),
        ChartLine(name="training, smoothed", points=smooth_points(train), style="first"),
        ChartLine(name="validation", points=val, style="second", dots=len(val) <= 40),
    ]
    values = [y for _, y in smooth_points(train) + val]
    return _draw_step_chart(lines, axis_range(values, floor=0.0), "{:g}", "Loss by training step") if values else None


def draw_accuracy_chart(history: dict[str, CurvePoints]) -> str | None:
    """Validation accuracy by step; None where it was not measured."""
    points = [(step, 100 * share) for step, share in history.get("val_accuracy", [])]
    line = ChartLine(name="validation", points=points, style="second", dots=len(points) <= 40)
    span = axis_range([y for _, y in points], floor=0.0, ceiling=100.0)
    return _draw_step_chart([line], span, "{:g} %", "Accuracy on the validation split by step") if points else None


def draw_score_chart(history: dict[str, CurvePoints], name: str) -> str | None:
    """Another validation metric of at most 1, such as `AUROC` or `R2`, by step; None where it was not measured."""
    points = history.get(f"val_{name.lower()}", [])
    line = ChartLine(name="validation", points=points, style="second", dots=len(points) <= 40)
    span = axis_range([y for _, y in points], ceiling=1.0)
    return _draw_step_chart([line], span, "{:g}", f"{name} on the validation split by step") if points else None


def draw_lr_chart(history: dict[str, CurvePoints]) -> str | None:
    """Learning rate by step; None where it was not logged."""
    points = downsample_points(history.get("lr", []))
    line = ChartLine(name="rate", points=points)
    span = (0.0, 1.06 * max((y for _, y in points), default=1.0) or 1.0)
    return _draw_step_chart([line], span, "{:g}", "Learning rate by step") if points else None


def downsample_points(points: CurvePoints) -> CurvePoints:
    """At most MAX_CURVE_POINTS points: means of equal intervals, each at its last step."""
    if len(points) <= MAX_CURVE_POINTS:
        return points
    intervals = np.array_split(np.array(points), MAX_CURVE_POINTS)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in intervals]


def smooth_points(points: CurvePoints, reach: int = 4) -> CurvePoints:
    """Centred moving average over up to `reach` neighbours on either side."""
    values = [value for _, value in points]
    near = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [(step, sum(some) / len(some)) for (step, _), some in zip(points, near, strict=True)]


def _draw_step_chart(lines: Sequence[ChartLine], y: AxisRange, text: str, title: str) -> str:
    last = max([x for line in lines for x, _ in line.points] + [1.0])
    return draw_line_chart(lines, "step", text.format, (0.0, last), y, title)


# -- Reliability diagrams

MIN_IMAGES = 100
"""Images that a reliability diagram needs; with fewer it would show noise."""
NUM_CHART_BINS = 10
MAX_LABEL_CHARTS = 6
"""Labels with a chart: those with the largest calibration error."""


class CalibrationChart(NamedTuple):
    """Reliability diagram and calibration error, with and without the temperature."""

    name: str
    """Name of the label; empty for classes."""
    figure: Chart
    error: float
    interval: tuple[float, float]
    """95 % interval of the error."""
    error_before: float | None
    temperature: float | None

    @property
    def chart(self) -> str:
        """The diagram as an SVG element."""
        return self.figure.svg()


def classification_calibration(
    probabilities: Float64[np.ndarray, "n K"],
    right: Bool[np.ndarray, " n"],
    fitted_decisions: Decisions,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> CalibrationChart:
    """Accuracy by confidence; intervals count groups, such as patients, if there are any.

    The curve without temperature is recovered from the probabilities, which the temperature raised to the power
    1 / temperature.
    """
    plain, temperature = None, None
    if fitted_decisions.temperature:
        (temperature,) = fitted_decisions.temperature
        plain = softmax(temperature * np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))).max(1)
    title = "Accuracy of the answers by their confidence"
    return make_calibration_chart("", probabilities.max(1), right, plain, temperature, ("confidence, %", title), groups)


def multilabel_calibration(
    predictions: MultilabelPredictions, fitted_decisions: Decisions, groups: Shaped[np.ndarray, " n"] | None = None
) -> list[CalibrationChart]:
    """Reliability of each label with enough known positives and negatives, the largest calibration error first."""
    assert predictions.targets is not None
    label_charts = []
    for k, name in enumerate(predictions.classes):
        known = predictions.known_mask[:, k]
        probabilities = predictions.probabilities[known, k].astype(np.float64)
        present = predictions.targets[known, k] >= LABEL_THRESHOLD
        if len(present) < MIN_IMAGES or min(present.sum(), (~present).sum()) < MIN_IMAGES_PER_SIDE:
            continue
        temperature, plain = None, None
        if fitted_decisions.temperature and fitted_decisions.temperature[k] != 1:  # 1 means that it was not fitted
            temperature = fitted_decisions.temperature[k]
            inside = np.clip(probabilities, np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).eps / 2)
            plain = np.asarray(1 / (1 + ((1 - inside) / inside) ** temperature))  # without temperature scaling
        words = ("probability, %", f"Share of pictures with {name} by its probability")
        own = None if groups is None else groups[known]
        label_charts.append(make_calibration_chart(name, probabilities, present, plain, temperature, words, own))
    return sorted(label_charts, key=lambda one: -one.error)


def make_calibration_chart(
    name: str,
    probabilities: np.ndarray,
    outcomes: np.ndarray,
    plain: np.ndarray | None,
    temperature: float | None,
    words: tuple[str, str],
    groups: np.ndarray | None,
) -> CalibrationChart:
    """Reliability diagram of one kind of outcome.

    Args:
        words: axis label, and title for screen readers.
    """
    lines, before = [], None
    if plain is not None:
        before = calibration.debiased_calibration_error(plain, outcomes)
        bins = calibration.reliability_curve(plain, outcomes, NUM_CHART_BINS)
        points = [(100 * one.mean_probability, 100 * one.observed_rate) for one in bins]
        lines.append(ChartLine(name="before", points=points, style="faint", dots=True))
    bins = calibration.reliability_curve(probabilities, outcomes, NUM_CHART_BINS, groups)
    points = [(100 * one.mean_probability, 100 * one.observed_rate) for one in bins]
    spans = [(100 * one.interval.low, 100 * one.interval.high) for one in bins]
    lines.append(ChartLine(name="measured", points=points, style="second", dots=True, error_bars=spans))
    least = min(min(pair) for line in lines for pair in line.points)
    lowest = max(0.0, 10.0 * math.floor(least / 10) - 5)
    guide = ChartLine(name="perfect", points=[(lowest, lowest), (100.0, 100.0)], style="guide")
    span = (lowest, 102.0)
    figure = Chart(
        lines=[guide, *lines],
        x_label=words[0],
        y_label="observed, %",
        x=span,
        y=span,
        title=words[1],
        y_format="{:g} %",
    )
    summary = calibration.summarize_calibration(probabilities, outcomes, groups)
    return CalibrationChart(name, figure, summary.error, summary.error_interval, before, temperature)


# -- Dot plot of values with intervals

DOT_WIDTH, DOT_ROW_HEIGHT = 680, 24
DOT_LEFT, DOT_RIGHT, DOT_TOP, DOT_BOTTOM = 170, 66, 8, 30
MAX_NAME_LENGTH = 24
"""Letters of a name before it is truncated."""


class DotPlotRow(NamedTuple):
    """One row of a dot plot."""

    name: str
    value: float
    interval: tuple[float, float] | None


def draw_dot_plot(rows: Sequence[DotPlotRow], span: AxisRange, title: str, guide: float) -> str:
    """Dot plot as an SVG element: names, dots with intervals, values, and a dashed line at `guide`.

    Args:
        span: range of the axis; values beyond it are clipped to its ends.
        title: for screen readers.
    """
    height = DOT_TOP + DOT_ROW_HEIGHT * len(rows) + DOT_BOTTOM
    base = height - DOT_BOTTOM
    parts = [f'<svg class="chart dots" viewBox="0 0 {DOT_WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for tick in axis_ticks(span, 6):
        across = _dot_x(tick, span)
        parts.append(f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{DOT_TOP}" y2="{base}"/>')
        parts.append(_tick_text(f"{across:.1f}", base + 18, "middle", f"{tick:g}"))
    middle = _dot_x(guide, span)
    parts.append(f'<polyline class="line guide" points="{middle:.1f},{DOT_TOP} {middle:.1f},{base}"/>')
    for index, row in enumerate(rows):
        parts += _draw_dot_row(row, DOT_TOP + DOT_ROW_HEIGHT * (index + 0.5), span)
    return "\n".join([*parts, "</svg>"])


def _draw_dot_row(row: DotPlotRow, high: float, span: AxisRange) -> list[str]:
    name = row.name if len(row.name) <= MAX_NAME_LENGTH else f"{row.name[: MAX_NAME_LENGTH - 1]}…"
    where = f'y="{high + 4:.1f}"'
    parts = [f'<text class="tick name" x="{DOT_LEFT - 12}" {where} text-anchor="end">{escape(name)}</text>']
    if row.interval is not None:
        low, top = (_dot_x(value, span) for value in row.interval)
        parts.append(f'<line class="span" x1="{low:.1f}" x2="{top:.1f}" y1="{high:.1f}" y2="{high:.1f}"/>')
    kind = "dot" if row.interval is not None else "dot faint"
    parts.append(f'<circle class="{kind}" cx="{_dot_x(row.value, span):.1f}" cy="{high:.1f}" r="4"/>')
    parts.append(f'<text class="tick" x="{DOT_WIDTH - DOT_RIGHT + 16}" {where}>{row.value:.3f}</text>')
    return parts


def _dot_x(value: float, span: AxisRange) -> float:
    low, high = span
    return DOT_LEFT + (min(max(value, low), high) - low) / (high - low) * (DOT_WIDTH - DOT_LEFT - DOT_RIGHT)


# -- Icon array: expected outcomes for a hundred or a thousand people, one pane each

PANE_GEOMETRY = {100: (13, 3, 20), 1000: (5, 1, 50)}
"""Side and gap of a pane in pixels, and panes in a row, by the number of people that can be drawn."""
MAX_ROUNDING = 0.15
"""Largest error of a count by rounding, as a share of the count, or the population is enlarged."""
POPULATION_SIZES = (100, 1000, 10000, 100000)


class IconArrayCounts(NamedTuple):
    """Expected confusion counts for a round number of people."""

    n: int
    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    @property
    def present(self) -> int:
        """People with the finding."""
        return self.true_positives + self.false_negatives

    @property
    def predicted_positives(self) -> int:
        """People with a positive prediction."""
        return self.true_positives + self.false_positives


def expected_counts(target: BinaryTarget) -> IconArrayCounts | None:
    """Expected counts for the fewest people of POPULATION_SIZES whose whole numbers say the same as the rates.

    None where a rate is unknown. Of a hundred people of whom two have it, 10 % missed would be 0.
    """
    if target.miss_rate is None or target.false_alarm_rate is None:
        return None
    share = target.prevalence
    missed, alarmed = share * target.miss_rate.value, (1 - share) * target.false_alarm_rate.value
    shares = np.array([share - missed, missed, alarmed, 1 - share - alarmed, share, missed + alarmed])
    for n in POPULATION_SIZES:
        exact = n * shares[shares > 1e-12]
        if (np.abs(exact.round() - exact) <= MAX_ROUNDING * exact).all():
            break
    present = round(n * share)
    num_missed, num_alarmed = round(n * missed), round(n * alarmed)
    return IconArrayCounts(n, present - num_missed, num_missed, num_alarmed, n - present - num_alarmed)


def draw_icon_array(counts: IconArrayCounts, name: str) -> str:
    """Icon array of a pane for each person, as an SVG element; counts for a number of people in PANE_GEOMETRY."""
    side, gap, in_a_row = PANE_GEOMETRY[counts.n]
    step = side + gap
    width, height = in_a_row * step - gap, counts.n // in_a_row * step - gap
    title = (
        f"Of {counts.n:,}, {counts.present} have {name}: {counts.true_positives} are found and "
        f"{counts.false_negatives} missed. Of the others {counts.false_positives} get a false alarm and "
        f"{counts.true_negatives} are rightly left alone."
    )
    parts = [f'<svg class="panes-of-people" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">']
    start = 0
    for kind, count in zip(("found", "missed", "alarmed", "left"), counts[1:], strict=True):
        places = [divmod(index, in_a_row) for index in range(start, start + count)]
        path = "".join(f"M{column * step} {row * step}h{side}v{side}h-{side}z" for row, column in places)
        parts += [f'<path class="{kind}" d="{path}"/>'] if path else []
        start += count
    return "".join([*parts, "</svg>"])
