"""What `vitrail evaluate` found beyond the figures, where a person has kept it in the run folder.

`vitrail evaluate RUN --by COLUMNS --json > RUN/slices.json`, `--corruptions SUITE --json > RUN/corruptions.json`, and
`--suspects RUN/suspects.csv`.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

from .. import config
from ..data.formulas import unguarded
from ..errors import DamagedFileError
from ..evaluate.robustness import Robustness
from ..evaluate.slices import Slices
from . import stored

SLICES, CORRUPTIONS, SUSPECTS = "slices.json", "corruptions.json", "suspects.csv"
COLUMNS = ("id", "path", "given", "suggested", "score", "reason")


class Suspect(NamedTuple):
    """A label that is likely to be wrong."""

    id: str
    given: str
    suggested: str
    reason: str


class Beside(NamedTuple):
    """None of what is not there."""

    slices: Slices | None
    robustness: Robustness | None
    suspects: tuple[Suspect, ...] | None
    """The worst first, all of them."""


def read(folder: Path) -> Beside:
    """Everything of a run folder.

    Raises:
        DamagedFileError: a file that is there and is not what the command writes.
        UsageError: one that this version does not know in full.
    """
    slices, robustness = _part(folder / SLICES, "slices"), _part(folder / CORRUPTIONS, "robustness")
    return Beside(
        slices=None if slices is None else config.read(Slices, slices, str(folder / SLICES)),
        robustness=None if robustness is None else config.read(Robustness, robustness, str(folder / CORRUPTIONS)),
        suspects=_suspects(folder / SUSPECTS),
    )


def _part(path: Path, name: str) -> dict[str, Any] | None:
    """One table of what `vitrail evaluate --json` printed."""
    found = stored.table(path)
    if found is None:
        return None
    part = found.get(name)
    if not isinstance(part, dict):
        raise DamagedFileError(f"{path} must hold {name}, as vitrail evaluate --json prints them. It does not.")
    return part


def _suspects(path: Path) -> tuple[Suspect, ...] | None:
    if not path.is_file():
        return None
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "surrogateescape"), newline="")))
    if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise DamagedFileError(
            f"{path} must have the columns {','.join(COLUMNS)}, as vitrail evaluate --suspects writes them."
        )
    return tuple(Suspect(*(unguarded(row[k]) for k in (0, 2, 3, 5))) for row in rows[1:])
