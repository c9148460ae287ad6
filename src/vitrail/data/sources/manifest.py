"""Read manifests: tables (CSV, TSV, JSON lines, Parquet) with one row per image, its path and its labels.

Images must lie inside the root folder unless `settings.allow_outside_root` is set. Names are judged alike on every
system: a path that leaves the folder on Windows is refused on Linux too.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...files.suggest import suggest_path
from ...formatting import format_count, format_part
from ..compact_strings import CompactStrings, RelativePaths
from ..decoding.decoded_image import FORMAT_EXTENSIONS
from ..labels.codes import Cell, Where, format_cell, format_column, take_rows
from ..labels.columns import (
    ColumnRoles,
    infer_column_roles,
    normalize_column_name,
    quote_for_shell,
    quote_names,
    read_groups,
    rows_by_split,
)
from ..labels.defects import MASK_COLUMN
from ..labels.tasks import InferredTask, infer_task
from ..settings import DataSettings, check_supported_settings
from ..source import Source
from .label_input import Annotations, build_source
from .table_files import ManifestTable, read_manifest_table

Splits = dict[str, NDArray[np.int64]]
MASK_COLUMN_NAMES = (MASK_COLUMN, "masks", "maskpath", "maskfile", "segmentation")
"""Names of columns of masks, without case and marks."""


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
    names = tuple(table.columns)
    if settings.task == "segmentation":
        settings = replace(settings, targets=settings.targets or _find_mask_column(table))
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
            "COLUMN."
        )
    root = Path(settings.data_root).expanduser() if settings.data_root else path.parent
    images, notes = locate_images(root, table.columns[roles.path], settings, table.where)
    splits, split_notes = rows_by_split(roles.split, table.columns.get(roles.split, ()), table.where, settings)
    source = build_manifest_source(path.stem, root, images, table, roles, splits, settings)
    if settings.task == "segmentation":
        cells = [str(cell) for cell in source.metadata[MASK_COLUMN]]
        masks, more = locate_images(root, cells, settings, lambda row: f"The mask of {source.ids[row]}")
        source = replace(source, metadata={**source.metadata, MASK_COLUMN: masks}, notes=(*source.notes, *more))
    return replace(source, notes=(*table.notes, *roles.notes, *split_notes, *notes, *source.notes))


def read_image_groups(path: Path, group: str) -> tuple[list[Path], NDArray[np.object_], tuple[str, ...]]:
    """The images of a manifest and the group of each, by a column; with notes. Nothing else of it is read.

    Raises:
        DataError: the table cannot be read, has no such column or none of images, or a path leads out of the folder.
    """
    table, settings = read_manifest_table(path), DataSettings(group=group, targets=(group,))  # no target is looked for
    roles = infer_column_roles(tuple(table.columns), table.columns, settings, table.name)
    if not roles.path:
        raise DataError(
            f"No column of {table.name} names pictures. Its columns are {quote_names(list(table.columns))}."
        )
    root = path.parent.absolute()
    names, notes = locate_images(root, table.columns[roles.path], settings, table.where)
    groups, note = read_groups(group, table.columns[group], table.where)
    return [root / name for name in names], groups, (*table.notes, *notes, *([note] if note else []))


def _find_mask_column(table: ManifestTable) -> tuple[str, ...]:
    """The column that names masks: one called so."""
    found = [name for name in table.columns if normalize_column_name(name) in MASK_COLUMN_NAMES]
    if len(found) != 1:
        raise DataError(
            f"No single column of {table.name} names masks. Its columns are {quote_names(list(table.columns))}; name "
            "the one with the masks by --data.targets COLUMN."
        )
    return (found[0],)


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
    if settings.task == "segmentation":  # read_masks reads what the column names
        labels = InferredTask("segmentation", (MASK_COLUMN,), np.zeros((len(names), 1), np.float32))
    else:
        labels = infer_task({column: table.columns[column] for column in roles.targets}, settings, table.where)
    labels = _drop_repeated_images(names, labels, splits, table.where)
    groups, note = read_groups(roles.group, table.columns[roles.group], table.where) if roles.group else (None, "")
    annotations = Annotations(
        labels=replace(labels, notes=(*labels.notes, note) if note else labels.notes),
        groups=groups,
        splits=splits,
        metadata={column: format_column(table.columns[column]) for column in roles.metadata}
        | ({MASK_COLUMN: format_column(table.columns[roles.targets[0]])} if labels.task == "segmentation" else {}),
    )
    return build_source(name, RelativePaths(root, names), names, annotations, table.name)


def _drop_repeated_images(names: Sequence[str], labels: InferredTask, splits: Splits, where: Where) -> InferredTask:
    """Keep only the first row of each image, with a note on the others; they must agree in label and split."""
    rows = np.arange(len(names)) if labels.kept_rows is None else labels.kept_rows
    hashes = np.fromiter(map(hash, take_rows(names, rows)), np.int64, len(rows))
    order = np.argsort(hashes, kind="stable")
    equal = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1  # to the hash before: perhaps the same image
    if not len(equal):
        return labels
    split_of = np.full(len(names), -1)
    for number, members in enumerate(splits.values()):
        split_of[members] = number
    first: dict[str, int] = {}
    repeated: list[int] = []
    for place in np.sort(order[np.union1d(equal - 1, equal)]).tolist():
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
        return labels
    example = int(rows[repeated[0]])
    note = (
        f"{format_count(len(repeated), 'row names', 'rows name')} a picture that an earlier row names with "
        "the same labels, such as "
        f"{names[example]!r} ({where(example)}); each picture is used once."
    )
    kept = np.setdiff1d(np.arange(len(rows)), repeated)
    return replace(labels, targets=labels.targets[kept], kept_rows=rows[kept], notes=(*labels.notes, note))


# -- Locating images: folders are listed once instead of testing each file, so that a million names take seconds.

MAX_NAMED_FILES = 20  # missing images listed in a note
DEPTH = 2  # depth of folders searched for names without a folder
OTHER_WRITING = "By names that are written as in an address (%20) or in another form of Unicode"
ALLOW = "If you trust the manifest, say --data.allow_outside_root true."

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|(file|data|http|https):", re.IGNORECASE)
_UNUSUAL = re.compile(r"^[\\/~]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]+:|(?:^|[\\/])\.\.?(?:[\\/]|$)|[\\/]{2}|\0|^$")
"""Names that need a closer look."""


def locate_images(
    root: Path, cells: Sequence[Cell], settings: DataSettings, where: Where
) -> tuple[CompactStrings, tuple[str, ...]]:
    """Find every image below `root`; names without folder or extension are searched one or two folders deep.

    Full names of another machine lose the beginning after which the first of them is there. Names may be written with
    backslashes, as in an address (%20), or with accents in another Unicode form than the files have.

    Returns the paths relative to the root (absolute ones only where they are allowed), and notes.

    Args:
        cells: the column of names.
        where: how messages name a row, such as "films.csv, line 17".

    Raises:
        DataError: a name leads out of the root, is a URL or is empty; no image exists; or a name without a folder
            matches several files.
    """
    root = root.absolute()  # "." says little in a message
    folders: dict[str, int] = {}
    folder_indices = array("q")
    policy = _PathPolicy(root, settings, where)

    def normalized_names() -> Iterator[str]:
        for row, cell in enumerate(cells):
            name = format_cell(cell).strip()
            name = policy.normalize_path(row, name) if _UNUSUAL.search(name) else name
            folder_indices.append(folders.setdefault(name.rpartition("/")[0], len(folders)))
            yield name

    names = CompactStrings(normalized_names())
    missing = _find_missing_rows(root, names, list(folders), np.frombuffer(folder_indices, np.int64), policy)
    if not missing:
        return names, policy.notes()
    elsewhere, found = _search_missing(root, names, missing, policy)
    notes = [*policy.notes(), *found]
    missing = [row for row in missing if row not in elsewhere]
    if len(missing) == len(names):
        raise DataError(
            f"None of {format_count(len(names), 'picture')} is there: {names[0]!r} ({where(0)}) was looked for in "
            f"{root} and the folders below it. Say where the pictures are with --data-root FOLDER."
            f"{suggest_path(os.path.join(root, names[0]))}"
        )
    _refuse_remarks(names, missing, where)
    if elsewhere:
        names = CompactStrings(elsewhere.get(row, name) for row, name in enumerate(names))
    if missing:
        listed = ", ".join(f"{names[row]!r} ({where(row)})" for row in missing[:MAX_NAMED_FILES])
        more = f" and {len(missing) - MAX_NAMED_FILES:,} more" if len(missing) > MAX_NAMED_FILES else ""
        notes.append(
            f"{format_part(len(missing), len(names), 'picture', 'is', 'are')} missing in {root}: {listed}{more}."
        )
    return names, tuple(notes)


MAX_REMARKS = 3


def _refuse_remarks(names: Sequence[str], missing: list[int], where: Where) -> None:
    """Refuse a few rows below the pictures that name none, such as a row of sums: their labels would be a class.

    Raises:
        DataError: their names have no ending, those of all other rows have one.
    """
    first = next((row for row in missing if not os.path.splitext(names[row])[1]), len(names))
    is_last = missing[-(len(names) - first) :] == list(range(first, len(names)))
    if first == len(names) or not is_last or len(names) - first > min(MAX_REMARKS, first):
        return
    if all(os.path.splitext(names[row])[1] for row in range(first)):
        raise DataError(
            f"{where(first)}: {names[first]!r} names no picture: it has no ending, as all rows above have, and no such "
            "file is there. Delete that line if it is a sum or a remark."
        )


class _PathPolicy:
    """Which names and paths a manifest may use."""

    def __init__(self, root: Path, settings: DataSettings, where: Where):
        self._root = root
        self._real = os.path.realpath(root)
        self._free = settings.allow_outside_root
        self._foreign = ""  # how full names of another machine begin, such as "C:/data/"
        self._moved = 0  # names that began so
        self.where = where

    def normalize_path(self, row: int, name: str) -> str:
        """Normalise an unusual name, or raise an error with the reason."""
        if not name:
            raise DataError(
                f"{self.where(row)}: no picture is named. Name it, or delete that line if it is a sum or a remark."
            )
        if "\0" in name:
            raise DataError(f"{self.where(row)}: {name!r} holds a NUL character, which no file's name can.")
        if _ADDRESS.match(name):
            raise DataError(
                f"{self.where(row)}: {name!r} is an address, and pictures are read from files only. Fetch them first, "
                "and write their names below the manifest's folder."
            )
        if self._free:
            return os.path.expanduser(name) if name.startswith("~") else posixpath.normpath(name)
        parts = re.split(r"[\\/]", name)
        for base in {os.path.abspath(self._root), self._real}:
            if name.startswith(base + "/") and ".." not in parts:
                return posixpath.normpath(name[len(base) + 1 :])
        if parts[0] in ("", "~") or name.startswith("~") or re.match("[A-Za-z]:", name) or ".." in parts:
            if inside := self._cut_foreign_beginning(name, parts):
                return inside
            raise DataError(
                f"{self.where(row)}: {name!r} leads out of {self._root}, where the pictures of a manifest must lie. "
                f"{ALLOW}"
            )
        return posixpath.normpath(name)

    def _cut_foreign_beginning(self, name: str, parts: list[str]) -> str:
        """The end of another machine's full name that is a file below the root, or ""; all names are cut alike."""
        if name.startswith("~") or ".." in parts or os.path.lexists(name):
            return ""
        plain = "/".join(parts)
        if not self._foreign:
            ends = ("/".join(parts[place:]) for place in range(1, len(parts)))
            end = next((end for end in ends if end[:1] not in ("", "/") and self._is_file(end)), "")
            self._foreign = plain[: len(plain) - len(end)] if end else ""
        if not self._foreign or not plain.startswith(self._foreign):
            return ""
        self._moved += 1
        return posixpath.normpath(plain[len(self._foreign) :])

    def _is_file(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self._root, name))

    def notes(self) -> tuple[str, ...]:
        """How names were changed."""
        if not self._moved:
            return ()
        pictures = format_count(self._moved, "picture has a full name", "pictures have full names")
        note = f"{pictures} of another machine, beginning with {self._foreign!r}; what"
        return (f"{note} follows was looked for in {self._root}.",)

    def check_inside_root(self, row: int, name: str) -> None:
        """Refuse a file or folder that a link leads out of the root."""
        if self._free:
            return
        real = os.path.realpath(os.path.join(self._root, name))
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise DataError(
                f"{self.where(row)}: {name!r} is or lies behind a link that leads out of {self._root}, to {real}. "
                f"{ALLOW}"
            )


def _find_missing_rows(
    root: Path, names: CompactStrings, folders: list[str], folder_indices: NDArray[np.int64], policy: _PathPolicy
) -> list[int]:
    """Rows whose file is not in the listing of its folder, ascending."""
    order = np.argsort(folder_indices, kind="stable")
    ends = np.cumsum(np.bincount(folder_indices, minlength=len(folders)))
    missing: list[int] = []
    for folder, rows in zip(folders, np.split(order, ends[:-1]), strict=True):
        there, links = list_folder_names(os.path.join(root, folder))
        if there:
            policy.check_inside_root(int(rows[0]), folder)
        for row in rows.tolist():
            base = names[row].rpartition("/")[2]
            if base in links:
                policy.check_inside_root(row, names[row])
            if base not in there:
                missing.append(row)
    return sorted(missing)


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
    root: Path, names: CompactStrings, missing_rows: list[int], policy: _PathPolicy
) -> tuple[dict[int, str], list[str]]:
    """Search for files that are not at their path: their paths by row, and a note for each way they were found."""
    paths: dict[int, str] = {}
    ways: Counter[str] = Counter()
    files = _index_files(root, {_match_key(names[row].replace("\\", "/")) for row in missing_rows})
    for row in missing_rows:
        name = names[row]
        plain = name.replace("\\", "/")
        matches = files.get(_match_key(plain), [])
        matches = [file for file in matches if _is_named(file, plain)] or matches  # in the letters of the name first
        matches = [file for file in matches if _is_named(_fold(file), _fold(plain))] or matches
        if len(missing_rows) < len(names):  # others are at their place, so one of that name elsewhere may be its mask
            matches = [file for file in matches if file.count("/") == plain.count("/")]
        if len(matches) > 1:
            others = f" and {len(matches) - 2:,} more" if len(matches) > 2 else ""
            raise DataError(
                f"{policy.where(row)}: {name!r} may mean {matches[0]!r} or {matches[1]!r}{others}. Write the folder "
                "and the ending into the manifest, or name the pictures' folder with --data-root."
            )
        if matches:
            paths[row] = matches[0]
            ways[_describe_match(name, matches[0])] += 1
        elif written := next((each for each in _readings(plain) if os.path.lexists(os.path.join(root, each))), ""):
            paths[row] = written
            if written != plain:
                ways[OTHER_WRITING] += 1
        if row in paths:
            policy.check_inside_root(row, paths[row])
    return paths, [f"{way}: {format_count(count, 'picture')}." for way, count in ways.items()]


def _readings(name: str) -> list[str]:
    """What a name may mean: itself (found here where file systems ignore case), an address, other forms of accents."""
    plain = unquote(name)
    return [name, plain, unicodedata.normalize("NFC", plain), unicodedata.normalize("NFD", plain)]  # NFD: of macOS


def _match_key(name: str) -> str:
    """Equal for names that differ only in capitals, the form of Unicode, or the spelling of a format's ending."""
    stem, ending = posixpath.splitext(_fold(name))
    return stem + FORMAT_EXTENSIONS.get(ending, ending)


def _fold(name: str) -> str:
    """Equal for names that differ only in capitals or the form of Unicode."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _describe_match(name: str, file: str) -> str:
    """How images were found, which begins a note."""
    if "\\" in name:
        return "By names with \\ for /"
    if not _is_named(file, name):
        if _is_named(unicodedata.normalize("NFC", file), unicodedata.normalize("NFC", name)):
            return OTHER_WRITING
        if _is_named(_fold(file), _fold(name)):
            return "Found under names with other capitals"
        return "Found with another ending of the same format, such as .jpeg for .jpg"
    ending = os.path.splitext(file)[1]
    folder = name.count("/") < file.count("/")
    if name.endswith(ending):
        return "Found in folders that their names do not say"
    return f"Found with the ending {ending}{', and in folders,' if folder else ''} that their names do not say"


def _is_named(file: str, name: str) -> bool:
    """Whether a file has a name, with or without folder and extension, in these very letters."""
    return name in (
        file,
        posixpath.basename(file),
        os.path.splitext(file)[0],
        posixpath.splitext(posixpath.basename(file))[0],
    )


def _index_files(root: Path, wanted: set[str]) -> dict[str, list[str]]:
    """Files below the root by their wanted `_match_key`: with or without folder, with or without extension."""
    files: dict[str, list[str]] = {}
    pending = [("", 0)]  # folders and their depths
    while pending:
        folder, depth = pending.pop()
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
                pending += [(file + "/", depth + 1)] if depth < DEPTH else []
                continue
            spellings = [file, base]
            if os.path.splitext(base)[1].lower() in FORMAT_EXTENSIONS:
                spellings += [os.path.splitext(each)[0] for each in spellings]
            for key in set(map(_match_key, spellings)) & wanted:
                files.setdefault(key, []).append(file)
    return files
