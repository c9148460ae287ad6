"""The one strict way between frozen dataclasses and what people write: mappings, TOML files, `name=value` words.

Nothing is ignored: an unknown name, a wrong type and a missing value are each an error that names the setting, the
place it came from, and what would be right. A field's docstring is its help line.

Kinds of field: bool, int, float, str, Path, Literal, tuple, another dataclass, and unions of them. A field that may
be None has None as its default, because TOML has no way to write None: absent means None.
"""

from __future__ import annotations

from .reader import override, parse_some, read, read_some, read_toml
from .schema import REQUIRED, Field, describe
from .writer import flatten, read_reasons, to_toml, write

__all__ = [
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
    "to_toml",
    "write",
]
