"""Every setting with its kind, default and docstring: what help pages and documentation print."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from .kinds import group_in, kinds_of, one_line, words

REQUIRED = dataclasses.MISSING
"""Default of a field that must be given."""


class Field(NamedTuple):
    """One setting as help pages show it."""

    name: str
    """Dotted name from the outermost settings, such as `optimizer.rate`."""
    type: str
    """Accepted values in words."""
    default: Any
    """Value when nothing is said, or REQUIRED."""
    doc: str
    """The string under the field, on one line."""


def describe(cls: type[Any]) -> list[Field]:
    """Every setting of a class in its written order, nested ones by their dotted names."""
    return list(_describe(cls, None, ""))


def _describe(cls: Any, instance: Any, prefix: str) -> Iterator[Field]:
    docs = _field_docs(cls)
    for field in dataclasses.fields(cls):
        kind = kinds_of(cls)[field.name]
        value = _default(field) if instance is None else getattr(instance, field.name)
        if group := group_in(kind):
            yield from _describe(group, None if value in (None, REQUIRED) else value, f"{prefix}{field.name}.")
        else:
            yield Field(prefix + field.name, words(kind), value, docs.get(field.name, ""))


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def _field_docs(cls: Any) -> dict[str, str]:
    """The string under each annotated field, from the source; base classes first."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = one_line(text)
    return docs
