"""The worst failures: what is looked for and was missed with the least doubt, and what was seen where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import ClassificationPredictions
from .sought import Sought
from .thumbnails import Kept

MOST = 6
"""Misses on a page, and as many false alarms."""


class Failure(NamedTuple):
    """One wrong answer."""

    row: int
    """Of the table."""
    name: str
    """What was missed, or seen where it is not."""
    chance: float
    """The probability that it was given."""
    threshold: float | None
    """From which probability on it is answered; None where the likeliest class is."""
    label: str
    """The class that it is; empty for labels, which are answered each by itself."""
    said: str
    """The class that was answered; empty for labels."""
    id: str
    """Of the picture."""
    uri: str
    """Empty where no thumbnail was stored."""
    small: bool
    """Drawn with sharp pixels."""
    missed: bool

    @property
    def alt(self) -> str:
        """What a screen reader says."""
        what = f"is {self.label}, answered {self.said}" if self.said else ""
        has = f"has {self.name}, not answered so" if self.missed else f"has no {self.name}, answered with it"
        return f"{what or has}, probability of {self.name} {self.chance:.1%}"


def rows_of(things: Sequence[Sought], most: int = MOST) -> Int64[np.ndarray, " rows"]:
    """Rows of the table with the worst misses, then those with the worst false alarms; each row once."""
    pairs = [*_misses(things, most), *_alarms(things, most)]
    return np.array(list(dict.fromkeys(row for row, _ in pairs)), np.int64)


def failures(
    things: Sequence[Sought],
    answers: TaskPredictions,
    images: Sequence[Kept],
    indices: Int64[np.ndarray, " k"],
    most: int = MOST,
) -> tuple[list[Failure], list[Failure]]:
    """Misses, the lowest probability first, and false alarms, the highest first.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    places = {row: place for place, row in enumerate(indices.tolist())}

    def told(row: int, thing: Sought, missed: bool) -> Failure:
        image = images[places[row]] if row in places else None
        label, said = _classes(answers, row)
        return Failure(
            row=row,
            name=thing.name,
            chance=float(thing.chances[np.searchsorted(thing.rows, row)]),
            threshold=thing.threshold,
            label=label,
            said=said,
            id=answers.ids[row],
            uri="" if image is None else image.uri,
            small=image is not None and image.small,
            missed=missed,
        )

    misses = [told(row, thing, True) for row, thing in _misses(things, most)]
    return misses, [told(row, thing, False) for row, thing in _alarms(things, most)]


def _classes(answers: TaskPredictions, row: int) -> tuple[str, str]:
    """What a picture is and what was answered; nothing of labels."""
    if not isinstance(answers, ClassificationPredictions) or answers.targets is None:
        return "", ""
    return answers.classes[int(answers.targets[row])], answers.classes[int(answers.labels[row])]


def _misses(things: Sequence[Sought], most: int) -> list[tuple[int, Sought]]:
    found = [(thing.chances[i], thing, i) for thing in things for i in np.flatnonzero(thing.present & ~thing.said)]
    found.sort(key=lambda one: one[0])
    return [(int(thing.rows[i]), thing) for _, thing, i in found[:most]]


def _alarms(things: Sequence[Sought], most: int) -> list[tuple[int, Sought]]:
    found = [(thing.chances[i], thing, i) for thing in things for i in np.flatnonzero(~thing.present & thing.said)]
    found.sort(key=lambda one: -one[0])
    return [(int(thing.rows[i]), thing) for _, thing, i in found[:most]]
