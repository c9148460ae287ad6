"""What is to be learnt, told from the label columns alone: one of K, any of K, or numbers; and always why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..settings import DataSettings
from ..source import Task
from . import targets as ways
from .cells import blank, flag, parts, real, unknown
from .coded import Cell, Coded, code, text_of
from .columns import TARGETS, bare, listed

SEPARATORS = "|;,"
MANY = 20  # whole numbers that may still be classes, whatever their column is called
AGAIN = 0.5  # share of the words in ; or , lists that must stand in other lists too, or they are sentences
MOST = 0.9  # share of the rows that shows what columns are meant to be, though others break the rule


@dataclass(frozen=True)
class Answers:
    """What a `Source` says of its labels."""

    task: Task
    classes: tuple[str, ...]
    targets: np.ndarray
    """As in `Source`: int64 [n], or float32 [n, K]."""
    reason: str
    """Why the task is what it is, in a sentence."""
    notes: tuple[str, ...] = ()
    kept: NDArray[np.int64] | None = None
    """The rows that `targets` are of, where `--data.uncertain ignore` leaves some out; None if all."""


def infer(columns: Mapping[str, Sequence[object]], settings: DataSettings, where: Callable[[int], str]) -> Answers:
    """The task, by `settings.task` or by what the columns hold, and its targets.

    Args:
        columns: one or several columns of equal length; cells are text, numbers, truths, None, or lists of text.
        where: how messages name a row, such as "films.csv, line 17".

    Raises:
        DataError: columns that fit no task, or a cell that does not fit the task of the others.
    """
    coded = {name: code(cells) for name, cells in columns.items()}
    if not coded or not all(map(len, coded.values())):
        raise DataError("There are no labels: at least one column that says what each picture shows is needed.")
    if len(coded) == 1:
        ((name, column),) = coded.items()
        found = _of_one(name, column, settings, where)
    else:
        found = _of_several(coded, settings, where)
    return replace(found, reason=f"{found.reason}.")


def _of_one(name: str, column: Coded[Cell], settings: DataSettings, where: Callable[[int], str]) -> Answers:
    task, reason = _task_of_one(name, column) if settings.task == "auto" else (settings.task, _told(settings))
    if task == "number":
        made = ways.numbers({name: column}, where)
    elif task == "classes":
        made = ways.one_word(name, column, settings, where)
    elif all(flag(value) is not None for value in column.values):
        made = ways.zeros_and_ones({name: column}, settings, where)
    else:
        made = ways.several_words(name, column, separator(column) or _any_separator(column), where)
    return Answers(task, made.classes, made.targets, reason, made.notes, made.kept)


def _told(settings: DataSettings) -> str:
    return f"As --task {settings.task} says"


def _task_of_one(name: str, column: Coded[Cell]) -> tuple[Task, str]:
    """The task of a single column, and why."""
    here = f"Column {name!r} holds"
    if any(isinstance(value, tuple) for value in column.values):
        return "labels", f"{here} lists of words, so a picture may have several: labels"
    numbers = [real(value) for value in column.values if not unknown(value)]
    certain = [number for number in numbers if number is not None]
    if certain and len(certain) == len(numbers):
        return _task_of_numbers(name, column, certain)
    joined = separator(column)
    if joined:
        count = len({word for value in column.values for word in parts(value, joined)})
        return "labels", f"{here} {count:,} words joined by {joined}, so a picture may have several: labels"
    count = len({value for value in column.values if not blank(value)})
    return "classes", f"{here} {count:,} different words, so a picture has one of {count:,} classes"


def _task_of_numbers(name: str, column: Coded[Cell], numbers: Sequence[float]) -> tuple[Task, str]:
    """Whole numbers are classes, unless there are many; numbers with decimals are numbers."""
    count = len({text_of(value).strip() for value in column.values if not blank(value)})
    reach = f"{count:,} different values from {min(numbers):g} to {max(numbers):g}"
    if any(number != int(number) for number in numbers):
        reason = f"Column {name!r} holds numbers with decimals ({reach}), so a number is predicted"
        return "number", f"{reason}; --task classes would make each value a class"
    numbered = min(numbers) in (0, 1) and max(numbers) - min(numbers) == count - 1  # 0..K-1, or 1..K
    if count <= MANY or (bare(name) in TARGETS and (numbered or count <= len(column) / 2)):
        reason = f"Column {name!r} holds whole numbers ({reach}), so a picture has one of {count:,} classes"
        return "classes", f"{reason}; --task number would predict them as numbers"
    reason = f"Column {name!r} holds many whole numbers ({reach}), so a number is predicted"
    return "number", f"{reason}; --task classes would make each value a class"


def separator(column: Coded[Cell]) -> str:
    """What joins several words in a cell: a |, or the ; or comma between words that stand in other lists as well."""
    texts = [value for value in column.values if isinstance(value, str)]
    for mark in SEPARATORS:
        joined = [parts(text, mark) for text in texts if mark in text]
        several = {word for words in joined if len(words) > 1 for word in words}
        if not several:
            continue
        lists = Counter(word for text in texts for word in parts(text, mark))
        if mark == "|" or sum(lists[word] > 1 for word in several) >= AGAIN * len(several):
            return mark
    return ""


def _any_separator(column: Coded[Cell]) -> str:
    """Where a person says that there are labels: the first mark, or else the spaces, that any cell holds."""
    texts = [value.strip() for value in column.values if isinstance(value, str)]
    return next((mark for mark in (*SEPARATORS, " ") if any(mark in text for text in texts)), SEPARATORS[0])


def _of_several(columns: ways.Table, settings: DataSettings, where: Callable[[int], str]) -> Answers:
    """A column for each output; what they hold says which kind."""
    flags = _share_of_flags(columns)
    names = listed(list(columns))
    if settings.task == "labels" or (settings.task != "number" and min(flags) == 1):
        return _of_flags(columns, settings, where)
    if settings.task == "classes" or (settings.task == "auto" and _meant_as_shares(columns)):
        made = ways.probabilities(columns, where)
        reason = f"Columns {names} sum to 1 in each row, so they are probabilities of {len(columns):,} classes"
        return Answers("classes", made.classes, made.targets, _or_told(reason, settings), made.notes)
    if settings.task == "auto" and max(flags) == 1 and min(flags) >= 0.5 and sum(flags) >= MOST * len(flags):
        return _of_flags(columns, settings, where)  # which names the cell that is none
    _refuse_words(columns)
    made = ways.numbers(columns, where)
    reason = f"Columns {names} hold numbers, so {len(columns):,} numbers are predicted"
    return Answers("number", made.classes, made.targets, _or_told(reason, settings), made.notes)


def _of_flags(columns: ways.Table, settings: DataSettings, where: Callable[[int], str]) -> Answers:
    """Columns of zeros and ones: classes where each row has a single one, else labels."""
    names = listed(list(columns))
    made = ways.zeros_and_ones(columns, settings, where)
    not_one = np.flatnonzero(made.targets.sum(1) != 1)
    if settings.task == "labels" or (settings.task == "auto" and len(not_one)):
        reason = f"Columns {names} hold zeros and ones, so a picture may have several: labels"
        return Answers("labels", made.classes, made.targets, _or_told(reason, settings), made.notes)
    if len(not_one):
        raise DataError(
            f"{where(int(not_one[0]))}: {int(np.nansum(made.targets[not_one[0]]))} of the {len(columns):,} classes "
            f"{names} are marked 1, expected exactly one; {len(not_one):,} such rows in all. If a picture may have "
            "several, say --task labels."
        )
    once = f"Columns {names} hold a single one in each row, so a picture has one of {len(columns):,} classes"
    reason = _or_told(f"{once}; --task labels would let it have several", settings)
    return Answers("classes", made.classes, made.targets.argmax(1).astype(np.int64), reason, made.notes)


def _or_told(reason: str, settings: DataSettings) -> str:
    return reason if settings.task == "auto" else _told(settings)


def _share_of_flags(columns: ways.Table) -> list[float]:
    """For each column the share of its rows that hold 0, 1, -1 or nothing."""
    shares = []
    for column in columns.values():
        flags = [flag(value) for value in column.values]
        fits = np.array([value is not None for value in flags])
        shares.append(float(column.counts()[fits].sum() / len(column)))
    return shares


def _meant_as_shares(columns: ways.Table) -> bool:
    """Nearly every row holds numbers in 0..1 that sum to 1."""
    values = [[real(value) for value in column.values] for column in columns.values()]
    if any(number is None for column in values for number in column):
        return False
    table = np.stack(
        [np.array(each, dtype=np.float64)[column.codes] for each, column in zip(values, columns.values(), strict=True)]
    )  # [K, n]
    fits = ((table >= 0) & (table <= 1)).all(0) & (np.abs(table.sum(0) - 1) < ways.ROUNDING)
    return bool(fits.mean() >= MOST)


def _refuse_words(columns: ways.Table) -> None:
    """Several columns of which some hold words fit no task."""
    for name, column in columns.items():
        words = [value for value in column.values if real(value) is None]
        if len(words) > len(column.values) / 2:
            raise DataError(
                f"Several columns to learn must all hold zeros and ones, probabilities or numbers, but {name!r} holds "
                f"words such as {words[0]!r}. Name one column of words with --data.targets, or only the others."
            )
