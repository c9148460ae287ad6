"""The decision in use in a report: the stored predictions as it decides them, and a table of all kept decisions."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..checkpoints import bundle
from ..checkpoints.decision_versions import BANK_KEY, TRAINED
from ..errors import UsageError
from ..evaluate.decision_figures import apply_decisions, compute_figures, count_changes
from ..evaluate.decisions import Decisions
from ..evaluate.metrics import CASES_SUFFIX
from ..evaluate.predictions import TaskPredictions, read_predictions_csv
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..formatting import format_count
from ..predict.kept_decisions import KeptDecisions, read_kept_decisions
from ..stats.predictive import Rate
from . import provenance
from .provenance import ReportFacts


@dataclass(frozen=True, kw_only=True)
class DecidedRun:
    """The facts and the held-out predictions of a run, by the decision in use."""

    facts: ReportFacts
    predictions: TaskPredictions
    stored: TaskPredictions
    """The predictions as the training has decided them."""
    kept: KeptDecisions | None = None
    """None where the run has no model of its own, as a cross-validation."""

    @property
    def metrics(self) -> TaskMetrics:
        """The metrics of the held-out images."""
        return self.facts.metrics_for_split(self.facts.held_out_split) or compute_metrics(self.predictions)


class BankRow(NamedTuple):
    """A version of the bank of an anomaly model in the table of a report."""

    name: str
    in_use: bool
    pictures: int
    added: int
    forgotten: int
    patches: int | None
    """None where the weights file has them."""
    alpha: float
    alarm_score: float
    author: str
    time: str


class DecisionRow(NamedTuple):
    """A decision in the table of a report."""

    name: str
    in_use: bool
    rule: str
    author: str
    time: str
    misses: str
    false_alarms: str
    unanswered: Rate | None
    accuracy: Rate | None
    """Of the answered images; None for labels and numbers."""
    covered: Rate | None
    """Fraction of the targets within the set or range."""
    changes: int
    """Images that it answers otherwise than the training's own."""


def decide_run(folder: Path) -> DecidedRun:
    """Read the facts and the held-out predictions of a run, and decide them as the decision in use does.

    Raises:
        UsageError: no report.json, or no predictions of its held-out split.
        DataError, DamagedFileError: a stored file that cannot be read, by name.
    """
    facts = provenance.read_facts(folder)
    path = folder / "predictions" / f"{facts.held_out_split}.csv"
    if not path.exists():
        raise UsageError(
            f"The report speaks of the {facts.held_out_split} split and needs {path}. There is no such file; to have "
            f"it written again: vitrail train --resume {shlex.quote(str(folder))}"
        )
    stored = read_predictions_csv(path, facts.task)
    if not bundle.is_bundle(folder / "model"):
        return DecidedRun(facts=facts, predictions=stored, stored=stored)
    kept = read_kept_decisions(folder / "model")
    if kept.in_use == TRAINED:
        return DecidedRun(facts=facts, predictions=stored, stored=stored, kept=kept)
    predictions = apply_decisions(stored, kept.current)
    if facts.task == "anomaly":
        notes = (_describe_bank(kept, folder), *facts.notes)
        return DecidedRun(facts=replace(facts, notes=notes), predictions=stored, stored=stored, kept=kept)
    metrics = facts.all_metrics
    if facts.task not in ("regression", "segmentation"):
        groups = provenance.load_groups(folder, len(stored))
        fresh = []
        for before in metrics:
            file = folder / "predictions" / f"{before.split}.csv"
            if before.split.endswith(CASES_SUFFIX):  # which have decisions of their own
                fresh.append(before)
                continue
            table, rows = predictions, groups
            if before.split != facts.held_out_split:
                table, rows = apply_decisions(read_predictions_csv(file, facts.task), kept.current), None
            fresh.append(compute_metrics(table, None, rows, kept.current.ordered))
        metrics = tuple(fresh)
    line = _describe_decision(kept, stored, predictions)
    decided = replace(facts, decisions=kept.current, notes=(line, *facts.notes), **provenance.metrics_by_task(metrics))
    return DecidedRun(facts=decided, predictions=predictions, stored=stored, kept=kept)


def _describe_decision(kept: KeptDecisions, stored: TaskPredictions, decided: TaskPredictions) -> str:
    """Which decision answers, and how many pictures it answers otherwise."""
    record = kept.records[kept.in_use]
    author = f" by {record['by']}" if record.get("by") else ""
    return (
        f"Every figure here is of the decision {kept.in_use} ({kept.current.describe()}), kept{author} on "
        f"{record.get('time', '')[:16].replace('T', ' ')}. It answers {count_changes(stored, decided):,} of these "
        f"{format_count(len(stored), 'picture')} otherwise than the training's own."
    )


def _describe_bank(kept: KeptDecisions, folder: Path) -> str:
    """Which bank answers now, where the figures are those of the training's."""
    trained, now = kept.by_name[TRAINED], kept.current
    return (
        f"Every figure here is of the training's own bank. The bank {kept.in_use} is in use now: "
        f"{format_count(len(now.calibration), 'good picture')} instead of {len(trained.calibration):,}, "
        f"{now.alpha:.1%} false alarms promised instead of {trained.alpha:.1%}. Its figures on the held-out pictures: "
        f"vitrail evaluate {shlex.quote(str(folder))}"
    )


def list_banks(run: DecidedRun) -> list[BankRow]:
    """Every version of the bank of an anomaly run, the training's first; empty if there is only that one."""
    if run.facts.task != "anomaly" or run.kept is None or len(run.kept.by_name) == 1:
        return []
    rows = []
    for name, decisions in run.kept.by_name.items():
        record = run.kept.records.get(name, {})
        change = record.get("teaching", {})
        rows.append(
            BankRow(
                name=name,
                in_use=name == run.kept.in_use,
                pictures=len(decisions.calibration),
                added=len(change.get("added", ())),
                forgotten=len(change.get("forgotten", ())),
                patches=record.get(BANK_KEY),
                alpha=decisions.alpha,
                alarm_score=decisions.alarm_score,
                author=str(record.get("by", "")),
                time=str(record.get("time", ""))[:16].replace("T", " "),
            )
        )
    return sorted(rows, key=lambda row: (row.time, row.name))


def list_decisions(run: DecidedRun, folder: Path) -> list[DecisionRow]:
    """Every decision of a run with its figures on the held-out images; empty if there is only the training's own."""
    if run.kept is None or len(run.kept.by_name) == 1 or run.facts.task == "anomaly":
        return []
    kept, groups = run.kept, provenance.load_groups(folder, len(run.stored))
    positive = next((one.positive for one in (kept.current, *kept.by_name.values()) if one.positive), "")
    rows = []
    for name, decisions in kept.by_name.items():
        decided = apply_decisions(run.stored, decisions)
        figures = compute_figures(decided, decisions, groups=groups, positive=positive)
        labels = figures.labels if positive or run.facts.task == "multilabel" else ()
        rows.append(
            DecisionRow(
                name=name,
                in_use=name == kept.in_use,
                rule=_describe_rule(decisions),
                author=str(kept.records.get(name, {}).get("by", "")),
                time=str(kept.records.get(name, {}).get("time", ""))[:16].replace("T", " "),
                misses=_format_errors([(one.misses, one.positives) for one in labels]),
                false_alarms=_format_errors([(one.false_alarms, one.negatives) for one in labels]),
                unanswered=figures.abstained,
                accuracy=figures.accuracy_answered,
                covered=figures.covered,
                changes=count_changes(run.stored, decided),
            )
        )
    return rows


def _describe_rule(decisions: Decisions) -> str:
    """A decision in words, with its threshold if it has one."""
    if len(decisions.thresholds) != 1:
        return decisions.describe()
    return f"{decisions.describe()}, from {decisions.thresholds[0]:.4f} on"


def _format_errors(pairs: list[tuple[int, int]]) -> str:
    """The errors among all images that can be wrong so; empty without any."""
    wrong, all_of_them = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
    return f"{wrong:,} of {all_of_them:,}" if all_of_them else ""
