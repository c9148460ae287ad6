"""Settings from mappings, TOML files and text, with every value checked against its field's type."""

from __future__ import annotations

import dataclasses
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from ..argument_types import NO_MATCH, convert_plain, literal_values, union_members
from ..errors import UsageError
from .library_names import suggest_name
from .schema import (
    describe,
    describe_type,
    describe_value,
    get_field_types,
    nested_settings_class,
    unknown_setting_message,
)
from .writer import write

Settings = TypeVar("Settings")
COMMAND_LINE = "the command line"
MAX_NUMBER, MAX_FLOAT = 2**63, 3.4e38
"""Whole numbers of settings are smaller in size, as torch and other libraries need them; others fit into float32."""
BELOW_MAX_NUMBER, FINITE = ", below 2^63 in size", ", finite and at most 3.4e38 in size"


def read(cls: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """Build settings from nested mappings; `where` (a file, "the command line") begins every error message.

    Raises:
        UsageError: unknown name, wrong type, missing value, or an error of the class's own `__post_init__`.
    """
    return _build_settings(cls, values, "", where)


def read_some(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check some fields of settings against their types, without required fields and without `__post_init__`.

    Raises:
        UsageError: unknown name, or a value of the wrong type.
    """
    kinds = _check_known_names(cls, values, "", where)
    return {name: _convert_value(kinds[name], value, name, where) for name, value in values.items()}


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


def _build_settings(cls: type[Settings], values: Mapping[str, Any], prefix: str, where: str) -> Settings:
    kinds = _check_known_names(cls, values, prefix, where)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(
                f"{where}: {prefix}{field.name} is missing. It must be {describe_type(kinds[field.name])}."
            )
    arguments = {name: _convert_value(kinds[name], value, prefix + name, where) for name, value in values.items()}
    try:
        return cls(**arguments)
    except ValueError as error:  # from __post_init__
        raise UsageError(f"{where}: {error}") from error


def _check_known_names(cls: type[Any], values: Mapping[str, Any], prefix: str, where: str) -> dict[str, Any]:
    """The types of a class's fields; raises UsageError if a name in `values` is none of them."""
    kinds = get_field_types(cls)
    for name in values:
        if name not in kinds:
            known = [f"{prefix}{own}" for own in kinds]
            groups = {own: group for own, kind in kinds.items() if (group := nested_settings_class(kind))}
            nested = [f"{prefix}{own}.{inner}" for own, group in groups.items() for inner in get_field_types(group)]
            raise UsageError(unknown_setting_message(f"{prefix}{name}", known, where, nested))
    return kinds


def _convert_value(kind: Any, value: Any, name: str, where: str) -> Any:
    result = _try_convert(kind, value, name, where)
    if result is not NO_MATCH:
        return result
    choices = [str(choice) for member in union_members(kind) for choice in literal_values(member)]
    hint = suggest_name(value, choices) if isinstance(value, str) else ""
    raise UsageError(f"{where}: {name} must be {describe_type(kind)}. Got {describe_value(value)}.{hint}")


def _try_convert(kind: Any, value: Any, name: str, where: str) -> Any:
    """`value` as this type, or NO_MATCH; errors inside nested values are raised."""
    if len(members := union_members(kind)) > 1:
        tries = (_try_convert(member, value, name, where) for member in members)
        return next((result for result in tries if result is not NO_MATCH), NO_MATCH)
    if choices := literal_values(kind):
        return value if any(type(value) is type(choice) and value == choice for choice in choices) else NO_MATCH
    if kind in (bool, int, float, str):
        plain = convert_plain(kind, value)
        if kind in (bool, str) or plain is NO_MATCH:
            return plain
        if not (abs(plain) < MAX_NUMBER if kind is int else abs(plain) <= MAX_FLOAT):
            limit = BELOW_MAX_NUMBER if kind is int else FINITE
            raise UsageError(f"{where}: {name} must be {describe_type(kind)}{limit}. Got {value}.")
        return kind(plain)
    if kind is types.NoneType:
        return None if value is None else NO_MATCH
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else NO_MATCH
    if get_origin(kind) is tuple:
        return _try_convert_tuple(get_args(kind), value, name, where)
    assert nested_settings_class(kind), f"{name}: a settings field cannot be a {kind}"
    return _build_settings(kind, value, f"{name}.", where) if isinstance(value, Mapping) else NO_MATCH


def _try_convert_tuple(kinds: tuple[Any, ...], value: Any, name: str, where: str) -> Any:
    if not isinstance(value, list | tuple):
        return NO_MATCH
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return NO_MATCH
    return tuple(
        _convert_value(kind, item, f"{name}[{place}]", where)
        for place, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


# -- Values as text (command line); text that does not match its type is refused by `read`.


def override(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """Settings with some dotted names replaced by values from text.

    All changes are applied at once, so values that are valid only together may change together. A tuple is written with
    commas, `image_size=224,320`; "none" sets an optional field to None.

    Raises:
        UsageError: unknown dotted name, or text that is no value of the field's type.
    """
    values = write(settings)
    for dotted, text in changes.items():
        if not _set_nested_value(type(settings), values, dotted.split("."), text):
            known = [field.name for field in describe(type(settings))]
            raise UsageError(unknown_setting_message(dotted, known, COMMAND_LINE))
    return read(type(settings), values, COMMAND_LINE)


def parse_some(cls: type[Any], changes: Mapping[str, str]) -> dict[str, Any]:
    """Values of some fields from text, by their types, without building the settings.

    Raises:
        UsageError: unknown name, or text that is no value of the field's type.
    """
    kinds = get_field_types(cls)
    values = {name: _parse_value(kinds[name], text) if name in kinds else text for name, text in changes.items()}
    return read_some(cls, values, COMMAND_LINE)


def _set_nested_value(cls: Any, values: dict[str, Any], path: list[str], text: str) -> bool:
    """Set a nested value from text; False if there is no such field."""
    name, *rest = path
    kind = get_field_types(cls).get(name)
    if kind is None:
        return False
    if not rest:
        values[name] = _parse_value(kind, text)
        return True
    if not isinstance(values.get(name), dict):
        values[name] = {}  # a group that was None begins with its own defaults
    return nested_settings_class(kind) is not None and _set_nested_value(
        nested_settings_class(kind), values[name], rest, text
    )


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _parse_value(kind: Any, text: str) -> Any:
    word = text.strip()
    for member in union_members(kind):
        if member is types.NoneType and word.lower() == "none":
            return None
        if member is bool and word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        if member in (int, float):
            try:
                return member(word)
            except ValueError:
                continue
        if matching := [choice for choice in literal_values(member) if str(choice) == word]:
            return matching[0]
        if get_origin(member) is tuple:
            kinds = get_args(member)
            parts = [part.strip() for part in word.strip("[]()").split(",") if part.strip()]
            each = kinds[:1] * len(parts) if kinds[-1] is Ellipsis else (*kinds, *[str] * len(parts))
            return [_parse_value(item, part) for item, part in zip(each, parts, strict=False)]
    return text
