"""Stored facts of a run for its report: `report.json`, groups of the held-out images, and hashes of model and data.

`report.json` is written by the training and read strictly here: an unknown field is an error.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Shaped

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.cases import CasePool
from ..evaluate.decisions import Decisions
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.precision import PrecisionComparison
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.segmentation_metrics import SegmentationMetrics
from ..evaluate.task_metrics import TaskMetrics
from ..files import atomic
from ..files.checksums import MANIFEST

FACTS_FILE = "report.json"
EVALUATIONS_FOLDER = "evaluations"
"""In a run folder: one folder for each other source that the run was evaluated on."""


@dataclass(frozen=True, kw_only=True)
class SplitCount:
    """A split of the source."""

    split: str
    """train, val or test."""
    n: int
    """Number of images."""
    origin: str = ""
    """Origin of the split, such as "official" or "10 % of train, seed 0"."""
    groups: int | None = None
    """Number of groups, such as patients; None without groups, and in files of older versions."""


@dataclass(frozen=True, kw_only=True)
class FactEntry:
    """A name and a short text: one row of a table on the page."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """The content of `report.html` that is not in the predictions or in metrics.jsonl."""

    kind: Literal["training", "evaluation"] = "training"
    """Whether the page is of a training, or of its model on other images."""
    title: str
    """Headline of the page."""
    source: str
    """Name of the source of the images."""
    counts: tuple[SplitCount, ...]
    """The splits in reading order."""
    classes: tuple[str, ...]
    """Names of classes, labels or columns, in the order of the model's outputs."""
    model: str
    """Name of the model's shape."""
    parameters: int
    """Number of trained parameters."""
    seconds: float
    """Training time without evaluation."""
    steps: int
    """Optimiser steps."""
    images_seen: int
    """Images seen in training, with repeats."""
    images_per_second: float
    """Training throughput."""
    command: str
    """The command line that repeats the run."""
    plan: str
    """The text of plan.toml."""
    created: str = ""
    """When the run ended, as 2026-11-21 14:05."""
    start: str = "from scratch"
    """Initial weights: "from scratch", or a checkpoint's name."""
    reasons: tuple[FactEntry, ...] = ()
    """Dotted setting and the reason of its value."""
    environment: tuple[FactEntry, ...] = ()
    """Versions, device, precision, threads."""
    task: Task = "classification"
    """The task, which selects the page."""
    metrics: tuple[ClassificationMetrics, ...] = ()
    """Metrics of each evaluated split, for classification."""
    label_metrics: tuple[MultilabelMetrics, ...] = ()
    """The same for multilabel."""
    number_metrics: tuple[RegressionMetrics, ...] = ()
    """The same for regression."""
    anomaly_metrics: tuple[AnomalyMetrics, ...] = ()
    """The same for anomaly."""
    mask_metrics: tuple[SegmentationMetrics, ...] = ()
    """The same for segmentation."""
    decisions: Decisions = field(default_factory=Decisions)
    """Calibration, thresholds and abstention, fitted on the validation images."""
    case_pool: CasePool | None = None
    """How the images of a case are answered together; the metrics of their cases are those of splits in -cases."""
    evaluated_precision: str = ""
    """Number format of the stored predictions and metrics; empty where an older version computed them."""
    fast_precision: PrecisionComparison | None = None
    """A fast number format beside float32."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader, such as skipped images."""
    warnings: tuple[str, ...] = ()
    """What limits the metrics, for the first screen: copies of training images, few images, missing calibration."""

    @property
    def held_out_split(self) -> str:
        """The split of the headline: test if it was evaluated, else val."""
        names = [metrics.split for metrics in self.all_metrics] or [count.split for count in self.counts]
        return next((name for name in ("test", "val") if name in names), names[-1] if names else "test")

    @property
    def all_metrics(self) -> tuple[TaskMetrics, ...]:
        """Metrics of each evaluated split, for any task."""
        return (*self.metrics, *self.label_metrics, *self.number_metrics, *self.anomaly_metrics, *self.mask_metrics)

    def metrics_for_split(self, split: str) -> TaskMetrics | None:
        """The metrics of one split, if stored."""
        return next((metrics for metrics in self.all_metrics if metrics.split == split), None)


def metrics_by_task(metrics: Sequence[TaskMetrics]) -> dict[str, Any]:
    """The fields of `ReportFacts` with the metrics of each task."""
    return {
        "metrics": tuple(one for one in metrics if isinstance(one, ClassificationMetrics)),
        "label_metrics": tuple(one for one in metrics if isinstance(one, MultilabelMetrics)),
        "number_metrics": tuple(one for one in metrics if isinstance(one, RegressionMetrics)),
        "anomaly_metrics": tuple(one for one in metrics if isinstance(one, AnomalyMetrics)),
        "mask_metrics": tuple(one for one in metrics if isinstance(one, SegmentationMetrics)),
    }


def to_entries(pairs: dict[str, str]) -> tuple[FactEntry, ...]:
    """A dictionary as rows of a table."""
    return tuple(FactEntry(name=name, text=text) for name, text in pairs.items())


def write_facts(run_folder: Path, facts: ReportFacts) -> Path:
    """Write report.json of a run folder atomically."""
    path = Path(run_folder) / FACTS_FILE
    atomic.write_json(path, config.write(facts))
    return path


def read_facts(run_folder: Path) -> ReportFacts:
    """Read the report.json of a run folder.

    Raises:
        UsageError: there is none, or it has an unknown field.
        DamagedFileError: it is not a JSON object.
    """
    path = Path(run_folder) / FACTS_FILE
    values = read_json_table(path)
    if values is None:
        raise UsageError(
            f"A run folder with a report.json is needed. There is none in {run_folder}; a run writes it when it ends."
        )
    return config.read(ReportFacts, values, str(path))


def read_evaluations(run_folder: Path) -> dict[str, ReportFacts]:
    """The facts of the run's evaluations on other sources, by the name of their folder.

    Raises:
        UsageError, DamagedFileError: as `read_facts`.
    """
    found = sorted(Path(run_folder).glob(f"{EVALUATIONS_FOLDER}/*/{FACTS_FILE}"))
    return {path.parent.name: read_facts(path.parent) for path in found}


# -- Groups of the held-out images, such as patients, as anonymous numbers

GROUPS_FILE = "groups.npy"


def save_groups(folder: Path, groups: Shaped[np.ndarray, " n"] | None) -> None:
    """Write groups.npy of a run folder atomically; nothing without groups.

    Args:
        groups: group of each row of the held-out split's predictions file.
    """
    if groups is None:
        return
    data = io.BytesIO()
    np.save(data, np.unique(groups, return_inverse=True)[1].astype(np.int64))
    atomic.write_bytes(Path(folder) / GROUPS_FILE, data.getvalue())


def load_groups(folder: Path, rows: int) -> Int64[np.ndarray, " n"] | None:
    """The group of each row; None without groups.npy.

    Raises:
        DamagedFileError: the file cannot be read, or has another number of rows.
    """
    path = Path(folder) / GROUPS_FILE
    if not path.exists():
        return None
    try:
        groups = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DamagedFileError(f"{path} must hold one whole number for each of {rows} rows. {problem}.") from problem
    if not isinstance(groups, np.ndarray) or groups.dtype != np.int64 or groups.shape != (rows,):
        raise DamagedFileError(
            f"{path} must hold one whole number for each of {rows} rows of predictions. Got "
            f"{groups.dtype} {list(groups.shape)}; are both of one run?"
        )
    return groups


# -- Provenance: hashes and versions of model, data and software

WEIGHTS_FILE = "model.safetensors"


class Provenance(NamedTuple):
    """Provenance of a run; unknown values are empty."""

    models: tuple[str, ...]
    """SHA-256 of the weights of each model of an ensemble."""
    data: str
    """Fingerprint of the source: its names, targets, groups and splits."""
    version: str
    """Version of Vitrail at training time."""
    created: str


def read_provenance(folder: Path, facts: ReportFacts) -> Provenance:
    """Read the provenance of a run folder.

    Raises:
        DamagedFileError: a file is not JSON.
    """
    data = read_json_table(folder / "data.json") or {}
    files = (read_json_table(folder / "model" / MANIFEST) or {}).get("files", {})
    weights = sorted(name for name in files if name.rpartition("/")[2] == WEIGHTS_FILE)
    return Provenance(
        models=tuple(str(files[name]["sha256"]) for name in weights),
        data=str(data.get("fingerprint", "")),
        version=_vitrail_version(facts),
        created=facts.created,
    )


def _vitrail_version(facts: ReportFacts) -> str:
    words = next((line.text for line in facts.environment if line.name == "versions"), "{}")
    try:
        versions = json.loads(words)
    except ValueError:
        return ""
    return str(versions.get("vitrail", "")) if isinstance(versions, dict) else ""


def read_json_table(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no file.

    Raises:
        DamagedFileError: it is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise DamagedFileError(f"{path} must be JSON. {problem}.") from problem
    if not isinstance(table, dict):
        raise DamagedFileError(f"{path} must hold a JSON object. Got a {type(table).__name__}.")
    return table
