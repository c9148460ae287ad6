"""The sources that plans and levers are compared on, each by validation pictures: no test picture is looked at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .records import Row, train_run


@dataclass(frozen=True)
class Case:
    """A source as `vitrail train` takes it."""

    words: tuple[object, ...]
    size: int
    """Pixels of a side as the plan reads it."""
    patch: int
    """Pixels of a side of the plan's own patches."""
    one_size: tuple[object, ...] = ()
    """What leaves out the smaller pictures of early steps where the plan has them, which came of these comparisons."""


def cases(elpv: Path | None, folder: Path) -> dict[str, Case]:
    """Every source that can be had.

    Args:
        elpv: ELPV's folder with labels.csv and images/; without it there are no solar cells.
        folder: where its manifest is written.
    """
    third, scratch = ("--data.val_fraction", 0.3), ("--weights", "none")
    found = {
        "fashion-mnist": Case(("fashion-mnist", *scratch), 28, 4, ("--recipe.progressive_until", 0)),
        "digits": Case(("digits", *third, *scratch), 8, 2),
    }
    if elpv is not None:
        from elpv import read_cells, source_words, write_tables

        tables = write_tables(read_cells(elpv / "labels.csv"), folder)
        found["elpv"] = Case((*source_words(tables, "scratch", elpv), *third, *scratch), 96, 12)
    return found


def train_and_validate(run: Path, *words: object) -> Row:
    """Train if need be; the figures of the validation pictures, and what the training took."""
    row = train_run(run, *words)
    found = json.loads((run / "metrics-val.json").read_text(encoding="utf-8"))
    figures = {f"val_{name}": found[name] for name in ("accuracy", "auroc", "log_loss") if found.get(name) is not None}
    kept = ("steps", "images_seen", "seconds", "wall_seconds", "model", "parameters", "number_format", "commit")
    return {**figures, **{name: row[name] for name in kept}, "machine": row["machine"].get("cpu", "")}
