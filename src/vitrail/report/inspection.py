"""The first page for an inspection: escapes and false rejects of a shift, thresholds to choose from, worst failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.prediction_tables import read_predictions_csv
from ..evaluate.task_metrics import TaskMetrics
from . import stored
from .chooser import Choices, choices
from .classes_page import largest_confusions
from .facts import ReportFacts
from .first import First, Missing
from .shares import Share
from .sought import Sought, sought

TEMPLATE = "inspection.html.j2"
PARTS = 1000
"""That are counted where nobody said how many a shift has."""
MOST_CHOICES = 2
"""Defects whose thresholds a page shows: those that escape most often."""


class Count(NamedTuple):
    """Parts that are expected, with the interval of their share."""

    value: float
    low: float
    high: float


class Defect(NamedTuple):
    """One defect in a shift."""

    thing: Sought
    escapes: Count | None
    rejects: Count | None


class Lot(NamedTuple):
    """How many parts are counted."""

    parts: float
    words: str
    """Such as "a shift"."""

    def escapes(self, thing: Sought, missed: Share | None) -> Count | None:
        """Parts with it that pass."""
        return _count(self.parts * thing.prevalence, missed)

    def rejects(self, thing: Sought, alarms: Share | None) -> Count | None:
        """Parts without it that are rejected."""
        return _count(self.parts * (1 - thing.prevalence), alarms)


def contents(first: First, known: ReportFacts, figures: TaskMetrics, folder: Path) -> dict[str, Any]:
    """What `inspection.html.j2` needs.

    Raises:
        DataError, DamagedFileError: a stored file that cannot be read.
    """
    parts = first.asked.parts
    lot = Lot(PARTS, f"{PARTS:,} parts") if parts is None else Lot(parts, "a shift")
    defects = [Defect(one, lot.escapes(one, one.missed), lot.rejects(one, one.alarms)) for one in first.things]
    order = sorted(defects, key=lambda one: -(one.escapes.value if one.escapes is not None else -1.0))
    shown = [one.thing for one in order[:MOST_CHOICES]]
    return {
        "first": first,
        "lot": lot,
        "defects": defects,
        "worst_defect": order[0] if order else None,
        "choices": _choices(shown, first, known, folder),
        "left_out": len(defects) - len(shown),
        "confusions": largest_confusions(figures, 8) if isinstance(figures, ClassificationMetrics) else [],
        "pace": _pace(known, folder),
        "missing": _missing(first, known),
    }


def _count(parts: float, share: Share | None) -> Count | None:
    return None if share is None else Count(*(parts * value for value in (share.value, *share.interval)))


def _choices(things: Sequence[Sought], first: First, known: ReportFacts, folder: Path) -> list[Choices]:
    """By the validation pictures, where the run has stored its answers to them."""
    path = folder / "predictions" / "val.csv"
    if known.held_out == "val" or not path.is_file():
        return [choices(thing, None) for thing in things]
    answers = read_predictions_csv(path, known.task)
    return [choices(thing, sought(answers, known.decisions, thing.name)[0]) for thing in things]


def _pace(known: ReportFacts, folder: Path) -> float | None:
    """Seconds a picture took at most: those of the whole evaluation by the pictures that were answered."""
    actual = (stored.table(folder / "cost.json") or {}).get("actual")
    pictures = sum(count.n for count in known.counts if count.split in ("val", "test"))
    return actual["evaluation"] / pictures if isinstance(actual, dict) and pictures else None


def _missing(first: First, known: ReportFacts) -> list[Missing]:
    found = [
        Missing("Drift of the scores", "no pictures from the line, or golden samples, are stored beside these"),
    ]
    if not first.maps:
        found.insert(0, Missing("A map of the failures", "this run folder holds no explanation pictures"))
    if first.beside.slices is None:
        because = "none are stored: vitrail evaluate RUN --by camera,module,date --keep"
        found.append(Missing("Failures by size, module, camera and date", because))
    if first.beside.suspects is None:
        because = "nobody has looked for any: vitrail evaluate RUN --suspects RUN/suspects.csv"
        found.append(Missing("Labels to look at again", because))
    if known.task == "labels":
        found.append(Missing("Which defect was taken for which", "each label is answered by itself"))
    return found
