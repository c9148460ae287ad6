"""Infer column roles of a table (image path, targets, split, metadata) by name and by content, and parse cells.

Columns named in the settings (`DataSettings.path`, `targets`, `split`, `group`) are used as they are. A group column
is never inferred, because it changes the result; the dataset check warns of a column that looks like one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...config.schema import suggest_name
from ...errors import DataError
from ...formatting import format_count
from ..decoding.decoded_image import has_image_extension
from ..settings import DataSettings
from ..source import SPLIT_NAMES, SPLITS
from .codes import CategoricalColumn, Cell, encode_categorical, format_column

# fmt: off
PATH_COLUMN_NAMES = (
    "path", "filepath", "filename", "file", "imagepath", "imagefile", "imagefilename", "imagename", "image", "img",
    "imgpath", "imgname", "imgfile", "imageindex", "picture", "photo", "fname", "fpath", "imageid", "imgid", "idcode",
    "name", "id",
)
TARGET_COLUMN_NAMES = (
    "labelname", "classname", "label", "labels", "class", "classes", "target", "targets", "category", "categories",
    "finding", "findings", "findinglabels", "diagnosis", "dx", "tags", "tag", "species", "y", "classid", "labelid",
    "attributeids", "score", "grade", "severity", "level",
)
SPLIT_COLUMN_NAMES = ("split", "set", "subset", "partition", "phase", "fold", "usage")
METADATA_WORDS = frozenset((
    "age", "sex", "gender", "race", "ethnicity", "view", "date", "time", "year", "timestamp", "width", "height", "size",
    "comment", "comments", "note", "notes", "description", "source", "url", "license", "author", "index", "unnamed",
    "md5", "sha256", "hash", "camera", "scanner", "manufacturer", "frontal", "lateral", "ap", "pa",
))
GROUP_WORDS = frozenset((
    "patient", "subject", "case", "module", "place", "site", "person", "participant", "individual", "animal", "plant",
    "device", "wafer", "panel", "plate", "slide", "lesion", "specimen", "sample", "study", "session", "sequence",
    "video", "scene", "location", "family", "household", "farm", "field", "hospital", "group", "identity", "donor",
    "exam", "batch", "lot", "series", "station", "machine", "camera",
))
# fmt: on
MAX_SAMPLED_ROWS = 10_000
"""Rows of an unencoded column from which its role is inferred."""
MAJORITY = 0.9
"""Fraction of the cells that decides the kind of a column."""
FLAG_MAJORITY = 0.5
"""Fraction of zeros and ones that makes a column one of flags; its wrong cells are errors later."""


CodedColumns = Mapping[str, CategoricalColumn[Cell]]


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """The role of each column; empty where there is none."""

    path: str
    targets: tuple[str, ...]
    split: str
    group: str
    metadata: tuple[str, ...]
    """All others."""
    notes: tuple[str, ...] = ()


def infer_column_roles(
    names: Sequence[str], sample: Mapping[str, Sequence[object]], settings: DataSettings, where: str
) -> ColumnRoles:
    """Infer the role of each column.

    Args:
        names: all columns, in their order.
        sample: cells of each, all or the first thousands.
        where: the table in messages, such as "films.csv".

    Raises:
        DataError: a column that the settings name is missing, or several columns may be the target and none is named.
    """
    for wanted in (settings.path, *settings.targets, settings.split, settings.group, settings.strata):
        if wanted and wanted not in names:
            raise DataError(
                f"{where} has no column {wanted!r}.{suggest_name(wanted, names)} Its columns: {quote_names(names)}."
            )
    cells = {}
    for name in names:
        whole = sample[name]
        cells[name] = encode_categorical(whole if isinstance(whole, CategoricalColumn) else whole[:MAX_SAMPLED_ROWS])
    named = {*settings.targets, settings.split, settings.group}
    path = settings.path
    notes: tuple[str, ...] = ()
    if not path:
        path, notes = _infer_path_column([name for name in names if name not in named], cells)
    rest = [name for name in names if name != path and name not in named]
    split = settings.split or _infer_split_column(rest, cells)
    rest = [name for name in rest if name != split]
    candidates = [name for name in rest if name != settings.strata]
    targets = settings.targets or _infer_target_columns(candidates, cells, where)
    metadata = tuple(name for name in rest if name not in targets)
    return ColumnRoles(path=path, targets=targets, split=split, group=settings.group, metadata=metadata, notes=notes)


def drop_split_column(columns: ColumnRoles, settings: DataSettings) -> ColumnRoles:
    """Demote an inferred split column to metadata: official splits take precedence over it."""
    if settings.split or not columns.split:
        return columns
    note = (
        f"The official splits are used, and not column {columns.split!r}, which also names splits. "
        f"--data.split {quote_for_shell(columns.split)} takes the column instead."
    )
    return replace(columns, split="", metadata=(*columns.metadata, columns.split), notes=(*columns.notes, note))


def quote_names(names: Sequence[str]) -> str:
    """Quote at most twelve names, separated by commas."""
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def quote_for_shell(name: str) -> str:
    """Quote a name for a shell where needed."""
    if re.fullmatch(r"[\w./:@%+-]+", name):
        return name
    return "'" + name.replace("'", "'\\''") + "'" if re.search(r'["$`\\!]', name) else f'"{name}"'


def normalize_column_name(name: str) -> str:
    """A column name in lower case without other characters than letters and digits: "Image Index" is imageindex."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _split_column_words(name: str) -> list[str]:
    """Split a column name into words: patientId, "Patient ID" and patient_id become patient, id."""
    return re.findall(r"[a-z]+|[0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).casefold())


def _infer_path_column(names: Sequence[str], cells: CodedColumns) -> tuple[str, tuple[str, ...]]:
    """The column whose cells end like image files, preferably one of a known name; else one of a known name."""
    rank = _rank_names(names, PATH_COLUMN_NAMES)
    ending = [name for name in names if _fraction_of_rows(cells[name], has_image_extension) >= MAJORITY]
    if not ending:
        texts = [
            name
            for name in rank
            if _fraction_of_rows(cells[name], lambda cell: isinstance(cell, str | int)) >= MAJORITY
        ]
        return min(texts, key=rank.__getitem__, default=""), ()
    best = min(ending, key=lambda name: rank.get(name, len(PATH_COLUMN_NAMES)))
    others = [name for name in ending if name != best]
    if not others:
        return best, ()
    note = (
        f"Columns {quote_names([best, *others])} all name pictures; {best!r} is taken. "
        f"--data.path {quote_for_shell(others[0])} takes another."
    )
    return best, (note,)


def _rank_names(names: Sequence[str], known: Sequence[str]) -> dict[str, int]:
    """The place in the list of known names of each column that has one."""
    plain = {name: normalize_column_name(name) for name in names}
    return {name: known.index(plain[name]) for name in names if plain[name] in known}


def _fraction_of_rows(column: CategoricalColumn[Cell], predicate: Callable[[Cell], bool]) -> float:
    """Fraction of the rows with a known cell for which the predicate holds."""
    counts = column.counts()
    filled = [number for number, value in enumerate(column.values) if not is_unknown(value)]
    total = int(counts[filled].sum())
    return sum(int(counts[number]) for number in filled if predicate(column.values[number])) / total if total else 0.0


def _infer_split_column(names: Sequence[str], cells: CodedColumns) -> str:
    """The column whose cells are all split names, or that has a known name and holds at least one split name."""
    candidates = []
    for name in names:
        known = [parse_split_name(value) != "" for value in cells[name].values if not is_blank(value)]
        if any(known) and all(known) and normalize_column_name(name) not in TARGET_COLUMN_NAMES:
            return name
        if any(known) and normalize_column_name(name) in SPLIT_COLUMN_NAMES:
            candidates.append(name)
    return candidates[0] if candidates else ""


def parse_split_name(cell: Cell) -> str:
    """The split that a word means, or an empty string."""
    return SPLIT_NAMES.get(str(cell).strip().casefold(), "")


def _infer_target_columns(names: Sequence[str], cells: CodedColumns, where: str) -> tuple[str, ...]:
    """The column of a known name; else the columns of zeros and ones; else the single remaining candidate."""
    rank = _rank_names(names, TARGET_COLUMN_NAMES)
    if rank:
        return (min(rank, key=rank.__getitem__),)
    plain = [name for name in names if METADATA_WORDS.isdisjoint(_split_column_words(name))]
    useful = [name for name in plain if not _is_identifier(name, cells[name])] or plain
    flags = [name for name in useful if _fraction_of_rows(cells[name], _is_flag) >= FLAG_MAJORITY]
    if len(flags) >= 2:
        return tuple(flags)
    if len(useful) == 1:
        return (useful[0],)
    numbers = [name for name in useful if _all_values(cells[name], _is_probability)]
    if len(numbers) >= 2 and len(numbers) == len(useful):
        return tuple(numbers)
    if not useful:
        return ()
    raise DataError(
        f"{where} has {len(useful)} columns that may be learnt: {quote_names(useful)}. Name one, or several, with "
        f"--data.targets {quote_for_shell(useful[0])}"
    )


def _is_identifier(name: str, column: CategoricalColumn[Cell]) -> bool:
    """Whether a column identifies rows or subjects: it looks like a group, an id, or a row counter."""
    numbers = [parse_number(value) for value in column.values]
    counted = len(numbers) == len(column) > 2 and all(
        number is not None and number == place + (numbers[0] or 0) for place, number in enumerate(numbers)
    )
    return counted or bool(guess_group_kind(name, column)) or _split_column_words(name)[-1:] == ["id"]


def _all_values(column: CategoricalColumn[Cell], predicate: Callable[[Cell], bool]) -> bool:
    """Whether there are known values and the predicate holds for all of them."""
    known = [value for value in column.values if not is_unknown(value)]
    return bool(known) and all(predicate(value) for value in known)


def _is_flag(cell: Cell) -> bool:
    return parse_flag(cell) is not None


def _is_probability(cell: Cell) -> bool:
    number = parse_number(cell)
    return number is not None and 0 <= number <= 1


def guess_group_kind(name: str, column: Sequence[Cell]) -> str:
    """The kind of group that a column seems to identify, such as patient, module or place; empty if none."""
    coded = encode_categorical(column)
    words = _split_column_words(name)
    alike = next((word for word in words if word in GROUP_WORDS), "")
    if not alike and words[-1:] == ["id"] and len(words) > 1:
        alike = words[-2]
    counts = coded.counts()
    repeats = [value for number, value in enumerate(coded.values) if counts[number] > 1 and not is_blank(value)]
    loose = words[-1:] != ["id"] and 10 * len(coded.values) > 9 * len(coded)  # nearly all differ, and no name says id
    if not alike or not repeats or len(coded.values) < 2 or loose or _all_values(coded, _is_flag):
        return ""
    return alike


def rows_by_split(name: str, cells: Sequence[object], where: Callable[[int], str]) -> dict[str, NDArray[np.int64]]:
    """Row indices per split named in a column; rows with an empty cell belong to no split.

    Raises:
        DataError: a word that is no split name, or empty cells although other rows are in train.
    """
    column = encode_categorical(cells)
    codes: dict[str, list[int]] = {}
    for number, value in enumerate(column.values):
        split = parse_split_name(value)
        if not split and not is_blank(value):
            raise DataError(
                f"{where(column.first_row(number))}: column {name!r} says {value!r}, which is none of train, val and "
                "test. Leave those rows out, or name another column with --data.split."
            )
        codes.setdefault(split, []).append(number)
    rows = {split: np.flatnonzero(np.isin(column.codes, numbers)) for split, numbers in codes.items()}
    undecided = rows.pop("", None)
    if undecided is not None and "train" in rows:
        raise DataError(
            f"{where(int(undecided[0]))}: column {name!r} is empty, in {format_count(len(undecided), 'row')} in all, "
            "though others say train. Write train, val or test there, or leave those rows out."
        )
    return {split: rows[split] for split in SPLITS if split in rows}


def read_groups(name: str, cells: Sequence[object], where: Callable[[int], str]) -> tuple[NDArray[np.object_], str]:
    """The group of each row as text, and a note where some are empty: each of those is a group of its own."""
    column = format_column(encode_categorical(cells))
    groups = np.array(list(column), dtype=object)
    alone = np.flatnonzero(groups == "")
    for row in alone.tolist():
        groups[row] = f"(none, {where(row)})"
    note = f"{len(alone):,} rows have an empty {name!r}; each counts as a group of its own." if len(alone) else ""
    return groups, note


# -- Cells: numbers, flags and lists of words. In columns of class names every cell is plain text.

UNKNOWN = frozenset(("", "nan", "na", "n/a", "<na>", "null", "none"))
"""Words for a missing value in columns of numbers and of zeros and ones; never in columns of words."""
UNCERTAIN = math.inf
"""The value of `parse_flag` for a label marked as uncertain."""
LARGEST = 3e38
"""Larger numbers are infinite in single precision, and so are refused."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
# fmt: off
_FLAGS = {
    "0": 0.0, "0.0": 0.0, "false": 0.0,
    "1": 1.0, "1.0": 1.0, "true": 1.0,
    "-1": UNCERTAIN, "-1.0": UNCERTAIN, "u": UNCERTAIN, "uncertain": UNCERTAIN,
}
# fmt: on


def is_blank(cell: Cell) -> bool:
    """Whether a cell of any column is empty; NA is a word."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def is_unknown(cell: Cell) -> bool:
    """Whether a cell of a column of numbers is a missing value."""
    return cell is None or (isinstance(cell, str) and cell.strip().casefold() in UNKNOWN)


def parse_number(cell: Cell) -> float | None:
    """Parse a number with a decimal point or comma; NaN if unknown, None if the cell holds no number."""
    if is_unknown(cell):
        return math.nan
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell) if -LARGEST < cell < LARGEST else None
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    if _COMMA.fullmatch(text):
        text = text.replace(",", ".")
    number = float(text) if _NUMBER.fullmatch(text) else None
    return number if number is None or -LARGEST < number < LARGEST else None


def parse_flag(cell: Cell) -> float | None:
    """Parse a flag: 0, 1, `UNCERTAIN`, or NaN if unknown; None if the cell holds anything else."""
    if is_unknown(cell):
        return math.nan
    return _FLAGS.get(str(cell).strip().casefold())


def is_minus_one(cell: Cell) -> bool:
    """Whether a cell is the number -1, which many tables write for a missing value."""
    return parse_number(cell) == -1


def split_words(cell: Cell, separator: str) -> tuple[str, ...]:
    """The distinct words of a cell, in their order."""
    words = cell if isinstance(cell, tuple) else str(cell).split(separator) if cell is not None else ()
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
