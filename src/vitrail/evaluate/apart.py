"""How well a model's scores tell pictures of another kind from those that it has held out, and what its cut does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from .. import config
from ..stats.areas import area
from ..stats.intervals import wilson
from .unlike import Familiar

Span = tuple[float, float]
DISTANCE, NEIGHBOUR = "Mahalanobis distance", "distance to neighbours"


@dataclass(frozen=True, kw_only=True)
class Told:
    """One score."""

    score: str
    auroc: float
    """Chance that a picture of the other kind scores above a held-out one."""
    auroc_interval: Span
    """95 %, DeLong's."""


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """How many pictures lie beyond the stored cut, and are answered with `unlike`."""

    share: float
    interval: Span
    """95 %, Wilson's."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Held-out pictures of a run beside those of another source."""

    source: str
    split: str
    n: int
    other: str
    others: int
    scores: tuple[Told, ...]
    cut: float | None = None
    """The Mahalanobis distance from which on a picture is unlike; None where validation pictures were too few."""
    held_out: Beyond | None = None
    """Of the held-out pictures; about one in a hundred is meant to be."""
    unlike: Beyond | None = None
    """Of the other source."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what could not be measured is absent."""
        return config.write(self)

    def table(self) -> str:
        """A line for each score and what the cut does, for the terminal."""
        width = max(len(one.score) for one in self.scores)
        lines = [
            f"{self.n:,} held-out pictures of {self.source} ({self.split}) beside {self.others:,} of {self.other}",
            f"{'score':<{width}}   AUROC  95 % interval",
        ]
        for one in self.scores:
            low, high = one.auroc_interval
            lines.append(f"{one.score:<{width}}  {one.auroc:.4f}  {low:.4f} to {high:.4f}")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """What the cut does, in a sentence or two."""
        if self.unlike is None or self.held_out is None:
            return (
                "No picture is answered with 'unlike': the cut takes at least 99 validation pictures, and the training "
                "had fewer."
            )
        return (
            f"Answered with 'unlike', by the cut of the training: {_percent(self.unlike)} of {self.other}, "
            f"{_percent(self.held_out)} of the held-out pictures."
        )


def apart(
    known: Familiar,
    cut: float | None,
    own: Float[np.ndarray, "n D"],
    others: Float[np.ndarray, "m D"],
    names: tuple[str, str, str],
    groups: tuple[Shaped[np.ndarray, " n"] | None, Shaped[np.ndarray, " m"] | None] = (None, None),
) -> Apart:
    """Compare both scores of two sets of features.

    Args:
        known: what the training pictures look like.
        cut: of the Mahalanobis distance.
        names: of the run's own source, of the split, and of the other source.
        groups: of each picture, such as its patient, of either source.

    Source: the question and the AUROC are those of Hendrycks and Gimpel 2017, "A baseline for detecting misclassified
    and out-of-distribution examples"; the scores are those of `evaluate.unlike`.
    """
    both, foreign = np.concatenate([own, others]), np.arange(len(own) + len(others)) >= len(own)
    belong = None if all(one is None for one in groups) else _named(groups, (len(own), len(others)))
    distances = known.distances(both)
    scores = ((DISTANCE, distances), (NEIGHBOUR, known.remoteness(both)))
    found = [(name, area(foreign, values, groups=belong)) for name, values in scores]
    return Apart(
        source=names[0],
        split=names[1],
        n=len(own),
        other=names[2],
        others=len(others),
        scores=tuple(Told(score=name, auroc=one.value, auroc_interval=one.interval()) for name, one in found),
        cut=cut,
        held_out=None if cut is None else _beyond(distances[~foreign] > cut),
        unlike=None if cut is None else _beyond(distances[foreign] > cut),
    )


def _named(groups: tuple[np.ndarray | None, np.ndarray | None], counts: tuple[int, int]) -> np.ndarray:
    """Groups of both sources under names that neither shares with the other; a picture without one is its own."""
    found = []
    for number, (one, count) in enumerate(zip(groups, counts, strict=True)):
        numbers = np.arange(count) if one is None else np.unique(one, return_inverse=True)[1]
        found.append(2 * numbers + number)
    return np.concatenate(found)


def _beyond(flags: np.ndarray) -> Beyond:
    return Beyond(share=float(flags.mean()), interval=wilson(int(flags.sum()), len(flags)))


def _percent(beyond: Beyond) -> str:
    low, high = beyond.interval
    return f"{100 * beyond.share:.2f} % ({100 * low:.2f} to {100 * high:.2f} %)"
