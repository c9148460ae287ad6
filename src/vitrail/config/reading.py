"""Mappings and TOML files to settings, strictly: every value is tried against the kind that its field declares."""

from __future__ import annotations

import dataclasses
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from ..errors import UsageError
from .kinds import choices_of, group_in, kinds_of, members_of, nearest, shown, unknown, words

Settings = TypeVar("Settings")


def read(cls: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """Build settings from nested mappings; `where` (a file, "the command line") opens every message.

    Raises:
        UsageError: unknown name, wrong type, missing value, or a combination that the class itself refuses.
    """
    return _read(cls, values, "", where)


def read_some(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Some fields of settings, each tried against its kind. Nothing is required, and the class's own check is not run.

    Raises:
        UsageError: unknown name, or a value of the wrong kind.
    """
    kinds = _known(cls, values, "", where)
    return {name: _convert(kinds[name], value, name, where) for name, value in values.items()}


def read_toml(path: Path, cls: type[Settings]) -> Settings:
    """Read a TOML file strictly.

    Raises:
        UsageError: no such file, not TOML (with its line), or values that `read` refuses.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error.strerror}. Check the path.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The settings file {path} is not valid TOML: {error}. Correct that line.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The settings file {path} is not UTF-8 text. Save it as UTF-8.") from error
    return read(cls, values, str(path))


def _read(cls: type[Settings], values: Mapping[str, Any], prefix: str, where: str) -> Settings:
    kinds = _known(cls, values, prefix, where)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(f"{where}: {prefix}{field.name} is missing. It must be {words(kinds[field.name])}.")
    found = {name: _convert(kinds[name], value, prefix + name, where) for name, value in values.items()}
    try:
        return cls(**found)
    except ValueError as error:  # the class's own check
        raise UsageError(f"{where}: {error}") from error


def _known(cls: type[Any], values: Mapping[str, Any], prefix: str, where: str) -> dict[str, Any]:
    """The kinds of a class's fields, among which every name of `values` must be."""
    kinds = kinds_of(cls)
    for name in values:
        if name not in kinds:
            raise UsageError(unknown(f"{prefix}{name}", [f"{prefix}{known}" for known in kinds], where))
    return kinds


_NO = object()


def _convert(kind: Any, value: Any, name: str, where: str) -> Any:
    result = _attempt(kind, value, name, where)
    if result is not _NO:
        return result
    choices = [str(choice) for member in members_of(kind) for choice in choices_of(member)]
    hint = nearest(value, choices) if isinstance(value, str) else ""
    raise UsageError(f"{where}: {name} must be {words(kind)}. Got {shown(value)}.{hint}")


def _attempt(kind: Any, value: Any, name: str, where: str) -> Any:
    """`value` as this kind, or _NO; an error inside a nested value is raised where it is found."""
    if len(members := members_of(kind)) > 1:
        tries = (_attempt(member, value, name, where) for member in members)
        return next((result for result in tries if result is not _NO), _NO)
    if choices := choices_of(kind):
        return value if any(type(value) is type(choice) and value == choice for choice in choices) else _NO
    if kind is float:
        return float(value) if type(value) in (int, float) else _NO
    if kind in (bool, int, str, types.NoneType):
        return value if type(value) is kind else _NO
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else _NO
    if get_origin(kind) is tuple:
        return _attempt_tuple(get_args(kind), value, name, where)
    assert group_in(kind), f"{name}: a settings field cannot be a {kind}"
    return _read(kind, value, f"{name}.", where) if isinstance(value, Mapping) else _NO


def _attempt_tuple(kinds: tuple[Any, ...], value: Any, name: str, where: str) -> Any:
    if not isinstance(value, list | tuple):
        return _NO
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return _NO
    return tuple(
        _convert(kind, item, f"{name}[{place}]", where)
        for place, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )
