"""What a page says of how far answers can be trusted: calibration, abstaining, sets of classes, thresholds, ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..evaluate import thresholds
from ..evaluate.calibration import RiskCoverageCurve, risk_coverage_curve
from ..evaluate.conformal import ConformalSets
from ..evaluate.decisions import UNLIKE, Decisions
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
)
from ..stats.intervals import wilson_interval
from . import chart, reliable
from .numbers_page import MOST_COLUMNS
from .reliable import FEWEST
from .shares import Share, share_of

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
MOST_POINTS = 200
LARGEST_SET = 3


class Answering(NamedTuple):
    """What is left if only the surest pictures are answered."""

    chart: str
    rows: list[tuple[float, Share]]
    """Share of pictures answered, and of those the wrong ones."""


class Held(NamedTuple):
    """What sets of classes hold."""

    promised: float
    kept: Share
    size: float
    """Mean number of classes in a set."""
    sizes: list[tuple[str, float]]


class Cut(NamedTuple):
    """A threshold on the held-out pictures."""

    name: str
    threshold: float
    chosen: bool
    """By the rule; otherwise it is one half."""
    sensitivity: Share | None
    specificity: Share | None
    precision: Share | None
    """Of those answered with it, the share that has it."""


def of(answers: TaskPredictions, decided: Decisions, groups: np.ndarray | None = None) -> dict[str, Any]:
    """What `trust.html.j2` needs; a part that cannot be shown is None.

    Args:
        groups: of each picture, such as its patient: thresholds, sets and ranges have intervals that draw whole groups.
    """
    found: dict[str, Any] = {
        "calibrated": None, "by_label": [], "answering": None, "held": None, "cuts": [], "ranges": [], "agreement": [],
        "unlike": share_of(_unlike(answers), groups) if answers.abstained else None,
        "silent": share_of(answers.silent, groups) if answers.abstained else None,
    }  # fmt: skip
    if answers.targets is None:
        return found
    if isinstance(answers, ClassificationPredictions):
        return found | _of_classes(answers, decided, groups)
    if isinstance(answers, MultilabelPredictions):
        return found | {
            "cuts": _cuts_of_labels(answers, decided, groups),
            "by_label": reliable.of_labels(answers, decided),
        }
    return found | _of_numbers(answers, decided, groups)


def _unlike(answers: TaskPredictions) -> np.ndarray:
    return np.array([why == UNLIKE for why in answers.abstained], bool)


def _some(groups: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if groups is None else groups[rows]


def _of_classes(answers: ClassificationPredictions, decided: Decisions, groups: np.ndarray | None) -> dict[str, Any]:
    assert answers.targets is not None
    known = answers.targets != UNKNOWN_CLASS
    probabilities, targets = answers.probabilities[known].astype(np.float64), answers.targets[known]
    if not len(targets):
        return {}
    wrong = probabilities.argmax(1) != targets
    many, by_threshold = len(wrong) >= FEWEST, bool(decided.positive and decided.thresholds)
    return {
        "calibrated": reliable.of_classes(probabilities, ~wrong, decided) if many else None,
        "answering": _answering(probabilities.max(1), wrong) if many and not by_threshold else None,
        "held": _held(probabilities, targets, decided, _some(groups, known)) if decided.cuts else None,
        "cuts": [_cut_of_two(answers, decided, groups)] if by_threshold else [],
    }


def _answering(confidences: np.ndarray, wrong: np.ndarray) -> Answering:
    found = risk_coverage_curve(confidences, wrong.astype(np.float64))
    n = len(wrong)
    places = np.unique(np.linspace(max(0, n // 50), n - 1, MOST_POINTS).astype(np.int64))
    points = [(100 * float(found.coverage[place]), 100 * float(found.risk[place])) for place in places]
    span = (0.0, max(1.0, 1.1 * max(y for _, y in points)))
    title = "Share of wrong answers by the share of pictures that are answered"
    line = chart.Line(name="risk", points=points)
    drawing = chart.draw([line], "answered, %", "{:g} %".format, (0.0, 100.0), span, title)
    return Answering(drawing, [(coverage, _wrong_at(found, coverage)) for coverage in COVERAGES])


def _wrong_at(found: RiskCoverageCurve, coverage: float) -> Share:
    n = math.ceil(coverage * len(found.risk) - 1e-9)
    wrong = round(found.risk_at(coverage) * n)
    return Share(wrong / n, wilson_interval(wrong, n), n)


def _held(probabilities: np.ndarray, targets: np.ndarray, decided: Decisions, groups: np.ndarray | None) -> Held:
    held = ConformalSets(decided.miss, decided.cuts, ()).of(probabilities.astype(np.float32))
    sizes = held.sum(1)
    counts = [(str(size or "none"), float((sizes == size).mean())) for size in range(LARGEST_SET)]
    counts.append((f"{LARGEST_SET} or more", float((sizes >= LARGEST_SET).mean())))
    right = held[np.arange(len(targets)), targets]
    kept = share_of(right, groups)
    assert kept is not None
    return Held(1 - decided.miss, kept, float(sizes.mean()), counts)


def _cut_of_two(answers: ClassificationPredictions, decided: Decisions, groups: np.ndarray | None) -> Cut:
    assert answers.targets is not None
    known, positive = answers.targets != UNKNOWN_CLASS, answers.classes.index(decided.positive)
    is_so, said_so = answers.targets[known] == positive, answers.labels[known] == positive
    own = _some(groups, known)
    return _cut(decided.positive, decided.thresholds[0], all(decided.chosen), is_so, said_so, own)


def _cuts_of_labels(answers: MultilabelPredictions, decided: Decisions, groups: np.ndarray | None) -> list[Cut]:
    assert answers.targets is not None
    values = decided.thresholds or (thresholds.DEFAULT_THRESHOLD,) * len(answers.classes)
    chosen = decided.chosen or (False,) * len(values)
    found = []
    for k, name in enumerate(answers.classes):
        known = answers.known[:, k]
        has_it, said_so = answers.targets[known, k] >= LABEL_THRESHOLD, answers.labels[known, k]
        found.append(_cut(name, values[k], chosen[k], has_it, said_so, _some(groups, known)))
    return found


def _cut(
    name: str,
    threshold: float,
    chosen: bool,
    positive: np.ndarray,
    answered: np.ndarray,
    groups: np.ndarray | None,
) -> Cut:
    return Cut(
        name=name,
        threshold=threshold,
        chosen=chosen,
        sensitivity=share_of(answered[positive], _some(groups, positive)),
        specificity=share_of(~answered[~positive], _some(groups, ~positive)),
        precision=share_of(positive[answered], _some(groups, answered)),
    )


def _of_numbers(answers: RegressionPredictions, decided: Decisions, groups: np.ndarray | None) -> dict[str, Any]:
    """Ranges and, for each column, differences by means (Bland and Altman)."""
    assert answers.targets is not None
    ranges, drawings = [], []
    for k, name in enumerate(answers.columns[:MOST_COLUMNS]):
        known = answers.known[:, k]
        targets, values = answers.targets[known, k].astype(np.float64), answers.values[known, k].astype(np.float64)
        if not len(targets):
            continue
        if decided.reach:
            inside = np.abs(values - targets) <= decided.reach[k]
            ranges.append((name, decided.reach[k], 1 - decided.miss, share_of(inside, _some(groups, known))))
        if len(targets) > 1:
            drawings.append((name, _agreement(name, targets, values)))
    return {"ranges": ranges, "agreement": drawings}


def _agreement(name: str, targets: np.ndarray, values: np.ndarray) -> str:
    means, gaps = (targets + values) / 2, values - targets
    middle, reach = float(gaps.mean()), 1.96 * float(gaps.std(ddof=1))
    x, y = chart.spread(means.tolist()), chart.spread([*gaps.tolist(), middle - reach, middle + reach, 0.0])
    rows = np.unique(np.linspace(0, len(gaps) - 1, min(1000, len(gaps))).astype(np.int64))
    levels = (middle - reach, middle, middle + reach)
    lines = [chart.Line(name="level", points=[(x[0], at), (x[1], at)], style="guide") for at in levels]
    points: Sequence[tuple[float, float]] = list(zip(means[rows].tolist(), gaps[rows].tolist(), strict=True))
    lines.append(chart.Line(name="pictures", points=points, style="points", dots=True))
    title = f"Answer less truth of {name} by their mean"
    return chart.draw(lines, f"mean of answer and true {name}", "{:.4g}".format, x, y, title)
