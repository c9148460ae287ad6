"""`name=value` words to settings: text becomes the value it spells; what spells none is left for `read` to refuse."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from ..errors import UsageError
from .describing import describe
from .kinds import choices_of, group_in, kinds_of, members_of, unknown
from .reading import read, read_some
from .writing import write

Settings = TypeVar("Settings")

COMMAND_LINE = "the command line"


def override(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """Settings with some dotted names replaced by text, read as each field's kind.

    All changes happen at once, so values that are right only together may change together. A tuple is written with
    commas, `image_size=224,320`; "none" empties a setting that may be empty.

    Raises:
        UsageError: unknown dotted name, or text that does not spell a value of the field's kind.
    """
    values = write(settings)
    for dotted, text in changes.items():
        if not _place(type(settings), values, dotted.split("."), text):
            known = [field.name for field in describe(type(settings))]
            raise UsageError(unknown(dotted, known, COMMAND_LINE))
    return read(type(settings), values, COMMAND_LINE)


def spell_some(cls: type[Any], changes: Mapping[str, str]) -> dict[str, Any]:
    """Some fields of settings as text spells them, each of its field's kind; the settings themselves are not made.

    Raises:
        UsageError: unknown name, or text that does not spell a value of the field's kind.
    """
    kinds = kinds_of(cls)
    values = {name: _spelled(kinds[name], text) if name in kinds else text for name, text in changes.items()}
    return read_some(cls, values, COMMAND_LINE)


def _place(cls: Any, values: dict[str, Any], path: list[str], text: str) -> bool:
    """Put the value that `text` spells at its place in nested `values`; False if there is no such place."""
    name, *rest = path
    kind = kinds_of(cls).get(name)
    if kind is None:
        return False
    if not rest:
        values[name] = _spelled(kind, text)
        return True
    if not isinstance(values.get(name), dict):
        values[name] = {}  # a group that was None begins with its own defaults
    return group_in(kind) is not None and _place(group_in(kind), values[name], rest, text)


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _spelled(kind: Any, text: str) -> Any:
    word = text.strip()
    for member in members_of(kind):
        if member is types.NoneType and word.lower() == "none":
            return None
        if member is bool and word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        if member in (int, float):
            try:
                return member(word)
            except ValueError:
                continue
        if matching := [choice for choice in choices_of(member) if str(choice) == word]:
            return matching[0]
        if get_origin(member) is tuple:
            return _spelled_tuple(get_args(member), word)
    return text


def _spelled_tuple(kinds: tuple[Any, ...], word: str) -> list[Any]:
    parts = [part.strip() for part in word.strip("[]()").split(",") if part.strip()]
    each = kinds[:1] * len(parts) if kinds[-1] is Ellipsis else (*kinds, *[str] * len(parts))
    return [_spelled(kind, part) for kind, part in zip(each, parts, strict=False)]
