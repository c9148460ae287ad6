"""Settings as plain values, and as TOML with the reason of each value in a comment."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .schema import collapse_whitespace, describe


def write(settings: Any) -> dict[str, Any]:
    """Settings as nested plain values, the inverse of `read`: tuples become lists, None is left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = _to_plain_value(getattr(settings, field.name))
        if value is not None:
            values[field.name] = value
        else:
            assert field.default is None, f"{field.name} may be None, so None must be its default"
    return values


def flatten(settings: Any) -> dict[str, Any]:
    """Plain values by dotted name."""
    return dict(_iter_flat(write(settings), ""))


def to_texts(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Values by dotted name as the texts that `override` parses: a list with commas."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in (settings or {}).items()
    }


def to_toml(settings: Any, reasons: Mapping[str, str]) -> str:
    """Settings as TOML; the reason of a dotted name becomes a comment at the end of its line.

    A setting that is None has no line in TOML; its reason, if any, is a comment at the top.
    """
    known = {field.name for field in describe(type(settings))}
    assert reasons.keys() <= known, f"reasons for no setting: {sorted(reasons.keys() - known)}"
    unset = reasons.keys() - flatten(settings).keys()
    empty = [f"# {name} is not set: {collapse_whitespace(why)}" for name, why in reasons.items() if name in unset]
    return "\n".join([*empty, *_iter_table_lines(write(settings), "", reasons)]).strip() + "\n"


def _iter_flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _iter_flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _to_plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple | list):
        return [_to_plain_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _iter_table_lines(values: Mapping[str, Any], prefix: str, reasons: Mapping[str, str]) -> Iterator[str]:
    """Single values first, then a [table] for each group, as TOML requires."""
    groups = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    for name, value in values.items():
        if name not in groups:
            line, reason = f"{name} = {_format_toml_value(value)}", reasons.get(prefix + name)
            yield f"{line:<36}  # {collapse_whitespace(reason)}" if reason else line
    for name, group in groups.items():
        yield from ("", f"[{prefix}{name}]")
        yield from _iter_table_lines(group, f"{prefix}{name}.", reasons)


def _format_toml_value(value: Any) -> str:
    if isinstance(value, str):  # JSON escapes everything that TOML requires except DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_format_toml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_format_toml_value(item)}" for name, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)  # repr spells inf and nan as TOML does


# -- Reading the reasons back from the comments.

_COMMENT_MARK = "  # "


def read_reasons(text: str) -> dict[str, str]:
    """Dotted name -> reason, from TOML that `to_toml` wrote; best effort for other text."""
    reasons, table = {}, ""
    for line in text.splitlines():
        if match := re.fullmatch(r"# ([\w.]+) is not set: (.*)", line):
            reasons[match[1]] = match[2]
        elif match := re.fullmatch(r"\[([\w.]+)\]", line):
            table = f"{match[1]}."
        elif pair := _split_comment(line):
            reasons[table + pair[0]] = pair[1]
    return reasons


def _split_comment(line: str) -> tuple[str, str] | None:
    """Name and comment of `name = value  # comment`; the mark may also occur inside a string."""
    place = line.find(_COMMENT_MARK)
    while place >= 0:
        try:
            (name,) = tomllib.loads(line[:place])
        except ValueError:  # no whole TOML line, or not one name
            place = line.find(_COMMENT_MARK, place + 1)
            continue
        return name, line[place + len(_COMMENT_MARK) :]
    return None
