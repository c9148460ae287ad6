"""From columns of cells to the array that is learnt: one function for each way of writing labels down.

`where(row)` names a row in messages, such as "films.csv, line 17".
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...plural import counted
from ..names import natural
from ..settings import DataSettings
from .cells import UNCERTAIN, blank, flag, negative, parts, real
from .coded import Cell, Coded, text_of

Where = Callable[[int], str]
Table = Mapping[str, Coded[Cell]]
NOTHING_FOUND = frozenset(("no finding", "no findings"))
"""Cells of a column of labels that mean none of them."""
ROUNDING = 0.02
"""How far from 1 probabilities may sum because they were written with few digits."""
MOST_LABELS = 10_000
"""Different words of a column of labels; more are captions."""


@dataclass(frozen=True)
class Made:
    """What `Answers` takes over."""

    classes: tuple[str, ...]
    targets: np.ndarray
    notes: tuple[str, ...] = ()
    kept: NDArray[np.int64] | None = None


def one_word(name: str, column: Coded[Cell], settings: DataSettings, where: Where) -> Made:
    """Class numbers, int64: each different word is a class, in natural order, whatever it looks like.

    Raises:
        DataError: an empty cell, or a -1 among whole numbers, unless those rows are to be left out; no class at all;
            words that differ only in case, spacing or accents' encoding.
    """
    words = [_word(value) for value in column.values]
    left_out = [not word for word in words]
    if settings.uncertain != "ignore":
        _refuse_empty(name, column, left_out, where)
    for number in _minus_ones(column):
        words[number] = _settled(name, column, number, settings, where)
        left_out[number] = not words[number]
    learnt = [() if out else (word,) for word, out in zip(words, left_out, strict=True)]
    classes = _names(name, column, learnt, where)
    if not classes:
        raise DataError(f"Column {name!r} is empty in every row, so no picture has a class.")
    numbers = {word: number for number, word in enumerate(classes)}
    targets = np.array([numbers.get(word, -1) for word in words], dtype=np.int64)[column.codes]
    notes = []
    if len(classes) > max(20, len(column)) / 2:
        each = f"{len(classes):,} classes for {len(column):,} pictures"
        notes.append(f"Column {name!r} has {each}, so most have only one.")
    kept = np.flatnonzero(targets >= 0)
    if len(kept) == len(column):
        return Made(classes, targets, tuple(notes))
    notes.append(f"Left out {len(column) - len(kept):,} rows whose {name!r} is empty or -1 (--data.uncertain ignore).")
    return Made(classes, targets[kept], tuple(notes), kept)


def _word(value: Cell) -> str:
    return unicodedata.normalize("NFC", text_of(value).strip())


def _refuse_empty(name: str, column: Coded[Cell], empty: Sequence[bool], where: Where) -> None:
    if any(empty):
        rows = np.flatnonzero(np.array(empty)[column.codes])
        raise DataError(
            f"{where(int(rows[0]))}: {name!r} is empty, in {counted(len(rows), 'row')} in all. A picture without a "
            "class cannot be learnt from: write one, or leave such rows out with --data.uncertain ignore."
        )


def _minus_ones(column: Coded[Cell]) -> list[int]:
    """The numbers of the value -1, where all others are whole numbers from 0 on."""
    found = [number for number, value in enumerate(column.values) if negative(value)]
    others = [real(value) for number, value in enumerate(column.values) if number not in found and not blank(value)]
    counting = others and all(other is not None and other >= 0 and other == int(other) for other in others)
    return found if counting else []


def _settled(name: str, column: Coded[Cell], number: int, settings: DataSettings, where: Where) -> str:
    """The word that a -1 stands for; empty to leave its rows out."""
    zeros_and_ones = {_word(value) for value in column.values} <= {"0", "1", "-1", ""}
    if settings.uncertain == "ignore":
        return ""
    if settings.uncertain != "stop" and zeros_and_ones:
        return "0" if settings.uncertain == "zero" else "1"
    ways = "ignore leaves its rows out" + (", zero and one settle it" if zeros_and_ones else "")
    raise DataError(
        f"{where(column.first(number))}: {name!r} is {column.values[number]!r}, in "
        f"{counted(int(column.counts()[number]), 'row')} in all, which often means uncertain or not known. Say which "
        f"with --data.uncertain ignore ({ways}); if it is a class of its own, write it as a word."
    )


def _names(name: str, column: Coded[Cell], rows: Sequence[Sequence[str]], where: Where) -> tuple[str, ...]:
    """Distinct words in natural order, none of which might be meant to be another.

    Args:
        rows: the words of each value of the column.
    """
    first: dict[str, int] = {}  # word -> number of a value that holds it
    for number, words in enumerate(rows):
        for word in words:
            first.setdefault(word, number)
    near: dict[str, str] = {}
    for word, number in first.items():
        other = near.setdefault(" ".join(word.casefold().split()), word)
        if other != word:
            raise DataError(
                f"Column {name!r} holds {other!r} ({where(column.first(first[other]))}) and {word!r} "
                f"({where(column.first(number))}), which differ only in case or spacing. Write them alike if they are "
                "one class, or rename one."
            )
    return tuple(sorted(first, key=natural))


def several_words(name: str, column: Coded[Cell], separator: str, where: Where) -> Made:
    """Labels, float32 [n, K]: a cell holds any number of words; an empty one is not known, an empty list is none.

    Raises:
        DataError: no words at all, or words that differ only in case or spacing.
    """
    rows = [parts(value, separator) for value in column.values]
    none = [len(words) == 1 and words[0].casefold() in NOTHING_FOUND for words in rows]
    rows = [() if empty else tuple(map(_word, words)) for words, empty in zip(rows, none, strict=True)]
    classes = _names(name, column, rows, where)
    if not classes:
        raise DataError(f"Column {name!r} (see {where(0)}) holds no labels at all.")
    if len(classes) > MOST_LABELS:
        raise DataError(
            f"Column {name!r} holds {len(classes):,} different words, more than the {MOST_LABELS:,} labels that are "
            "read. Is it a column of captions? Name another with --data.targets."
        )
    numbers = {word: number for number, word in enumerate(classes)}
    table = np.zeros((len(rows), len(classes)), dtype=np.float32)
    for place, words in enumerate(rows):
        table[place, [numbers[word] for word in words]] = 1
        if blank(column.values[place]):
            table[place] = np.nan
    targets = table[column.codes]
    notes = []
    if any(none):
        word = text_of(column.values[none.index(True)])
        notes.append(f"{word!r} in column {name!r} was read as none of the labels, not as one of them.")
    empty = int(np.isnan(targets[:, 0]).sum())
    if empty:
        notes.append(f"{empty:,} rows have an empty {name!r}: their labels are not known and count neither way.")
    return Made(classes, targets, tuple(notes))


def zeros_and_ones(columns: Table, settings: DataSettings, where: Where) -> Made:
    """Labels, float32 [n, K]: a column for each, holding 1, 0, nothing (not known), or -1 (uncertain).

    Raises:
        DataError: any other cell; one that is uncertain while the settings do not say what to make of it.
    """
    wrong: list[tuple[int, str, Cell]] = []
    found, uncertain = [], 0
    for name, column in columns.items():
        values = [flag(value) for value in column.values]
        refused = [None] if settings.uncertain != "stop" else [None, UNCERTAIN]
        wrong += [(column.first(n), name, column.values[n]) for n, value in enumerate(values) if value in refused]
        uncertain += int(column.counts()[[value == UNCERTAIN for value in values]].sum())
        meant = {"ignore": np.nan, "zero": 0.0, "one": 1.0}.get(settings.uncertain, np.nan)
        table = np.array([meant if value in (None, UNCERTAIN) else value for value in values], dtype=np.float32)
        found.append(table[column.codes])
    if wrong:
        raise DataError(_refused(*min(wrong, key=lambda each: each[0]), where))
    targets = np.stack(found, axis=1)
    notes = []
    if uncertain:
        meaning = {"ignore": "not known", "zero": "absent", "one": "present"}[settings.uncertain]
        notes.append(f"{uncertain:,} uncertain labels were read as {meaning} (--data.uncertain {settings.uncertain}).")
    empty = int(np.isnan(targets).sum()) - (uncertain if settings.uncertain == "ignore" else 0)
    if empty:
        notes.append(f"{empty:,} of {targets.size:,} labels are empty: they are not known and count neither way.")
    return Made(tuple(columns), targets, tuple(notes))


def _refused(row: int, name: str, cell: Cell, where: Where) -> str:
    if flag(cell) == UNCERTAIN:
        return (
            f"{where(row)}: {name!r} is {cell!r}, which says that somebody was uncertain. Say what to make of it: "
            "--data.uncertain ignore (not known), --data.uncertain zero (absent) or --data.uncertain one (present)."
        )
    return (
        f"{where(row)}: {name!r} is {cell!r}, expected 0, 1 or nothing. Mend that cell, name the columns to learn "
        "with --data.targets, or say --task number if they are numbers to predict."
    )


def probabilities(columns: Table, where: Where) -> Made:
    """Soft classes, float32 [n, K] whose rows sum to 1.

    Raises:
        DataError: a cell that is no number in 0..1, or a row that does not sum to 1.
    """
    made = numbers(columns, where)
    targets = made.targets
    wrong = ~((targets >= 0) & (targets <= 1)).all(1) | ~(np.abs(targets.sum(1) - 1) < ROUNDING)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{where(row)}: the probabilities are {', '.join(f'{p:g}' for p in targets[row][:8])} and sum to "
            f"{targets[row].sum():.3g}, expected 0..1 and a sum of 1; {int(wrong.sum()):,} such rows in all. Mend "
            "them, or say --task number."
        )
    return Made(made.classes, (targets / targets.sum(1, keepdims=True)).astype(np.float32), made.notes)


def numbers(columns: Table, where: Where) -> Made:
    """Numbers, float32 [n, K], NaN where not known.

    Raises:
        DataError: a cell that is no finite number, or a column without any.
    """
    found = []
    for name, column in columns.items():
        values = [real(value) for value in column.values]
        if None in values:
            number = values.index(None)
            raise DataError(
                f"{where(column.first(number))}: {name!r} is {column.values[number]!r}, expected a finite number or "
                "nothing. Mend that cell, or name other columns with --data.targets."
            )
        table = np.array(values, dtype=np.float64)[column.codes]
        if np.isnan(table).all():
            raise DataError(f"Column {name!r} (see {where(0)}) holds no numbers at all.")
        found.append(table)
    targets = np.stack(found, axis=1).astype(np.float32)
    empty = int(np.isnan(targets).sum())
    notes = (f"{empty:,} of {targets.size:,} numbers are empty: they are not known and masked.",) if empty else ()
    return Made(tuple(columns), targets, notes)
