"""What a run takes, before it and after it: seconds by the clock, and memory at the highest point."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...files.atomic import write_json

NAME = "cost.json"


@dataclass(frozen=True)
class Cost:
    """Seconds of the parts of a run; bytes are those of the process on a CPU, of torch on a GPU."""

    preparation: float
    """Opening, checking and decoding the data, and measuring the pace."""
    training: float
    """The optimiser steps."""
    evaluation: float
    """Looks at the validation pictures, answers for all held-out ones, figures and report."""
    memory: int
    step_seconds: tuple[float, ...] = ()
    """Seconds of a step in each phase of the recipe, as measured before the first; empty in what was taken."""

    @property
    def seconds(self) -> float:
        """From the command to the report."""
        return self.preparation + self.training + self.evaluation

    def to_json(self) -> dict[str, Any]:
        """All parts, the seconds together, and those of a step in each phase if they are known."""
        parts = dataclasses.asdict(self)
        steps = [float(f"{seconds:.4g}") for seconds in parts.pop("step_seconds")]
        rounded = {name: round(value, 2) for name, value in parts.items()}
        return {**rounded, "seconds": round(self.seconds, 2), **({"step_seconds": steps} if steps else {})}


def write(folder: Path, predicted: Cost | None, actual: Cost | None = None) -> None:
    """Keep both in the run folder; what is not known is null."""
    both = {"predicted": predicted, "actual": actual}
    write_json(folder / NAME, {name: None if cost is None else cost.to_json() for name, cost in both.items()})


def read(folder: Path) -> dict[str, dict[str, Any] | None]:
    """What `write` kept; nothing of either where there is no such file."""
    path = folder / NAME
    if not path.is_file():
        return {"predicted": None, "actual": None}
    found: dict[str, dict[str, Any] | None] = json.loads(path.read_text(encoding="utf-8"))
    return found


def step_seconds(folder: Path) -> tuple[float, ...]:
    """Of a step in each phase of the recipe, as foretold; empty where nobody measured, or the file cannot be read."""
    try:
        return tuple((read(folder)["predicted"] or {}).get("step_seconds", ()))
    except (ValueError, KeyError):  # nothing but the time that is left is told by it
        return ()
