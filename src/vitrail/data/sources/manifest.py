"""Read manifests: tables (CSV, TSV, JSON lines, Parquet) with one row per image, its path and its labels.

Images must lie inside the root folder unless `settings.allow_outside_root` is set. Names are judged alike on every
system: a path that leaves the folder on Windows is refused on Linux too.
"""

from __future__ import annotations

import os
import posixpath
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..compact_strings import CompactStrings, RelativePaths
from ..decoding.decoded_image import IMAGE_EXTENSIONS
from ..labels.codes import Cell, format_cell, format_column, take_rows
from ..labels.columns import ColumnRoles, infer_column_roles, quote_for_shell, quote_names, read_groups, rows_by_split
from ..labels.tasks import InferredTask, infer_task
from ..settings import DataSettings, check_supported_settings
from ..source import Source
from .label_input import check_classes
from .table_files import ManifestTable, read_manifest_table

Splits = dict[str, NDArray[np.int64]]
Where = Callable[[int], str]


def open_manifest(path: Path, settings: DataSettings) -> Source:
    """Open the images named in a CSV, TSV, JSON lines or Parquet file, below its folder or `settings.data_root`.

    Column roles are inferred unless the settings name them; see `infer_column_roles` and `infer_task`. The rows keep
    their order, without repeated ones and those that `--data.uncertain ignore` leaves out. Missing images stay, are
    noted, and count as unreadable.

    Raises:
        UsageError: a setting that does not apply to manifests.
        DataError: the table cannot be read; there is no column of images or of targets; a cell does not fit its
            column; a path leads out of the folder; an image occurs twice with different labels.
    """
    check_supported_settings(settings, "manifest", "a manifest")
    table = read_manifest_table(path)
    roles = _find_roles(table, settings)
    root = Path(settings.data_root).expanduser() if settings.data_root else path.parent
    found = locate_images(root, table.columns[roles.path], settings, table.where)
    splits = rows_by_split(roles.split, table.columns[roles.split], table.where) if roles.split else {}
    source = build_manifest_source(path.stem, root, found.names, table, roles, splits, settings)
    return replace(source, notes=(*table.notes, *roles.notes, *found.notes, *source.notes))


def _find_roles(table: ManifestTable, settings: DataSettings) -> ColumnRoles:
    names = tuple(table.columns)
    roles = infer_column_roles(names, table.columns, settings, table.name)
    if not roles.path:
        raise DataError(
            f"No column of {table.name} names pictures. Its columns are {quote_names(names)}, as the first line has "
            f"it; name the right one with --data.path {quote_for_shell(names[0])}"
        )
    if not roles.targets:
        raise DataError(
            f"No column of {table.name} says what the pictures show. Beside {roles.path!r} it has "
            f"{quote_names([name for name in names if name != roles.path]) or 'none'}. Name one with --data.targets "
            f"COLUMN."
        )
    return roles


def build_manifest_source(
    name: str,
    root: Path,
    names: Sequence[str],
    table: ManifestTable,
    roles: ColumnRoles,
    splits: Splits,
    settings: DataSettings,
) -> Source:
    """Build a source from located images and the other columns, with each image once.

    Args:
        names: of the images below `root`, one for each row of the table.
        splits: rows of the table.

    Raises:
        DataError: a cell does not fit its column, or an image occurs twice with different labels or splits.
    """
    labels = infer_task({column: table.columns[column] for column in roles.targets}, settings, table.where)
    rows = np.arange(len(table)) if labels.kept_rows is None else labels.kept_rows
    firsts, notes = _drop_repeated_images(names, rows, labels, splits, table.where)
    rows, targets = rows[firsts], labels.targets[firsts]
    groups = None
    if roles.group:
        groups, note = read_groups(roles.group, table.columns[roles.group], table.where)
        groups, notes = groups[rows], notes + ((note,) if note else ())
    splits = _renumber_splits(splits, rows, len(table))
    kept = take_rows(names, rows)
    source = Source(
        name=name,
        task=labels.task,
        classes=labels.classes,
        images=RelativePaths(root, kept),
        targets=targets,
        ids=kept,
        groups=groups,
        splits=splits,
        reason=labels.reason,
        metadata={column: take_rows(format_column(table.columns[column]), rows) for column in roles.metadata},
        notes=(*labels.notes, *notes),
    )
    check_classes(source, table.name)
    return source


def _drop_repeated_images(
    names: Sequence[str],
    rows: NDArray[np.int64],
    labels: InferredTask,
    splits: Splits,
    where: Where,
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Positions in `rows` of the first row of each image, and a note on the others.

    Raises:
        DataError: two rows of one image differ in label or split.
    """
    marks = np.fromiter(map(hash, take_rows(names, rows)), np.int64, len(rows))
    order = np.argsort(marks, kind="stable")
    alike = (
        np.flatnonzero(marks[order][1:] == marks[order][:-1]) + 1
    )  # equal to the hash before: perhaps the same image
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
        if not np.array_equal(labels.targets[earlier], labels.targets[place], equal_nan=True):
            raise DataError(
                f"{where(one)} and {where(other)} both name {names[one]!r}, with different labels. A manifest has one "
                "row for each picture; if it shows several things, join them with | in one row."
            )
        if split_of[one] != split_of[other]:
            sides = [list(splits)[split_of[row]] if split_of[row] >= 0 else "none" for row in (one, other)]
            raise DataError(
                f"{where(one)} and {where(other)} both name {names[one]!r}, for the splits {sides[0]} and {sides[1]}. "
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


def _renumber_splits(splits: Splits, rows: NDArray[np.int64], length: int) -> Splits:
    """Splits as positions in `rows`, without other rows."""
    places = np.full(length, -1)
    places[rows] = np.arange(len(rows))
    return {split: places[members][places[members] >= 0] for split, members in splits.items()}


# -- Locating images: folders are listed once instead of testing each file, so that a million names take seconds.

MAX_NAMED_FILES = 20  # missing images listed in a note
DEPTH = 2  # depth of folders searched for names without a folder
ALLOW = "If you trust the manifest, say --data.allow_outside_root true."

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(file|data|http|https):", re.IGNORECASE)
_UNUSUAL = re.compile(
    r"^[\\/~]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]+:|(?:^|[\\/])\.\.?(?:[\\/]|$)|[\\/]{2}|\0|^$"
)  # names that need a closer look


@dataclass(frozen=True)
class ImageLocations:
    """Paths of images relative to the root or, where that is allowed, absolute."""

    names: CompactStrings
    missing: NDArray[np.int64]
    """Rows whose image is missing."""
    notes: tuple[str, ...] = ()


def locate_images(
    root: Path, cells: Sequence[Cell], settings: DataSettings, where: Callable[[int], str]
) -> ImageLocations:
    """Find every image below `root`; names without folder or extension are searched one or two folders deep.

    Args:
        cells: the column of names.
        where: how messages name a row, such as "films.csv, line 17".

    Raises:
        DataError: a name leads out of the root, is a URL or is empty; no image exists; or a name without a folder
            matches several files.
    """
    root = root.absolute()  # "." says little in a message
    folders: dict[str, int] = {}
    homes = array("q")
    judge = _PathPolicy(root, settings, where)

    def usual() -> Iterator[str]:
        for row, cell in enumerate(cells):
            name = format_cell(cell).strip()
            plain = judge.normalize_path(row, name) if _UNUSUAL.search(name) else name
            homes.append(folders.setdefault(plain.rpartition("/")[0], len(folders)))
            yield plain

    settled = CompactStrings(usual())
    lost = _find_missing_rows(root, settled, list(folders), np.frombuffer(homes, np.int64), judge)
    if not len(lost):
        return ImageLocations(settled, lost)
    found, notes = _search_missing(root, settled, lost, judge)
    lost = np.array([row for row in lost.tolist() if row not in found], dtype=np.int64)
    if len(lost) == len(settled):
        raise DataError(
            f"None of the {len(settled):,} pictures is there: {settled[0]!r} ({where(0)}) was looked for in {root} and "
            f"the folders below it. Say where the pictures are with --data-root FOLDER."
        )
    if found:
        settled = CompactStrings(found.get(row, name) for row, name in enumerate(settled))
    if len(lost):
        named = ", ".join(f"{settled[row]!r} ({where(row)})" for row in lost[:MAX_NAMED_FILES].tolist())
        more = f" and {len(lost) - MAX_NAMED_FILES:,} more" if len(lost) > MAX_NAMED_FILES else ""
        notes.append(f"{len(lost):,} of {len(settled):,} pictures are missing in {root}: {named}{more}.")
    return ImageLocations(settled, lost, tuple(notes))


class _PathPolicy:
    """Which names and paths a manifest may use."""

    def __init__(self, root: Path, settings: DataSettings, where: Callable[[int], str]):
        self._root = root
        self._real = os.path.realpath(root)
        self._free = settings.allow_outside_root
        self._where = where

    def normalize_path(self, row: int, name: str) -> str:
        """Normalise an unusual name, or raise an error with the reason."""
        if not name:
            raise DataError(f"{self._where(row)}: no picture is named.")
        if "\0" in name:
            raise DataError(f"{self._where(row)}: {name!r} holds a NUL character, which no file's name can.")
        if _ADDRESS.match(name):
            raise DataError(
                f"{self._where(row)}: {name!r} is an address, and pictures are read from files only. Fetch them first, "
                "and write their names below the manifest's folder."
            )
        if self._free:
            return os.path.expanduser(name) if name.startswith("~") else posixpath.normpath(name)
        parts = re.split(r"[\\/]", name)
        for base in {os.path.abspath(self._root), self._real}:
            if name.startswith(base + "/") and ".." not in parts:
                return posixpath.normpath(name[len(base) + 1 :])
        if parts[0] in ("", "~") or name.startswith("~") or re.match("[A-Za-z]:", name) or ".." in parts:
            raise DataError(
                f"{self._where(row)}: {name!r} leads out of {self._root}, where the pictures of a manifest must lie. "
                f"{ALLOW}"
            )
        return posixpath.normpath(name)

    def check_inside_root(self, row: int, name: str) -> None:
        """Refuse a file or folder that a link leads out of the root."""
        if self._free:
            return
        real = os.path.realpath(os.path.join(self._root, name))
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise DataError(
                f"{self._where(row)}: {name!r} is or lies behind a link that leads out of {self._root}, to {real}. "
                f"{ALLOW}"
            )

    def raise_ambiguous(self, row: int, name: str, files: Sequence[str]) -> None:
        """Refuse a name that matches several files."""
        others = f" and {len(files) - 2:,} more" if len(files) > 2 else ""
        raise DataError(
            f"{self._where(row)}: {name!r} may mean {files[0]!r} or {files[1]!r}{others}. Write the folder and the "
            "ending into the manifest, or name the pictures' folder with --data-root."
        )


def _find_missing_rows(
    root: Path, names: CompactStrings, folders: list[str], folder_indices: NDArray[np.int64], policy: _PathPolicy
) -> NDArray[np.int64]:
    """Rows whose file is not in the listing of its folder, one folder after another."""
    order = np.argsort(folder_indices, kind="stable")
    ends = np.cumsum(np.bincount(folder_indices, minlength=len(folders)))
    lost: list[int] = []
    for folder, rows in zip(folders, np.split(order, ends[:-1]), strict=True):
        there, links = list_folder_names(os.path.join(root, folder))
        if there:
            policy.check_inside_root(int(rows[0]), folder)
        for row in rows.tolist():
            base = names[row].rpartition("/")[2]
            if base in links:
                policy.check_inside_root(row, names[row])
            if base not in there:
                lost.append(row)
    return np.sort(np.array(lost, dtype=np.int64))


def list_folder_names(folder: str) -> tuple[set[str], set[str]]:
    """Names in a folder, and the links among them; empty if the folder does not exist or cannot be listed."""
    there, links = set(), set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                there.add(entry.name)
                if entry.is_symlink():
                    links.add(entry.name)
    except OSError:
        return set(), set()
    return there, links


def _search_missing(
    root: Path, names: CompactStrings, missing_rows: NDArray[np.int64], policy: _PathPolicy
) -> tuple[dict[int, str], list[str]]:
    """Search for files that are not at their path: their paths, and a note for each way in which files were
    found by."""
    found: dict[int, str] = {}
    ways: Counter[str] = Counter()
    wanted = {names[row].replace("\\", "/") for row in missing_rows.tolist()}
    files = _index_files(root, wanted)
    for row in missing_rows.tolist():
        name = names[row]
        plain = name.replace("\\", "/")
        fitting = files.get(plain, [])
        if len(missing_rows) < len(
            names
        ):  # where others are at their place, one of that name elsewhere may be its mask
            fitting = [file for file in fitting if file.count("/") == plain.count("/")]
        if len(fitting) > 1:
            policy.raise_ambiguous(row, name, fitting)
        if fitting:
            found[row] = fitting[0]
            ways[_describe_match(name, fitting[0])] += 1
        elif os.path.lexists(os.path.join(root, plain)):  # on a case-insensitive file system
            found[row] = plain
        if row in found:
            policy.check_inside_root(row, found[row])
    return found, [f"{count:,} pictures {way}." for way, count in ways.items()]


def _describe_match(name: str, file: str) -> str:
    """How images were found, as the predicate of a sentence."""
    if "\\" in name:
        return "have names with \\ for /"
    ending = os.path.splitext(file)[1]
    folder = name.count("/") < file.count("/")
    if name.endswith(ending):
        return "were found in folders that their names do not say"
    return f"were found with the ending {ending}{', and in folders,' if folder else ''} that their names do not say"


def _index_files(root: Path, wanted: set[str]) -> dict[str, list[str]]:
    """Files below the root by their wanted names: with or without folder, with or without extension."""
    found: dict[str, list[str]] = {}
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                inside = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            continue
        for base, is_folder in inside:
            if base.startswith("."):
                continue
            file = folder + base
            if is_folder:
                waiting += [(file + "/", depth + 1)] if depth < DEPTH else []
                continue
            keys = {file, base}
            if os.path.splitext(base)[1].lower() in IMAGE_EXTENSIONS:
                keys |= {os.path.splitext(file)[0], os.path.splitext(base)[0]}
            for key in keys & wanted:
                found.setdefault(key, []).append(file)
    return found
