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

from ...config.library_names import suggest_name
from ...errors import DataError
from ...formatting import format_count
from ..decoding.decoded_image import has_image_extension
from ..settings import NO_SPLIT_COLUMN, DataSettings
from ..source import SPLIT_NAMES, SPLITS
from .codes import CategoricalColumn, Cell, Where, encode_categorical, format_cell, format_column
from .numbers import is_blank, is_unknown, number_key, read_numbers

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
SPLIT_COLUMN_WORDS = frozenset(("split", "subset", "partition"))
"""Words in the name of a column that holds splits, and nothing else."""
SPLIT_CODES = SPLIT_NAMES | {
    "tr": "train", "trn": "train", "va": "val", "vl": "val", "validate": "val", "development": "val", "tune": "val",
    "te": "test", "tst": "test", "holdout": "test", "hold-out": "test", "heldout": "test", "held-out": "test",
    "publictest": "val", "privatetest": "test",  # Kaggle's FER2013
}
"""Words and abbreviations for splits; in columns that are called so."""
NUMBERED_SPLITS = {"0": "train", "1": "val", "2": "test"}  # as CelebA and WILDS count
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
MAX_SPLIT_WORDS = 20
"""Distinct words of a column that may say splits."""
FLAG_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
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
    for wanted in (settings.path, *settings.targets, settings.split_column, settings.group, settings.strata):
        if wanted and wanted not in names:
            raise DataError(
                f"{where} has no column {wanted!r}.{suggest_name(wanted, names)} Its columns: {quote_names(names)}."
            )
    cells = {}
    for name in names:
        whole = sample[name]
        cells[name] = encode_categorical(whole if isinstance(whole, CategoricalColumn) else whole[:MAX_SAMPLED_ROWS])
    named = {*settings.targets, settings.split_column, settings.group}
    path = settings.path
    notes: tuple[str, ...] = ()
    if not path:
        path, notes = _infer_path_column([name for name in names if name not in named], cells)
    rest = [name for name in names if name != path and name not in named]
    split = settings.split_column
    if not settings.split:
        has_targets = bool(settings.targets or _rank_names(rest, TARGET_COLUMN_NAMES))
        split, split_notes = _infer_split_column(rest, cells, has_targets)
        notes += split_notes
    rest = [name for name in rest if name != split]
    candidates = [name for name in rest if name != settings.strata]
    targets = settings.targets or _infer_target_columns(candidates, cells, where)
    metadata = tuple(name for name in rest if name not in targets)
    return ColumnRoles(path=path, targets=targets, split=split, group=settings.group, metadata=metadata, notes=notes)


def drop_split_column(columns: ColumnRoles, settings: DataSettings) -> ColumnRoles:
    """Demote an inferred split column to metadata: official splits take precedence over it."""
    if settings.split_column or not columns.split:
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


def _infer_split_column(names: Sequence[str], cells: CodedColumns, has_targets: bool) -> tuple[str, tuple[str, ...]]:
    """The column that says splits, and notes on one that may but is not followed.

    It holds nothing but split names; or it is called so and holds a split name, or words that `rows_by_split` reads or
    asks about; or it is called like one split (is_valid, train) and holds zeros and ones.

    Args:
        has_targets: a column is known to be the target, so that one called "train" is no label beside others.
    """
    plain = {name: normalize_column_name(name) for name in names}
    words = {name: _split_words_of(cells[name]) for name in names}
    names = [name for name in names if words[name] and plain[name] not in TARGET_COLUMN_NAMES]
    for name in names:
        if words[name] <= SPLIT_NAMES.keys():
            return name, ()
    flags = [name for name in names if _flagged_split(name) and words[name] <= FLAG_WORDS.keys()]
    flags = [name for name in flags if has_targets or normalize_column_name(name) not in SPLIT_NAMES]
    called = [
        name
        for name in names
        if (plain[name] in SPLIT_COLUMN_NAMES and words[name] & SPLIT_NAMES.keys())
        or (plain[name] in SPLIT_COLUMN_NAMES and _read_split_codes(name, cells[name]))
        or (_is_called_split(name) and 1 < len(words[name]) <= MAX_SPLIT_WORDS)
    ]
    if called or flags:
        return (called or flags)[0], ()
    return "", tuple(
        f"Column {name!r} may say splits, but holds {quote_names(sorted(words[name]))}, so it is not followed and new "
        f"splits are drawn. --data.split {quote_for_shell(f'{name}:WORD=train,WORD=test')} follows it."
        for name in names
        if plain[name] in SPLIT_COLUMN_NAMES
        and 1 < len(words[name]) <= MAX_SPLIT_WORDS
        and all(len(word) <= 2 for word in words[name])
    )


def _is_called_split(name: str) -> bool:
    return not SPLIT_COLUMN_WORDS.isdisjoint(_split_column_words(name))


def _split_words_of(column: CategoricalColumn[Cell]) -> set[str]:
    """The distinct words of a column in lower case; whole numbers without decimals."""
    return {_normalize_split_word(value) for value in column.values if not is_blank(value)}


def _normalize_split_word(cell: Cell) -> str:
    word = format_cell(cell).strip().casefold()
    return number_key(word) or word


def _flagged_split(name: str) -> str:
    """The split of the rows that a column of zeros and ones marks, by its name: is_valid, train; empty if none."""
    words = [word for word in _split_column_words(name) if word not in ("is", "in", "set", "image", "img", "sample")]
    word = normalize_column_name(name).removeprefix("is") if len(words) != 1 else words[0].removeprefix("is")
    ambiguous = word == "valid" and not normalize_column_name(name).startswith("is")  # perhaps a picture of quality
    return "" if ambiguous else SPLIT_NAMES.get(word, "")


def _read_split_codes(name: str, column: CategoricalColumn[Cell]) -> dict[str, str]:
    """The split that each word of a column means, if its name and all of its words make that certain; else empty.

    Numbers and flags count only if most rows would be in train.
    """
    words = _split_words_of(column)
    if words <= SPLIT_CODES.keys():
        return {word: SPLIT_CODES[word] for word in words}
    marked = _flagged_split(name)
    if marked and words <= FLAG_WORDS.keys():
        other = "test" if marked == "train" else "train"
        codes = {word: marked if FLAG_WORDS[word] else other for word in words}
    elif words == NUMBERED_SPLITS.keys() and normalize_column_name(name) != "fold":
        codes = NUMBERED_SPLITS
    else:
        return {}
    meant = [codes.get(_normalize_split_word(value)) for value in column.values]
    train = int(column.counts()[[split == "train" for split in meant]].sum())
    return codes if 2 * train >= len(column) else {}


def _infer_target_columns(names: Sequence[str], cells: CodedColumns, where: str) -> tuple[str, ...]:
    """The column of a known name; else the columns of zeros and ones; else the single remaining candidate."""
    names = [name for name in names if not _all_values(cells[name], _is_date)] or names  # a "Tag" in German is a day
    rank = _rank_names(names, TARGET_COLUMN_NAMES)
    if rank:
        return (min(rank, key=rank.__getitem__),)
    plain = [name for name in names if METADATA_WORDS.isdisjoint(_split_column_words(name))]
    varied = [name for name in plain if sum(not is_blank(value) for value in cells[name].values) > 1]
    useful = [name for name in varied if not _is_identifier(name, cells[name])] or varied or plain
    flags = [name for name in useful if _fraction_of_rows(cells[name], _is_flag) >= FLAG_MAJORITY]
    if len(flags) >= 2:
        return tuple(flags)
    if len(useful) == 1:
        return (useful[0],)
    if len(useful) >= 2 and all(_hold_probabilities(cells[name]) for name in useful):
        return tuple(useful)
    if not useful:
        return ()
    raise DataError(
        f"{where} has {format_count(len(useful), 'column')} that may be learnt: {quote_names(useful)}. Name one, or "
        f"several, with --data.targets {quote_for_shell(useful[0])}"
    )


DATE_CELL = re.compile(r"(\d{4}([-./])\d{1,2}\2\d{1,2}|\d{1,2}([-./])\d{1,2}\3\d{4})([ T]\d{1,2}:\d\d.*)?")
"""Dates as tables have them: 2024-03-12, 12.03.2024, 3/12/2024, with or without a time."""


def _is_date(cell: Cell) -> bool:
    return DATE_CELL.fullmatch(format_cell(cell).strip()) is not None


def _is_identifier(name: str, column: CategoricalColumn[Cell]) -> bool:
    """Whether a column identifies rows or subjects: it looks like a group, an id, or a row counter."""
    numbers = [number for number in read_numbers(column).values if number is not None and not math.isnan(number)]
    counted = len(numbers) > max(
        2, MAJORITY * len(column)
    ) and all(  # but for a row of sums, or one that is there twice
        number == place + numbers[0] for place, number in enumerate(numbers)
    )
    return counted or bool(guess_group_kind(name, column)) or _split_column_words(name)[-1:] == ["id"]


def _all_values(column: CategoricalColumn[Cell], predicate: Callable[[Cell], bool]) -> bool:
    """Whether there are known values and the predicate holds for all of them."""
    known = [value for value in column.values if not is_unknown(value)]
    return bool(known) and all(predicate(value) for value in known)


def _is_flag(cell: Cell) -> bool:
    return parse_flag(cell) is not None


def _hold_probabilities(column: CategoricalColumn[Cell]) -> bool:
    """Whether there are known values and all are numbers in 0..1."""
    numbers = read_numbers(column).values
    return not all(map(is_unknown, column.values)) and not any(n is None or n < 0 or n > 1 for n in numbers)


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


def rows_by_split(
    name: str, cells: Sequence[object], where: Where, settings: DataSettings
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Row indices per split named in a column, and a note if they are named by codes; empty cells are in no split.

    Args:
        name: the column; empty if there is none.

    Raises:
        DataError: a word that is no split name and no certain code, or empty cells although other rows are in train.
    """
    if not name:
        return {}, ()
    column = encode_categorical(cells)
    words = [_normalize_split_word(value) for value in column.values]
    meanings = {**SPLIT_NAMES, **_read_split_codes(name, column), **settings.split_codes, "": ""}
    unknown = [number for number, word in enumerate(words) if word not in meanings]
    counts = column.counts()
    held: dict[str, int] = {}
    for word, count in zip(words, counts.tolist(), strict=True):
        held[word] = held.get(word, 0) + count
    if unknown:
        first = column.first_row(unknown[0])
        listed = ", ".join(
            f"{word!r} ({format_count(count, 'row')})" for word, count in list(held.items())[:12] if word
        )
        asked = dict.fromkeys(words[n] for n in unknown)
        example = ",".join(
            f"{word}={split}"
            for word, split in zip(asked, ("train", "test") if len(asked) < 3 else SPLITS, strict=False)
        )
        raise DataError(
            f"{where(first)}: column {name!r} says {column.values[unknown[0]]!r}, which is none of train, val and "
            f"test; the column holds {listed}. Say what its words mean, such as --data.split "
            f"{quote_for_shell(f'{name}:{example}')}, leave those rows out, or draw new splits with --data.split "
            f"{NO_SPLIT_COLUMN}."
        )
    codes_of = {split: [n for n, word in enumerate(words) if meanings[word] == split] for split in ("", *SPLITS)}
    rows = {split: np.flatnonzero(np.isin(column.codes, numbers)) for split, numbers in codes_of.items() if numbers}
    undecided = rows.pop("", None)
    if undecided is not None and "train" in rows:
        raise DataError(
            f"{where(int(undecided[0]))}: column {name!r} is empty, in {format_count(len(undecided), 'row')} in all, "
            "though others say train. Write train, val or test there, or leave those rows out."
        )
    if all(word in SPLIT_NAMES for word in held if word):
        return rows, ()
    read = ", ".join(
        f"{word!r} as {meanings[word]} ({format_count(count, 'row')})" for word, count in held.items() if word
    )
    return rows, (f"Column {name!r} says the splits: {read}. --data.split {NO_SPLIT_COLUMN} draws new ones.",)


def read_groups(name: str, cells: Sequence[object], where: Where) -> tuple[NDArray[np.object_], str]:
    """The group of each row as text, and a note where some are empty: each of those is a group of its own."""
    column = format_column(encode_categorical(cells))
    spellings: dict[str, str] = {}  # numbers of equal value, such as 3 and 3.0, are one group, named as it came first
    groups = np.array([spellings.setdefault(number_key(name) or name, name) for name in column], dtype=object)
    alone = np.flatnonzero(groups == "")
    for row in alone.tolist():
        groups[row] = f"(none, {where(row)})"
    empty = f"{format_count(len(alone), 'row has', 'rows have')} an empty {name!r}; each counts as a group of its own."
    note = empty if len(alone) else ""
    return groups, note


# -- Cells: flags and lists of words. In columns of class names every cell is plain text.

UNCERTAIN = math.inf
"""The value of `parse_flag` for a label marked as uncertain."""
# fmt: off
_FLAGS = {
    "0": 0.0, "0.0": 0.0, "false": 0.0,
    "1": 1.0, "1.0": 1.0, "true": 1.0,
    "-1": UNCERTAIN, "-1.0": UNCERTAIN, "u": UNCERTAIN, "uncertain": UNCERTAIN,
}
# fmt: on


def parse_flag(cell: Cell) -> float | None:
    """Parse a flag: 0, 1, `UNCERTAIN`, or NaN if unknown; None if the cell holds anything else."""
    if is_unknown(cell):
        return math.nan
    return _FLAGS.get(str(cell).strip().casefold())


def split_words(cell: Cell, separator: str) -> tuple[str, ...]:
    """The distinct words of a cell, in their order."""
    words = cell if isinstance(cell, tuple) else str(cell).split(separator) if cell is not None else ()
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
