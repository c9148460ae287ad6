"""The run folder: plan, metrics, logs, checkpoints, model and report of one training."""

from __future__ import annotations

import json
import math
import platform
import re
import shlex
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from .. import config
from ..data.open import ARRAY_EXTENSIONS, SHARD_EXTENSION
from ..data.source import MANIFEST_EXTENSIONS
from ..errors import ResourceError, UsageError, VitrailError
from ..files import atomic
from ..files.disk import check_writable, flush, resource_errors
from ..files.lock import Lock
from ..formatting import format_count
from ..runtime import cpu_name
from ..version import __version__
from .events import Event, FinishEvent, Note, ValidationEvent
from .plan import Plan
from .plan_reasons import complete_reasons, drop_default_reasons
from .signals import FOLDS_FILE
from .time_budget import TrainingClock
from .trackers import TrackedRun, Trackers

PRE_PLAN_FILES = frozenset(
    {Lock.FILE, "checkpoints", "splits.csv", "data.json", "check.json", "environment.json", "cost.json"}
)
"""Files that may exist in a run folder before its plan, and so what a kill in that moment leaves."""

REPLANNED = "; since then replanned"
"""End of the reason of a number of steps."""


class RunFolder:
    """Paths and writers of one run. Making the object touches nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.plan_file = path / "plan.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.figures = path / "figures"
        self.bundle = path / "model"
        self.predictions = path / "predictions"
        self.splits_file = path / "splits.csv"
        self.data_file = path / "data.json"
        self.trackers = Trackers()
        """Experiment trackers; none until opened."""
        self.clock = TrainingClock()
        """Started by the process that trains; every row of the metrics has its seconds."""
        self.write_error = ""
        """Why a line of a log or of the metrics could not be written; empty if all were."""
        self.write_error_reported = False
        self.extension_file = path / "extension.toml"
        self.start_file = path / "start.safetensors"
        """The weights at step 0 of a run from a checkpoint."""
        self.start_table = path / "start.json"
        self.calibration_file = path / "calibration.csv"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make an empty run folder; leftovers of a start that was killed are removed.

        Raises:
            UsageError: the folder holds something else, or another process starts there; nothing is touched.
        """
        cls.check_free(path)
        run = cls(path)
        with resource_errors(path):
            if cls._is_leftover(path):
                with Lock(
                    path
                ):  # the empty folder `checkpoints` stays: it marks the folder as a leftover at any moment
                    for file in [file for file in path.iterdir() if file.name not in (Lock.FILE, "checkpoints")]:
                        file.unlink()
            else:
                run.checkpoints.mkdir(parents=True)
        return run

    @staticmethod
    def _is_leftover(path: Path) -> bool:
        """Whether the folder holds only files that precede the plan, and no checkpoint."""
        files = path.iterdir() if path.is_dir() else ()
        names = {file.name for file in files if not file.name.startswith(atomic.TEMPORARY)}
        checkpoints = path / "checkpoints"
        return checkpoints.is_dir() and names <= PRE_PLAN_FILES and not any(checkpoints.iterdir())

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Check that a run folder can be made here; changes nothing.

        Raises:
            UsageError: the folder holds something already.
            ResourceError: permission is missing, or the disk is read-only.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())) and not cls._is_leftover(path):
            again = f"Continue it with --resume {shlex.quote(str(path))}, or choose"
            go_on = again if (path / "plan.toml").exists() else "Choose"
            raise UsageError(f"The run folder {path} exists already and is kept. {go_on} another with --out.")
        check_writable(path / "plan.toml")

    @classmethod
    def open_existing(cls, path: Path) -> RunFolder:
        """The run folder of an earlier training.

        Raises:
            UsageError: there is no plan in it.
        """
        run = cls(path)
        if not path.exists():
            raise UsageError(f"There is nothing at {path}. Give the folder that train named.")
        if not run.plan_file.is_file():
            inside = find_run(path)
            which = f"{inside}, in which it lies" if inside != path else "the folder that train named"
            raise UsageError(f"{path} is not a run folder: it has no plan.toml. Give {which}.")
        return run

    def write_plan(self, plan: Plan, reasons: Mapping[str, str]) -> None:
        """Write environment.json, then the plan with its reasons, which makes the folder a run."""
        atomic.write_json(self.path / "environment.json", describe_environment())
        atomic.write_text(self.plan_file, config.to_toml(plan, complete_reasons(plan, reasons)))

    def record_replanning(self, plan: Plan, field: str, step: int) -> bool:
        """Write a plan whose steps were replanned, and a line in log.txt; whether that was possible.

        It is written before the first of these steps is taken, so that a resumed run takes the same ones.

        Args:
            field: dotted name of the number of steps.
            step: the steps done.
        """
        reason = f"{self.read_reasons().get(field, '').split(REPLANNED)[0]}{REPLANNED}"
        history = "[steps done, steps then planned in all], by the clock"
        is_written = self.record_decision(plan, {field: reason, f"{field}_history": history})
        if is_written:
            steps, seconds = config.flatten(plan)[field], self.clock.elapsed()
            self.log(f"{field} replanned after {format_count(step, 'step')} and {seconds:.1f} s: {steps:,} in all.")
        return is_written

    def record_decision(self, plan: Plan, why: Mapping[str, str]) -> bool:
        """Write a plan that was changed on the way, before the change is followed; whether that was possible.

        Args:
            why: reasons of the changed fields, by their dotted names.
        """
        try:
            reasons = complete_reasons(plan, {**self.read_reasons(), **why})
            atomic.write_text(self.plan_file, config.to_toml(plan, reasons))
        except (VitrailError, OSError) as error:
            self.write_error = str(error)
            return False
        return True

    def read_plan(self) -> Plan:
        """Read plan.toml."""
        return config.read_toml(self.plan_file, Plan)

    def read_reasons(self) -> dict[str, str]:
        """Read the reasons of the plan's fields from the comments of plan.toml."""
        fields = {field.name for field in config.describe(Plan)}
        written = config.read_reasons(self.plan_file.read_text(encoding="utf-8"))
        return drop_default_reasons(self.read_plan(), {name: why for name, why in written.items() if name in fields})

    def log(self, text: str) -> None:
        """Add a line, with the time, to log.txt, if that is possible."""
        self._append(self.path / "log.txt", f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")

    def record(self, row: Mapping[str, float | int]) -> None:
        """Add a row of numbers to metrics.jsonl, if that is possible; those that are not finite are left out."""
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        if self.clock.is_running:
            finite["elapsed"] = round(self.clock.elapsed(), 2)
        self._append(self.metrics_file, json.dumps(finite))
        self.trackers.record(finite)

    def _append(self, path: Path, line: str) -> None:
        """A log that cannot be written does not stop the training."""
        try:
            atomic.append_line(path, line)
        except (ResourceError, OSError) as error:
            self.write_error = str(error)

    def start_clock(self) -> None:
        """Start the clock, or set it back, at the seconds of the last row of the metrics."""
        self.clock.start(self.elapsed_seconds())

    def elapsed_seconds(self, step: float = math.inf) -> float:
        """Seconds of the training up to a step, with its evaluations and the phases before it, by the metrics."""
        return max((row.get("elapsed", 0.0) for row in self.read_rows() if row["step"] <= step), default=0.0)

    def flush_metrics(self) -> None:
        """Flush the metrics to the disk, if that is possible."""
        with suppress(OSError):
            flush(self.metrics_file)

    def drop_rows_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will repeat."""
        if not self.metrics_file.exists():
            return
        kept = [json.dumps(row) for row in self.read_rows() if row["step"] <= step]
        with suppress(ResourceError, OSError):  # what is written twice is read as its last value
            atomic.write_text(self.metrics_file, "".join(line + "\n" for line in kept))

    def read_rows(self) -> list[dict[str, float]]:
        """The rows of metrics.jsonl, without one that a crash has truncated."""
        rows = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines() if self.metrics_file.is_file() else []:
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows

    def is_finished(self) -> bool:
        """Whether this run has its report, which is written last, all written before, and no unfinished extension."""
        return (self.path / "report.html").is_file() and not self.lost_results() and not self.extension_file.is_file()

    def lost_results(self) -> list[str]:
        """What a run with a report lacks although it was written before the report, so it was deleted since."""
        if not (self.path / "report.html").is_file():
            return []
        written = [self.bundle / "config.json", self.path / "report.json", self.path / "results.csv"]
        for metrics in sorted(self.path.glob("metrics-*.json")):
            written.append(self.predictions / f"{metrics.stem.removeprefix('metrics-')}.csv")
        return [str(file.relative_to(self.path)) for file in written if not file.is_file()]


def find_run(path: Path) -> Path:
    """The run folder that a path lies in, such as RUN for RUN/model; any other path unchanged."""
    path = Path(path)
    folders = (path, *path.absolute().parents[:2]) if path.exists() else ()
    return next((folder for folder in folders if (folder / "plan.toml").is_file()), path)


def is_folds_folder(path: Path) -> bool:
    """Whether a folder holds folds."""
    return (path / FOLDS_FILE).is_file()


def fold_folder(out: Path, fold: int) -> Path:
    """The run folder of a fold."""
    return out / f"fold-{fold}"


def first_run_folder(out: Path) -> Path:
    """The run folder of the first fold, or the folder itself if it holds no folds."""
    return fold_folder(out, 0) if is_folds_folder(out) else out


DEFAULT_FOLDER = Path("runs")
"""Parent of run folders without a name."""


def make_default_folder(source: str, model_name: str, now: datetime) -> Path:
    """Make the empty folder runs/<date>-<time>-<source>-<model>, or the same with -2, -3, ... if it exists.

    The source is its last name, without endings and characters with a meaning in shells. A folder belongs to the
    process that makes it, so runs that begin in the same second never share one.
    """
    name = Path(source).name
    for ending in (*MANIFEST_EXTENSIONS, *ARRAY_EXTENSIONS, SHARD_EXTENSION):
        name = name.removesuffix(ending)
    name = re.sub(r"[^\w.-]+", "-", name).strip("-") or "pictures"
    base = path = DEFAULT_FOLDER / f"{now:%Y%m%d-%H%M%S}-{name}-{model_name}"
    number = 1
    with resource_errors(base):
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                path = base.with_name(f"{base.name}-{number}")
            else:
                return path


def describe_environment() -> dict[str, object]:
    """Versions and machine, for environment.json and the report."""
    import torch

    packages = ("torch", "numpy", "pillow", "safetensors", "scikit-learn")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "threads": torch.get_num_threads(),
        "versions": {"vitrail": __version__} | {name: version(name) for name in packages},
        "command": " ".join(["vitrail", *sys.argv[1:]]),
    }


# -- log.txt: messages of the training with their time, and why it ended


def log_events(run: RunFolder, events: Generator[Event]) -> Generator[Event]:
    """Pass events on, and log their texts; steps are in metrics.jsonl."""
    run.log(" ".join([f"vitrail {__version__}:", "vitrail", *sys.argv[1:]]))
    with closing(events):
        try:
            for event in events:
                if text := _event_text(event):
                    run.log(text)
                yield event
        except VitrailError as error:
            run.log(str(error))
            raise


def _event_text(event: Event) -> str:
    if isinstance(event, Note):
        return event.text
    if isinstance(event, ValidationEvent):
        value = "unknown" if event.metric is None else f"{event.metric:.4f}"
        return f"Step {event.step:,}: validation {event.metric_name} {value}, loss {event.loss:.4f}."
    return f"{event.metrics.headline()}." if isinstance(event, FinishEvent) else ""


# -- Experiment trackers of a run


@contextmanager
def track_run(run: RunFolder, plan: Plan) -> Iterator[None]:
    """Within this block recorded rows go to the plan's trackers too; after an error the run counts as stopped."""
    track = plan.track
    if not track.report_to:
        yield
        return
    path = run.path.resolve()
    name = f"{path.parent.name}-{path.name}" if path.name.startswith("fold-") else path.name
    tracked = TrackedRun(folder=run.path, name=name, project=track.project, settings=config.flatten(plan))
    run.trackers.open(track.report_to, tracked)
    try:
        yield
    finally:
        for text in run.trackers.close():
            run.log(text)
