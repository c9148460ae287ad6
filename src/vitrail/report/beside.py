"""What `vitrail evaluate` found beyond the figures, where a person has kept it in the run folder.

`vitrail evaluate RUN --by COLUMNS --shortcuts --keep`, `--corruptions SUITE --keep`, and `--suspects RUN/suspects.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .. import config
from ..data.csv_injection import unescape_cell
from ..errors import DamagedFileError
from ..evaluate.robustness import RobustnessReport
from ..evaluate.shortcut_reliance import ShortcutReport
from ..evaluate.subgroups import SubgroupReport
from ..files import atomic
from . import stored

FILES = {"slices": "slices.json", "shortcuts": "shortcuts.json", "robustness": "corruptions.json"}
"""Where each kind of finding lies in a run folder, under its name."""
SUSPECTS = "suspects.csv"
Kind = TypeVar("Kind")
COLUMNS = ("id", "path", "given", "suggested", "score", "reason")


class Suspect(NamedTuple):
    """A label that is likely to be wrong."""

    id: str
    given: str
    suggested: str
    reason: str


class Beside(NamedTuple):
    """None of what is not there."""

    slices: SubgroupReport | None
    shortcuts: ShortcutReport | None
    robustness: RobustnessReport | None
    suspects: tuple[Suspect, ...] | None
    """The worst first, all of them."""


def read(folder: Path) -> Beside:
    """Everything of a run folder.

    Raises:
        DamagedFileError: a file that is there and is not what the command writes.
        UsageError: one that this version does not know in full.
    """
    return Beside(
        slices=_part(folder, "slices", SubgroupReport),
        shortcuts=_part(folder, "shortcuts", ShortcutReport),
        robustness=_part(folder, "robustness", RobustnessReport),
        suspects=_suspects(folder / SUSPECTS),
    )


def keep(folder: Path, found: Mapping[str, SubgroupReport | ShortcutReport | RobustnessReport]) -> list[Path]:
    """Write findings by their names, each into its file of a run folder, in the place of older ones.

    Raises:
        OSError: the folder cannot be written.
    """
    kept = [folder / FILES[name] for name in found]
    for path, (name, one) in zip(kept, found.items(), strict=True):
        atomic.write_json(path, {name: one.to_json()})
    return kept


def _part(folder: Path, name: str, kind: type[Kind]) -> Kind | None:
    """One finding, also where it is what `vitrail evaluate --json` printed."""
    path = folder / FILES[name]
    found = stored.table(path)
    if found is None:
        return None
    part: Any = found.get(name)
    if not isinstance(part, dict):
        raise DamagedFileError(f"{path} must hold {name}, as vitrail evaluate --keep writes them. It does not.")
    return config.read(kind, part, str(path))


def _suspects(path: Path) -> tuple[Suspect, ...] | None:
    if not path.is_file():
        return None
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "surrogateescape"), newline="")))
    if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise DamagedFileError(
            f"{path} must have the columns {','.join(COLUMNS)}, as vitrail evaluate --suspects writes them."
        )
    return tuple(Suspect(*(unescape_cell(row[k]) for k in (0, 2, 3, 5))) for row in rows[1:])
