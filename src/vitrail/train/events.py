"""Training events: plain values that a training yields one after another."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluate.task_metrics import TaskMetrics
from ..files.atomic import write_json
from .plan import Plan


@dataclass(frozen=True)
class Note:
    """A sentence for a person."""

    text: str


@dataclass(frozen=True)
class PlanEvent:
    """The plan is final."""

    plan: Plan
    reasons: dict[str, str]
    cost: RunCost | None = None
    """The predicted cost; None where it was not measured."""


@dataclass(frozen=True)
class RunFolderEvent:
    """The run folder exists; everything from here on is kept in it."""

    run: Path


@dataclass(frozen=True)
class StepProgress:
    """The state after an optimiser step; `seconds_left` is the expected time to the end of its phase."""

    step: int
    steps: int
    epoch: float
    loss: float
    images_per_second: float
    seconds_left: float
    phase: str = ""
    """Empty for the training itself, else a phase before it, such as "pre-training"."""


@dataclass(frozen=True)
class TaskProgress:
    """Progress of work other than training steps; `seconds_left` is the expected time to its end."""

    task_name: str
    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True)
class ValidationEvent:
    """Metrics on (a sample of) the validation images during a run."""

    step: int
    metric: float | None
    """None where the sample does not define it."""
    loss: float
    metric_name: str = "accuracy"
    """accuracy, AUROC or R2."""


@dataclass(frozen=True)
class FinishEvent:
    """The run is complete; `metrics` are those of the held-out images."""

    run: Path
    report: Path
    metrics: TaskMetrics
    seconds: float


Event = Note | PlanEvent | RunFolderEvent | TaskProgress | StepProgress | ValidationEvent | FinishEvent


# -- Cost of a run, predicted and actual: wall-clock seconds and peak memory

COST_FILE = "cost.json"


@dataclass(frozen=True)
class RunCost:
    """Seconds of the parts of a run; bytes are those of the process on a CPU, of torch on a GPU."""

    preparation: float
    """Opening, checking and decoding the data, and measuring the throughput."""
    training: float
    """What minutes count: phases before the first step, the steps, and the evaluations and checkpoints between them."""
    evaluation: float
    """Predictions for all held-out images, metrics and report."""
    memory: int
    step_seconds: tuple[float, ...] = ()
    """Seconds of a step in each stage of the recipe, measured before the first; empty in an actual cost."""

    @property
    def seconds(self) -> float:
        """Total, from the command to the report."""
        return self.preparation + self.training + self.evaluation

    def to_json(self) -> dict[str, Any]:
        """All parts and the total seconds, and the seconds of a step in each stage if measured."""
        parts = dataclasses.asdict(self)
        steps = [float(f"{seconds:.4g}") for seconds in parts.pop("step_seconds")]
        rounded = {name: round(value, 2) for name, value in parts.items()}
        return {**rounded, "seconds": round(self.seconds, 2), **({"step_seconds": steps} if steps else {})}


def write_cost(folder: Path, predicted: RunCost | None, actual: RunCost | None = None) -> None:
    """Write both to cost.json; an unknown cost is null."""
    both = {"predicted": predicted, "actual": actual}
    write_json(folder / COST_FILE, {name: None if cost is None else cost.to_json() for name, cost in both.items()})


def read_cost(folder: Path) -> dict[str, dict[str, Any] | None]:
    """Read what `write_cost` stored; both are None without a file."""
    path = folder / COST_FILE
    if not path.is_file():
        return {"predicted": None, "actual": None}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_step_seconds(folder: Path) -> tuple[float, ...]:
    """Predicted seconds per step in each phase of the recipe; empty if not measured or the file is unreadable."""
    try:
        return tuple((read_cost(folder)["predicted"] or {}).get("step_seconds", ()))
    except (ValueError, KeyError):  # only the estimate of the time left needs it
        return ()
