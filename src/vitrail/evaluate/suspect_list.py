"""The list of labels that are likely to be wrong: in words, as a table, and as a file that `--exclude` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from .. import config
from ..data.csv_injection import escape_cell, format_csv_lines
from ..data.source import Source
from ..files.atomic import write_bytes
from .suspects import Suspects, suspects
from .table import digits, path_of

COLUMNS = ("id", "path", "given", "suggested", "score", "reason")
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One line of the list: a label of a picture that is likely to be wrong."""

    id: str
    path: str
    given: str
    suggested: str
    score: float
    """Of classes and labels 0..1, of numbers deviations; the list falls."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What was looked at, and the list."""

    source: str
    pictures: int
    cells: int
    """Known labels or numbers that could be judged; of classes one a picture."""
    judges: str
    """Who has judged, each what it has not seen, such as "5 probes"."""
    figure: str
    """A figure of the judges against the labels as they are given."""
    worth: float | None = None
    """That figure: judges that know nothing suspect at random."""
    suspects: tuple[Suspect, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def summary(self, where: Path) -> str:
        """How many of how many labels are listed, by whose judgement, and in which file."""
        worth = "cannot be told" if self.worth is None else f"is {self.worth:.4f}"
        share = len(self.suspects) / max(1, self.cells)
        judged = f"{self.cells:,} labels of {self.pictures:,} pictures judged by {self.judges}"
        found = f"{len(self.suspects):,} labels ({share:.1%}) are likely to be wrong"
        return (
            f"{self.source}: {judged}, each on what it has not seen; their {self.figure} {worth}.\n"
            f"{found}. They are in {where}."
        )

    def table(self, where: Path) -> str:
        """Counts and the ten worst, for the terminal."""
        if not self.suspects:
            return self.summary(where)
        rows = [("score", "given", "suggested", "id")]
        rows += [(f"{one.score:.3f}", one.given, one.suggested, one.id) for one in self.suspects[:SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.summary(where), "", *shown, "", advice_for(where)])

    def write_csv(self, path: Path) -> None:
        """Replace a CSV with one line per suspect, the worst first, as `vitrail train --exclude` takes it."""
        cells = (
            [escape_cell(text) for text in (one.id, one.path, one.given, one.suggested)]
            + [digits(one.score), escape_cell(one.reason)]
            for one in self.suspects
        )
        write_bytes(path, "".join(format_csv_lines([COLUMNS, *cells])).encode("utf-8", "surrogateescape"))


def advice_for(where: Path) -> str:
    """What to do with the list."""
    return f"Look at them, delete the lines of those to keep, and train with --exclude {where}."


def listed(
    source: Source,
    rows: Int64[np.ndarray, " n"],
    answers: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
    judges: tuple[int, str],
    figure: str,
    worth: float | None,
) -> Listed:
    """The list of what answers out of fold contradict, with the names of a source.

    Args:
        rows: of the source, one for each answer.
        answers, targets: as `suspects` takes them.
        judges: how many there are, and what they are called, such as (5, "probes").
        figure, worth: what these are worth against the labels as they are given.
    """
    found = suspects(source.task, answers, targets)
    flagged = np.flatnonzero(found.flagged)
    return Listed(
        source=source.name,
        pictures=len(rows),
        cells=len(found),
        judges=f"{judges[0]} {judges[1]}",
        figure=figure,
        worth=worth,
        suspects=tuple(_suspect(source, rows, found, place, judges[1]) for place in flagged.tolist()),
    )


def _suspect(source: Source, rows: np.ndarray, found: Suspects, place: int, judges: str) -> Suspect:
    row, output = int(rows[found.rows[place]]), int(found.outputs[place])
    given, suggested = (_said(source, output, float(cell[place])) for cell in (found.given, found.suggested))
    return Suspect(
        id=source.ids[row],
        path=path_of(source.pictures[row]),
        given=given,
        suggested=suggested,
        score=float(found.scores[place]),
        reason=_reason(source, found, place, given, suggested, judges),
    )


def _said(source: Source, output: int, cell: float) -> str:
    """A class by its name, a label as "with" or "without" it, a number with its column."""
    if source.task == "classes":
        return source.classes[int(cell)]
    name = source.classes[output]
    if source.task == "labels":
        return f"with {name}" if cell else f"without {name}"
    return f"{name} {cell:.6g}"


def _reason(source: Source, found: Suspects, place: int, given: str, suggested: str, judges: str) -> str:
    if source.task == "number":
        return f"{found.scores[place]:.1f} robust deviations from what {judges} expect that have not seen it"
    own, other = found.chances[place].tolist()
    return f"{judges} that have not seen it give {given} {own:.0%}, {suggested} {other:.0%}"
