"""Experiment trackers of a run: one thread feeds them, so no step waits for a network and no error ends a training."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ResourceError
from ..files import atomic

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


# -- Tracker interface, and the name under which a run is filed


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker receives when it is opened."""

    folder: Path
    """The run folder."""
    name: str
    """The displayed name of the run."""
    project: str
    """As requested; may be empty."""
    settings: Mapping[str, object]
    """The plan, each field by its dotted name."""
    run_id: str = ""
    """The tracker's own id of this run, if it has one; a resumed run continues under it."""


class Tracker(ABC):
    """A receiver of a run's metrics. Any error that it raises removes it from the run and does not stop the run."""

    run_id: str = ""
    """Its own id of this run, kept in the run folder; empty if it needs none."""

    @abstractmethod
    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Take a row of the curves.

        Args:
            axis: what `step` counts: "step" for the training, another name for a phase before it.
        """

    @abstractmethod
    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of the held-out images, of a run that ended after so many steps."""

    @abstractmethod
    def close(self, completed: bool) -> None:
        """Wait until everything is delivered.

        Args:
            completed: whether the run has finished.
        """


# -- TensorBoard: event files in RUN/tensorboard; `tensorboard --logdir runs` shows all runs side by side.

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoardTracker(Tracker):
    """One writer for each axis, opened with its first row.

    It purges what an earlier process of the run wrote from that row on, because a resumed run repeats those steps.
    """

    def __init__(self, tracked_run: TrackedRun):
        import tensorboard  # noqa: F401  # torch's writer needs it, and its own error is less clear

        self._folder: Path = tracked_run.folder / TENSORBOARD_FOLDER
        self._settings = tracked_run.settings
        self._writers: dict[str, SummaryWriter] = {}

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._add_scalars(axis, step, numbers, step)

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics as points at the last step."""
        self._add_scalars("step", step, metrics, step + 1)

    def _add_scalars(self, axis: str, step: int, numbers: Mapping[str, float], forget_from: int) -> None:
        if axis not in self._writers:
            self._writers[axis] = self._open_writer(axis, forget_from)
        for name, number in numbers.items():
            self._writers[axis].add_scalar(name, number, step)

    def _open_writer(self, axis: str, forget_from: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder if axis == "step" else self._folder / axis.removesuffix("_step")
        fresh = not any(folder.glob("events.out.tfevents.*"))
        writer = SummaryWriter(str(folder), purge_step=forget_from)
        if axis == "step" and fresh:
            rows = "".join(f"| {name} | {value} |\n" for name, value in self._settings.items())
            writer.add_text("plan", f"| field | value |\n|---|---|\n{rows}", 0)
        return writer

    def close(self, completed: bool) -> None:
        """Flush the writers."""
        for writer in self._writers.values():
            writer.close()


# -- MLflow: one run of an experiment, resumed under its id; MLFLOW_TRACKING_URI names the server.

MAX_PARAM_LENGTH = 6000
"""MLflow's limit of characters of a parameter."""
PARAMS_PER_REQUEST = 100
"""MLflow's limit of parameters in one request."""


class MLflowTracker(Tracker):
    """Uses MLflow's client and not its fluent API, so that no run of the user's own program is touched."""

    def __init__(self, tracked_run: TrackedRun):
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunStatus

        self._client = MlflowClient()
        self._end_status = {True: RunStatus.to_string(RunStatus.FINISHED), False: RunStatus.to_string(RunStatus.KILLED)}
        if tracked_run.run_id:
            self.run_id = tracked_run.run_id
            self._client.update_run(self.run_id, RunStatus.to_string(RunStatus.RUNNING))
            return
        title = tracked_run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "vitrail"
        existing = self._client.get_experiment_by_name(title)
        experiment = self._client.create_experiment(title) if existing is None else existing.experiment_id
        self.run_id = str(self._client.create_run(experiment, run_name=tracked_run.name).info.run_id)
        fields = [Param(name, str(value)[:MAX_PARAM_LENGTH]) for name, value in tracked_run.settings.items()]
        for first in range(0, len(fields), PARAMS_PER_REQUEST):
            self._client.log_batch(self.run_id, params=fields[first : first + PARAMS_PER_REQUEST])

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row in one request."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.run_id, [Metric(name, number, now, step) for name, number in numbers.items()])

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at the last step."""
        self.record("step", step, metrics)

    def close(self, completed: bool) -> None:
        """Set the final status of the run."""
        self._client.set_terminated(self.run_id, self._end_status[completed])


# -- Weights & Biases: one run, resumed under its id; its own environment variables name server and user.


class WandbTracker(Tracker):
    """Every row names its own step, so that a resumed run may repeat some."""

    def __init__(self, tracked_run: TrackedRun):
        import wandb

        self._run = wandb.init(
            project=tracked_run.project or os.environ.get("WANDB_PROJECT") or "vitrail",
            name=tracked_run.name,
            id=tracked_run.run_id or None,
            resume="allow",
            dir=str(tracked_run.folder),
            config=dict(tracked_run.settings),
            settings=wandb.Settings(console="off"),
        )
        self.run_id = str(self._run.id)
        self._axes: set[str] = set()

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row, drawn over its own axis."""
        if axis not in self._axes:
            self._axes.add(axis)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric("*" if axis == "step" else f"{axis.removesuffix('step')}*", step_metric=axis)
        self._run.log({axis: step, **numbers})

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Put the metrics into the run's summary."""
        self._run.summary.update(dict(metrics))

    def close(self, completed: bool) -> None:
        """Finish the run; a stopped one counts as failed until it is resumed."""
        self._run.finish(exit_code=0 if completed else 1)


# -- trackio: a local database with a page, or a Space, depending on its environment variables.


class TrackioTracker(Tracker):
    """Its messages on standard output go to standard error, because standard output is for results."""

    def __init__(self, tracked_run: TrackedRun):
        import trackio

        self.run_id = tracked_run.run_id or tracked_run.name
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=tracked_run.project or "vitrail",
                name=self.run_id,
                config=dict(tracked_run.settings),
                resume="allow",
            )

    def record(self, axis: str, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(numbers), step=step)

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at the last step."""
        self._run.log(dict(metrics), step=step)

    def close(self, completed: bool) -> None:
        """Wait until the database has all rows."""
        with redirect_stdout(sys.stderr):
            self._run.finish()


TRACKER_CLASSES: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MLflowTracker,
    "trackio": TrackioTracker,
}
RUN_IDS_FILE = "tracked.json"
"""In the run folder: each tracker's own id of the run."""
CLOSE_TIMEOUT = 60.0
"""Seconds that a finished run waits for its trackers."""


class _TrackerRow(NamedTuple):
    axis: str
    step: int
    numbers: Mapping[str, float]
    is_final: bool = False


class Trackers:
    """Passes rows of metrics.jsonl to all open trackers, from a thread of its own."""

    def __init__(self) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._messages: list[str] = []
        self._rows: Queue[_TrackerRow | None] = Queue()
        self._feeder: Thread | None = None
        self._completed = False

    def open(self, names: tuple[str, ...], tracked_run: TrackedRun) -> None:
        """Open or resume these trackers; one that cannot be opened is reported and left out."""
        run_ids: dict[str, str] = {}
        with suppress(OSError, ValueError):
            run_ids = dict(json.loads((tracked_run.folder / RUN_IDS_FILE).read_text(encoding="utf-8")))
        for name in names:
            with self._drop_on_error(name):
                self._trackers[name] = TRACKER_CLASSES[name](replace(tracked_run, run_id=run_ids.get(name, "")))
        run_ids |= {name: tracker.run_id for name, tracker in self._trackers.items() if tracker.run_id}
        if run_ids:
            with suppress(ResourceError, OSError):
                atomic.write_json(tracked_run.folder / RUN_IDS_FILE, run_ids)
        if self._trackers:
            self._feeder = Thread(target=self._send_rows, name="trackers", daemon=True)
            self._feeder.start()

    def record(self, row: Mapping[str, float]) -> None:
        """Pass on a row of the curves; a row of an earlier phase has its own step beside `step`."""
        if self._feeder is not None:
            axis = next((name for name in row if name.endswith("_step")), "step")
            numbers = {name: number for name, number in row.items() if name not in ("step", axis)}
            self._rows.put(_TrackerRow(axis, int(row[axis]), numbers))

    def record_final(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of the held-out images."""
        if self._feeder is not None:
            self._rows.put(_TrackerRow("step", step, metrics, is_final=True))

    def take_messages(self) -> list[str]:
        """Return and clear the sentences about errors."""
        messages, self._messages = self._messages, []
        return messages

    def close(self, completed: bool = False) -> list[str]:
        """Deliver the remaining rows, for a minute at most; return sentences about errors. A second call does nothing.

        Args:
            completed: whether the run has finished.
        """
        if self._feeder is not None:
            self._completed = completed
            self._rows.put(None)
            self._feeder.join(CLOSE_TIMEOUT)
            if self._feeder.is_alive():
                names = " and ".join(self._trackers)
                self._messages.append(
                    f"{names} did not take all rows within {CLOSE_TIMEOUT:.0f} s; metrics.jsonl has them."
                )
            self._feeder = None
        return self.take_messages()

    def _send_rows(self) -> None:
        while (row := self._rows.get()) is not None:
            for name, tracker in list(self._trackers.items()):
                with self._drop_on_error(name):
                    if row.is_final:
                        tracker.record_final(row.step, row.numbers)
                    else:
                        tracker.record(row.axis, row.step, row.numbers)
        for name, tracker in list(self._trackers.items()):
            with self._drop_on_error(name):
                tracker.close(self._completed)

    @contextmanager
    def _drop_on_error(self, name: str) -> Iterator[None]:
        """A tracker is third-party code: any error of it is reported, and it gets no more rows."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            why = " ".join(str(error).split()) or type(error).__name__
            why = why[:300].rstrip(".")
            self._messages.append(f"{name} gets no more rows: {why}. The training goes on; metrics.jsonl has them all.")
