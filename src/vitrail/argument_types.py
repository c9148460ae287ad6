"""Arguments of public functions: checked against their annotations, and converted to plain values of Python.

NumPy's numbers become Python's and paths become `Path`; what is of another type is an error that names the argument.
Annotations that say more than a type, such as shapes of arrays, are left to the functions themselves.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import numbers
import os
import types
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UsageError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClassT = TypeVar("ClassT")
NO_MATCH = object()
"""Instead of a value that is not of a type."""
TYPE_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    types.NoneType: "nothing",
    list: "a list",
    tuple: "a list",
}
"""What types are called in messages."""
_PLURALS = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}
_CALLABLE: Any = collections.abc.Callable
MAX_SHOWN = 80
"""Characters of a refused value that a message shows."""


def check_calls(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Decorate a function so that its arguments are checked and converted, see `check_arguments`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        checked, named = check_arguments(function, args, kwargs)
        return function(*checked, **named)

    return call


def check_construction(cls: type[ClassT]) -> type[ClassT]:
    """Decorate a class in the same way: the arguments from which it is made."""
    setattr(cls, "__init__", check_calls(cls.__init__))  # noqa: B010 - mypy refuses a plain assignment
    return cls


def check_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call by the annotations of the function; unknown and surplus ones are left for Python to refuse.

    Raises:
        UsageError: one of another type; the message names the argument and says what it must be.
    """
    positional, kinds = _parameters(function)
    checked = [
        convert_argument(name, kinds.get(name, Any), value) for name, value in zip(positional, args, strict=False)
    ]
    named = {name: convert_argument(name, kinds.get(name, Any), value) for name, value in kwargs.items()}
    return (*checked, *args[len(checked) :]), named


@cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the positional parameters, and the resolved annotations by name; that of the result is not resolved."""
    function = inspect.unwrap(function)
    parameters = inspect.signature(function).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    variable = [each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    left_out = (*variable, "return")  # the type of the result may be that of a library imported for type checkers only
    written = {name: kind for name, kind in inspect.get_annotations(function).items() if name not in left_out}
    return tuple(positional), get_type_hints(types.SimpleNamespace(__annotations__=written), function.__globals__)


def convert_argument(name: str, kind: Any, value: Any) -> Any:
    """A value as an annotation says.

    Raises:
        UsageError: it is of another type.
    """
    result = _convert(kind, value)
    if result is not NO_MATCH:
        return result
    hint = ""
    if _convert(kind, [value]) is not NO_MATCH:
        hint = " Write it as a list."
    elif isinstance(value, str) and _convert(kind, _parse_number(value)) not in (NO_MATCH, None):
        hint = " Leave the quotes out."
    elif near := difflib.get_close_matches(str(value), _words(kind), n=1):
        hint = f" Did you mean {near[0]!r}?"
    raise UsageError(f"{name} must be {describe_kind(kind)}. Got {_describe_value(value)}.{hint}")


def convert_plain(kind: Any, value: Any) -> Any:
    """A value as bool, int, float or str, also of NumPy's; NO_MATCH if it is none. A whole number serves as a float."""
    is_bool = isinstance(value, bool) or (str(getattr(value, "dtype", "")), getattr(value, "ndim", 1)) == ("bool", 0)
    if kind is bool:
        return bool(value) if is_bool else NO_MATCH
    if kind is str:
        return str(value) if isinstance(value, str) else NO_MATCH
    if isinstance(value, numbers.Integral) and not is_bool:
        return int(value)
    return float(value) if kind is float and isinstance(value, numbers.Real) and not is_bool else NO_MATCH


def union_members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; for another type the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def literal_values(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal; empty for another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _convert(kind: Any, value: Any) -> Any:
    """A value as a type; NO_MATCH if it is of another."""
    origin, items = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return value
    if len(members := union_members(kind)) > 1:
        results = (_convert(member, value) for member in members)
        return next((result for result in results if result is not NO_MATCH), NO_MATCH)
    if kind is types.NoneType:
        return None if value is None else NO_MATCH
    if kind in (bool, int, float, str):
        return convert_plain(kind, value)
    if kind is Path:
        return Path(value) if isinstance(value, str | os.PathLike) else NO_MATCH
    if choices := literal_values(kind):
        return next((choice for choice in choices if convert_plain(type(choice), value) == choice), NO_MATCH)
    if origin is collections.abc.Sequence or origin is tuple:
        return _convert_items(items, value)
    if origin is collections.abc.Mapping:
        return _convert_mapping(items, value)
    if origin is _CALLABLE or (getattr(kind, "_is_protocol", False) and hasattr(kind, "__call__")):  # noqa: B004
        return value if callable(value) else NO_MATCH
    if isinstance(kind, type) and origin is None and not hasattr(kind, "array_type"):
        return value if isinstance(value, kind) else NO_MATCH
    return value


def _convert_items(kinds: tuple[Any, ...], value: Any) -> Any:
    """A tuple of values, which need not be one; NO_MATCH for text, numbers and other lengths."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__") or not hasattr(value, "__len__"):
        return NO_MATCH
    if kinds == (object,):
        return value
    is_fixed = len(kinds) > 1 and kinds[-1] is not Ellipsis
    if getattr(value, "ndim", 1) != 1 or (is_fixed and len(kinds) != len(value)):
        return NO_MATCH
    each = kinds if is_fixed else kinds[:1] * len(value)
    results = tuple(_convert(kind, item) for kind, item in zip(each, value, strict=True))
    return NO_MATCH if any(result is NO_MATCH for result in results) else results


def _convert_mapping(kinds: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return NO_MATCH
    results = {_convert(kinds[0], key): _convert(kinds[1], item) for key, item in value.items()}
    if any(each is NO_MATCH for each in (*results, *results.values())):
        return NO_MATCH
    return value if kinds[1] is object else results


def _words(kind: Any) -> list[str]:
    """The texts that a Literal, alone or in a union, allows."""
    return [word for member in union_members(kind) for word in literal_values(member) if isinstance(word, str)]


def _parse_number(text: str) -> object:
    """The number that a text holds, or else None."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


# -- Words for messages


def describe_kind(kind: Any) -> str:
    """What an argument must be; that it may be left out is not mentioned."""
    members = [each for each in union_members(kind) if each is not types.NoneType] or [kind]
    if Path in members and str in members:
        members.remove(str)
    return " or ".join(dict.fromkeys(map(_describe_member, members)))


def _describe_member(kind: Any) -> str:
    origin, items = get_origin(kind), get_args(kind)
    if choices := literal_values(kind):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else repr(choices[0])
    if kind is bool:
        return "True or False"
    if kind in TYPE_WORDS:
        return TYPE_WORDS[kind]
    if origin in (tuple, collections.abc.Sequence):
        count = f"{len(items)} " if len(items) > 1 and items[-1] is not Ellipsis else "a list of "
        return f"{count}{_plural(items[0])}"
    if origin is collections.abc.Mapping:
        return f"a dictionary of names and {_plural(items[1])}"
    if origin is _CALLABLE or getattr(kind, "_is_protocol", False):
        return "a function"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _plural(kind: Any) -> str:
    if kind in _PLURALS:
        return _PLURALS[kind]
    if get_origin(kind) in (tuple, collections.abc.Sequence):
        return "lists" if len(set(get_args(kind))) > 1 else f"lists of {_plural(get_args(kind)[0])}"
    return "functions" if get_origin(kind) is _CALLABLE or getattr(kind, "_is_protocol", False) else "values"


def _describe_value(value: Any) -> str:
    """A refused value, abbreviated; of an object with a long text only its type."""
    name = type(value).__name__
    is_plain = isinstance(value, str | bytes | bool | numbers.Number | list | tuple | Mapping | os.PathLike)
    if value is None or is_plain or getattr(value, "ndim", 1) == 0:
        text = repr(value)
        return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
