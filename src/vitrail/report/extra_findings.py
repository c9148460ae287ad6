"""Findings of `vitrail evaluate` that were saved in the run folder: subgroups, shortcuts, robustness, learning curve,
label errors.

`vitrail evaluate RUN --by COLUMNS --shortcuts --keep`, `--corruptions SUITE --keep`, `--plan-test doubling --keep`, and
`--suspects RUN/suspects.csv` save them.
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
from ..evaluate.label_errors import SUSPECT_COLUMNS
from ..evaluate.learning_curve import LearningCurve
from ..evaluate.robustness import RobustnessReport
from ..evaluate.shortcut_reliance import ShortcutReport
from ..evaluate.subgroups import SubgroupReport
from ..files import atomic
from . import provenance

FINDING_FILES = {
    "slices": "slices.json", "shortcuts": "shortcuts.json", "robustness": "corruptions.json",
    "learning_curve": "learning-curve.json",
}  # fmt: skip
"""File of each kind of finding in a run folder, which is also the key inside it."""
SUSPECTS_FILE = "suspects.csv"
FindingT = TypeVar("FindingT")


class SuspectRow(NamedTuple):
    """A label that is likely to be wrong."""

    id: str
    given: str
    suggested: str
    reason: str


class ExtraFindings(NamedTuple):
    """The findings of a run folder; None for missing ones."""

    slices: SubgroupReport | None
    shortcuts: ShortcutReport | None
    robustness: RobustnessReport | None
    learning_curve: LearningCurve | None
    suspects: tuple[SuspectRow, ...] | None
    """All label errors, the worst first."""


def read_extra_findings(folder: Path) -> ExtraFindings:
    """Read the findings of a run folder.

    Raises:
        DamagedFileError: a file is not what the command writes.
        UsageError: a file has fields that this version does not know.
    """
    return ExtraFindings(
        slices=_read_finding(folder, "slices", SubgroupReport),
        shortcuts=_read_finding(folder, "shortcuts", ShortcutReport),
        robustness=_read_finding(folder, "robustness", RobustnessReport),
        learning_curve=_read_finding(folder, "learning_curve", LearningCurve),
        suspects=_read_suspects(folder / SUSPECTS_FILE),
    )


def save_extra_findings(
    folder: Path, findings: Mapping[str, SubgroupReport | ShortcutReport | RobustnessReport | LearningCurve]
) -> list[Path]:
    """Write findings by name, each into its file of a run folder; older ones are replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    paths = [folder / FINDING_FILES[name] for name in findings]
    for path, (name, one) in zip(paths, findings.items(), strict=True):
        atomic.write_json(path, {name: one.to_json()})
    return paths


def _read_finding(folder: Path, name: str, cls: type[FindingT]) -> FindingT | None:
    """Read one finding; the output of `vitrail evaluate --json` is accepted too."""
    path = folder / FINDING_FILES[name]
    table = provenance.read_json_table(path)
    if table is None:
        return None
    part: Any = table.get(name)
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
