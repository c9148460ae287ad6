"""Manifests: a table with one row for each picture, which says where it lies and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..honoured import refuse_others
from ..labels.coded import as_texts, rows_of
from ..labels.columns import Columns, choose, groups_of, listed, split_rows, typed
from ..labels.tasks import Answers, infer
from ..settings import DataSettings
from ..source import Source
from ..texts import Files
from .assemble import check_classes
from .locate import locate
from .tables import Table, read_table

Splits = dict[str, NDArray[np.int64]]
Where = Callable[[int], str]


def open_manifest(path: Path, settings: DataSettings) -> Source:
    """The pictures that a CSV, TSV, JSON lines or Parquet file names, below its own folder or `settings.data_root`.

    Columns are found by name and content unless the settings name them; see `columns.choose` and `tasks.infer`. The
    rows keep their order, less repeated ones and those that `--data.uncertain ignore` leaves out. Missing pictures
    stay, are noted, and count as unreadable.

    Raises:
        UsageError: a setting that manifests have no use for.
        DataError: the table cannot be read; no column names pictures or is to be learnt; a cell does not fit its
            column; a path leads out of the folder; a picture stands twice with different labels.
    """
    refuse_others(settings, "manifest", "a manifest")
    table = read_table(path)
    roles = _roles(table, settings)
    root = Path(settings.data_root).expanduser() if settings.data_root else path.parent
    found = locate(root, table.columns[roles.path], settings, table.where)
    splits = split_rows(roles.split, table.columns[roles.split], table.where) if roles.split else {}
    source = assemble(path.stem, root, found.names, table, roles, splits, settings)
    return replace(source, notes=(*table.notes, *roles.notes, *found.notes, *source.notes))


def _roles(table: Table, settings: DataSettings) -> Columns:
    names = tuple(table.columns)
    roles = choose(names, table.columns, settings, table.name)
    if not roles.path:
        raise DataError(
            f"No column of {table.name} names pictures. Its columns are {listed(names)}, as the first line has it; "
            f"name the right one with --data.path {typed(names[0])}"
        )
    if not roles.targets:
        raise DataError(
            f"No column of {table.name} says what the pictures show. Beside {roles.path!r} it has "
            f"{listed([name for name in names if name != roles.path]) or 'none'}. Name one with --data.targets COLUMN."
        )
    return roles


def assemble(
    name: str,
    root: Path,
    names: Sequence[str],
    table: Table,
    roles: Columns,
    splits: Splits,
    settings: DataSettings,
) -> Source:
    """A source from located pictures and the other columns, each picture once.

    Args:
        names: of the pictures below `root`, one for each row of the table.
        splits: rows of the table.

    Raises:
        DataError: a cell does not fit its column, or a picture stands twice with different labels or splits.
    """
    answers = infer({column: table.columns[column] for column in roles.targets}, settings, table.where)
    rows = np.arange(len(table)) if answers.kept is None else answers.kept
    firsts, notes = _once(names, rows, answers, splits, table.where)
    rows, targets = rows[firsts], answers.targets[firsts]
    groups = None
    if roles.group:
        groups, note = groups_of(roles.group, table.columns[roles.group], table.where)
        groups, notes = groups[rows], notes + ((note,) if note else ())
    splits = _renumbered(splits, rows, len(table))
    kept = rows_of(names, rows)
    source = Source(
        name=name,
        task=answers.task,
        classes=answers.classes,
        pictures=Files(root, kept),
        targets=targets,
        ids=kept,
        groups=groups,
        splits=splits,
        reason=answers.reason,
        metadata={column: rows_of(as_texts(table.columns[column]), rows) for column in roles.metadata},
        notes=(*answers.notes, *notes),
    )
    check_classes(source, table.name)
    return source


def _once(
    names: Sequence[str],
    rows: NDArray[np.int64],
    answers: Answers,
    splits: Splits,
    where: Where,
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Places in `rows` of the first row of each picture, and a note on the others.

    Raises:
        DataError: two rows of one picture differ in label or split.
    """
    marks = np.fromiter(map(hash, rows_of(names, rows)), np.int64, len(rows))
    order = np.argsort(marks, kind="stable")
    alike = np.flatnonzero(marks[order][1:] == marks[order][:-1]) + 1  # equal to the one before: perhaps one picture
    if not len(alike):
        return np.arange(len(rows)), ()
    split_of = np.full(len(names), -1)
    for number, members in enumerate(splits.values()):
        split_of[members] = number
    first: dict[str, int] = {}
    repeated: list[int] = []
    for place in np.sort(order[np.union1d(alike - 1, alike)]).tolist():
        earlier = first.setdefault(names[int(rows[place])], place)
        if earlier == place:
            continue
        repeated.append(place)
        one, other = int(rows[earlier]), int(rows[place])
        if not np.array_equal(answers.targets[earlier], answers.targets[place], equal_nan=True):
            raise DataError(
                f"{where(one)} and {where(other)} both name {names[one]!r}, with different labels. A manifest has one "
                "row for each picture; if it shows several things, join them with | in one row."
            )
        if split_of[one] != split_of[other]:
            said = [list(splits)[split_of[row]] if split_of[row] >= 0 else "none" for row in (one, other)]
            raise DataError(
                f"{where(one)} and {where(other)} both name {names[one]!r}, for the splits {said[0]} and {said[1]}. "
                "A picture belongs to one split."
            )
    if not repeated:
        return np.arange(len(rows)), ()
    last = int(rows[repeated[0]])
    note = (
        f"{len(repeated):,} rows name a picture that an earlier row names with the same labels, such as "
        f"{names[last]!r} ({where(last)}); each picture is used once."
    )
    return np.setdiff1d(np.arange(len(rows)), repeated), (note,)


def _renumbered(splits: Splits, rows: NDArray[np.int64], length: int) -> Splits:
    """Splits by the places of their rows in `rows`, without the others."""
    places = np.full(length, -1)
    places[rows] = np.arange(len(rows))
    return {split: places[members][places[members] >= 0] for split, members in splits.items()}
