"""Results files and Markdown tables: what the pages of figures are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]


def read(path: Path) -> Found:
    """A results file; nothing where there is none."""
    found: Found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def table(*names: str) -> list[str]:
    """The head of a table."""
    return [line(*names), line(*["---"] * len(names))]


def line(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"
