"""What the samples of tar shards show: their .cls, .json and .txt files as the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..labels.coded import Cell, as_texts, code
from ..labels.columns import choose, groups_of, split_rows, without_split
from ..labels.tasks import Answers, infer
from ..settings import DataSettings
from .members import contents
from .samples import SHOWN, Samples
from .tables import Columns

CLASS, TEXT, FIELDS = "cls", "txt", "json"
LONGEST = {CLASS: 4096, TEXT: 2**16, FIELDS: 2**24}
"""Bytes of the longest file of each kind that is read."""
SEEN = 10_000
"""Samples whose fields decide which of them are read of all."""
FEW = 20
"""Texts of which more must come again, or they are captions."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is known of each sample beside its picture."""

    answers: Answers
    groups: NDArray[np.object_] | None
    splits: Mapping[str, NDArray[np.int64]]
    metadata: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]


def kinds_wanted(settings: DataSettings) -> tuple[str, ...]:
    """Suffixes of files that may say what a picture shows."""
    return tuple(dict.fromkeys((CLASS, TEXT, FIELDS, *settings.targets)))


def read_labels(samples: Samples, settings: DataSettings, name: str, official: bool = False) -> Told:
    """The task and every sample's answer, group, split and further fields.

    What is to be learnt are the files that `settings.targets` names by their suffix, or the fields of the .json files
    that it names; by default .cls, else a field that looks like a label, else .txt.

    Args:
        official: the shards' names tell their splits already.

    Raises:
        DataError: no labels at all, samples that lack one, captions instead of labels, or a file that cannot be read.
    """
    there = [suffix for suffix, part in samples.labels.items() if len(part.rows())]
    columns: dict[str, Sequence[Cell]] = {each: _texts(samples, each) for each in _text_files(there, settings)}
    fields = _fields(samples, columns) if FIELDS in there else {}
    if not columns and not fields:
        raise DataError(_no_labels(samples, name))
    asked = replace(settings, path="", targets=settings.targets or (CLASS,) * (CLASS in columns))
    roles = choose((*columns, *fields), {**_few(columns), **fields}, asked, name)
    roles = without_split(roles, settings) if official else roles
    if not roles.targets:
        raise DataError(_no_labels(samples, name))
    _check_complete(samples, roles.targets, columns)
    wanted = [*roles.targets, roles.split, roles.group, *_metadata(roles.metadata, fields)]
    columns |= _read_fields(samples, np.arange(len(samples.ids)), [each for each in wanted if each in fields])
    if roles.targets == (TEXT,):
        _check_captions(columns[TEXT], settings, name)
    groups, note = groups_of(roles.group, columns[roles.group], samples.where) if roles.group else (None, "")
    return Told(
        answers=_answers({each: columns[each] for each in roles.targets}, settings, samples),
        groups=groups,
        splits=split_rows(roles.split, columns[roles.split], samples.where) if roles.split else {},
        metadata={each: as_texts(columns[each]) for each in roles.metadata if each in columns},
        notes=tuple(each for each in (*roles.notes, note) if each and "--data.path" not in each),
    )


def _text_files(there: Sequence[str], settings: DataSettings) -> list[str]:
    """Suffixes whose files are read as text: .cls, those that were asked for, and .txt where it is all there is."""
    chosen = [suffix for suffix in there if suffix != FIELDS and suffix in (CLASS, *settings.targets)]
    return chosen or [TEXT] * (TEXT in there and FIELDS not in there)


def _answers(columns: Mapping[str, Sequence[Cell]], settings: DataSettings, samples: Samples) -> Answers:
    """A .cls file holds one class, also where the classes are numbers."""
    if tuple(columns) == (CLASS,) and settings.task == "auto":
        found = infer(columns, replace(settings, task="classes"), samples.where)
        return replace(found, reason="Each sample has one class in its .cls file.")
    return infer(columns, settings, samples.where)


def _texts(samples: Samples, suffix: str) -> Sequence[Cell]:
    """The text in the files of one suffix, None where a sample has none."""
    column = Columns((suffix,))
    for row, data in _contents(samples, np.arange(len(samples.ids)), suffix):
        try:
            text = data.decode("utf-8-sig").strip()
        except ValueError:
            raise DataError(f"{samples.where(row)}.{suffix} is not text in UTF-8. Write the label as text.") from None
        if suffix == CLASS and len(text.splitlines()) > 1:
            raise DataError(f"{samples.where(row)}.{suffix} holds several lines, and one class is expected.")
        column.add((text if samples.labels[suffix].offsets[row] >= 0 else None,))
    return column.finish()[suffix]


def _fields(samples: Samples, taken: Mapping[str, object]) -> dict[str, Sequence[Cell]]:
    """Fields of some thousand .json files in the order of their appearance, with what these hold."""
    there = samples.labels[FIELDS].rows()
    rows = there[np.unique(np.linspace(0, len(there) - 1, min(len(there), SEEN)).astype(np.int64))]
    names: dict[str, None] = {}
    for row, data in _contents(samples, rows, FIELDS):
        names |= dict.fromkeys(_object(data, samples.where(row)))
    return _read_fields(samples, rows, [name for name in names if name not in taken])


def _read_fields(samples: Samples, rows: NDArray[np.int64], names: Sequence[str]) -> dict[str, Sequence[Cell]]:
    columns = Columns(names)
    if names:
        for row, data in _contents(samples, rows, FIELDS):
            found = _object(data, samples.where(row)) if data else {}
            columns.add([_cell(found.get(name)) for name in names])
    return columns.finish()


def _contents(samples: Samples, rows: NDArray[np.int64], suffix: str) -> Iterator[tuple[int, bytes]]:
    """Rows with the contents of their file of one suffix, b"" where there is none."""
    part = samples.labels[suffix]
    limit = LONGEST.get(suffix, LONGEST[TEXT])
    long = np.flatnonzero(part.sizes > limit)
    if len(long):
        raise DataError(
            f"{samples.where(int(long[0]))}.{suffix} has {part.sizes[long[0]]:,} bytes, limit {limit:,}: more than a "
            f"label needs. {len(long):,} such files in all."
        )
    found = contents(samples.shards, samples.numbers[rows], part.offsets[rows], part.sizes[rows])
    return zip(rows.tolist(), found, strict=True)


def _object(data: bytes, where: str) -> dict[str, object]:
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are both ValueErrors
        raise DataError(f"{where}.{FIELDS} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise DataError(f'{where}.{FIELDS} must hold an object such as {{"label": "cat"}}. Got {str(found)[:60]!r}.')
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _cell(value: object) -> object:
    """A value that a column can hold; whatever is nested deeper than a list becomes text."""
    nested = isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(part, dict | list) or part is None for part in value)
    )
    return json.dumps(value, ensure_ascii=False) if nested else value


def _few(columns: Mapping[str, Sequence[Cell]]) -> dict[str, Sequence[Cell]]:
    return {name: column[:SEEN] for name, column in columns.items()}


def _metadata(names: Sequence[str], fields: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Fields worth keeping of a million samples: those whose values come again."""
    return [
        name
        for name in names
        if name in fields and (len(fields[name]) < SEEN or 2 * len(code(fields[name]).values) <= len(fields[name]))
    ]


def _check_complete(samples: Samples, targets: Sequence[str], columns: Mapping[str, object]) -> None:
    """Every sample needs the files that its label stands in."""
    for suffix in dict.fromkeys(name if name in columns else FIELDS for name in targets):
        lacking = np.flatnonzero(samples.labels[suffix].offsets < 0).tolist()
        if lacking:
            names = ", ".join(map(samples.where, lacking[:SHOWN]))
            more = f" and {len(lacking) - SHOWN:,} more" if len(lacking) > SHOWN else ""
            raise DataError(
                f"{len(lacking):,} of {len(samples.ids):,} samples have no .{suffix} file, so nobody knows what they "
                f"show: {names}{more}. Write the shards again with a label for each, or without these samples."
            )


def _check_captions(cells: Sequence[Cell], settings: DataSettings, name: str) -> None:
    """Sentences that hardly ever come again are no labels."""
    if TEXT in settings.targets or settings.task != "auto":
        return
    values = code(cells).values
    if len(values) > max(FEW, len(cells) / 2) and any(" " in str(value) for value in values):
        raise DataError(
            f"The .txt files of {name} hold {len(values):,} different texts in {len(cells):,} samples: captions, not "
            f"labels. Labels belong into .cls or .json; if these are labels all the same, say --data.targets {TEXT}"
        )


def _no_labels(samples: Samples, name: str) -> str:
    folders = {id.rpartition("/")[0] for id in samples.ids[:SEEN]}
    hint = ""
    if len(folders) > len(samples.shards):
        hint = " If its folders are the classes, unpack it (tar -xf) and give the folder that comes out of it."
    return (
        f"{name} holds {len(samples.ids):,} pictures and no labels. Beside each picture a file of the same name is "
        f"expected that ends in .cls (its class) or .json (with the label as a field).{hint}"
    )
