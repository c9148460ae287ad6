"""Types, defaults and docstrings of settings fields, and their descriptions for error messages and help."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from ..argument_types import TYPE_WORDS, literal_values, union_members
from .library_names import MIN_SIMILARITY, explain_library_name


def get_field_types(cls: Any) -> dict[str, Any]:
    """Field name -> resolved annotation, in the order of the class."""
    return _resolve_field_types(cls)


@cache  # behind a function with a plain signature: mypy does not take a type[Any] for Hashable
def _resolve_field_types(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def nested_settings_class(kind: Any) -> Any:
    """The settings class in a type, alone or in a union with None; else None."""
    return next((m for m in union_members(kind) if isinstance(m, type) and dataclasses.is_dataclass(m)), None)


def describe_type(kind: Any) -> str:
    """Describe a type for people."""
    if len(members := union_members(kind)) > 1:
        return " or ".join(describe_type(member) for member in members)
    if choices := literal_values(kind):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            return f"a list, each {describe_type(kinds[0])}"
        return f"a list of {len(kinds)} ({', '.join(map(describe_type, kinds))})"
    if group := nested_settings_class(kind):
        return f"a group of settings ({', '.join(get_field_types(group))})"
    return TYPE_WORDS[kind]


def describe_value(value: Any) -> str:
    """Describe a refused value with its type, abbreviated."""
    if isinstance(value, Mapping):
        return f"a group holding {', '.join(map(str, value)) or 'nothing'}"
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({TYPE_WORDS.get(type(value), type(value).__name__)})"


def unknown_setting_message(name: str, known: list[str], where: str, nested: Sequence[str] = ()) -> str:
    """The message for a dotted name that does not exist; its last part decides which known one is near.

    Args:
        nested: names in the groups among `known`, which may be meant too.
    """
    candidates = [*known, *nested]
    lasts = [other.rpartition(".")[2] for other in candidates]
    near = difflib.get_close_matches(name.rpartition(".")[2], lasts, n=1, cutoff=MIN_SIMILARITY)
    alike = [other for other, last in zip(candidates, lasts, strict=True) if last in near]
    hint = f" Known here: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}."
    if alike:
        hint = f" Did you mean {difflib.get_close_matches(name, alike, n=1, cutoff=0)[0]}?"
    in_plan = "." in name or "recipe" in known
    library_hint = explain_library_name(name, dict(zip(known, known, strict=True)), in_plan)
    return f"{where}: there is no setting {name}.{library_hint or hint}"


def collapse_whitespace(text: str) -> str:
    """Text on one line, without indentation."""
    return " ".join(text.split())


# -- Fields with type, default and docstring, for help pages and documentation.

REQUIRED = dataclasses.MISSING
"""Default of a required field."""


class Field(NamedTuple):
    """One setting of a help page."""

    name: str
    """Dotted name from the outermost settings, such as `recipe.lr`."""
    type: str
    """Accepted values in words."""
    default: Any
    """The default, or REQUIRED."""
    doc: str
    """The field's docstring, on one line."""


def describe(cls: type[Any]) -> list[Field]:
    """Every field of a settings class in source order, nested ones by their dotted names."""
    return list(_iter_fields(cls, None, ""))


def _iter_fields(cls: Any, instance: Any, prefix: str) -> Iterator[Field]:
    docs = _read_field_docs(cls)
    for field in dataclasses.fields(cls):
        kind = get_field_types(cls)[field.name]
        if instance is not None:
            value = getattr(instance, field.name)
        else:
            value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if group := nested_settings_class(kind):
            yield from _iter_fields(group, None if value in (None, REQUIRED) else value, f"{prefix}{field.name}.")
        else:
            yield Field(prefix + field.name, describe_type(kind), value, docs.get(field.name, ""))


def read_class_doc(cls: Any) -> str:
    """Docstring of a settings class; from the source where Python has dropped it (PYTHONOPTIMIZE=2)."""
    return (inspect.getdoc(cls) if sys.flags.optimize < 2 else ast.get_docstring(_parse_class(cls))) or ""


def _parse_class(cls: Any) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return tree


@cache
def _read_field_docs(cls: Any) -> dict[str, str]:
    """Docstring of each annotated field, from the source; base classes first."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        tree = _parse_class(base)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = collapse_whitespace(text)
    return docs
