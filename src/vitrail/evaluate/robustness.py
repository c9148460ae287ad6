"""How answers stand disturbed pictures: a figure for every kind and severity, beside that of the clean pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from .. import config
from ..errors import UsageError
from .answers import Answers
from .corrupting.corrupt import SEVERITIES, SUITES, corrupt
from .headline import ACCURACY, headline, mean_headline, value_of
from .number_predictions import NumberPredictions

BATCH = 64
WORST = 3
"""Kinds that the headline names."""

Span = tuple[float, float]
Answering = Callable[[Tensor], np.ndarray]
"""Prepared pictures uint8 [n, C, H, W] -> one row of outputs for each."""
Counted = Callable[[Iterator[Answers], int, int], Iterator[Answers]]
"""Passes tables on while it shows how many of how many there are, each over so many pictures."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """One kind."""

    kind: str
    by_severity: tuple[float, ...]
    """From 1 to 5."""
    mean: float
    mean_interval: Span | None = None
    """95 %, as are all intervals; None where they cannot be told."""


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The figure on clean pictures and on the same ones disturbed. Nothing is divided by another model's figures.

    A mean over disturbances has the percentile bootstrap, which draws a picture (or group) with its answers to all of
    them; a mean of areas under the ROC curve has DeLong's interval, whose sums go over pictures in the same way.
    """

    suite: str
    split: str
    n: int
    """Pictures."""
    seed: int
    """Of the disturbances."""
    figure: str
    """accuracy; mean AUROC over labels; mean absolute error over columns."""
    higher_is_better: bool
    clean: float
    clean_interval: Span | None = None
    mean: float
    """Over all kinds and severities."""
    mean_interval: Span | None = None
    disturbances: tuple[Disturbance, ...]

    @property
    def worst(self) -> tuple[Disturbance, ...]:
        """All kinds, the one that harms most first."""
        return tuple(sorted(self.disturbances, key=lambda one: one.mean, reverse=not self.higher_is_better))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def headline(self) -> str:
        """What a person asks for first, in a sentence without its full stop."""
        worst = ", ".join(f"{_words(one.kind)} ({self._shown(one.mean).strip()})" for one in self.worst[:WORST])
        name = self.figure[0].upper() + self.figure[1:]
        split = f" ({self.split})" if self.split else ""
        return (
            f"{name} on {self.n:,} pictures{split}: {self._told(self.clean, self.clean_interval)}; disturbed in "
            f"{len(self.disturbances)} ways of {len(SEVERITIES)} severities "
            f"{self._told(self.mean, self.mean_interval)} in the mean; worst: {worst}"
        )

    def table(self) -> str:
        """The headline and one line per kind, for the terminal."""
        width = max(len(one.kind) for one in self.disturbances)
        told = [self._span(one.mean_interval) for one in self.disturbances]
        wide = max(len("95 % interval"), *map(len, told))
        heads = "".join(f"  {severity:>8}" for severity in (*SEVERITIES, "mean"))
        lines = [f"{self.headline()}.", "", f"{'severity':<{width}}{heads}  {'95 % interval':>{wide}}  {'change':>8}"]
        for one, span in zip(self.disturbances, told, strict=True):
            cells = "".join(f"  {self._shown(value)}" for value in one.by_severity)
            change = self._shown(one.mean - self.clean)
            lines.append(f"{_words(one.kind):<{width}}{cells}  {self._shown(one.mean)}  {span:>{wide}}  {change}")
        return "\n".join(lines)

    def _told(self, value: float, span: Span | None) -> str:
        return self._shown(value).strip() + ("" if span is None else f" ({self._span(span)})")

    def _span(self, span: Span | None) -> str:
        if span is None:
            return "-"
        low, high = (self._shown(bound).strip() for bound in span)
        return f"{low.removesuffix(' %')} to {high}"

    def _shown(self, value: float) -> str:
        if self.figure == ACCURACY:
            return f"{100 * value:6.2f} %"
        return f"{value:8.4f}" if "AUROC" in self.figure else f"{value:8.4g}"


def measure(
    answering: Answering,
    answers: Callable[[np.ndarray], Answers],
    images: UInt8[Tensor, "n C H W"],
    indices: Int64[np.ndarray, " n"],
    suite: str,
    split: str = "",
    seed: int = 0,
    groups: Shaped[np.ndarray, " n"] | None = None,
    counted: Counted | None = None,
) -> Robustness:
    """Let every picture be answered as it is and disturbed in every kind and severity of a suite.

    Args:
        answers: makes the table of answers, with its targets, of the outputs for all pictures.
        images: as the model reads them, so that severities mean the same for every model of that size.
        indices: of each picture in its source; a picture is disturbed in the same way whichever others are asked for.
        groups: of each picture, such as its patient.
        counted: shows how far it is.

    Raises:
        UsageError: no such suite, or no pictures.
        DataError: an answer is no number, or nothing can be measured.

    Source: Hendrycks and Dietterich 2019, without the division by the errors of AlexNet.
    """
    kinds = kinds_of(suite)
    if not len(images):
        raise UsageError("Robustness needs at least one picture. Got none.")
    clean = answers(np.concatenate([answering(images[start : start + BATCH]) for start in _starts(images)]))
    value, whole = value_of(clean), headline(clean, groups=groups, seed=seed)
    cells = [(kind, severity) for kind in kinds for severity in SEVERITIES]
    found = (answers(_disturbed(answering, images, indices, *cell, seed)) for cell in cells)
    tables = list(counted(found, len(cells), len(images)) if counted else found)
    each, everything = len(SEVERITIES), mean_headline(tables, groups=groups, seed=seed)
    rows = [_of_kind(kind, tables[at * each : (at + 1) * each], groups, seed) for at, kind in enumerate(kinds)]
    return Robustness(
        suite=suite,
        split=split,
        n=len(images),
        seed=seed,
        figure=whole.name,
        higher_is_better=not isinstance(clean, NumberPredictions),
        clean=value,
        clean_interval=whole.interval,
        mean=float(np.mean([one.mean for one in rows])),
        mean_interval=everything.interval,
        disturbances=tuple(rows),
    )


def _of_kind(kind: str, tables: Sequence[Answers], groups: np.ndarray | None, seed: int) -> Disturbance:
    values = tuple(value_of(table) for table in tables)
    interval = mean_headline(tables, groups=groups, seed=seed).interval
    return Disturbance(kind=kind, by_severity=values, mean=sum(values) / len(values), mean_interval=interval)


def kinds_of(suite: str) -> tuple[str, ...]:
    """The kinds of a suite, in its order.

    Raises:
        UsageError: there is none of that name.
    """
    if suite not in SUITES:
        raise UsageError(f"The corruptions must be {' or '.join(SUITES)}. Got {suite!r}.")
    return tuple(SUITES[suite])


def _starts(images: Tensor) -> range:
    return range(0, len(images), BATCH)


def _disturbed(
    answering: Answering, images: Tensor, indices: np.ndarray, kind: str, severity: int, seed: int
) -> np.ndarray:
    """Outputs for all pictures, of which a batch at a time is disturbed."""
    parts = []
    for start in _starts(images):
        part = slice(start, start + BATCH)
        parts.append(answering(corrupt(images[part], kind, severity, seed, indices[part])))
    return np.concatenate(parts)


def _words(kind: str) -> str:
    return kind.replace("_", " ")
