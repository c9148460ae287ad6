"""What the type annotation of a settings field allows, and how to say that to a person."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def kinds_of(cls: Any) -> dict[str, Any]:
    """Field name -> resolved annotation, in the order of the class."""
    return _resolved(cls)


@cache
def _resolved(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def members_of(kind: Any) -> tuple[Any, ...]:
    """The members of a union; any other kind is its own only member."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, none for any other kind."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def group_in(kind: Any) -> Any:
    """The settings class that this kind holds, alone or beside None; None if it holds none."""
    return next((m for m in members_of(kind) if isinstance(m, type) and dataclasses.is_dataclass(m)), None)


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    types.NoneType: "nothing",
    list: "a list",
    tuple: "a list",
}


def words(kind: Any) -> str:
    """A kind as a person would say it."""
    if len(members := members_of(kind)) > 1:
        return " or ".join(words(member) for member in members)
    if choices := choices_of(kind):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            return f"a list, each {words(kinds[0])}"
        return f"a list of {len(kinds)} ({', '.join(map(words, kinds))})"
    if group := group_in(kind):
        return f"a group of settings ({', '.join(kinds_of(group))})"
    return _WORDS[kind]


def shown(value: Any) -> str:
    """A refused value with its kind, short enough for one message."""
    if isinstance(value, Mapping):
        return f"a group holding {', '.join(map(str, value)) or 'nothing'}"
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({_WORDS.get(type(value), type(value).__name__)})"


def nearest(word: str, known: Iterable[str]) -> str:
    """The words "Did you mean ...?" for the known word that looks most like this one, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {found[0]}?" if found else ""


def unknown(name: str, known: list[str], where: str) -> str:
    """The message for a dotted name that does not exist; its last part decides which known one is near."""
    lasts = [other.rpartition(".")[2] for other in known]
    near = difflib.get_close_matches(name.rpartition(".")[2], lasts, n=1)
    alike = [other for other, last in zip(known, lasts, strict=True) if last in near]
    all_known = f"Known here: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}."
    hint = f"Did you mean {difflib.get_close_matches(name, alike, n=1, cutoff=0)[0]}?" if alike else all_known
    return f"{where}: there is no setting {name}. {hint}"


def one_line(text: str) -> str:
    """Text without its line breaks and indentation."""
    return " ".join(text.split())
