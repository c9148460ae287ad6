"""The first page for radiology: what an answer means for a hundred similar patients, and when to distrust it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import hundred
from .first import First, Missing
from .hundred import People
from .shares import Share, share_of
from .sought import Sought

TEMPLATE = "radiology.html.j2"
RANGES = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
"""Of probabilities, with 0.7 in the middle of one; a range holds its lower end, and the last one both."""
MOST_DRAWN = 14
"""Findings with a picture of a hundred patients; the table holds all."""


class Finding(NamedTuple):
    """One finding."""

    thing: Sought
    people: People | None
    drawing: str
    """A hundred panes as an SVG element; empty where it is too rare for a hundred, or there are too many findings."""
    meaning: list[Share | None]
    """Of the pictures with a probability of each range those that have it."""


def contents(first: First) -> dict[str, Any]:
    """What `radiology.html.j2` needs."""
    return {
        "first": first,
        "findings": [_finding(thing, len(first.things) <= MOST_DRAWN) for thing in first.things],
        "ranges": RANGES,
        "missing": _missing(first),
    }


def _finding(thing: Sought, drawn: bool) -> Finding:
    some = hundred.people(thing)
    drawing = hundred.draw(some, thing.name) if some is not None and some.n == 100 and drawn else ""
    return Finding(thing, some, drawing, [_meaning(thing, *span) for span in RANGES])


def _meaning(thing: Sought, low: float, high: float) -> Share | None:
    inside = np.asarray((thing.chances >= low) & ((thing.chances < high) | (high == 1.0)))
    return share_of(thing.present[inside], None if thing.groups is None else thing.groups[inside])


def _missing(first: First) -> list[Missing]:
    found = [
        Missing(
            "Similar confirmed cases",
            "a model keeps what its training pictures look like, but not which pictures they are",
        ),
        Missing(
            "A flag of its own for rotated, lateral, inverted or poor pictures",
            "they are not told apart: such a picture is left unanswered if it is unlike those of the training"
            if first.silence.can_be_unlike
            else "no door of this model tells which pictures are unlike those of the training",
        ),
        Missing("Dates of the pictures", "no source states them"),
    ]
    if not first.maps:
        found.insert(0, Missing("Picture and map side by side", "this run folder holds no explanation pictures"))
    if first.beside.slices is None:
        because = "none are stored: vitrail evaluate RUN --by age,sex,view --keep"
        found.insert(0, Missing("Subgroups, such as age, sex, view and device", because))
    return found
