"""JSON tables that a run folder may hold beside its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import DamagedFileError


def table(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None where there is none.

    Raises:
        DamagedFileError: it is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise DamagedFileError(f"{path} must be JSON. {problem}.") from problem
    if not isinstance(found, dict):
        raise DamagedFileError(f"{path} must hold a JSON object. Got a {type(found).__name__}.")
    return found
