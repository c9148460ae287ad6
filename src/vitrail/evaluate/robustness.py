"""How answers stand disturbed pictures: a figure for every kind and severity, beside that of the clean pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from torch import Tensor

from .. import config
from ..errors import UsageError
from .corrupting.corrupt import SEVERITIES, SUITES, corrupt
from .yardstick import ACCURACY, AUROC, Yardstick

BATCH = 64
WORST = 3
"""Kinds that the headline names."""

Answering = Callable[[Tensor], np.ndarray]
"""Prepared pictures uint8 [n, C, H, W] -> one row of outputs for each."""
Counted = Callable[[Iterator[float], int, int], Iterator[float]]
"""Passes figures on while it shows how many of how many there are, each over so many pictures."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """One kind."""

    kind: str
    by_severity: tuple[float, ...]
    """From 1 to 5."""
    mean: float


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The figure on clean pictures and on the same ones disturbed. Nothing is divided by another model's figures."""

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
    mean: float
    """Over all kinds and severities."""
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
            f"{name} on {self.n:,} pictures{split}: {self._shown(self.clean).strip()}; disturbed in "
            f"{len(self.disturbances)} ways of {len(SEVERITIES)} severities {self._shown(self.mean).strip()} in the "
            f"mean; worst: {worst}"
        )

    def table(self) -> str:
        """The headline and one line per kind, for the terminal."""
        width = max(len(one.kind) for one in self.disturbances)
        heads = "".join(f"  {severity:>8}" for severity in SEVERITIES)
        lines = [f"{self.headline()}.", "", f"{'severity':<{width}}{heads}  {'mean':>8}  {'change':>8}"]
        for one in self.disturbances:
            cells = "".join(f"  {self._shown(value)}" for value in one.by_severity)
            change = self._shown(one.mean - self.clean)
            lines.append(f"{_words(one.kind):<{width}}{cells}  {self._shown(one.mean)}  {change}")
        return "\n".join(lines)

    def _shown(self, value: float) -> str:
        if self.figure == ACCURACY:
            return f"{100 * value:6.2f} %"
        return f"{value:8.4f}" if self.figure == AUROC else f"{value:8.4g}"


def measure(
    answering: Answering,
    yardstick: Yardstick,
    images: UInt8[Tensor, "n C H W"],
    indices: Int64[np.ndarray, " n"],
    suite: str,
    split: str = "",
    seed: int = 0,
    counted: Counted | None = None,
) -> Robustness:
    """Let every picture be answered as it is and disturbed in every kind and severity of a suite.

    Args:
        images: as the model reads them, so that severities mean the same for every model of that size.
        indices: of each picture in its source; a picture is disturbed in the same way whichever others are asked for.
        counted: shows how far it is.

    Raises:
        UsageError: no such suite, or no pictures.
        DataError: what the yardstick refuses.

    Source: Hendrycks and Dietterich 2019, without the division by the errors of AlexNet.
    """
    kinds = kinds_of(suite)
    if not len(images):
        raise UsageError("Robustness needs at least one picture. Got none.")
    clean = yardstick.of(np.concatenate([answering(images[start : start + BATCH]) for start in _starts(images)]))
    cells = [(kind, severity) for kind in kinds for severity in SEVERITIES]
    figures = (yardstick.of(_disturbed(answering, images, indices, *cell, seed)) for cell in cells)
    values = list(counted(figures, len(cells), len(images)) if counted else figures)
    each = len(SEVERITIES)
    rows = {kind: tuple(values[place * each : (place + 1) * each]) for place, kind in enumerate(kinds)}
    return Robustness(
        suite=suite,
        split=split,
        n=len(images),
        seed=seed,
        figure=yardstick.name,
        higher_is_better=yardstick.higher_is_better,
        clean=clean,
        mean=sum(values) / len(values),
        disturbances=tuple(Disturbance(kind=kind, by_severity=row, mean=sum(row) / each) for kind, row in rows.items()),
    )


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
