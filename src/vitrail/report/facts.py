"""What the report page must be told: `report.json`, written by the training room and read strictly here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from ..evaluate.decisions import Decisions
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics
from ..files import atomic

NAME = "report.json"


@dataclass(frozen=True, kw_only=True)
class SplitCount:
    """One part of the source."""

    split: str
    """train, val or test."""
    n: int
    """Pictures in it."""
    origin: str = ""
    """Where the split comes from, such as "official" or "10 % of train, seed 0"."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name and a short text: one line of a table on the page."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """All that `report.html` says, but for what the predictions and metrics.jsonl say themselves."""

    title: str
    """Headline of the page."""
    source: str
    """Name of the pictures' source."""
    counts: tuple[SplitCount, ...]
    """The splits in reading order."""
    classes: tuple[str, ...]
    """Names of classes, labels or columns, in the order of the model's outputs."""
    model: str
    """Name of the model's shape."""
    parameters: int
    """Numbers that training moved."""
    seconds: float
    """Time spent training, evaluation left out."""
    steps: int
    """Optimiser steps taken."""
    images_seen: int
    """Pictures shown to the model, repeats counted."""
    images_per_second: float
    """Pace of training."""
    command: str
    """The command line that repeats the run."""
    plan: str
    """plan.toml as it stands in the run folder."""
    created: str = ""
    """When the run ended, as 2026-11-21 14:05."""
    start: str = "from scratch"
    """What training began from: "from scratch", or a checkpoint's name."""
    reasons: tuple[Entry, ...] = ()
    """Dotted setting and why it has its value."""
    environment: tuple[Entry, ...] = ()
    """Versions, device, number format, threads."""
    task: Task = "classes"
    """What the model answers, which decides the page."""
    metrics: tuple[ClassificationMetrics, ...] = ()
    """Figures of each split that was measured, of the task classes."""
    label_metrics: tuple[MultilabelMetrics, ...] = ()
    """The same of the task labels."""
    number_metrics: tuple[RegressionMetrics, ...] = ()
    """The same of the task number."""
    decisions: Decisions = field(default_factory=Decisions)
    """What turns outputs into answers, fitted on the validation pictures."""
    notes: tuple[str, ...] = ()
    """Sentences a reader should know, such as pictures that were skipped."""

    @property
    def held_out(self) -> str:
        """The split that the headline speaks of: test where it was measured, else val."""
        names = [figures.split for figures in self.figures] or [count.split for count in self.counts]
        return next((name for name in ("test", "val") if name in names), names[-1] if names else "test")

    @property
    def figures(self) -> tuple[TaskMetrics, ...]:
        """Figures of each split that was measured, of whatever task."""
        return (*self.metrics, *self.label_metrics, *self.number_metrics)

    def measured(self, split: str) -> TaskMetrics | None:
        """The figures of one split, if they are stored."""
        return next((figures for figures in self.figures if figures.split == split), None)


def entries(pairs: dict[str, str]) -> tuple[Entry, ...]:
    """A dictionary as lines of a table."""
    return tuple(Entry(name=name, text=text) for name, text in pairs.items())


def write(run_folder: Path, facts: ReportFacts) -> Path:
    """Write report.json into a run folder in one step."""
    path = Path(run_folder) / NAME
    atomic.write_json(path, config.write(facts))
    return path


def read(run_folder: Path) -> ReportFacts:
    """Read the report.json of a run folder.

    Raises:
        UsageError: there is none, or it has a field that this version does not know.
        DamagedFileError: it is not JSON.
    """
    path = Path(run_folder) / NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise UsageError(
            f"A run folder with a report.json is needed. There is none in {run_folder}; a run writes it when it ends."
        ) from problem
    except ValueError as problem:
        raise DamagedFileError(f"{path} must be JSON. {problem}.") from problem
    return config.read(ReportFacts, values, str(path))
