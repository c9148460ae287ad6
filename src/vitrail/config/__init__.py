"""Strict reading and writing of settings: frozen dataclasses from mappings, TOML files and `name=value` arguments.

Nothing is ignored: an unknown name, a wrong type and a missing value are errors that name the setting, its origin and
the allowed values. A field's docstring is its help line.

Field types: bool, int, float, str, Path, Literal, tuple, another dataclass, and unions of them. A field that may be
None must have None as its default, because TOML cannot express None: absent means None.
"""

from __future__ import annotations

from .reader import BELOW_MAX_NUMBER, FINITE, MAX_NUMBER, override, parse_some, read, read_some, read_toml
from .schema import REQUIRED, Field, describe
from .writer import flatten, read_reasons, to_texts, to_toml, write

__all__ = [
    "BELOW_MAX_NUMBER",
    "FINITE",
    "MAX_NUMBER",
    "REQUIRED",
    "Field",
    "describe",
    "flatten",
    "override",
    "parse_some",
    "read",
    "read_reasons",
    "read_some",
    "read_toml",
    "to_texts",
    "to_toml",
    "write",
]
