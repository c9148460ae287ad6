"""JSON from strangers: its size, depth and number of values are counted before it is parsed, each name stands once."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from ..errors import DamagedFileError

SIZE = 16 * 2**20
"""Bytes of the longest JSON file that is read; the class names of ImageNet-21k take one sixteenth of it."""
DEPTH = 64
"""Brackets inside brackets; descriptions of models have about six."""
MARKS = 500_000
"""Brackets, commas and colons together."""
DIGITS = 19
"""Digits of the longest whole number, those of 2^63."""


def read(path: Path, size: int = SIZE) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        DamagedFileError: the file is missing, larger than `size` bytes, or `parse` refuses its text.
    """
    path = Path(path)
    try:
        length = path.stat().st_size
        data = b"" if length > size else path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} is missing or cannot be read ({error.strerror}). Check the path.") from error
    if length > size:
        raise DamagedFileError(f"{path} has {length} bytes; at most {size} are read of a JSON file. {_ADVICE}")
    return parse(data, str(path))


def parse(data: bytes, where: str) -> dict[str, Any]:
    """The object that JSON text in UTF-8 spells; `where` opens every message.

    Raises:
        DamagedFileError: not JSON, not an object, nested deeper than DEPTH, more than MARKS values, a name that
            stands twice in one object, NaN or infinity, or a whole number of more than DIGITS digits.
    """
    _count(data, where)
    try:
        found = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except _Refused as error:
        raise DamagedFileError(f"{where} {error}. {_ADVICE}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{where} is not JSON text ({_short(error)}). {_ADVICE}") from error
    if not isinstance(found, dict):
        raise DamagedFileError(f"{where} must hold a JSON object. Got a {type(found).__name__}. {_ADVICE}")
    return found


class _Refused(Exception):
    """Well-formed JSON that nobody honest writes; the words follow the file's name."""


_ADVICE = "Use another copy of it."
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},:]', re.DOTALL)
"""A whole string, or one character of structure. It cannot fail inside a string, so that the scan is linear."""


def _count(data: bytes, where: str) -> None:
    """Refuse text that would become too many or too deeply nested objects, without making any."""
    depth = marks = 0
    for mark in _MARK.finditer(data):
        character = data[mark.start()]
        if character == 0x22:  # a string
            continue
        marks += 1
        depth += (character in b"[{") - (character in b"]}")
        if depth > DEPTH:
            raise DamagedFileError(f"{where} is nested deeper than {DEPTH} brackets. {_ADVICE}")
        if marks > MARKS:
            raise DamagedFileError(f"{where} holds more than {MARKS // 2} values. {_ADVICE}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Refused(f"says {twice[:80]!r} twice")
    return found


def _no_constant(word: str) -> Any:
    raise _Refused(f"holds {word}, which JSON has no word for")


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise _Refused(f"holds {text[:20]}, which is too large for a number")


def _whole(text: str) -> int:
    if len(text.lstrip("-")) <= DIGITS:
        return int(text)
    raise _Refused(f"holds a whole number of {len(text)} digits; at most {DIGITS} are read")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:100] if str(error) else type(error).__name__
