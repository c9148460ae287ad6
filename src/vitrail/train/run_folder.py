"""The run folder: where everything that a training decides, measures and makes is kept."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from math import isfinite
from pathlib import Path

from .. import config
from ..data.open import ARRAY_EXTENSIONS, SHARD_EXTENSION
from ..data.source import MANIFEST_EXTENSIONS
from ..errors import ResourceError, UsageError, VitrailError
from ..files import atomic
from ..files.disk import flush, resource_errors
from ..files.lock import Lock
from .events import Event, FinishEvent, Note, ValidationEvent
from .plan import Plan
from .plan_reasons import complete_reasons, drop_default_reasons
from .trackers import TrackedRun, Trackers

PRE_PLAN_FILES = frozenset(
    {Lock.FILE, "checkpoints", "splits.csv", "data.json", "check.json", "environment.json", "cost.json"}
)
"""What may lie in a run folder before its plan does, and so what a kill in that moment leaves."""


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
        """Where the numbers go beside this folder; nowhere until somebody opens them."""
        self.write_error = ""
        """Why the last line of a log or of the metrics could not be written; empty if all were."""
        self.write_error_reported = False
        self.extension_file = path / "extension.toml"
        self.start_file = path / "start.safetensors"
        """The weights at step 0, where they are not drawn from the seed."""
        self.start_table = path / "start.json"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new, empty run folder; what a beginning that was killed has left there is taken away.

        Raises:
            UsageError: something else is there already, or somebody is beginning there; nothing of it is touched.
        """
        cls.check_free(path)
        run = cls(path)
        with resource_errors(path):
            if cls._is_leftover(path):
                with Lock(path):  # checkpoints, which is empty, stays: by it the folder is known as left at any moment
                    for file in [file for file in path.iterdir() if file.name not in (Lock.FILE, "checkpoints")]:
                        file.unlink()
            else:
                run.checkpoints.mkdir(parents=True)
        return run

    @staticmethod
    def _is_leftover(path: Path) -> bool:
        """Whether all that lies there is what a training writes before its plan, and no checkpoint."""
        files = path.iterdir() if path.is_dir() else ()
        names = {file.name for file in files if not file.name.startswith(atomic.TEMPORARY)}
        checkpoints = path / "checkpoints"
        return checkpoints.is_dir() and names <= PRE_PLAN_FILES and not any(checkpoints.iterdir())

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Refuse a folder that holds something, before anything is done for it.

        Raises:
            UsageError: something is there already; nothing of it is touched.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())) and not cls._is_leftover(path):
            go_on = f"Continue it with --resume {path}, or choose" if (path / "plan.toml").exists() else "Choose"
            raise UsageError(f"The run folder {path} exists already and is kept. {go_on} another with --out.")

    @classmethod
    def open_existing(cls, path: Path) -> RunFolder:
        """A run folder that a training has made.

        Raises:
            UsageError: there is no plan in it.
        """
        run = cls(path)
        if not run.plan_file.is_file():
            raise UsageError(f"{path} is not a run folder: it has no plan.toml. Give the folder that train named.")
        return run

    def write_plan(self, plan: Plan, reasons: Mapping[str, str]) -> None:
        """Keep the resolved plan with its reasons, and what it ran on; the plan last, for a folder with it is a run."""
        atomic.write_json(self.path / "environment.json", describe_environment())
        atomic.write_text(self.plan_file, config.to_toml(plan, complete_reasons(plan, reasons)))

    def read_plan(self) -> Plan:
        """The plan of this run."""
        return config.read_toml(self.plan_file, Plan)

    def read_reasons(self) -> dict[str, str]:
        """Why the plan's fields are what they are, as written beside them."""
        fields = {field.name for field in config.describe(Plan)}
        written = config.read_reasons(self.plan_file.read_text(encoding="utf-8"))
        return drop_default_reasons(self.read_plan(), {name: why for name, why in written.items() if name in fields})

    def log(self, text: str) -> None:
        """Add a line, with the time, to log.txt, if that is possible."""
        self._append(self.path / "log.txt", f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")

    def record(self, row: Mapping[str, float | int]) -> None:
        """Add a row of numbers to metrics.jsonl, if that is possible; those that are not finite are left out."""
        finite = {name: value for name, value in row.items() if isfinite(value)}
        self._append(self.metrics_file, json.dumps(finite))
        self.trackers.record(finite)

    def _append(self, path: Path, line: str) -> None:
        """A log is no reason to stop a training."""
        try:
            atomic.append_line(path, line)
        except (ResourceError, OSError) as error:
            self.write_error = str(error)

    def flush_metrics(self) -> None:
        """Wait until the metrics so far are on the disk, if that is possible."""
        with suppress(OSError):
            flush(self.metrics_file)

    def drop_rows_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will do again."""
        if not self.metrics_file.exists():
            return
        kept = [json.dumps(row) for row in self.read_rows() if row["step"] <= step]
        with suppress(ResourceError, OSError):  # what is written twice is read as its last value
            atomic.write_text(self.metrics_file, "".join(line + "\n" for line in kept))

    def read_rows(self) -> list[dict[str, float]]:
        """The rows of metrics.jsonl, but for one that a crash has cut short."""
        rows = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines() if self.metrics_file.is_file() else []:
            with suppress(ValueError):
                rows.append(json.loads(line))
        return rows

    def is_finished(self) -> bool:
        """Whether this run has gone all the way to its report."""
        return (self.path / "report.html").is_file() and not self.extension_file.is_file()  # the report is written last


def make_default_folder(source: str, model_name: str, now: datetime) -> Path:
    """Make the empty folder runs/<date>-<time>-<source>-<model>; if there is one, the same name with -2 behind it, ...

    Whoever makes a folder has it, so that runs that begin in the same second never share one.
    """
    base = path = default_folder(source, model_name, now)
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


def default_folder(source: str, model_name: str, now: datetime) -> Path:
    """runs/<date>-<time>-<source>-<model>, the source by its last name, without endings and signs that shells read."""
    name = Path(source).name
    for ending in (*MANIFEST_EXTENSIONS, *ARRAY_EXTENSIONS, SHARD_EXTENSION):
        name = name.removesuffix(ending)
    name = re.sub(r"[^\w.-]+", "-", name).strip("-") or "pictures"
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}-{name}-{model_name}"


def describe_environment() -> dict[str, object]:
    """Versions and machine, for environment.json and the report."""
    import torch

    from ..runtime import cpu_name

    packages = ("vitrail", "torch", "numpy", "pillow", "safetensors", "scikit-learn")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in packages},
        "command": " ".join(["vitrail", *sys.argv[1:]]),
    }


# `log.txt` of a run: what was said while it trained, with the time, and why it ended.


def log_events(run: RunFolder, events: Generator[Event]) -> Iterator[Event]:
    """Pass events on, and write down on the way what somebody may want to read later; steps are in metrics.jsonl."""
    run.log(" ".join([f"vitrail {version('vitrail')}:", "vitrail", *sys.argv[1:]]))
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


# A run with its trackers open, from its first row to its last.


@contextmanager
def track_run(run: RunFolder, plan: Plan) -> Iterator[None]:
    """Whatever is recorded inside goes to the trackers of the plan too; left by an error, the run counts as stopped."""
    track = plan.track
    if not track.report_to:
        yield
        return
    tracked = TrackedRun(
        folder=run.path, name=_run_name(run.path), project=track.project, settings=config.flatten(plan)
    )
    run.trackers.open(track.report_to, tracked)
    try:
        yield
    finally:
        for text in run.trackers.close():
            run.log(text)


def _run_name(folder: Path) -> str:
    """The run folder's own name; that of a fold says of which training."""
    path = folder.resolve()
    return f"{path.parent.name}-{path.name}" if path.name.startswith("fold-") else path.name
