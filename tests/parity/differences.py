"""The largest differences that the comparisons of this folder measured, one JSON line each, for the table in docs/.

`VITRAIL_DIFFERENCES=FILE pytest tests/parity` appends to FILE; without the variable nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def record(layout: str, direction: str, largest_difference: float) -> None:
    """Note one measured difference.

    Args:
        layout: the layout with its variant, such as "timm" or "transformers:dinov2".
        direction: what was compared, such as "read, native grid", "read, 4x6 grid", "gradients", "written".
    """
    if path := os.environ.get("VITRAIL_DIFFERENCES"):
        line = json.dumps({"layout": layout, "direction": direction, "difference": float(largest_difference)})
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def largest(path: Path) -> dict[tuple[str, str], float]:
    """The largest difference of every layout and direction in such a file."""
    found: dict[tuple[str, str], float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = (row["layout"], row["direction"])
        found[key] = max(found.get(key, 0.0), row["difference"])
    return found
