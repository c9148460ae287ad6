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
from . import provenance

FINDING_FILES = {"slices": "slices.json", "shortcuts": "shortcuts.json", "robustness": "corruptions.json"}
"""Where each kind of finding lies in a run folder, under its name."""
SUSPECTS_FILE = "suspects.csv"
FindingT = TypeVar("FindingT")
SUSPECT_COLUMNS = ("id", "path", "given", "suggested", "score", "reason")


class SuspectRow(NamedTuple):
    """A label that is likely to be wrong."""

    id: str
    given: str
    suggested: str
    reason: str


class ExtraFindings(NamedTuple):
    """None of what is not there."""

    slices: SubgroupReport | None
    shortcuts: ShortcutReport | None
    robustness: RobustnessReport | None
    suspects: tuple[SuspectRow, ...] | None
    """The worst first, all of them."""


def read_extra_findings(folder: Path) -> ExtraFindings:
    """Everything of a run folder.

    Raises:
        DamagedFileError: a file that is there and is not what the command writes.
        UsageError: one that this version does not know in full.
    """
    return ExtraFindings(
        slices=_read_finding(folder, "slices", SubgroupReport),
        shortcuts=_read_finding(folder, "shortcuts", ShortcutReport),
        robustness=_read_finding(folder, "robustness", RobustnessReport),
        suspects=_read_suspects(folder / SUSPECTS_FILE),
    )


def save_extra_findings(
    folder: Path, findings: Mapping[str, SubgroupReport | ShortcutReport | RobustnessReport]
) -> list[Path]:
    """Write findings by their names, each into its file of a run folder, in the place of older ones.

    Raises:
        OSError: the folder cannot be written.
    """
    kept = [folder / FINDING_FILES[name] for name in findings]
    for path, (name, one) in zip(kept, findings.items(), strict=True):
        atomic.write_json(path, {name: one.to_json()})
    return kept


def _read_finding(folder: Path, name: str, cls: type[FindingT]) -> FindingT | None:
    """One finding, also where it is what `vitrail evaluate --json` printed."""
    path = folder / FINDING_FILES[name]
    found = provenance.read_json_table(path)
    if found is None:
        return None
    part: Any = found.get(name)
    if not isinstance(part, dict):
        raise DamagedFileError(f"{path} must hold {name}, as vitrail evaluate --keep writes them. It does not.")
    return config.read(cls, part, str(path))


def _read_suspects(path: Path) -> tuple[SuspectRow, ...] | None:
    if not path.is_file():
        return None
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "surrogateescape"), newline="")))
    if not rows or tuple(rows[0]) != SUSPECT_COLUMNS or any(len(row) != len(SUSPECT_COLUMNS) for row in rows):
        raise DamagedFileError(
            f"{path} must have the columns {','.join(SUSPECT_COLUMNS)}, as vitrail evaluate --suspects writes them."
        )
    return tuple(SuspectRow(*(unescape_cell(row[k]) for k in (0, 2, 3, 5))) for row in rows[1:])
