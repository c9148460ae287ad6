"""Where a model is worse: its headline figure for every value of a column, such as view, age, camera or shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Shaped

from .. import config
from .answers import Answers
from .column_parts import NotParted, parted
from .headline import Headline, headline
from .number_predictions import NumberPredictions

FEWEST = 30
"""Pictures that a slice needs to be judged."""
FEWEST_GROUPS = 10
"""Groups that it needs where pictures come in groups."""
SHOWN = 20
"""Slices of a column that the table for people shows."""
LEVEL = 0.05
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The pictures with one value, or with numbers of one range."""

    value: str
    n: int
    """Pictures of which something is known."""
    few: bool
    """Fewer than 30 of them, or than ten groups: shown, and not judged."""
    worst: bool = False
    """Of the slices of its column that are worse than all pictures together by more than chance, the worst."""
    figure: float | None = None
    """None where the slice has nothing to measure it on."""
    interval: Span | None = None
    """95 %."""
    overall: float | None = None
    """The figure of all pictures; of labels over the same ones, because the mean of others would be no yardstick."""
    labels: int | None = None
    """How many labels its mean AUROC is over."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Every slice of one column, the largest first; ranges of numbers as they rise."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Every column that was asked for."""

    figure: str
    """What is measured: accuracy, mean AUROC, or a mean absolute error."""
    higher_is_better: bool
    split: str
    n: int
    overall: float | None = None
    interval: Span | None = None
    judged: int = 0
    """Slices that are large enough, of all columns; the mark of the worst allows for so many looks."""
    columns: tuple[Column, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Columns that are not parted, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what could not be measured is absent."""
        return config.write(self)

    def table(self) -> str:
        """One line per slice, for the terminal."""
        lines = [f"{self.figure} of all {self.n:,} pictures: {_number(self.overall)} ({_span(self.interval)})"]
        for column in self.columns:
            lines += ["", *_lines(column)]
        lines += ["", *(f"{name} is left out: {why}" for name, why in self.left_out)]
        if any(one.worst for column in self.columns for one in column.slices):
            lines.append(
                f"worst: worse than all pictures together, also when {self.judged} slices are looked at. "
                "Is it harder there, or rarer in the training?"
            )
        elif self.judged:
            lines.append(f"None of {self.judged} slices is worse than all pictures together by more than chance.")
        return "\n".join(lines).rstrip()


def slices(
    answers: Answers,
    columns: Mapping[str, Sequence[str]],
    groups: Shaped[np.ndarray, " n"] | None = None,
    seed: int = 0,
) -> Slices:
    """The headline figure of every slice of these columns.

    The worst slice of a column is marked if its interval, widened to allow for the number of slices (Bonferroni), lies
    on the worse side of the figure of all pictures.

    Args:
        columns: by name one value per picture, in the order of the answers.
        groups: of each picture, such as its patient.
        seed: of the bootstrap.
    """
    whole = headline(answers, None, groups, None, seed)
    found, left_out = [], []
    for name, values in columns.items():
        cut = parted(values)
        if isinstance(cut, NotParted):
            left_out.append((name, cut.reason))
            continue
        each = [_slice(answers, whole, value, rows, groups, seed) for value, rows in cut.items()]
        found.append(Column(name=name, slices=tuple(each)))
    judged = sum(not one.few and one.interval is not None for column in found for one in column.slices)
    higher = not isinstance(answers, NumberPredictions)
    return Slices(
        figure=whole.name,
        higher_is_better=higher,
        split=answers.split,
        n=whole.n,
        overall=whole.value,
        interval=whole.interval,
        judged=judged,
        columns=tuple(_marked(column, judged, higher) for column in found),
        left_out=tuple(left_out),
    )


def _slice(
    answers: Answers, whole: Headline, value: str, rows: np.ndarray, groups: np.ndarray | None, seed: int
) -> Slice:
    own = headline(answers, rows, groups, None, seed)
    few = own.n < FEWEST or (groups is not None and own.groups < FEWEST_GROUPS)
    if own.value is None:
        return Slice(value=value, n=own.n, few=few)
    same = own.labels == whole.labels
    return Slice(
        value=value,
        n=own.n,
        few=few,
        figure=own.value,
        interval=own.interval,
        overall=whole.value if same else headline(answers, labels=own.labels).value,
        labels=len(own.labels) or None,
    )


def _marked(column: Column, judged: int, higher: bool) -> Column:
    """The same slices, the worst of those that are told from all pictures marked."""
    wider = NormalDist().inv_cdf(1 - LEVEL / (2 * max(1, judged))) / NormalDist().inv_cdf(1 - LEVEL / 2)
    gaps = [_gap(one, wider, higher) for one in column.slices]
    worst = int(np.argmax(gaps)) if gaps else 0
    if not gaps or gaps[worst] <= 0:
        return column
    return replace(column, slices=tuple(replace(one, worst=place == worst) for place, one in enumerate(column.slices)))


def _gap(one: Slice, wider: float, higher: bool) -> float:
    """How much worse than all pictures it is, where the widened interval says that it is; else 0."""
    if one.few or one.figure is None or one.interval is None or one.overall is None:
        return 0.0
    low, high = one.interval
    nearest = one.figure + wider * ((high if higher else low) - one.figure)
    worse = nearest < one.overall if higher else nearest > one.overall
    return abs(one.overall - one.figure) if worse else 0.0


def _lines(column: Column) -> list[str]:
    shown = column.slices[:SHOWN]
    width = max(len(column.name), *(len(one.value) for one in shown))
    lines = [f"{column.name:<{width}}  {'n':>7}  {'figure':>8}  95 % interval"]
    for one in shown:
        mark = "  worst" if one.worst else "  few" if one.few else ""
        figures = f"{_number(one.figure):>8}  {_span(one.interval):<20}"
        lines.append(f"{one.value:<{width}}  {one.n:>7,}  {figures}{mark}".rstrip())
    if rest := len(column.slices) - len(shown):
        lines.append(f"and {rest} smaller slices, which --json lists")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def _span(interval: Span | None) -> str:
    return "-" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"
