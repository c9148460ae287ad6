"""The run folder: where everything that a training decides, measures and makes is kept."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from .. import config
from ..data.open import ARRAYS, MANIFESTS, SHARDS
from ..errors import UsageError
from ..files import atomic
from ..files.disk import resource_errors
from .plan import Plan


class RunFolder:
    """Paths and writers of one run. Making the object touches nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.plan_file = path / "plan.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.bundle = path / "model"
        self.predictions = path / "predictions"
        self.figures = path / "figures"
        self.splits_file = path / "splits.csv"
        self.data_file = path / "data.json"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new, empty run folder.

        Raises:
            UsageError: something is there already; nothing of it is touched.
        """
        cls.check_free(path)
        run = cls(path)
        with resource_errors(path):
            run.checkpoints.mkdir(parents=True)
        return run

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Refuse a folder that holds something, before anything is done for it.

        Raises:
            UsageError: something is there already; nothing of it is touched.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            go_on = f"Continue it with --resume {path}, or choose" if (path / "plan.toml").exists() else "Choose"
            raise UsageError(f"The run folder {path} exists already and is kept. {go_on} another with --out.")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """A run folder that a training has made.

        Raises:
            UsageError: there is no plan in it.
        """
        run = cls(path)
        if not run.plan_file.is_file():
            raise UsageError(f"{path} is not a run folder: it has no plan.toml. Give the folder that train named.")
        return run

    def write_plan(self, plan: Plan, reasons: Mapping[str, str]) -> None:
        """Keep the resolved plan with its reasons, and what it ran on."""
        atomic.write_text(self.plan_file, config.to_toml(plan, reasons))
        atomic.write_json(self.path / "environment.json", environment())

    def read_plan(self) -> Plan:
        """The plan of this run."""
        return config.read_toml(self.plan_file, Plan)

    def log(self, text: str) -> None:
        """Add a line, with the time, to log.txt."""
        atomic.append_line(self.path / "log.txt", f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")

    def record(self, row: Mapping[str, float | int]) -> None:
        """Add a row of numbers to metrics.jsonl."""
        atomic.append_line(self.metrics_file, json.dumps(row))

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will do again."""
        if not self.metrics_file.exists():
            return
        rows = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:  # cut short by a crash
                continue
        kept = [json.dumps(row) for row in rows if row["step"] <= step]
        atomic.write_text(self.metrics_file, "".join(line + "\n" for line in kept))

    def finished(self) -> bool:
        """Whether this run has gone all the way to its report."""
        return (self.path / "report.json").is_file()


def default_path(source: str, model_name: str, now: datetime) -> Path:
    """runs/<date>-<time>-<source>-<model>, the source by its last name, without endings and signs that shells read."""
    name = Path(source).name
    for ending in (*MANIFESTS, *ARRAYS, SHARDS):
        name = name.removesuffix(ending)
    name = re.sub(r"[^\w.-]+", "-", name).strip("-") or "pictures"
    return Path("runs") / f"{now:%Y%m%d-%H%M%S}-{name}-{model_name}"


def environment() -> dict[str, object]:
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
