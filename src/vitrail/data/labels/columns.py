"""Which column of a table names the pictures, which is to be learnt, which parts the rows: by name and by content.

What a person says (`DataSettings.path`, `targets`, `split`, `group`) is taken as it is. A group is never taken unless
a person says so, because it changes the result; the doctor warns of a column that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...config.kinds import nearest
from ...errors import DataError
from ...plural import counted
from ..decoding.picture_names import names_picture
from ..names import SPLIT_NAMES
from ..settings import DataSettings
from .cells import blank, flag, real, unknown
from .coded import Cell, Coded, as_texts, cell_of, code

# fmt: off
PATHS = (
    "path", "filepath", "filename", "file", "imagepath", "imagefile", "imagefilename", "imagename", "image", "img",
    "imgpath", "imgname", "imgfile", "imageindex", "picture", "photo", "fname", "fpath", "imageid", "imgid", "idcode",
    "name", "id",
)
TARGETS = (
    "labelname", "classname", "label", "labels", "class", "classes", "target", "targets", "category", "categories",
    "finding", "findings", "findinglabels", "diagnosis", "dx", "tags", "tag", "species", "y", "classid", "labelid",
    "attributeids", "score", "grade", "severity", "level",
)
SPLITS = ("split", "set", "subset", "partition", "phase", "fold", "usage")
ASIDE = frozenset((
    "age", "sex", "gender", "race", "ethnicity", "view", "date", "time", "year", "timestamp", "width", "height", "size",
    "comment", "comments", "note", "notes", "description", "source", "url", "license", "author", "index", "unnamed",
    "md5", "sha256", "hash", "camera", "scanner", "manufacturer", "frontal", "lateral", "ap", "pa",
))
GROUPS = frozenset((
    "patient", "subject", "case", "module", "place", "site", "person", "participant", "individual", "animal", "plant",
    "device", "wafer", "panel", "plate", "slide", "lesion", "specimen", "sample", "study", "session", "sequence",
    "video", "scene", "location", "family", "household", "farm", "field", "hospital", "group", "identity", "donor",
    "exam", "batch", "lot", "series", "station", "machine", "camera",
))
# fmt: on
SEEN = 10_000  # rows of an uncoded column that decide
MOST = 0.9  # share of the cells that make a column what they are
HALF = 0.5  # share of zeros and ones in a column that is meant to hold nothing else; a wrong cell is named later


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What each column is for; empty where there is none."""

    path: str
    targets: tuple[str, ...]
    split: str
    group: str
    metadata: tuple[str, ...]
    """All others."""
    notes: tuple[str, ...] = ()


def choose(names: Sequence[str], sample: Mapping[str, Sequence[object]], settings: DataSettings, where: str) -> Columns:
    """The roles of columns.

    Args:
        names: all columns, in their order.
        sample: cells of each, all or the first thousands.
        where: the table in messages, such as "films.csv".

    Raises:
        DataError: a column that the settings name is not there, or several may be learnt and none is told.
    """
    for wanted in (settings.path, *settings.targets, settings.split, settings.group, settings.strata):
        if wanted and wanted not in names:
            raise DataError(f"{where} has no column {wanted!r}.{nearest(wanted, names)} Its columns: {listed(names)}.")
    cells = {name: _some(sample[name]) for name in names}
    notes: list[str] = []
    said = {*settings.targets, settings.split, settings.group}
    path = settings.path or _path([name for name in names if name not in said], cells, notes)
    rest = [name for name in names if name != path and name not in said]
    split = settings.split or _split(rest, cells)
    rest = [name for name in rest if name != split]
    targets = settings.targets or _targets([name for name in rest if name != settings.strata], cells, where)
    rest = [name for name in rest if name not in targets]
    return Columns(
        path=path,
        targets=tuple(targets),
        split=split,
        group=settings.group,
        metadata=tuple(rest),
        notes=tuple(notes),
    )


def without_split(columns: Columns, settings: DataSettings) -> Columns:
    """The roles where there are official splits: these win over a column of splits that no setting names."""
    if settings.split or not columns.split:
        return columns
    note = (
        f"The official splits are used, and not column {columns.split!r}, which also names splits. "
        f"--data.split {typed(columns.split)} takes the column instead."
    )
    return replace(columns, split="", metadata=(*columns.metadata, columns.split), notes=(*columns.notes, note))


def listed(names: Sequence[str]) -> str:
    """At most twelve names, quoted."""
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def typed(name: str) -> str:
    """A name as a person types it into a shell."""
    if re.fullmatch(r"[\w./:@%+-]+", name):
        return name
    return "'" + name.replace("'", "'\\''") + "'" if re.search(r'["$`\\!]', name) else f'"{name}"'


def _some(cells: Sequence[object]) -> Coded[Cell]:
    return code(cells) if isinstance(cells, Coded) else code([cell_of(cell) for cell in cells[:SEEN]])


def bare(name: str) -> str:
    """A name by its letters and digits only: "Image Index" and image_index are both imageindex."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _words(name: str) -> list[str]:
    """patientId, "Patient ID" and patient_id are the words patient, id."""
    return re.findall(r"[a-z]+|[0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).casefold())


def _path(names: Sequence[str], cells: Mapping[str, Coded[Cell]], notes: list[str]) -> str:
    """The column whose cells end like pictures, rather one of a known name; else one of a known name."""
    rank = {name: PATHS.index(bare(name)) for name in names if bare(name) in PATHS}
    ending = [name for name in names if _share(cells[name], names_picture) >= MOST]
    if ending:
        best = min(ending, key=lambda name: rank.get(name, len(PATHS)))
        others = [name for name in ending if name != best]
        if others:
            notes.append(
                f"Columns {listed([best, *others])} all name pictures; {best!r} is taken. "
                f"--data.path {typed(others[0])} takes another."
            )
        return best
    texts = [name for name in rank if _share(cells[name], lambda cell: isinstance(cell, str | int)) >= MOST]
    return min(texts, key=rank.__getitem__, default="")


def _share(column: Coded[Cell], holds: Callable[[Cell], bool]) -> float:
    """Share of the rows, less those that are not known, whose cell has a property."""
    counts = column.counts()
    filled = [number for number, value in enumerate(column.values) if not unknown(value)]
    total = int(counts[filled].sum())
    return sum(int(counts[number]) for number in filled if holds(column.values[number])) / total if total else 0.0


def _split(names: Sequence[str], cells: Mapping[str, Coded[Cell]]) -> str:
    """The column whose words are all names of splits, or that is called so and holds at least one of them."""
    for called in (False, True):
        for name in names:
            known = [split_of(value) != "" for value in cells[name].values if not blank(value)]
            if any(known) and (bare(name) in SPLITS if called else all(known) and bare(name) not in TARGETS):
                return name
    return ""


def split_of(cell: Cell) -> str:
    """The split that a word means, or nothing."""
    return SPLIT_NAMES.get(str(cell).strip().casefold(), "")


def _targets(names: Sequence[str], cells: Mapping[str, Coded[Cell]], where: str) -> tuple[str, ...]:
    """The column of a known name; else the columns of zeros and ones; else what remains, if it is one thing."""
    rank = {name: TARGETS.index(bare(name)) for name in names if bare(name) in TARGETS}
    if rank:
        return (min(rank, key=rank.__getitem__),)
    plain = [name for name in names if ASIDE.isdisjoint(_words(name))]
    useful = [name for name in plain if not _identifies(name, cells[name])] or plain
    flags = [name for name in useful if _share(cells[name], _is_flag) >= HALF]
    if len(flags) >= 2:
        return tuple(flags)
    if len(useful) == 1:
        return (useful[0],)
    numbers = [name for name in useful if _all(cells[name], _is_share)]
    if len(numbers) >= 2 and len(numbers) == len(useful):
        return tuple(numbers)
    if not useful:
        return ()
    raise DataError(
        f"{where} has {len(useful)} columns that may be learnt: {listed(useful)}. Name one, or several, with "
        f"--data.targets {typed(useful[0])}"
    )


def _identifies(name: str, column: Coded[Cell]) -> bool:
    """Whether a column says who or which row it is: what looks like a group, an id, or rows counted one by one."""
    numbers = [real(value) for value in column.values]
    counted = len(numbers) == len(column) > 2 and all(
        number is not None and number == place + (numbers[0] or 0) for place, number in enumerate(numbers)
    )
    return counted or bool(like_a_group(name, column)) or _words(name)[-1:] == ["id"]


def _all(column: Coded[Cell], holds: Callable[[Cell], bool]) -> bool:
    words = [value for value in column.values if not unknown(value)]
    return bool(words) and all(holds(value) for value in words)


def _is_flag(cell: Cell) -> bool:
    return flag(cell) is not None


def _is_share(cell: Cell) -> bool:
    number = real(cell)
    return number is not None and 0 <= number <= 1


def like_a_group(name: str, column: Sequence[Cell]) -> str:
    """What a column's equal values seem to be one of: a patient, module or place; empty if it does not look so."""
    coded = code(column)
    words = _words(name)
    alike = next((word for word in words if word in GROUPS), "")
    if not alike and words[-1:] == ["id"] and len(words) > 1:
        alike = words[-2]
    counts = coded.counts()
    repeats = [value for number, value in enumerate(coded.values) if counts[number] > 1 and not blank(value)]
    loose = words[-1:] != ["id"] and 10 * len(coded.values) > 9 * len(coded)  # nearly all differ, and no name says id
    if not alike or not repeats or len(coded.values) < 2 or loose or _all(coded, _is_flag):
        return ""
    return alike


def split_rows(name: str, cells: Sequence[object], where: Callable[[int], str]) -> dict[str, NDArray[np.int64]]:
    """Row numbers of the splits that a column names; rows that name none belong to none.

    Raises:
        DataError: a word that is no split, or some rows in train and others undecided.
    """
    column = code(cells)
    found: dict[str, list[int]] = {}
    for number, value in enumerate(column.values):
        split = split_of(value)
        if not split and not blank(value):
            raise DataError(
                f"{where(column.first(number))}: column {name!r} says {value!r}, which is none of train, val and test. "
                "Leave those rows out, or name another column with --data.split."
            )
        found.setdefault(split, []).append(number)
    rows = {split: np.flatnonzero(np.isin(column.codes, numbers)) for split, numbers in found.items()}
    undecided = rows.pop("", None)
    if undecided is not None and "train" in rows:
        raise DataError(
            f"{where(int(undecided[0]))}: column {name!r} is empty, in {counted(len(undecided), 'row')} in all, though "
            "others say train. Write train, val or test there, or leave those rows out."
        )
    return {split: rows[split] for split in ("train", "val", "test") if split in rows}


def groups_of(name: str, cells: Sequence[object], where: Callable[[int], str]) -> tuple[NDArray[np.object_], str]:
    """The group of each row as text, and a note where some had none: each of those is a group of its own."""
    column = as_texts(code(cells))
    groups = np.array(list(column), dtype=object)
    alone = np.flatnonzero(groups == "")
    for row in alone.tolist():
        groups[row] = f"(none, {where(row)})"
    note = f"{len(alone):,} rows have an empty {name!r}; each counts as a group of its own." if len(alone) else ""
    return groups, note
