"""Subgroup analysis: the primary metric for every value of a column, such as view, age, camera or shift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from .. import config
from ..formatting import format_count
from .predictions import RegressionPredictions, TaskPredictions
from .primary_metric import PrimaryMetric, compute_primary_metric

MIN_SUBGROUP_IMAGES = 30
"""Images that a subgroup needs to be judged."""
MIN_SUBGROUP_GROUPS = 10
"""Groups that a subgroup needs to be judged, if there are groups."""
MAX_TABLE_SUBGROUPS = 20
"""Subgroups of a column in the printed table."""
SUBGROUP_LEVEL = 0.05
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Subgroup:
    """The images with one value, or with numbers in one range."""

    value: str
    n: int
    """Images with a known target."""
    few: bool
    """Fewer than 30 images, or than ten groups: shown but not judged."""
    worst: bool = False
    """The worst of the subgroups of its column that are significantly worse than all images together."""
    figure: float | None = None
    """The metric; None where it cannot be measured."""
    interval: Span | None = None
    """95 %."""
    corrected: Span | None = None
    """Widened for the number of judged subgroups (Bonferroni): 95 % for all of them together; None if not judged."""
    overall: float | None = None
    """The metric of all images, for multilabel over the same labels as `metric`."""
    labels: int | None = None
    """Number of labels in the mean AUROC."""


@dataclass(frozen=True, kw_only=True)
class SubgroupColumn:
    """Subgroups of one column, the largest first; ranges of numbers in increasing order."""

    name: str
    slices: tuple[Subgroup, ...]


@dataclass(frozen=True, kw_only=True)
class SubgroupReport:
    """Subgroups of every requested column."""

    figure: str
    """Name of the metric: accuracy, mean AUROC, or a mean absolute error."""
    higher_is_better: bool
    split: str
    n: int
    overall: float | None = None
    interval: Span | None = None
    judged: int = 0
    """Number of judged subgroups in all columns, which the Bonferroni correction counts."""
    columns: tuple[SubgroupColumn, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Columns that cannot be used, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; unmeasured values are absent."""
        return config.write(self)

    def table(self) -> str:
        """One line per subgroup, for the terminal."""
        overall = f"{_format_number(self.overall)} ({_format_interval(self.interval)})"
        lines = [f"{self.figure} of all {format_count(self.n, 'picture')}: {overall}"]
        for column in self.columns:
            shown = column.slices[:MAX_TABLE_SUBGROUPS]
            width = max(len(column.name), *(len(one.value) for one in shown))
            lines += ["", f"{column.name:<{width}}  {'n':>7}  {'figure':>8}  95 % interval"]
            for one in shown:
                mark = "  worst" if one.worst else "  few" if one.few else ""
                metric = f"{_format_number(one.figure):>8}  {_format_interval(one.interval):<20}"
                lines.append(f"{one.value:<{width}}  {one.n:>7,}  {metric}{mark}".rstrip())
            if rest := len(column.slices) - len(shown):
                lines.append(f"and {rest} smaller slices, which --json lists")
        lines += ["", *(f"{name} is left out: {why}" for name, why in self.left_out)]
        if any(one.worst for column in self.columns for one in column.slices):
            lines.append(
                f"worst: worse than all pictures together, also when {self.judged} slices are looked at. "
                "Is it harder there, or rarer in the training?"
            )
        elif self.judged:
            lines.append(f"None of {self.judged} slices is worse than all pictures together by more than chance.")
        return "\n".join(lines).rstrip()


def compute_subgroups(
    predictions: TaskPredictions,
    columns: Mapping[str, Sequence[str]],
    groups: Shaped[np.ndarray, " n"] | None = None,
    seed: int = 0,
) -> SubgroupReport:
    """Compute the primary metric of every subgroup.

    The worst subgroup of a column is marked if its interval, widened for the number of judged subgroups (Bonferroni),
    lies on the worse side of the metric of all images.

    Args:
        columns: by name one value per image, in the order of the predictions.
        groups: group of each image, such as its patient.
        seed: of the bootstrap.
    """
    whole = compute_primary_metric(predictions, None, groups, None, seed)
    measured, left_out = [], []
    for name, values in columns.items():
        masks = split_by_value(values)
        if isinstance(masks, UnusableColumn):
            left_out.append((name, masks.reason))
            continue
        each = [_measure_subgroup(predictions, whole, value, rows, groups, seed) for value, rows in masks.items()]
        measured.append(SubgroupColumn(name=name, slices=tuple(each)))
    judged = sum(not one.few and one.interval is not None for column in measured for one in column.slices)
    higher = not isinstance(predictions, RegressionPredictions)
    return SubgroupReport(
        figure=whole.name,
        higher_is_better=higher,
        split=predictions.split,
        n=whole.n,
        overall=whole.value,
        interval=whole.interval,
        judged=judged,
        columns=tuple(_mark_worst(column, judged, higher) for column in measured),
        left_out=tuple(left_out),
    )


def _measure_subgroup(
    predictions: TaskPredictions,
    overall: PrimaryMetric,
    value: str,
    rows: np.ndarray,
    groups: np.ndarray | None,
    seed: int,
) -> Subgroup:
    own = compute_primary_metric(predictions, rows, groups, None, seed)
    few = own.n < MIN_SUBGROUP_IMAGES or (groups is not None and own.groups < MIN_SUBGROUP_GROUPS)
    if own.value is None:
        return Subgroup(value=value, n=own.n, few=few)
    same = own.labels == overall.labels
    return Subgroup(
        value=value,
        n=own.n,
        few=few,
        figure=own.value,
        interval=own.interval,
        overall=overall.value if same else compute_primary_metric(predictions, labels=own.labels).value,
        labels=len(own.labels) or None,
    )


def _mark_worst(column: SubgroupColumn, num_judged: int, higher: bool) -> SubgroupColumn:
    """Widen the intervals of judged subgroups, and mark the worst of those that are then worse than all images."""
    narrow, wide = (NormalDist().inv_cdf(1 - SUBGROUP_LEVEL / (2 * count)) for count in (1, max(1, num_judged)))
    slices = tuple(_widen_interval(one, wide / narrow, 1.0 if higher else math.inf) for one in column.slices)
    gaps = [_significant_gap(one, higher) for one in slices]
    worst = int(np.argmax(gaps)) if gaps else 0
    marked = (replace(one, worst=place == worst and gaps[worst] > 0) for place, one in enumerate(slices))
    return replace(column, slices=tuple(marked))


def _widen_interval(subgroup: Subgroup, factor: float, highest: float) -> Subgroup:
    """A subgroup with its corrected interval; few images have none."""
    if subgroup.few or subgroup.figure is None or subgroup.interval is None:
        return subgroup
    low, high = (subgroup.figure + factor * (end - subgroup.figure) for end in subgroup.interval)
    return replace(subgroup, corrected=(max(0.0, low), min(highest, high)))


def _significant_gap(subgroup: Subgroup, higher: bool) -> float:
    """How much worse than all images a subgroup is, if the corrected interval shows it; else 0."""
    if subgroup.corrected is None or subgroup.figure is None or subgroup.overall is None:
        return 0.0
    low, high = subgroup.corrected
    worse = high < subgroup.overall if higher else low > subgroup.overall
    return abs(subgroup.overall - subgroup.figure) if worse else 0.0


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def _format_interval(interval: Span | None) -> str:
    return "-" if interval is None else f"{_format_number(interval[0])} to {_format_number(interval[1])}"


# -- Subgroups of a column: one for each value, or quartiles of numbers

MAX_DISTINCT_NUMBERS = 12
"""Numbers with more values than this are cut at their quartiles."""
MAX_GROUPS = 100
"""Text columns with more values than this are not used."""
EMPTY = "(empty)"


class UnusableColumn(NamedTuple):
    """A column without usable subgroups."""

    reason: str


def split_by_value(values: Sequence[str]) -> dict[str, Bool[np.ndarray, " n"]] | UnusableColumn:
    """Mask of the images with each value, the most frequent first, or in each range of numbers, rising.

    Empty cells are the last subgroup.
    """
    texts = np.array([value.strip() for value in values], dtype=object)
    there = texts != ""
    names, counts = np.unique(texts[there].astype(str), return_counts=True)
    if len(names) + (not there.all()) < 2:
        return UnusableColumn(f"it is {str(names[0])!r} everywhere" if len(names) else "it is empty")
    numbers = _parse_numbers(texts, there) if len(names) > MAX_DISTINCT_NUMBERS else None
    all_distinct = len(names) == there.sum()
    is_identifier = all_distinct and all(text.lstrip("+-").isdigit() for text in texts[there].tolist())
    if numbers is None or is_identifier:  # texts, or running numbers
        if all_distinct:
            return UnusableColumn("every picture has a value of its own")
        if len(names) > MAX_GROUPS:
            return UnusableColumn(f"it has {format_count(len(names), 'value')}, more than {MAX_GROUPS}")
        masks = {str(name): texts == name for name in names[np.argsort(-counts, kind="stable")]}
    else:
        masks = _split_into_quartiles(numbers, there)
        if len(masks) + (not there.all()) < 2:
            return UnusableColumn("three of four values are the largest")
    return masks if there.all() else {**masks, EMPTY: ~there}


def _parse_numbers(texts: np.ndarray, non_empty: np.ndarray) -> Float64[np.ndarray, " n"] | None:
    """Every cell as a number, NaN for empty ones; None if one is no finite number."""
    try:
        numbers = np.array([float(text) if text else np.nan for text in texts.tolist()], np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers[non_empty]).all() else None


def _split_into_quartiles(numbers: np.ndarray, non_empty: np.ndarray) -> dict[str, Bool[np.ndarray, " n"]]:
    """Up to four ranges with about equal counts; a range includes its upper end."""
    known = numbers[non_empty]
    edges = np.unique(np.quantile(known, [0.25, 0.5, 0.75], method="inverted_cdf"))
    edges = edges[edges < known.max()]
    place = np.where(non_empty, np.searchsorted(edges, np.where(non_empty, numbers, 0.0), side="left"), -1)
    masks = {}
    for k in range(len(edges) + 1):
        low, high = (f"{edges[at]:.10g}" if 0 <= at < len(edges) else "" for at in (k - 1, k))
        name = f"over {low} to {high}" if low and high else f"to {high}" if high else f"over {low}"
        masks[name] = place == k
    return masks
