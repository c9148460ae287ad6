"""Decide anew without training: rules fitted to stored validation predictions, compared, kept and put to use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from .. import config
from ..checkpoints import bundle, decision_versions
from ..checkpoints.bundle import BundleInfo
from ..checkpoints.decision_versions import TRAINED
from ..data.source import Task, parse_task
from ..errors import DamagedFileError, DataError, UsageError
from ..evaluate.decision_figures import DecisionFigures, apply_decisions, compute_figures, count_changes
from ..evaluate.decisions import Decisions, fit_rules, read_decisions, require_sets_support
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    RegressionPredictions,
    TaskPredictions,
    output_names,
    read_predictions_csv,
)
from ..evaluate.prevalence import (
    PrevalenceEstimate,
    complete_prevalences,
    estimate_prevalences,
    measure_prevalences,
    prevalence_ratios,
)
from ..evaluate.rule_optimism import LabelScores, RuleOptimism, measure_optimism
from ..evaluate.thresholds import MIN_PER_SIDE, DecisionSettings, ThresholdRule
from ..evaluate.tolerance_bands import Band, judge_bands, parse_bands
from ..files import atomic
from ..files.lock import Lock
from ..formatting import format_count
from ..predict.kept_decisions import find_unreadable_decisions, read_kept_decisions
from ..report.provenance import load_groups
from ..train.run_folder import RunFolder, first_run_folder, is_folds_folder

if TYPE_CHECKING:
    from .exporting import DecidedExport

VALIDATION, TEST = "val", "test"


@dataclass(frozen=True, kw_only=True)
class DecisionRequest:
    """What a decision is fitted by; what is not given is as in the plan of the training."""

    rule: str | None = None
    """A rule for thresholds, as `ThresholdRule.parse` reads it."""
    positive: str = ""
    """Of two classes the one that thresholds are for."""
    at: Mapping[str, float] = field(default_factory=dict)
    """Thresholds that are stated instead of fitted, by label or class."""
    abstain: float | None = None
    """Share of the validation images, the least sure, that are not answered; for classes."""
    alpha: float | None = None
    """Share of the images whose truth may lie outside their set or range."""
    prevalence: Mapping[str, float] = field(default_factory=dict)
    """The prevalence where the model is used, by label or class."""
    band: str = ""
    """Tolerance bands, as `parse_bands` reads them."""

    def __post_init__(self) -> None:
        if self.rule is not None:
            ThresholdRule.parse(self.rule)
        for flag, values in (("at", self.at), ("prevalence", self.prevalence)):
            if wrong := [f"{name}={value}" for name, value in values.items() if not 0 < value < 1]:
                raise UsageError(f"--{flag} takes shares between 0 and 1, such as NAME=0.3. Got {wrong[0]}.")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return self == DecisionRequest()

    def to_json(self) -> dict[str, Any]:
        """What was asked for, as a kept decision notes it."""
        given = {**vars(self), "at": dict(self.at), "prevalence": dict(self.prevalence)}
        return {name: value for name, value in given.items() if value not in (None, "", {})}


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What a run has stored that decisions are fitted to and measured on."""

    run: RunFolder
    info: BundleInfo
    task: Task
    names: tuple[str, ...]
    """Of the classes, labels or columns."""
    settings: DecisionSettings
    """Of the training's plan."""
    trained: Decisions
    current: Decisions
    """The decisions in use."""
    tables: Mapping[str, TaskPredictions]
    """The stored predictions of val, and of test where there are any."""
    groups: Mapping[str, Int64[np.ndarray, " n"]]
    """Groups of the images of the last split with targets, by its name; empty without groups."""

    @property
    def validation(self) -> TaskPredictions:
        """The predictions that rules are fitted to."""
        return self.tables[VALIDATION]


@dataclass(frozen=True, kw_only=True)
class SplitComparison:
    """Figures of one split under the decision in use and under the new one."""

    old: DecisionFigures
    new: DecisionFigures | None
    """None where no other decision is asked for."""
    changed: int
    """Images that are decided otherwise."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        new = {} if self.new is None else {"new": self.new.to_json(), "changed": self.changed}
        return {"old": self.old.to_json(), **new}


@dataclass(frozen=True, kw_only=True)
class DecisionComparison:
    """A decision beside the one in use, on the stored predictions of a run."""

    in_use: str
    """Name of the decision in use; "training" for the training's own."""
    kept: tuple[str, ...]
    """Names of all kept decisions."""
    old: Decisions
    new: Decisions | None
    """None where no other decision is asked for."""
    miss_cost: float
    """What a miss costs in the figures, in false alarms."""
    splits: Mapping[str, SplitComparison]
    prevalences: tuple[float, ...] = ()
    """Of every class or label, where one was stated."""
    optimism: RuleOptimism | None = None
    """By how much the validation figures flatter the new rule."""
    estimates: tuple[PrevalenceEstimate, ...] = ()
    """Prevalences at another place; for information, nothing follows from them."""
    notes: tuple[str, ...] = ()
    path: Path | None = None
    """The file of the new decision, if it was kept."""
    exported: DecidedExport | None = None
    """The exported file that was given the decision in use."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; what was not asked for is absent."""
        more: dict[str, Any] = {
            "new": None if self.new is None else config.write(self.new),
            "prevalences": list(self.prevalences),
            "optimism": None if self.optimism is None else self.optimism._asdict(),
            "estimates": [_estimate_to_json(one) for one in self.estimates],
            "notes": list(self.notes),
            "path": None if self.path is None else str(self.path),
            "into": None if self.exported is None else self.exported.to_json(),
        }
        return {
            "in_use": self.in_use,
            "kept": list(self.kept),
            "old": config.write(self.old),
            "miss_cost": self.miss_cost,
            "splits": {name: one.to_json() for name, one in self.splits.items()},
            **{name: value for name, value in more.items() if value not in (None, [])},
        }


def decide(
    path: Path,
    request: DecisionRequest,
    keep: str = "",
    by: str = "",
    use: str = "",
    estimate: Path | None = None,
    into: Path | None = None,
    trained_on: object | None = None,
) -> DecisionComparison:
    """Fit a decision to the stored validation predictions, compare it with the one in use, and keep it on request.

    Args:
        path: a run folder.
        keep: a name to keep the new decision by; it is in use only after `use`.
        by: who keeps it or puts it to use.
        use: a kept decision, also the one just kept, to put to use; "training" goes back to the training's own.
        estimate: a predictions file of another place, of which the prevalences are estimated.
        into: an exported file that is given the decision in use, as `exporting.write_decision_into`.
        trained_on: the object that the run was trained on, if it was one; its held-out images prove `into`.

    Raises:
        UsageError: a request that does not fit the run, a name that is taken or not there, or a run in use.
        DataError: stored predictions are missing, or cannot support the rule.
        DamagedFileError: a file of the model or a kept decision is damaged.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if keep:
        decision_versions.check_decision_name(keep)
        if request.is_empty:
            raise UsageError(
                "--keep keeps a new decision. Give --rule, --at, --abstain, --alpha, --prevalence or --band."
            )
    if by and not (keep or use):
        raise UsageError("--by names who keeps a decision or puts it to use. Give --keep NAME or --use NAME.")
    if use and not request.is_empty and use != keep:
        raise UsageError(f"--use {use} puts a kept decision to use, and a new one is asked for. Keep it first, or both "
                         f"at once: --keep NAME --use NAME.")  # fmt: skip
    if into is not None and not (request.is_empty or use):
        raise UsageError(
            f"--into writes the decision in use into {into}, and a new one is asked for. Keep it and put it to use: "
            "--keep NAME --use NAME."
        )
    left_out: tuple[str, ...] = ()
    if use and use != keep:
        run = find_finished_run(path)
        _refuse_anomaly(run, bundle.read_bundle_info(run.bundle, check_weights=False, by=use).task)
        left_out = put_to_use(run, use, by)
    stored = open_stored_run(path)
    result = compare_decisions(stored, request)
    result = replace(result, notes=(*left_out, *result.notes))
    if estimate is not None:
        result = replace(result, estimates=_estimate_elsewhere(stored, estimate))
    if keep:
        kept = keep_decision(stored, request, result, keep, by)
        in_use = TRAINED
        if use:
            put_to_use(stored.run, use, by)
        after = bundle.read_bundle_info(stored.run.bundle)
        in_use, names = after.decision, decision_versions.list_decision_names(after.listed)
        result = replace(result, path=kept, in_use=in_use, kept=names)
    if into is not None:
        from .exporting import write_decision_into  # and torch with it, which stored predictions do not need

        result = replace(result, exported=write_decision_into(path, into, trained_on))
    return result


def open_stored_run(path: Path) -> StoredRun:
    """Read the decisions and the stored predictions of a run; no model is opened.

    Raises:
        UsageError: not a run folder, an unfinished run, or one of several folds.
        DataError: it has no validation predictions, or they are not of its model.
        DamagedFileError: a file of its model is damaged.
    """
    path, run = Path(path), find_finished_run(path)
    info = bundle.read_bundle_info(run.bundle, check_weights=False)
    task, where = parse_task(info.task), str(run.bundle / bundle.CONFIG_FILE)
    files = {name: run.predictions / f"{name}.csv" for name in (VALIDATION, TEST)}
    _refuse_anomaly(run, task)
    if task == "segmentation":
        raise UsageError(f"{run.path} answers every pixel with its likeliest class, of which no rule decides.")
    if not files[VALIDATION].is_file():
        raise DataError(
            f"Rules are fitted to validation predictions, and {files[VALIDATION]} is not there. "
            + (
                f"To have it written again: vitrail train --resume {path}"
                if files[VALIDATION].relative_to(path).as_posix() in run.lost_results()
                else "Train with validation pictures: --data.val_fraction 0.15."
            )
        )
    tables = {name: read_predictions_csv(file, task) for name, file in files.items() if file.is_file()}
    for name, table in tables.items():
        if output_names(table) != info.classes:
            raise DataError(
                f"{files[name]} answers {', '.join(output_names(table)[:6])}, and the model "
                f"{', '.join(info.classes[:6])}. Are both of one run?"
            )
    last = [name for name, table in tables.items() if task == "classification" or table.targets is not None][-1:]
    groups = {name: found for name in last if (found := load_groups(run.path, len(tables[name]))) is not None}
    return StoredRun(
        run=run,
        info=info,
        task=task,
        names=info.classes,
        settings=run.read_plan().decisions,
        trained=read_decisions(info.trained_info, task, info.classes, where),
        current=read_decisions(info.info, task, info.classes, where),
        tables=tables,
        groups=groups,
    )


def compare_decisions(stored: StoredRun, request: DecisionRequest) -> DecisionComparison:
    """The decision in use, and if one is asked for the new one, on every stored split.

    Raises:
        UsageError, DataError: as `fit_new_decisions`.
    """
    new, prevalences = (None, ()) if request.is_empty else fit_new_decisions(stored, request)
    stated = {name: share for name, share in zip(stored.names, prevalences, strict=False) if share}
    bands = _parse_band_request(stored, request, new)
    rule = None if new is None else _parse_rule(new.rule)
    rules = (rule, _parse_rule(stored.current.rule), _parse_rule(stored.settings.threshold_rule))
    miss_cost = next((one.value for one in rules if one is not None and one.kind == "cost" and one.value), 1.0)
    positive = next((one.positive for one in (new, stored.current) if one is not None and one.positive), "")
    splits = {}
    for name, table in stored.tables.items():
        shared = (miss_cost, stated, bands, stored.groups.get(name), positive)
        old = apply_decisions(table, stored.current)
        figures = compute_figures(old, stored.current, *shared)
        if new is None:
            splits[name] = SplitComparison(old=figures, new=None, changed=0)
            continue
        after = apply_decisions(table, new)
        verdicts = judge_bands(old, stored.current, bands), judge_bands(after, new, bands)
        splits[name] = SplitComparison(
            old=figures,
            new=compute_figures(after, new, *shared),
            changed=count_changes(old, after, verdicts),
        )
    return DecisionComparison(
        in_use=stored.info.decision,
        kept=decision_versions.list_decision_names(stored.info.listed),
        old=stored.current,
        new=new,
        miss_cost=miss_cost,
        splits=splits,
        prevalences=prevalences,
        optimism=None if new is None or rule is None else _measure_optimism(stored, new, rule, miss_cost),
        notes=() if new is None else _describe_limits(stored, new),
    )


def fit_new_decisions(stored: StoredRun, request: DecisionRequest) -> tuple[Decisions, tuple[float, ...]]:
    """Fit the decisions of a request to the stored validation predictions, as a training does at its end.

    Returns:
        The decisions, and the prevalence of every class or label where one is stated.

    Raises:
        UsageError: a label that is not there, or something that is for another task.
        DataError: the validation predictions cannot support the rule.
    """
    settings, table = _build_settings(stored, request), stored.validation
    ratios: tuple[float, ...] = ()
    prevalences: tuple[float, ...] = ()
    if request.prevalence:
        assert not isinstance(table, RegressionPredictions)
        measured = measure_prevalences(table)
        prevalences = complete_prevalences(stored.task, stored.names, measured, request.prevalence)
        ratios = prevalence_ratios(stored.task, measured, prevalences)
    basis = Decisions(
        temperature=stored.trained.temperature,
        ordered=stored.trained.ordered,
        unlike=stored.trained.unlike,
        prior_ratio=ratios,
    )
    answers = table.values if isinstance(table, RegressionPredictions) else table.probabilities
    fitted = fit_rules(basis, stored.task, settings, stored.names, answers, _targets_of(table))
    if request.alpha is not None or request.band:
        require_sets_support(stored.task, fitted)
    if settings.threshold_rule != "half" and request.rule and fitted.chosen and not any(fitted.chosen):
        raise DataError(_unsupported_message(stored, settings))
    if not request.at:
        return fitted, prevalences
    order = (settings.positive,) if settings.positive else stored.names
    pairs = list(zip(order, fitted.thresholds, fitted.chosen, strict=True))
    words = [f"{name} at {value:g}" for name, value in request.at.items()]
    return replace(
        fitted,
        rule=f"at {request.at[order[0]]:g}" if len(order) == 1 else ", ".join([settings.threshold_rule, *words]),
        thresholds=tuple(request.at.get(name, value) for name, value, _ in pairs),
        chosen=tuple(name in request.at or fitted_one for name, _, fitted_one in pairs),
    ), prevalences


def keep_decision(
    stored: StoredRun, request: DecisionRequest, result: DecisionComparison, name: str, by: str = ""
) -> Path:
    """Write a decision into the model's `decisions/`; nothing is overwritten, and the one in use stays.

    Raises:
        UsageError: the name is taken, or another process works in the run folder.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    assert result.new is not None
    data = stored.info.info.get("data", {})
    content = {
        "format": decision_versions.DECISION_FORMAT,
        "name": name,
        "task": stored.task,
        "classes": list(stored.names),
        "request": request.to_json(),
        "decisions": config.write(replace(result.new, version=name)),
        "data": {
            **(data if isinstance(data, Mapping) else {}),
            "validation": {
                "n": len(stored.validation),
                "sha256": atomic.sha256(stored.run.predictions / f"{VALIDATION}.csv"),
            },
        },
        "by": by,
        "time": describe_now(),
        "miss_cost": result.miss_cost,
        "figures": {split: one.new.to_json() for split, one in result.splits.items() if one.new is not None},
    }
    with Lock(stored.run.path):
        return decision_versions.add_decision_file(stored.run.bundle, name, content)


def find_finished_run(path: Path) -> RunFolder:
    """A finished run of one model.

    Raises:
        UsageError: no run folder, an unfinished run, or one of several folds.
    """
    path = Path(path)
    if is_folds_folder(path):
        raise UsageError(
            f"{path} holds several folds, whose decisions are averaged. Decide for one of them, such as "
            f"{first_run_folder(path)}."
        )
    run = RunFolder.open_existing(path)
    if bundle.find_bundle(run.path) is None:
        raise UsageError(f"The run {path} has no model yet. Finish it with: vitrail train --resume {path}")
    return run


def _refuse_anomaly(run: RunFolder, task: str) -> None:
    """Refuse a run that has no rule.

    Raises:
        UsageError: an anomaly run.
    """
    if task == "anomaly":
        raise UsageError(
            f"{run.path} decides by p-values of good pictures, not by a rule. Another share of false alarms, more "
            f"pictures or an earlier version: vitrail teach {run.path} --alpha 0.05, PICTURES or --use NAME."
        )


def put_to_use(run: RunFolder, name: str, by: str) -> tuple[str, ...]:
    """Put a decision to use after reading it; the one in use before may be damaged. Returns what was left out."""
    folder = run.bundle
    with Lock(run.path):
        info = bundle.read_bundle_info(folder, by=name)
        task, where = parse_task(info.task), str(decision_versions.decision_path(folder, name))
        read_decisions(info.info, task, info.classes, where)
        if name != TRAINED:
            content = decision_versions.read_decision_file(folder, name, task, info.classes)
            if info.trained_info.get("data", {}).get("fingerprint") != _fingerprint_of(content):
                raise DamagedFileError(f"{where} was fitted to other data than this model's. Fit it again: {_AGAIN}")
        damaged = find_unreadable_decisions(folder, info)
        decision_versions.add_use_record(folder, name, by, describe_now(), info.listed - {*damaged}, damaged)
    return tuple(f"{folder / name} is damaged. It stays where it lies and counts no longer." for name in damaged)


def _fingerprint_of(content: Mapping[str, Any]) -> object:
    """Of the data that a kept decision was fitted to."""
    data = content.get("data")
    return data.get("fingerprint") if isinstance(data, Mapping) else None


_AGAIN = "vitrail decide RUN --rule RULE --keep NAME"


def describe_now() -> str:
    """The time, as the files of kept decisions note it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _build_settings(stored: StoredRun, request: DecisionRequest) -> DecisionSettings:
    """The settings of a training with the same rule."""
    names, task = stored.names, stored.task
    what = {"classification": "classes", "multilabel": "labels", "regression": "columns"}[task]
    for flag, name in [
        *(("--at", name) for name in request.at),
        *(("--prevalence", name) for name in request.prevalence),
        *((("--positive", request.positive),) if request.positive else ()),
    ]:
        if task == "regression":
            raise UsageError(f"{flag} is for classes and labels, and {stored.run.path} answers with numbers.")
        if name not in names:
            raise UsageError(f"{flag} must name one of the {what} {', '.join(names[:10])}. Got {name!r}.")
    if task == "regression" and (request.rule or request.abstain is not None):
        flag = "--rule" if request.rule else "--abstain"
        raise UsageError(
            f"{flag} is for classes and labels, and {stored.run.path} answers with numbers. Give --alpha, or limits: "
            f"--band {names[0]}=LOW..HIGH."
        )
    if task == "multilabel":
        for flag, given in (("alpha", request.alpha), ("abstain", request.abstain), ("positive", request.positive)):
            if given not in (None, ""):
                raise UsageError(f"--{flag} is for classes or numbers. Labels are decided by thresholds: give --rule.")
    if request.band and task != "regression" and not stored.trained.ordered:
        raise UsageError("--band is for numbers, or for classes in an order (trained with --decisions.ordered true).")
    positive = ""
    if task == "classification":
        asked = bool(request.rule or request.at or request.positive)
        if asked and len(names) != 2:
            raise UsageError(
                f"--rule and --at are for labels, or for one of two classes. {stored.run.path} has "
                f"{format_count(len(names), 'class', 'classes')}: the likeliest is answered. Give --abstain, --alpha "
                "or --prevalence."
            )
        if len(request.at) > 1:
            raise UsageError(f"Two classes have one threshold. Give --at for one of {', '.join(names)}.")
        given = request.positive or next(iter(request.at), "")
        if request.positive and request.at and request.positive not in request.at:
            raise UsageError(f"--at {given} and --positive {request.positive} name different classes. Name one.")
        positive = given or stored.settings.positive
        if asked and not positive:
            only = next(iter(request.prevalence), "") if len(request.prevalence) == 1 else ""
            positive = stored.current.positive or only
        if asked and not positive:
            raise UsageError(f"A rule is for one of the two classes. Name it: --positive {names[0]} or {names[1]}.")
        if request.abstain and positive:
            raise UsageError(
                f"--abstain leaves unanswered what is near one half, and {positive} is answered from a threshold of "
                "its own. Give one of them."
            )
    settings = replace(
        stored.settings,
        threshold_rule=request.rule or stored.settings.threshold_rule,
        positive=positive,
        abstain_fraction=stored.settings.abstain_fraction if request.abstain is None else request.abstain,
        conformal_alpha=stored.settings.conformal_alpha if request.alpha is None else request.alpha,
    )
    if positive and request.abstain is None:
        settings = replace(settings, abstain_fraction=0.0)
    if task == "classification" and not positive:
        settings = replace(settings, threshold_rule=DecisionSettings().threshold_rule)
    settings.check_task(task, names)
    return settings


def _parse_band_request(stored: StoredRun, request: DecisionRequest, new: Decisions | None) -> dict[str, Band]:
    if not request.band or new is None:
        return {}
    return parse_bands(request.band, stored.names, stored.task == "classification")


def _parse_rule(text: str) -> ThresholdRule | None:
    """The rule of a decision; None for stated thresholds."""
    try:
        return ThresholdRule.parse(text)
    except UsageError:
        return None


def _targets_of(table: TaskPredictions) -> np.ndarray:
    """The targets, as `fit_rules` takes them; unknown ones where there are none."""
    if table.targets is not None:
        return table.targets
    if isinstance(table, ClassificationPredictions):
        return np.full(len(table), -1, np.int64)
    return np.full((len(table), len(output_names(table))), np.nan)


def _label_scores(stored: StoredRun, decisions: Decisions) -> dict[str, LabelScores]:
    """Known validation images of each label that has a threshold."""
    table, targets = apply_decisions(stored.validation, decisions), _targets_of(stored.validation)
    scores: dict[str, LabelScores] = {}
    if isinstance(table, RegressionPredictions) or not decisions.thresholds:
        return scores
    for k, name in enumerate(stored.names):
        ratio = decisions.prior_ratio[k] if decisions.prior_ratio else 1.0
        if isinstance(table, ClassificationPredictions):
            if name != decisions.positive:
                continue
            known, positive = targets >= 0, targets == k
            ratio /= decisions.prior_ratio[1 - k] if decisions.prior_ratio else 1.0
        else:
            known, positive = ~np.isnan(targets[:, k]), targets[:, k] >= LABEL_THRESHOLD
        scores[name] = LabelScores(positive[known], table.probabilities[known, k], ratio)
    return scores


def _measure_optimism(stored: StoredRun, new: Decisions, rule: ThresholdRule, miss_cost: float) -> RuleOptimism | None:
    return measure_optimism(rule, [*_label_scores(stored, new).values()], miss_cost)


def _unsupported_message(stored: StoredRun, settings: DecisionSettings) -> str:
    """Why no label got its threshold."""
    order = (settings.positive,) if settings.positive else stored.names
    counts = _count_sides(stored, settings.positive)
    if all(min(counts[name]) >= MIN_PER_SIDE for name in order):
        return (
            f"No threshold reaches {settings.threshold_rule!r} on the "
            f"{format_count(len(stored.validation), 'validation picture')}. "
            "Ask for less, or train a better model."
        )
    name = order[0]
    return (
        f"The rule {settings.threshold_rule!r} takes {MIN_PER_SIDE} validation pictures with {name} and {MIN_PER_SIDE} "
        f"without it. There are {counts[name][0]:,} and {counts[name][1]:,}: state a threshold instead (--at "
        f"{name}=0.3), or train with a larger --data.val_fraction."
    )


def _count_sides(stored: StoredRun, positive: str) -> dict[str, tuple[int, int]]:
    """Positives and negatives among the known validation images of each label."""
    named = Decisions(positive=positive, thresholds=(0.5,) * (1 if positive else len(stored.names)))
    scores = _label_scores(stored, named)
    return {name: (int(one.positive.sum()), int((~one.positive).sum())) for name, one in scores.items()}


def _describe_limits(stored: StoredRun, new: Decisions) -> tuple[str, ...]:
    """What a reader of the figures must know."""
    notes = []
    order = (new.positive,) if new.positive else stored.names
    if without := [name for name, chosen in zip(order, new.chosen, strict=False) if not chosen]:
        counts = _count_sides(stored, new.positive)
        name = without[0]
        notes.append(
            f"The rule was not fitted for {', '.join(without[:6])}, answered from 0.5 on: validation has "
            f"{format_count(counts[name][0], 'picture')} with {name} and {counts[name][1]:,} without it."
        )
    if TEST not in stored.tables:
        notes.append("No test predictions are stored, so the rule is judged on the pictures that it was fitted to.")
    if TEST in stored.groups:
        notes.append("Test intervals count whole groups; the groups of validation pictures are not stored, so theirs "
                     "count pictures and are too narrow.")  # fmt: skip
    return tuple(notes)


def _estimate_elsewhere(stored: StoredRun, path: Path) -> tuple[PrevalenceEstimate, ...]:
    """Estimate the prevalences behind a predictions file of this run."""
    if stored.task == "regression":
        raise UsageError("--estimate is for classes and labels. Numbers have no prevalence.")
    table = read_predictions_csv(path, stored.task)
    assert not isinstance(table, RegressionPredictions) and not isinstance(stored.validation, RegressionPredictions)
    if output_names(table) != stored.names:
        raise DataError(
            f"{path} answers {', '.join(output_names(table)[:6])}, and the run {', '.join(stored.names[:6])}. Make it "
            f"with: vitrail predict {stored.run.path} PICTURES --to {path}"
        )
    kept = read_kept_decisions(stored.run.bundle).by_name
    if table.decision and table.decision not in kept:
        raise DataError(f"{path} was answered by the decision {table.decision}, which {stored.run.path} has not kept.")
    if kept[table.decision or TRAINED].prior_ratio:
        raise UsageError(
            f"The decision {table.decision}, which has answered {path}, has moved the probabilities to a stated "
            "prevalence already. Put the training's to use (--use training), predict again, then estimate."
        )
    return estimate_prevalences(table, stored.validation)


def _estimate_to_json(one: PrevalenceEstimate) -> dict[str, Any]:
    low, high = one.interval
    return {"name": one.name, "value": one.value, "low": low, "high": high, "validation": one.validation}


def parse_shares(text: str, flag: str) -> dict[str, float]:
    """Parse shares by name, such as "defective=0.3,scratch=0.1".

    Raises:
        UsageError: no such list, or a name that is given twice.
    """
    shares: dict[str, float] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, number = word.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not equals or not name or name in shares or not 0 < share < 1:
            raise UsageError(f"{flag} takes NAME=SHARE with a share between 0 and 1, once a name, such as "
                             f"defective=0.3. Got {word!r}.")  # fmt: skip
        shares[name] = share
    return shares
