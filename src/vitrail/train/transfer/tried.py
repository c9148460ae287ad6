"""Everything that was tried on the validation pictures of a run, as start.json and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...data.source import Task
from ...evaluate.glance import glance
from ...files import atomic


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One way to answer and what it was worth on the validation pictures."""

    name: str
    """Such as "10 nearest", "linear class+mean, C 0.032", or "0.5 of the tuned weights"."""
    figure_name: str
    """accuracy, AUROC or R2."""
    figure: float | None
    loss: float
    chosen: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """The larger the better: by the figure, then by the loss."""
        return (-np.inf if self.figure is None else self.figure, -self.loss)


def judged(name: str, task: Task, outputs: np.ndarray, targets: np.ndarray) -> Tried | None:
    """What answers to the validation pictures are worth; None where nothing is known of them.

    Args:
        targets: int64 [n] for classes; float32 [n, K] for labels, and for numbers on the scale of `outputs`.
    """
    found = glance(task, outputs, targets) if len(targets) else None
    if found is None:
        return None
    figure = None if found.figure is None else round(found.figure, 6)
    return Tried(name=name, figure_name=found.name, figure=figure, loss=round(found.loss, 6))


def write(path: Path, probes: Sequence[Tried], means: Sequence[Tried] = ()) -> None:
    """Keep what was tried on frozen features, and which means of start and tuned weights were."""
    content = {"frozen": [asdict(one) for one in probes], "tuned": [asdict(one) for one in means]}
    atomic.write_json(path, content)


def read(path: Path) -> tuple[tuple[Tried, ...], tuple[Tried, ...]]:
    """What `write` has kept; nothing where there is no such file."""
    if not path.is_file():
        return (), ()
    content = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Tried(**row) for row in content["frozen"]), tuple(Tried(**row) for row in content["tuned"])


def shortened(rows: Sequence[Tried]) -> list[Tried]:
    """The rows that people want to see: of each kind of linear probe only the best."""
    best: dict[str, Tried] = {}
    for row in rows:
        kind = row.name.partition(", C ")[0]
        if row.chosen or kind not in best or (not best[kind].chosen and row.rank > best[kind].rank):
            best[kind] = row
    return list(best.values())


def lines(rows: Sequence[Tried]) -> list[str]:
    """A table in plain text, a line each; the chosen row is marked."""
    shown = shortened(rows)
    width = max((len(row.name) for row in shown), default=0)
    return [
        f"  {row.name:<{width}}  {_figure(row)}  loss {row.loss:.3f}{'  <- chosen' if row.chosen else ''}"
        for row in shown
    ]


def sentences(path: Path) -> list[str]:
    """What start.json holds, a sentence for each of its tables, for the notes of a report."""
    titles = ("Frozen features, on the validation pictures", "Start, tuned weights and their means, there too")
    return [
        f"{title}: " + "; ".join(f"{row.name} {_figure(row)}{' (chosen)' if row.chosen else ''}" for row in shown) + "."
        for title, rows in zip(titles, read(path), strict=True)
        if (shown := shortened(rows))
    ]


def _figure(row: Tried) -> str:
    if row.figure is None:
        return f"{row.figure_name} unknown"
    return (
        f"{row.figure_name} {row.figure:.1%}"
        if row.figure_name == "accuracy"
        else f"{row.figure_name} {row.figure:.3f}"
    )
