"""Cells that hold a list written out as text, as pandas, JSON and NumPy do: "['cat', 'dog']" is two words."""

from __future__ import annotations

import json
import re

from ...errors import DataError
from .codes import CategoricalColumn, Cell, Where
from .numbers import is_blank, number_key

_BRACKETS = re.compile(r"(?:(?:array|set|frozenset)\()?([\[({])(.*?)[\])}](?:,\s*dtype=[^)]*)?\)?", re.DOTALL)
_ITEM = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,'"\[\](){}:]+))\s*(?:,|$|(?=['"]))""")


def decode_lists(name: str, column: CategoricalColumn[Cell], where: Where) -> CategoricalColumn[Cell]:
    """The column with lists of words in place of texts that are such lists; another column is returned as it is.

    Words in brackets are lists if one cell has quotation marks in them, or if every cell is in brackets.

    Raises:
        DataError: only some cells are lists, or they hold objects, lists of lists, or rows of numbers.
    """
    values = dict(enumerate(column.values))
    known = {n: value for n, value in values.items() if not is_blank(value)}
    bracketed = {n: value for n, value in known.items() if isinstance(value, str) and _looks_like_list(value.strip())}
    if bracketed and (len(bracketed) == len(known) or any(re.search("['\"]", text) for text in bracketed.values())):
        for n, value in known.items():
            words = parse_list(value.strip()) if n in bracketed and isinstance(value, str) else None
            if words is None and not isinstance(value, tuple):
                example = next(text for other, text in bracketed.items() if len(bracketed) == 1 or other != n)
                raise DataError(
                    f"{where(column.first_row(n))}: {name!r} is {value!r}, and lists of words are expected, since "
                    f"cells of this column look like {example.strip()!r}. Write every cell as such a list, or as words "
                    "joined by |, or name another column with --data.targets."
                )
            values[n] = value if words is None else words
    lists = {n: value for n, value in values.items() if isinstance(value, tuple)}
    if _hold_vectors(list(lists.values())):
        n = next(iter(lists))
        raise DataError(
            f"{where(column.first_row(n))}: {name!r} is {column.values[n]!r}, a row of numbers and not a list of "
            "labels. Write one column for each of its numbers, with the names of the labels as the names of the "
            "columns, or the names in a list."
        )
    return CategoricalColumn(list(values.values()), column.codes) if bracketed else column


def parse_list(text: str) -> tuple[str, ...] | None:
    """The items of a list in brackets, quoted or not; None if the text is no list of words or numbers."""
    matched = _BRACKETS.fullmatch(text)
    if matched is None:
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = None
    if isinstance(items, list):
        return None if any(isinstance(item, list | dict) for item in items) else tuple(map(str, items))
    words: list[str] = []
    inner, place = matched[2].strip(), 0
    while place < len(inner):
        item = _ITEM.match(inner, place)
        if item is None:
            return None
        single, double, bare = item.groups()
        plain = (bare or "").split()
        words += plain if all(map(_is_number, plain)) else [bare.strip()]  # NumPy writes [1 0 0]
        words += [re.sub(r"\\(.)", r"\1", quoted) for quoted in (single, double) if quoted is not None]
        place = item.end()
    return None if "..." in words else tuple(words)  # NumPy leaves out the middle of a long array


def _looks_like_list(text: str) -> bool:
    matched = _BRACKETS.fullmatch(text)
    return matched is not None and (
        matched[1] == "[" or not matched[2].strip() or re.search("[,'\"]", text) is not None
    )


def _hold_vectors(lists: list[tuple[str, ...]]) -> bool:
    """Whether lists are vectors: numbers that repeat or have decimals, or equally many zeros and ones in each."""
    filled = [words for words in lists if words]
    if not filled or not all(map(_is_number, {word for words in filled for word in words})):
        return False
    if any(len(set(words)) < len(words) or not all(map(number_key, words)) for words in filled):
        return True
    keys = {number_key(word) for words in filled for word in words}
    same_length = len(set(map(len, filled))) == 1 and len(filled[0]) > 1
    return any("." in key for key in keys) or (same_length and keys <= {"0", "1"})


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
