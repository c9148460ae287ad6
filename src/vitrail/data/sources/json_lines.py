"""Tables in JSON lines: one object a line, its values of the types that JSON gives them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...errors import DataError
from .tables import Columns, Table


def read_json_lines(path: Path) -> Table:
    """A table from lines such as {"path": "a.png", "label": "cat"}; a name that a line lacks is unknown there.

    Texts, numbers, truths, nulls and lists of texts stay what they are; an object inside a line is kept as text.

    Raises:
        DataError: a line is not an object in JSON, or the file is not UTF-8.
    """
    names = _names(path)
    columns = Columns(names)
    lines = array("q")
    for line, found in _objects(path):
        columns.add([_cell(found.get(name)) for name in names])
        lines.append(line)
    return Table(
        name=path.name,
        columns=columns.finish(),
        lines=np.frombuffer(lines, np.int64) if lines else np.zeros(0, np.int64),
    )


def _names(path: Path) -> list[str]:
    """Every name in any line, in the order of their first appearance."""
    names: dict[str, None] = {}
    for _, found in _objects(path):
        if not found.keys() <= names.keys():
            names |= dict.fromkeys(found)
    return list(names)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """The line and what it holds, of every line that is not empty."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, 1):
            text = raw.strip().removeprefix(b"\xef\xbb\xbf")
            if not text:
                continue
            try:
                found = json.loads(text, object_pairs_hook=_once)
                json.dumps(found, ensure_ascii=False).encode()  # refuses half a character, such as \ud800
            except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are both ValueErrors
                raise DataError(f"{path.name}, line {line}: this is not JSON ({error}).") from error
            if not isinstance(found, dict):
                raise DataError(
                    f"{path.name}, line {line}: expected an object such as "
                    f'{{"path": "a.png", "label": "cat"}}. Got {str(found)[:60]!r}.'
                )
            yield line, found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object; json would take the last of two values under one name without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it says {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _cell(value: object) -> object:
    """A list of lists or of objects, and an object, become the text they were."""
    nested = isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(part, dict | list) or part is None for part in value)
    )
    return json.dumps(value, ensure_ascii=False) if nested else value
