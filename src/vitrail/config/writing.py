"""Settings to plain values, and to TOML that says why each value is what it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .describing import describe
from .kinds import one_line


def write(settings: Any) -> dict[str, Any]:
    """Settings as plain nested values that `read` turns back: tuples become lists, None is left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = _plain(getattr(settings, field.name))
        if value is not None:
            values[field.name] = value
        else:
            assert field.default is None, f"{field.name} may be None, so None must be its default"
    return values


def flat(settings: Any) -> dict[str, Any]:
    """The same values, each under its dotted name."""
    return dict(_flat(write(settings), ""))


def to_toml(settings: Any, reasons: Mapping[str, str]) -> str:
    """Settings as TOML; the reason of a dotted name becomes the comment at the end of its line.

    A setting that is None has no line in TOML; its reason, if there is one, stands at the top.
    """
    known = {field.name for field in describe(type(settings))}
    assert reasons.keys() <= known, f"reasons for no setting: {sorted(reasons.keys() - known)}"
    values = write(settings)
    empty = [f"# {name} is not set: {one_line(why)}" for name, why in reasons.items() if not _holds(values, name)]
    return "\n".join([*empty, *_table_lines(values, "", reasons)]).strip() + "\n"


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _holds(values: Mapping[str, Any], dotted: str) -> bool:
    name, _, rest = dotted.partition(".")
    return name in values and (not rest or _holds(values[name], rest))


def _table_lines(values: Mapping[str, Any], prefix: str, reasons: Mapping[str, str]) -> Iterator[str]:
    """Single values first, then one [table] a group: TOML's order."""
    groups = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    for name, value in values.items():
        if name not in groups:
            line, reason = f"{name} = {_toml(value)}", reasons.get(prefix + name)
            yield f"{line:<36}  # {one_line(reason)}" if reason else line
    for name, group in groups.items():
        yield from ("", f"[{prefix}{name}]")
        yield from _table_lines(group, f"{prefix}{name}.", reasons)


def _toml(value: Any) -> str:
    if isinstance(value, str):  # JSON escapes all that TOML wants escaped, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)  # repr spells inf and nan as TOML does
