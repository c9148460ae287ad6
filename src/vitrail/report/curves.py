"""The learning curves of a run, from metrics.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import chart

MOST_POINTS = 240
"""Points of one curve on the page; longer histories are averaged in stretches."""

Points = list[tuple[float, float]]


def history(path: Path) -> dict[str, Points]:
    """Every figure of metrics.jsonl as (step, value), steps rising.

    A step that is written twice, as after a resume, keeps its last value. Lines that are not JSON, such as the torn
    last one of a run that lost its power, are passed over, and so is a missing file.
    """
    found: dict[str, dict[float, float]] = {}
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines() if Path(path).exists() else []
    for line in lines:
        try:
            figures = json.loads(line)
            step = float(figures.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        for name, value in figures.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, {})[step] = float(value)
    return {name: sorted(values.items()) for name, values in found.items()}


def loss_chart(figures: dict[str, Points]) -> str | None:
    """Training loss, faint as measured and firm when smoothed, and validation loss; None without a history."""
    train, val = thin(figures.get("loss", [])), figures.get("val_loss", [])
    lines = [
        chart.Line(name="training", points=train, style="faint"),
        chart.Line(name="training, smoothed", points=smooth(train), style="first"),
        chart.Line(name="validation", points=val, style="second", dots=len(val) <= 40),
    ]
    values = [y for _, y in smooth(train) + val]
    return _drawn(lines, chart.spread(values, floor=0.0), "{:g}", "Loss by training step") if values else None


def accuracy_chart(figures: dict[str, Points]) -> str | None:
    """Validation accuracy as it rose; None where it was not measured."""
    points = [(step, 100 * share) for step, share in figures.get("val_accuracy", [])]
    line = chart.Line(name="validation", points=points, style="second", dots=len(points) <= 40)
    span = chart.spread([y for _, y in points], floor=0.0, ceiling=100.0)
    return _drawn([line], span, "{:g} %", "Accuracy on the validation split by step") if points else None


def score_chart(figures: dict[str, Points], name: str) -> str | None:
    """Another validation figure of at most 1, such as `AUROC` or `R2`, as it rose; None where it was not measured."""
    points = figures.get(f"val_{name.lower()}", [])
    line = chart.Line(name="validation", points=points, style="second", dots=len(points) <= 40)
    span = chart.spread([y for _, y in points], ceiling=1.0)
    return _drawn([line], span, "{:g}", f"{name} on the validation split by step") if points else None


def rate_chart(figures: dict[str, Points]) -> str | None:
    """The learning rate as it was; None where it was not written down."""
    points = thin(figures.get("lr", []))
    line = chart.Line(name="rate", points=points)
    span = (0.0, 1.06 * max((y for _, y in points), default=1.0) or 1.0)
    return _drawn([line], span, "{:g}", "Learning rate by step") if points else None


def thin(points: Points) -> Points:
    """At most `MOST_POINTS` points: means of equal stretches, each at its last step."""
    if len(points) <= MOST_POINTS:
        return points
    stretches = np.array_split(np.array(points), MOST_POINTS)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in stretches]


def smooth(points: Points, reach: int = 4) -> Points:
    """Each value replaced by the mean of itself and up to `reach` neighbours on either side, so nothing lags."""
    values = [value for _, value in points]
    near = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [(step, sum(some) / len(some)) for (step, _), some in zip(points, near, strict=True)]


def _drawn(lines: Sequence[chart.Line], y: chart.Range, text: str, title: str) -> str:
    last = max([x for line in lines for x, _ in line.points] + [1.0])
    return chart.draw(lines, "step", text.format, (0.0, last), y, title)
