"""Infer the task (one of K, any of K, or numbers) from the label columns, with a reason, and encode its targets.

`where(row)` names a row in messages, such as "films.csv, line 17".
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...formatting import format_count, format_part
from ..settings import DataSettings
from ..source import Task, natural_sort_key, spelling_key
from .codes import CategoricalColumn, Cell, Where, encode_categorical, format_cell
from .columns import (
    TARGET_COLUMN_NAMES,
    UNCERTAIN,
    CodedColumns,
    normalize_column_name,
    parse_flag,
    quote_names,
    split_words,
)
from .list_cells import decode_lists
from .numbers import NumberColumn, is_blank, is_unknown, number_key, read_numbers

SEPARATORS = "|;,"
MAX_INTEGER_CLASSES = 20
"""Distinct integers up to which any column counts as classes."""
MIN_REPEATED_WORDS = 0.5
"""Fraction of the words in ; or , lists that must occur in other lists too, or the cells are sentences."""
MIN_MATCHING_ROWS = 0.9
"""Fraction of the rows that decides the kind of several columns, although other rows break its rule."""
NO_FINDING_WORDS = frozenset(("no finding", "no findings"))
"""Cells of a multilabel column that mean no label at all."""
PROBABILITY_TOLERANCE = 0.02
"""Largest deviation of a sum of probabilities from 1, because few digits were written."""
MIN_NUMBER_ROWS = 0.5
"""Fraction of the known rows from which a column is one of numbers, in which other texts are mistakes."""
MAX_LABELS = 10_000
"""Distinct words of a multilabel column; more are captions."""
MAX_NAMED_CELLS = 5


@dataclass(frozen=True)
class InferredTask:
    """The task of a `Source`, with its classes and targets."""

    task: Task
    classes: tuple[str, ...]
    targets: np.ndarray
    """As in `Source`."""
    reason: str = ""
    """Why this task, in a sentence."""
    notes: tuple[str, ...] = ()
    kept_rows: NDArray[np.int64] | None = None
    """Rows of `targets`, where `--data.uncertain ignore` leaves some out; None for all."""


def infer_task(columns: Mapping[str, Sequence[object]], settings: DataSettings, where: Where) -> InferredTask:
    """Infer the task from `settings.task` or the columns, and encode its targets.

    Args:
        columns: one or several columns of equal length; cells are text, numbers, bools, None, or lists of text.
        where: how messages name a row, such as "films.csv, line 17".

    Raises:
        DataError: columns that fit no task, a cell that does not fit the task of the others, or class names that
            differ only in case, spacing or accents' encoding.
    """
    coded = {name: decode_lists(name, encode_categorical(cells), where) for name, cells in columns.items()}
    if not coded or not all(map(len, coded.values())):
        raise DataError("There are no labels: at least one column that says what each picture shows is needed.")
    if len(coded) == 1:
        ((name, column),) = coded.items()
        inferred = _infer_from_column(name, column, settings, where)
    else:
        inferred = _infer_from_columns(coded, settings, where)
    reason = inferred.reason if settings.task == "auto" else f"As --task {settings.task} says"
    task = "anomaly" if settings.task == "anomaly" else inferred.task
    return replace(inferred, task=task, reason=f"{reason}.")


def _infer_from_column(
    name: str, column: CategoricalColumn[Cell], settings: DataSettings, where: Where
) -> InferredTask:
    task, reason = settings.label_task, ""
    if task == "auto":
        task, reason = _guess_column_task(name, column, settings)
    if task == "regression":
        encoded = encode_numbers({name: column}, settings, where)
    elif task == "classification":
        encoded = encode_classes(name, column, settings, where)
    elif all(parse_flag(value) is not None for value in column.values):
        encoded = encode_flags({name: column}, settings, where)
    else:
        encoded = encode_multilabel(name, column, find_separator(column) or _first_separator(column), where)
    return replace(encoded, reason=reason)


def _guess_column_task(name: str, column: CategoricalColumn[Cell], settings: DataSettings) -> tuple[Task, str]:
    """The task of a single column, with the reason."""
    here = f"Column {name!r} holds"
    if any(isinstance(value, tuple) for value in column.values):
        return "multilabel", f"{here} lists of words, so a picture may have several: labels"
    numbers = read_numbers(column, settings.decimal)
    fraction = numbers.fraction(column)
    if fraction >= MIN_NUMBER_ROWS:
        task, reason = _guess_number_task(name, column, numbers)
        if fraction == 1 or (task == "regression" and not _hold_longer_lists(column, numbers)):
            return task, reason
    joined = find_separator(column)
    if joined:
        count = len({word for value in column.values for word in split_words(value, joined)})
        return "multilabel", f"{here} {count:,} words joined by {joined}, so a picture may have several: labels"
    count = len({_normalize_word(value) for value in column.values if not is_blank(value)})
    words, classes = format_count(count, "different word"), format_count(count, "class", "classes")
    return "classification", f"{here} {words}, so a picture has one of {classes}"


def _hold_longer_lists(column: CategoricalColumn[Cell], numbers: NumberColumn) -> bool:
    """Whether the cells that are no numbers are lists of such: "0,4,7" in a column in which "0,4" seemed to be one."""
    others = [str(value) for value, number in zip(column.values, numbers.values, strict=True) if number is None]
    return all(len(words := split_words(text, ",")) > 2 and all(map(number_key, words)) for text in others)


def _guess_number_task(name: str, column: CategoricalColumn[Cell], found: NumberColumn) -> tuple[Task, str]:
    """Integers are classes, unless there are many; numbers with decimals are a regression target."""
    numbers = [number for number in found.values if number is not None and not math.isnan(number)]
    count = len(set(_read_words(name, column)[0]) - {""})
    reach = f"{format_count(count, 'different value')} from {min(numbers):g} to {max(numbers):g}"
    few_with_unit = found.unit[-1:].isalnum() and count <= MAX_INTEGER_CLASSES  # "1.5T" and "3T" name a scanner
    if any(number != int(number) for number in numbers) and not few_with_unit:
        reason = f"Column {name!r} holds numbers with decimals ({reach}), so a number is predicted"
        return "regression", f"{reason}; --task classification would make each value a class"
    numbered = min(numbers) in (0, 1) and max(numbers) - min(numbers) == count - 1  # 0..K-1, or 1..K
    if count <= MAX_INTEGER_CLASSES or (
        normalize_column_name(name) in TARGET_COLUMN_NAMES and (numbered or count <= len(column) / 2)
    ):
        kind = f"numbers with {found.unit!r}" if few_with_unit else "whole numbers"
        reason = f"Column {name!r} holds {kind} ({reach}), so a picture has one of "
        reason += format_count(count, "class", "classes")
        return "classification", f"{reason}; --task regression would predict them as numbers"
    reason = f"Column {name!r} holds many whole numbers ({reach}), so a number is predicted"
    return "regression", f"{reason}; --task classification would make each value a class"


def find_separator(column: CategoricalColumn[Cell]) -> str:
    """The separator of lists in cells: |, or a ; or comma between words that occur in other lists as well."""
    texts = [value for value in column.values if isinstance(value, str)]
    for mark in SEPARATORS:
        joined = [split_words(text, mark) for text in texts if mark in text]
        several = {word for words in joined if len(words) > 1 for word in words}
        if not several:
            continue
        lists = Counter(word for text in texts for word in split_words(text, mark))
        if mark == "|" or sum(lists[word] > 1 for word in several) >= MIN_REPEATED_WORDS * len(several):
            return mark
    return ""


def _first_separator(column: CategoricalColumn[Cell]) -> str:
    """The separator where the settings ask for multilabel: the first mark, or else the space, in any cell."""
    texts = [value.strip() for value in column.values if isinstance(value, str)]
    return next((mark for mark in (*SEPARATORS, " ") if any(mark in text for text in texts)), SEPARATORS[0])


def _infer_from_columns(columns: CodedColumns, settings: DataSettings, where: Where) -> InferredTask:
    """The task of several columns, one per output, by their contents."""
    flags = _flag_fractions(columns)
    names = quote_names(list(columns))
    if settings.label_task == "multilabel" or (settings.label_task != "regression" and min(flags) == 1):
        return _encode_flag_columns(columns, settings, where)
    if settings.label_task == "classification" or (
        settings.label_task == "auto" and _look_like_probabilities(columns, settings)
    ):
        reason = (
            f"Columns {names} sum to 1 in each row, so they are probabilities of "
            f"{format_count(len(columns), 'class', 'classes')}"
        )
        return replace(encode_probabilities(columns, settings, where), reason=reason)
    if (
        settings.label_task == "auto"
        and max(flags) == 1
        and min(flags) >= 0.5
        and sum(flags) >= MIN_MATCHING_ROWS * len(flags)
    ):
        return _encode_flag_columns(columns, settings, where)  # raises for the cell that is no flag
    _check_no_word_columns(columns, settings)
    reason = f"Columns {names} hold numbers, so {format_count(len(columns), 'number')} are predicted"
    return replace(encode_numbers(columns, settings, where), reason=reason)


def _encode_flag_columns(columns: CodedColumns, settings: DataSettings, where: Where) -> InferredTask:
    """Encode columns of zeros and ones: classification where each row has a single one, else multilabel."""
    names = quote_names(list(columns))
    encoded = encode_flags(columns, settings, where)
    not_one = np.flatnonzero(encoded.targets.sum(1) != 1)
    if settings.label_task == "multilabel" or (settings.label_task == "auto" and len(not_one)):
        return replace(encoded, reason=f"Columns {names} hold zeros and ones, so a picture may have several: labels")
    if len(not_one):
        raise DataError(
            f"{where(int(not_one[0]))}: {int(np.nansum(encoded.targets[not_one[0]]))} of the "
            f"{format_count(len(columns), 'class', 'classes')} {names} are marked 1, expected exactly one; "
            f"{format_count(len(not_one), 'such row')} in all. If a picture may have several, say --task multilabel."
        )
    reason = (
        f"Columns {names} hold a single one in each row, so a picture has one of "
        f"{format_count(len(columns), 'class', 'classes')}; --task multilabel would let it have several"
    )
    return replace(encoded, task="classification", targets=encoded.targets.argmax(1).astype(np.int64), reason=reason)


def _flag_fractions(columns: CodedColumns) -> list[float]:
    """For each column the fraction of its rows that hold 0, 1, -1 or nothing."""
    fractions = []
    for column in columns.values():
        fits = np.array([parse_flag(value) is not None for value in column.values])
        fractions.append(float(column.counts()[fits].sum() / len(column)))
    return fractions


def _look_like_probabilities(columns: CodedColumns, settings: DataSettings) -> bool:
    """Whether nearly every row holds numbers in 0..1 that sum to 1."""
    numbers = []
    for column in columns.values():
        values = read_numbers(column, settings.decimal).values
        if None in values:
            return False
        numbers.append(np.array(values, dtype=np.float64)[column.codes])
    table = np.stack(numbers)  # [K, n]
    fits = ((table >= 0) & (table <= 1)).all(0) & (np.abs(table.sum(0) - 1) < PROBABILITY_TOLERANCE)
    return bool(fits.mean() >= MIN_MATCHING_ROWS)


def _check_no_word_columns(columns: CodedColumns, settings: DataSettings) -> None:
    """Refuse several columns of which some hold words: they fit no task."""
    for name, column in columns.items():
        numbers = read_numbers(column, settings.decimal).values
        words = [value for value, number in zip(column.values, numbers, strict=True) if number is None]
        if len(words) > len(column.values) / 2:
            raise DataError(
                f"Several columns to learn must all hold zeros and ones, probabilities or numbers, but {name!r} holds "
                f"words such as {words[0]!r}. Name one column of words with --data.targets, or only the others."
            )


# -- Encoders: one function for each way of writing labels down; the caller adds the reason.


def encode_classes(name: str, column: CategoricalColumn[Cell], settings: DataSettings, where: Where) -> InferredTask:
    """Encode class indices, int64: each distinct word is a class, in natural order."""
    words, notes = _read_words(name, column)
    empty = np.flatnonzero(np.array([not word for word in words])[column.codes])
    if len(empty) and settings.uncertain != "ignore":
        cell = column[int(empty[0])]
        raise DataError(
            f"{where(int(empty[0]))}: {name!r} is {'empty' if is_blank(cell) else repr(cell)}, in "
            f"{format_count(len(empty), 'row')} in all. A picture "
            "without a class cannot be learnt from: write one, or leave such rows out with --data.uncertain ignore."
        )
    for number in _find_minus_ones(column):
        words[number] = _resolve_minus_one(name, column, number, settings, where)
    classes = _collect_class_names(name, column, [(word,) if word else () for word in words], where)
    if not classes:
        raise DataError(f"Column {name!r} is empty in every row, so no picture has a class.")
    numbers = {word: number for number, word in enumerate(classes)}
    targets = np.array([numbers.get(word, -1) for word in words], dtype=np.int64)[column.codes]
    if len(classes) > max(20, len(column)) / 2:
        each = f"{format_count(len(classes), 'class', 'classes')} for {format_count(len(column), 'picture')}"
        notes.append(f"Column {name!r} has {each}, so most have only one.")
    kept = np.flatnonzero(targets >= 0)
    if len(kept) == len(column):
        return InferredTask("classification", classes, targets, notes=tuple(notes))
    notes.append(
        f"Left out {format_count(len(column) - len(kept), 'row')} whose {name!r} is empty or -1 "
        "(--data.uncertain ignore)."
    )
    return InferredTask("classification", classes, targets[kept], notes=tuple(notes), kept_rows=kept)


def _read_words(name: str, column: CategoricalColumn[Cell]) -> tuple[list[str], list[str]]:
    """The class that each distinct value names, "" for none, and notes.

    In a column of nothing but numbers those of equal value are one class, and spellings of missing values name none.
    """
    words = [_normalize_word(value) for value in column.values]
    keys = ["" if is_unknown(value) else number_key(word) for value, word in zip(column.values, words, strict=True)]
    if not all(key or is_unknown(value) for key, value in zip(keys, column.values, strict=True)) or not any(keys):
        odd = [word for word in words if is_unknown(word) and word.casefold() not in ("", "none", "na", "null")]
        note = f"Column {name!r} has a class called {', '.join(map(repr, odd))}, as missing values are often written."
        return words, [note] if odd else []
    counts = column.counts().tolist()
    spellings: dict[str, Counter[str]] = {}
    for key, word, count in zip(keys, words, counts, strict=True):
        spellings.setdefault(key, Counter())[word] += count
    spellings.pop("", None)
    several = {key: found for key, found in spellings.items() if len(found) > 1}
    names = {key: found.most_common(1)[0][0] for key, found in spellings.items()} | {"": ""}
    notes = []
    if several:
        pairs = ", ".join(
            " and ".join(f"{word!r} ({count:,})" for word, count in found.most_common())
            for found in list(several.values())[:MAX_NAMED_CELLS]
        )
        notes.append(f"Numbers of equal value in column {name!r} are one class: {pairs}.")
    return [names[key] for key in keys], notes


def _normalize_word(value: Cell) -> str:
    return unicodedata.normalize("NFC", format_cell(value).strip())


def _find_minus_ones(column: CategoricalColumn[Cell]) -> list[int]:
    """Indices of the value -1, where all other values are integers from 0 on."""
    keys = [number_key(_normalize_word(value)) for value in column.values]
    others = [key for key, value in zip(keys, column.values, strict=True) if not is_unknown(value) and key != "-1"]
    return [n for n, key in enumerate(keys) if key == "-1"] if others and all(map(str.isdigit, others)) else []


def _resolve_minus_one(
    name: str, column: CategoricalColumn[Cell], value_index: int, settings: DataSettings, where: Where
) -> str:
    """The word that a -1 stands for; empty to leave its rows out."""
    zeros_and_ones = {_normalize_word(value) for value in column.values} <= {"0", "1", "-1", ""}
    if settings.uncertain == "ignore":
        return ""
    if settings.uncertain != "stop" and zeros_and_ones:
        return "0" if settings.uncertain == "zero" else "1"
    ways = "ignore leaves its rows out" + (", zero and one settle it" if zeros_and_ones else "")
    raise DataError(
        f"{where(column.first_row(value_index))}: {name!r} is {column.values[value_index]!r}, in "
        f"{format_count(int(column.counts()[value_index]), 'row')} in all, which often means uncertain or not known. "
        f"Say which with --data.uncertain ignore ({ways}); if it is a class of its own, write it as a word."
    )


def _collect_class_names(
    name: str, column: CategoricalColumn[Cell], words_by_value: Sequence[Sequence[str]], where: Where
) -> tuple[str, ...]:
    """Distinct words in natural order; words that differ only in case, spacing or width are refused."""
    first: dict[str, int] = {}  # word -> index of the first value that holds it
    for number, words in enumerate(words_by_value):
        for word in words:
            first.setdefault(word, number)
    near: dict[str, str] = {}
    for word, number in first.items():
        other = near.setdefault(spelling_key(word), word)
        if other != word:
            raise DataError(
                f"Column {name!r} holds {other!r} ({where(column.first_row(first[other]))}) and {word!r} "
                f"({where(column.first_row(number))}), which differ only in case, spacing or width. Write them "
                "alike if they are one class, or rename one."
            )
    return tuple(sorted(first, key=natural_sort_key))


def encode_multilabel(name: str, column: CategoricalColumn[Cell], separator: str, where: Where) -> InferredTask:
    """Encode lists of words as multilabel targets, float32 [n, K]; an empty cell is unknown, an empty list no label."""
    rows = [split_words(value, separator) for value in column.values]
    none = [len(words) == 1 and words[0].casefold() in NO_FINDING_WORDS for words in rows]
    rows = [() if empty else tuple(map(_normalize_word, words)) for words, empty in zip(rows, none, strict=True)]
    classes = _collect_class_names(name, column, rows, where)
    if not classes:
        raise DataError(f"Column {name!r} (see {where(0)}) holds no labels at all.")
    if len(classes) > MAX_LABELS:
        raise DataError(
            f"Column {name!r} holds {len(classes):,} different words, more than the {MAX_LABELS:,} labels that are "
            "read. Is it a column of captions? Name another with --data.targets."
        )
    numbers = {word: number for number, word in enumerate(classes)}
    table = np.zeros((len(rows), len(classes)), dtype=np.float32)
    for place, words in enumerate(rows):
        table[place, [numbers[word] for word in words]] = 1
        if is_blank(column.values[place]):
            table[place] = np.nan
    targets = table[column.codes]
    notes = []
    if any(none):
        word = format_cell(column.values[none.index(True)])
        notes.append(f"{word!r} in column {name!r} was read as none of the labels, not as one of them.")
    empty = int(np.isnan(targets[:, 0]).sum())
    if empty:
        notes.append(
            f"{format_count(empty, 'row has', 'rows have')} an empty {name!r}: their labels are not known "
            "and count neither way."
        )
    return InferredTask("multilabel", classes, targets, notes=tuple(notes))


def encode_flags(columns: CodedColumns, settings: DataSettings, where: Where) -> InferredTask:
    """Encode one column per label as targets float32 [n, K]: 1, 0, empty (unknown) or -1 (uncertain)."""
    refused = [None] if settings.uncertain != "stop" else [None, UNCERTAIN]
    meant = {"zero": 0.0, "one": 1.0}.get(settings.uncertain, np.nan)
    wrong: list[tuple[int, str, Cell]] = []
    target_columns, uncertain = [], 0
    for name, column in columns.items():
        values = [parse_flag(value) for value in column.values]
        wrong += [(column.first_row(n), name, column.values[n]) for n, value in enumerate(values) if value in refused]
        uncertain += int(column.counts()[[value == UNCERTAIN for value in values]].sum())
        table = np.array([meant if value in (None, UNCERTAIN) else value for value in values], dtype=np.float32)
        target_columns.append(table[column.codes])
    if wrong:
        row, name, cell = min(wrong, key=lambda each: each[0])
        if parse_flag(cell) == UNCERTAIN:
            raise DataError(
                f"{where(row)}: {name!r} is {cell!r}, which says that somebody was uncertain. Say what to make of it: "
                "--data.uncertain ignore (not known), --data.uncertain zero (absent) or --data.uncertain one (present)."
            )
        raise DataError(
            f"{where(row)}: {name!r} is {cell!r}, expected 0, 1 or nothing. Mend that cell, name the columns to learn "
            "with --data.targets, or say --task regression if they are numbers to predict."
        )
    targets = np.stack(target_columns, axis=1)
    notes = []
    if uncertain:
        meaning = {"ignore": "not known", "zero": "absent", "one": "present"}[settings.uncertain]
        notes.append(
            f"{format_count(uncertain, 'uncertain label was', 'uncertain labels were')} read as {meaning} "
            f"(--data.uncertain {settings.uncertain})."
        )
    empty = int(np.isnan(targets).sum()) - (uncertain if settings.uncertain == "ignore" else 0)
    if empty:
        notes.append(
            f"{format_part(empty, targets.size, 'label', 'is', 'are')} empty: they are not known and count neither way."
        )
    return InferredTask("multilabel", tuple(columns), targets, notes=tuple(notes))


def encode_probabilities(columns: CodedColumns, settings: DataSettings, where: Where) -> InferredTask:
    """Encode soft labels, float32 [n, K] whose rows sum to 1."""
    encoded = encode_numbers(columns, settings, where)
    targets = encoded.targets
    wrong = ~((targets >= 0) & (targets <= 1)).all(1) | ~(np.abs(targets.sum(1) - 1) < PROBABILITY_TOLERANCE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{where(row)}: the probabilities are {', '.join(f'{p:g}' for p in targets[row][:8])} and sum to "
            f"{targets[row].sum():.3g}, expected 0..1 and a sum of 1; "
            f"{format_count(int(wrong.sum()), 'such row')} in all. Mend "
            "them, or say --task regression."
        )
    return replace(encoded, task="classification", targets=(targets / targets.sum(1, keepdims=True)).astype(np.float32))


def encode_numbers(columns: CodedColumns, settings: DataSettings, where: Where) -> InferredTask:
    """Encode regression targets, float64 [n, K], NaN where unknown."""
    target_columns: list[NDArray[np.float64]] = []
    notes, spellings = [], set()
    for name, column in columns.items():
        found = read_numbers(column, settings.decimal)
        if found.ambiguous:
            row = column.first_row(_first_with(column, found.ambiguous))
            raise DataError(
                f"Column {name!r} holds numbers such as {found.ambiguous!r}, in which a comma may part the "
                f"thousands or be a decimal comma (see {where(row)}). "
                "Say which: --data.decimal point (it parts the thousands) or --data.decimal comma."
            )
        if None in found.values:
            raise DataError(_describe_wrong_cells(name, column, found, len(columns) == 1, where))
        table = np.array(found.values, dtype=np.float64)[column.codes]
        if np.isnan(table).all():
            raise DataError(f"Column {name!r} (see {where(0)}) holds no numbers at all.")
        if found.unit:
            notes.append(f"{found.unit!r} stands beside each number of {name!r} and was left out.")
        spellings |= {repr(str(value).strip()) for value in column.values if is_unknown(value) and not is_blank(value)}
        target_columns.append(table)
    targets = np.stack(target_columns, axis=1)
    if empty := int(np.isnan(targets).sum()):
        spelt = f" or {', '.join(sorted(spellings))}" if spellings else ""
        notes.insert(
            0,
            f"{format_part(empty, targets.size, 'number', 'is', 'are')} empty{spelt}: they are not known and masked.",
        )
    return InferredTask("regression", tuple(columns), targets, notes=tuple(notes))


def _first_with(column: CategoricalColumn[Cell], text: str) -> int:
    return next(n for n, value in enumerate(column.values) if isinstance(value, str) and value.strip() == text)


def _describe_wrong_cells(
    name: str, column: CategoricalColumn[Cell], found: NumberColumn, may_be_classes: bool, where: Where
) -> str:
    """A message that names the cells of a column of numbers that hold none."""
    wrong = sorted((column.first_row(n), column.values[n]) for n, number in enumerate(found.values) if number is None)
    counts = column.counts()
    rows = sum(int(counts[n]) for n, number in enumerate(found.values) if number is None)
    (row, cell), others = wrong[0], wrong[1:MAX_NAMED_CELLS]
    more = "".join(f", {other!r} ({where(place)})" for place, other in others)
    also = f"; {format_count(rows, 'such row')} in all{more}" if rows > 1 else ""
    unit = f" with {found.unit!r}" if found.unit else ""
    limits = " A limit such as '<1' is no number: write the number to learn, or nothing." * any(
        str(value).strip()[:1] in "<>\u2264\u2265~" for _, value in wrong if not is_blank(value)
    )
    way = " --task classification makes each text a class." * may_be_classes
    return (
        f"{where(row)}: {name!r} is {cell!r}, expected a finite number{unit} or nothing{also}.{limits} Mend "
        f"{'those cells' if rows > 1 else 'that cell'}, or name other columns with --data.targets.{way}"
    )
