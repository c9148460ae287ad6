"""How contestants stand to each other: ratios of ours to the best of the others, and the required figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .records import Row

GOALS = {"least": 0.97, "mean": 1.05, "times timm": 1.5, "utilisation": 0.75}
OURS = "vitrail"
OWN = ("vitrail predict", "vitrail loop")
"""Our own lines around the model: beside the comparison, not in it."""


def alive(row: Row) -> list[dict[str, Any]]:
    """The contestants that have a figure."""
    return [one for one in row["contestants"] if one["pictures_per_second"] is not None]


def ours_of(row: Row) -> float | None:
    """Our better setting of those that the peers have, too."""
    found = (one["pictures_per_second"] for one in alive(row) if is_ours(one) and one["name"] not in OWN)
    return max(found, default=None)


def is_ours(one: dict[str, Any]) -> bool:
    """Whether a contestant is Vitrail."""
    return str(one["name"]).startswith(OURS)


def ratio(row: Row) -> float | None:
    """Ours over the best of the others; None where one side has no figure."""
    ours = ours_of(row)
    best = max((one["pictures_per_second"] for one in alive(row) if not is_ours(one)), default=None)
    return None if ours is None or best is None else float(ours / best)


def summary(rows: Sequence[Row], cells: int | None = None) -> dict[str, object]:
    """What the cells add up to, beside the goals.

    Args:
        cells: how many there are in the whole table; with fewer rows nothing about all cells is called met.
    """
    ratios = {row["cell"]: ratio(row) for row in rows}
    found = {cell: value for cell, value in ratios.items() if value is not None}
    if not found:
        return {}
    return {
        "command": "python benchmarks/peers.py",
        "goals": GOALS,
        "least": min(found.values()),
        "geometric_mean": statistics.geometric_mean(found.values()),
        "ratios": ratios,
        "checks": checks(rows, found, cells is None or len(found) == cells),
        "wall_seconds": sum(row.get("wall_seconds", 0.0) for row in rows),
    }


def checks(rows: Sequence[Row], ratios: dict[str, float], whole: bool) -> list[dict[str, object]]:
    """The required figures: which are met, and by how much (found over wanted). None: not measured, or not whole."""
    cells = {row["cell"]: {one["name"]: one for one in alive(row)} for row in rows}
    small = cells.get("Ti 32/4 training bfloat16 eager", {})
    times_timm = None
    if OURS in small and "timm" in small:
        times_timm = small[OURS]["pictures_per_second"] / small["timm"]["pictures_per_second"]
    wanted = [
        ("least cell over the best peer", min(ratios.values()) if whole else None, GOALS["least"]),
        ("geometric mean of the cells", statistics.geometric_mean(ratios.values()) if whole else None, GOALS["mean"]),
        ("Ti 32/4 bfloat16 training over timm's default", times_timm, GOALS["times timm"]),
        ("utilisation of S/16 bfloat16 training",
         cells.get("S/16 training bfloat16 eager", {}).get(OURS, {}).get("utilisation"), GOALS["utilisation"]),
    ]  # fmt: skip
    return [
        {"what": what, "found": found, "wanted": least, "met": None if found is None else found >= least,
         "over_wanted": None if found is None else found / least}
        for what, found, least in wanted
    ]  # fmt: skip
