"""A first page for one reader: what is looked for, what is left unanswered, what is worst, what is not known.

`radiology.py` and `inspection.py` add what their readers ask beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from ..evaluate.prediction_tables import TaskPredictions, output_names
from ..evaluate.predictions import ClassificationPredictions
from ..evaluate.task_metrics import TaskMetrics
from ..evaluate.thresholds import MIN_PER_SIDE
from . import beside, explanations, grouping, stored
from .asked import Asked
from .beside import Beside
from .facts import ReportFacts
from .silence import Silence, silence
from .sought import Sought, chosen, sought
from .stamp import Stamp, stamp
from .thumbnails import Kept
from .worst import Failure, failures


class Missing(NamedTuple):
    """Something that a reader asks for and this report does not have."""

    what: str
    because: str


@dataclass(frozen=True, kw_only=True, eq=False)
class First:
    """What both readers are told."""

    asked: Asked
    things: list[Sought]
    guessed: bool
    """Whether nobody said which of two classes is looked for."""
    silence: Silence
    misses: list[Failure]
    alarms: list[Failure]
    limits: list[str]
    """Sentences."""
    stamp: Stamp
    beside: Beside
    copies: int
    """Pictures of the table that are the same, or nearly, as one that was learnt from."""
    maps: bool
    """Whether the report shows where answers come from."""

    @property
    def worst(self) -> Failure | None:
        """The worst miss, or the worst false alarm where nothing was missed."""
        return next(iter([*self.misses, *self.alarms]), None)

    @property
    def most_missed(self) -> Sought | None:
        """What is missed most, among what is not too rare to say."""
        return _highest([(thing.missed.value, thing) for thing in self.things if thing.missed is not None])

    @property
    def most_alarmed(self) -> Sought | None:
        """What is seen most often where it is not."""
        return _highest([(thing.alarms.value, thing) for thing in self.things if thing.alarms is not None])


def first(
    known: ReportFacts,
    figures: TaskMetrics,
    answers: TaskPredictions,
    folder: Path,
    asked: Asked,
    images: Sequence[Kept],
    indices: Int64[np.ndarray, " k"],
) -> First:
    """From what a run has stored.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.

    Raises:
        UsageError: the run cannot be asked so.
        DamagedFileError: a stored file that cannot be read.
    """
    names, groups = output_names(answers), grouping.load(folder, len(answers))
    asked.check(known.task, names)
    if isinstance(answers, ClassificationPredictions):
        names = tuple(names[place] for place in chosen(answers, known.decisions, asked.positive))
    stated = asked.prevalences((asked.positive,) if asked.positive else names)
    things = sought(answers, known.decisions, asked.positive, stated, groups)
    misses, alarms = failures(things, answers, images, indices)
    return First(
        asked=asked,
        things=things,
        guessed=_guessed(known, asked),
        silence=silence(answers, known.decisions, groups),
        misses=misses,
        alarms=alarms,
        limits=[*_limits(known, figures, things, groups is not None), *_found_by_check(folder)],
        stamp=stamp(folder, known),
        beside=beside.read(folder),
        copies=_copies(folder, answers),
        maps=(folder / explanations.NAME).is_file(),
    )


def _guessed(known: ReportFacts, asked: Asked) -> bool:
    """Whether one of two classes is looked for without anybody having said so."""
    return known.task == "classes" and len(known.classes) == 2 and not (asked.positive or known.decisions.positive)


def _highest(pairs: Sequence[tuple[float, Sought]]) -> Sought | None:
    """The one with the highest rate; rare ones only where all are."""
    often = [pair for pair in pairs if not _rare(pair[1])] or pairs
    return max(often, key=lambda pair: pair[0])[1] if often else None


def _rare(thing: Sought) -> bool:
    return min(thing.positives, thing.negatives) < MIN_PER_SIDE


def _limits(known: ReportFacts, figures: TaskMetrics, things: Sequence[Sought], grouped: bool) -> list[str]:
    """What a reader must know before believing a figure."""
    said = [f"All figures come from {figures.n:,} pictures of one source, {known.source}; no other was tested."]
    if figures.groups is None:
        said.append(
            "Nobody said which pictures are of one patient, part or film (--group COLUMN). If some are, intervals are "
            "narrower than they should be."
        )
    elif grouped:
        said.append(f"The pictures come in {figures.groups:,} groups, such as patients, and intervals count groups.")
    else:
        said.append(
            f"The pictures come in {figures.groups:,} groups, but this run has not stored which belong together, so "
            "the intervals of this page count pictures and are narrower than they should be."
        )
    if rare := [thing.name for thing in things if _rare(thing)]:
        more = f" and {len(rare) - 10} more" if len(rare) > 10 else ""
        said.append(
            f"Too few to say much, with fewer than {MIN_PER_SIDE} pictures of a kind: {', '.join(rare[:10])}{more}."
        )
    if known.decisions.temperature:
        said.append("Probabilities were calibrated and thresholds chosen on the validation pictures, not on these.")
    else:
        said.append("Probabilities are not calibrated: the validation pictures were too few, or nobody wanted it.")
    return said


def _found_by_check(folder: Path) -> list[str]:
    """Warnings of the data doctor, as they were before the training."""
    return [str(one["text"]) for one in _concerns(folder) if one.get("severity") == "warning"]


def _copies(folder: Path, answers: TaskPredictions) -> int:
    """How many pictures of the table the data doctor has found in the training pictures, too."""
    codes = {f"{how}-copies-in-train-and-{answers.split}" for how in ("exact", "near")}
    found = {name for one in _concerns(folder) if one.get("code") in codes for name in one.get("pictures", [])}
    return len(found & set(answers.ids))


def _concerns(folder: Path) -> list[dict[str, Any]]:
    """What the data doctor has found, as stored."""
    return list((stored.table(folder / "check.json") or {}).get("concerns", []))
