"""Training events: plain values that a training yields one after another, such as `vitrail.train` does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.python_spelling import to_python
from ..errors import UsageError
from ..evaluate.task_metrics import TaskMetrics
from ..files.atomic import write_json
from .plan import Plan


class EndSwitch:
    """Whether a training was asked to end by one of its events."""

    def __init__(self) -> None:
        self.is_on = False


@dataclass(frozen=True)
class TrainingEvent:
    """What a training says as it goes on; each kind of event is a class below."""

    _switch: EndSwitch | None = field(default=None, repr=False, compare=False, kw_only=True)

    def stop(self) -> None:
        """Stop the training after this event: it saves its last step and can be resumed, as after Ctrl-C.

        There is no model then; `finish` of the events of a step ends with one. `vitrail.train` yields a `StopEvent` and
        ends; `vitrail.fit` returns the run. After a `FinishEvent` nothing is left to stop.

        Raises:
            UsageError: the event comes from no training that is going on.
        """
        if self._switch is None:
            raise UsageError("This event comes from no training that could be stopped.")
        self._switch.is_on = True


@dataclass(frozen=True)
class StepEvent(TrainingEvent):
    """What a training says after an optimiser step."""

    _finish: EndSwitch | None = field(default=None, repr=False, compare=False, kw_only=True)

    def finish(self) -> None:
        """End the training soon, with a model, its evaluation and a report.

        A tenth of the steps done follow, in which the learning rate falls to zero. The plan in the run folder says so
        and has a number of steps instead of minutes, so that it can be followed again.

        Raises:
            UsageError: the event comes from no training that is going on, or from a phase before it.
        """
        if self._finish is None:
            raise UsageError("This event comes from no training step. Steps of the training itself can be finished.")
        self._finish.is_on = True


@dataclass(frozen=True)
class Note(TrainingEvent):
    """A sentence for a person: what was read, decided, found or saved."""

    text: str


@dataclass(frozen=True)
class StageEvent(TrainingEvent):
    """What the training does now, before its first step or after its last; displays show it if it takes a while."""

    text: str


@dataclass(frozen=True)
class PlanEvent(TrainingEvent):
    """The plan is final: every setting, with the reasons of those that were chosen."""

    plan: Plan
    reasons: dict[str, str]
    """Why a field has its value, by its dotted name."""
    cost: RunCost | None = None
    """The predicted cost; None where it was not measured."""


@dataclass(frozen=True)
class RunFolderEvent(TrainingEvent):
    """The run folder exists; everything from here on is kept in it."""

    run: Path


@dataclass(frozen=True)
class StepProgress(StepEvent):
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
class TaskProgress(TrainingEvent):
    """Progress of work other than training steps; `seconds_left` is the expected time to its end."""

    task_name: str
    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True)
class ValidationEvent(StepEvent):
    """Metrics on (a sample of) the validation images during a run."""

    step: int
    metric: float | None
    """None where the sample does not define it."""
    loss: float
    metric_name: str = "accuracy"
    """accuracy, AUROC, R2 or IoU."""


@dataclass(frozen=True)
class StopEvent(TrainingEvent):
    """The training was stopped by `stop`: nothing follows. `vitrail.open(event.run).resume()` goes on exactly."""

    run: Path | None
    """The run folder; None if it was stopped before there was one, so that nothing is kept."""
    step: int
    """The optimiser steps of the training that are done and saved."""


@dataclass(frozen=True)
class FinishEvent(TrainingEvent):
    """The run is complete; `metrics` are those of the held-out images."""

    run: Path
    report: Path
    metrics: TaskMetrics
    seconds: float


Event = (
    Note | StageEvent | PlanEvent | RunFolderEvent | TaskProgress | StepProgress | ValidationEvent | StopEvent
    | FinishEvent
)  # fmt: skip


def make_stoppable(events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """Pass the events of a training on until one is stopped; then close the training, which saves, and say so."""
    switch, run, step, is_finished = EndSwitch(), None, 0, False
    with closing(events):
        for event in events:
            if isinstance(event, RunFolderEvent):
                run = event.run
            elif isinstance(event, StepProgress) and not event.phase:
                step = event.step
            is_finished = isinstance(event, FinishEvent)
            yield dataclasses.replace(event, _switch=switch)
            if switch.is_on and not is_finished:
                events.close()
                yield StopEvent(run, step, _switch=switch)
                return


def spell_notes(events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """Pass the events of a training on, with notes that name arguments of Python instead of flags."""
    with closing(events):
        for event in events:
            yield dataclasses.replace(event, text=to_python(event.text)) if isinstance(event, Note) else event


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
    validation: float = 0.0
    """Seconds of one evaluation on validation images during the steps; 0 in an actual cost."""

    @property
    def seconds(self) -> float:
        """Total, from the command to the report."""
        return self.preparation + self.training + self.evaluation

    def to_json(self) -> dict[str, Any]:
        """All parts and the total seconds, and those of a step in each stage and of an evaluation if measured."""
        parts = dataclasses.asdict(self)
        steps = [float(f"{seconds:.4g}") for seconds in parts.pop("step_seconds")]
        rounded = {name: round(value, 2) for name, value in parts.items() if value or name != "validation"}
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


def read_step_seconds(folder: Path) -> tuple[tuple[float, ...], float]:
    """Predicted seconds per step in each phase of the recipe, and of an evaluation during the steps; empty and 0 if not
    measured or the file is unreadable.
    """
    try:
        predicted = read_cost(folder)["predicted"] or {}
        return tuple(predicted.get("step_seconds", ())), float(predicted.get("validation", 0.0))
    except (ValueError, KeyError):  # only the estimate of the time left needs it
        return (), 0.0
