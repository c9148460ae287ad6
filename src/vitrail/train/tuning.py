"""Tune a plan: train variants of it a little, stop the worse half, and train the better half twice as long.

Successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
optimization") by the validation loss, on runs that are extended exactly: OUT/trial-0 is the plan itself, trial-1, ...
vary it, and the last one left is finished as every run. The test images are not looked at before that.

What a trial may change, unless it was asked for explicitly:

    both learning rates, together     a factor of 0.35 to 2.8
    weight decay                      a third, as planned, or three times as much
    augmentation strength             half, as planned, or half as much again (see `AUGMENTATION_FIELDS`)
    model size, from random values    one size smaller or larger of `SMALL_IMAGE_SIZES`, or as planned
    layer decay, from a checkpoint    one of `LAYER_DECAYS`

Everything is drawn from the seed. The minutes are those of all trials: each round divides what is left, less the time
that opening the data again takes, and the last trial has the rest.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from .. import config
from ..data.csv_injection import format_csv_lines
from ..errors import DivergedError, UsageError
from ..files import atomic
from ..files.lock import Lock
from ..formatting import format_count, format_duration
from ..model.registry import SMALL_IMAGE_SIZES
from ..randomness import uniform
from ..runtime import RuntimeSettings
from . import checkpoint
from .cross_validation import resolve_request_paths
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .distributed.collectives import group_from_env
from .events import Event, Note, PlanEvent, RunFolderEvent, StepProgress, TaskProgress, ValidationEvent
from .fit import fit, resolve_request_data, resume_run
from .plan import FinetuneSettings, Plan, Recipe
from .planning.planner import resolve_minutes
from .request import TrainRequest, request_from_json, request_to_json
from .resume import Extension, read_current_plan
from .run_folder import RunFolder, make_default_folder
from .signals import TUNE_FILE

TRIALS_FILE = "trials.csv"
DEFAULT_TRIALS = 6
LR_OCTAVES = 1.5
"""The learning rates vary by a factor of two to the power of this, up and down."""
DECAY_FACTORS = (1 / 3, 1.0, 3.0)
AUGMENTATION_FACTORS = (0.5, 1.0, 1.5)
AUGMENTATION_FIELDS = {
    "recipe.mixup": 4.0, "recipe.cutmix": 4.0, "recipe.random_erasing": 0.9, "recipe.rotate": 180.0,
    "recipe.scale": 0.9, "recipe.translate": 0.9, "model.drop_path": 0.9,
}  # fmt: skip
"""Fields whose values are the strength of augmentation, and the largest of each."""
FIRST_MIXUP = 0.2
"""Where the plan has no augmentation of a strength, the stronger one is this mixup."""
LAYER_DECAYS = (0.65, 0.75, 0.85, 0.95)
MIN_SECONDS = 2.0
"""Of a trial in the first round; with less its loss says nothing."""


@dataclass(frozen=True)
class Trial:
    """A variant of the plan."""

    model: str | None
    """The named size; None from a checkpoint."""
    overrides: dict[str, str]
    """Every field of the plan that is set for it, by dotted names, as text."""
    changes: dict[str, str]
    """What differs from the plan: empty for the first trial, which is the plan itself."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What a trial had reached at the end of a round."""

    trial: int
    round: int
    """From 0; in every round half as many trials are trained, together with the rounds before twice as long."""
    steps: int
    """All its optimiser steps so far."""
    seconds: float
    """Of this round, with opening the data."""
    loss: float | None
    """Of the validation images; None where the training diverged."""
    metric: float | None
    """Of the same images, named in the run's metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The trials of one plan, and how far they are; tune.json holds it."""

    request: TrainRequest
    """Of the whole tuning: its minutes or steps are those of all trials together."""
    settings: RuntimeSettings
    trials: tuple[Trial, ...]
    preparation: float
    """Seconds to open and check the data and to plan, measured before the first trial."""
    shares: tuple[float, ...] = ()
    """Minutes, or steps, of a trial in each round that has begun."""
    results: tuple[TrialResult, ...] = ()

    @property
    def num_rounds(self) -> int:
        """Number of rounds; in the last one, a single trial is finished."""
        return count_rounds(len(self.trials))

    def entrants(self, number: int) -> list[int]:
        """The trials of a round: all of them, then the better half of those before, by their validation loss."""
        if number == 0:
            return list(range(len(self.trials)))
        before = [result for result in self.results if result.round == number - 1]
        ranked = sorted((one.loss, one.trial) for one in before if one.loss is not None)
        return sorted(trial for _, trial in ranked[: math.ceil(len(before) / 2)])

    def result_of(self, trial: int, number: int) -> TrialResult | None:
        """The result of a trial in a round; None where there is none yet."""
        return next((one for one in self.results if (one.trial, one.round) == (trial, number)), None)

    def choose_share(self, number: int) -> float:
        """The minutes, or steps, of each trial in the round that begins now.

        Raises:
            UsageError: too little for as many trials.
        """
        counts, weights = _count_entrants(len(self.trials)), _round_weights(self.num_rounds)
        units = sum(count * weight for count, weight in zip(counts[number:], weights[number:], strict=True))
        if self.request.steps is not None:
            used = sum(count * share for count, share in zip(counts, self.shares, strict=False))
            whole_steps = int((self.request.steps - used) * weights[number] / units)
            if whole_steps < 1:
                raise UsageError(
                    f"{format_count(len(self.trials), 'trial')} need at least {units} steps in all. Got --steps "
                    f"{self.request.steps}."
                )
            return float(whole_steps)
        used = sum(one.seconds for one in self.results)
        seconds = 60 * resolve_minutes(self.request) - used - sum(counts[number:]) * self._seconds_around()
        share = seconds * weights[number] / units
        if share < MIN_SECONDS and number == 0:
            needed = (units * MIN_SECONDS + sum(counts) * self._seconds_around()) / 60
            raise UsageError(
                f"{format_count(len(self.trials), 'trial')} need at least {needed:.2g} minutes here, of which opening "
                "the data again takes a part. Give more --minutes, or fewer --trials."
            )
        return max(share, MIN_SECONDS) / 60

    def _seconds_around(self) -> float:
        """Seconds of a trial in a round beside its share."""
        if not self.results:
            return self.preparation
        return max(0.0, fmean(one.seconds - 60 * self.shares[one.round] for one in self.results))


def tune(
    request: TrainRequest,
    settings: RuntimeSettings,
    trials: int = DEFAULT_TRIALS,
    out: Path | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Generator[Event]:
    """Train variants of the plan of a request by successive halving, and finish the best; yields events.

    Args:
        request: its minutes or steps are those of all trials together.
        out: the folder of all trials; None makes runs/<date>-<time>-<source>-tune.
        source_object, custom_functions: as `fit.fit`.

    Raises:
        UsageError: too few trials, minutes or validation images, or a setting that cannot be tuned around.
        as `fit.fit`.
    """
    _check_request(request, trials)
    if out is not None:
        RunFolder.check_free(out)
    request = resolve_request_paths(resolve_request_data(request, source_object))
    start_time = time.perf_counter()
    plan = yield from _plan_best(request, settings, trials, source_object, custom_functions)
    drawn, preparation = draw_trials(plan, request, trials), time.perf_counter() - start_time
    request = _pin_request(request, plan)
    tuning = Tuning(request=request, settings=settings, trials=drawn, preparation=preparation)
    tuning = dataclasses.replace(tuning, shares=(tuning.choose_share(0),))
    if out is None:
        out = make_default_folder(request.data.source, "tune", datetime.now())
    out.mkdir(parents=True, exist_ok=True)
    _write_tuning(out, tuning)
    yield RunFolderEvent(out)
    yield from _run_rounds(out, source_object, custom_functions)


def resume_tuning(
    out: Path, source_object: object | None = None, custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS
) -> Generator[Event]:
    """Go on with trials that were interrupted.

    Raises:
        UsageError: no folder of trials; else as `tune`.
    """
    if not (out / TUNE_FILE).is_file():
        raise UsageError(f"{out} holds no trials: it has no {TUNE_FILE}. Give the folder that tune named.")
    yield RunFolderEvent(out)
    yield from _run_rounds(out, source_object, custom_functions)


def read_tuning(out: Path) -> Tuning:
    """Read tune.json."""
    stored: dict[str, Any] = json.loads((out / TUNE_FILE).read_text(encoding="utf-8"))
    request, settings = request_from_json(stored["request"], str(out / TUNE_FILE))
    return Tuning(
        request=request, settings=settings, preparation=stored["preparation"], shares=tuple(stored["shares"]),
        trials=tuple(Trial(**one) for one in stored["trials"]),
        results=tuple(TrialResult(**one) for one in stored["results"]),
    )  # fmt: skip


def trial_folder(out: Path, trial: int) -> Path:
    """The run folder of a trial."""
    return out / f"trial-{trial}"


def best_folder(out: Path, tuning: Tuning) -> Path:
    """The run folder of the trial that was finished."""
    return trial_folder(out, tuning.entrants(tuning.num_rounds - 1)[0])


def list_results(tuning: Tuning) -> list[tuple[str, ...]]:
    """A table of the trials with its header: number, rounds, steps, seconds, last loss and metric, and what differs."""
    rows: list[tuple[str, ...]] = [
        ("trial", "rounds", "steps", "seconds", "val loss", "val metric", "differs from the plan by")
    ]
    for number, trial in enumerate(tuning.trials):
        own = [one for one in tuning.results if one.trial == number]
        last = own[-1] if own else None
        loss, metric = (None, None) if last is None else (last.loss, last.metric)
        rows.append(
            (
                str(number),
                str(len(own)),
                f"{last.steps if last else 0}",
                f"{sum(one.seconds for one in own):.1f}",
                "" if loss is None else f"{loss:.4f}",
                "" if metric is None else f"{metric:.4f}",
                describe_changes(trial),
            )
        )
    return rows


def describe_changes(trial: Trial) -> str:
    """What a trial changes, in words."""
    return ", ".join(f"{name} {text}" for name, text in trial.changes.items()) or "nothing"


# -- The plan and its variants


def count_rounds(trials: int) -> int:
    """Rounds until one trial is left, with the one that finishes it."""
    return 1 + math.ceil(math.log2(trials))


def _count_entrants(trials: int) -> list[int]:
    """Trials in each round."""
    counts = [trials]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / 2))
    return counts


def _round_weights(rounds: int) -> list[int]:
    """The share of a trial in each round, in shares of the first: 1, 1, 2, 4, ... doubles what it has had."""
    return [1, *(2**number for number in range(rounds - 1))]


def _check_request(request: TrainRequest, trials: int) -> None:
    if group_from_env().world_size > 1:
        raise UsageError("Trials are trained one after another by one process. Start tune without torchrun.")
    if trials < 2:
        raise UsageError(f"Tuning compares at least 2 trials. Got --trials {trials}.")
    if request.epochs is not None:
        raise UsageError("The trials share --minutes or --steps: models of several sizes take them differently.")
    resolve_minutes(request)
    phases = [name for name in request.overrides if name.startswith(("pretrain.", "distill."))]
    if request.pretrain or phases:
        what = f"--{phases[0]}" if phases else "--pretrain"
        raise UsageError(f"Trials are compared by their training alone, and {what} trains before it. Leave it out.")
    if request.data.folds:
        raise UsageError("Trials share one validation split, and folds have one each. Leave one of them out.")


def _plan_best(
    request: TrainRequest,
    settings: RuntimeSettings,
    trials: int,
    source_object: object | None,
    custom_functions: CustomFunctions,
) -> Generator[Event, None, Plan]:
    """The plan of the one trial that is finished, which has its share of every round."""
    weights, counts = _round_weights(count_rounds(trials)), _count_entrants(trials)
    part = sum(weights) / sum(count * weight for count, weight in zip(counts, weights, strict=True))
    minutes = resolve_minutes(request) * part
    steps = None if request.steps is None else max(1, int(request.steps * part))
    whole = dataclasses.replace(request, minutes=minutes or None, steps=steps)
    plan = None
    for event in fit(whole, settings, None, True, source_object, custom_functions):
        plan = event.plan if isinstance(event, PlanEvent) else plan
        yield event
    assert plan is not None
    if not plan.recipe.steps:
        raise UsageError("The plan makes no steps, so nothing is to be tuned: its answers come from frozen features.")
    return plan


def _pin_request(request: TrainRequest, plan: Plan) -> TrainRequest:
    """The request with what the plan has chosen for the length of the best trial, which shorter ones keep."""
    from_checkpoint = plan.finetune.from_checkpoint
    sections: dict[str, tuple[object, object]] = {"recipe": (plan.recipe, Recipe())}
    if from_checkpoint:
        sections["finetune"] = (plan.finetune, FinetuneSettings(weights=plan.finetune.weights))
    pinned: dict[str, str] = {}
    for section, (chosen, default) in sections.items():
        usual = config.flatten(default)
        for name, value in config.flatten(chosen).items():
            if value != usual.get(name) and name not in UNPINNED_FIELDS:
                pinned[f"{section}.{name}"] = _to_text(value)
    if plan.model.drop_path:
        pinned["model.drop_path"] = _to_text(plan.model.drop_path)
    if from_checkpoint and plan.finetune.method == "full":  # fewer minutes would freeze more
        pinned["finetune.freeze_blocks"] = str(plan.finetune.freeze_blocks)
    return dataclasses.replace(
        request,
        model=None if from_checkpoint else plan.model_name,
        weights=plan.finetune.weights,
        image_size=plan.model.image_size,
        overrides=pinned | dict(request.overrides),
    )


UNPINNED_FIELDS = frozenset(
    {
        "steps", "steps_history", "evaluate_every", "save_every", "weights", "weights_sha256", "custom_loss",
        "custom_augment",
    }
)  # fmt: skip
"""Fields of [recipe] and [finetune] that belong to the length of a run, or are given otherwise."""


def draw_trials(plan: Plan, request: TrainRequest, count: int) -> tuple[Trial, ...]:
    """The plan itself, and variants of it; what `request` asks for is never varied."""
    draws = uniform(request.seed, "tune", 0, np.arange(count), 4)  # [n, 4] in 0..1
    from_checkpoint = plan.finetune.from_checkpoint
    own = None if from_checkpoint else plan.model_name
    shape_names = [name for name in request.overrides if name.startswith("model.") and name != "model.drop_path"]
    may_resize = own is not None and request.model is None and not shape_names
    trials = [Trial(own, {}, {})]
    for lr, decay, strength, shape in draws[1:].tolist():
        changes = _scale_fields(plan, {"recipe.lr": 1.0, "recipe.muon_lr": 1.0}, 2.0 ** (LR_OCTAVES * (2 * lr - 1)))
        if plan.recipe.optimizer != "muon":
            changes.pop("recipe.muon_lr", None)
        changes |= _scale_fields(plan, {"recipe.weight_decay": 1.0}, _pick(DECAY_FACTORS, decay))
        changes |= _strengthen(plan, _pick(AUGMENTATION_FACTORS, strength))
        if from_checkpoint:
            chosen = _pick(LAYER_DECAYS, shape)
            changes |= {} if chosen == plan.finetune.layer_decay else {"finetune.layer_decay": _to_text(chosen)}
        changes = {name: text for name, text in changes.items() if name not in request.overrides}
        model = _neighbour(plan.model_name, _pick((-1, 0, 1), shape)) if may_resize else own
        trials.append(Trial(model, changes, changes if model == own else {"model": str(model), **changes}))
    return tuple(trials)


def _pick(choices: Sequence[Any], draw: float) -> Any:
    return choices[int(draw * len(choices))]


def _scale_fields(plan: Plan, limits: dict[str, float], factor: float) -> dict[str, str]:
    """Fields of the plan times a factor, to three digits; those that stay as they are are left out."""
    values = config.flatten(plan)
    scaled = {name: min(limit, float(f"{values[name] * factor:.3g}")) for name, limit in limits.items()}
    return {name: _to_text(value) for name, value in scaled.items() if value != values[name]}


def _strengthen(plan: Plan, factor: float) -> dict[str, str]:
    values = config.flatten(plan)
    if factor > 1 and not any(values[name] for name in AUGMENTATION_FIELDS):
        return {"recipe.mixup": _to_text(FIRST_MIXUP)}
    return _scale_fields(plan, AUGMENTATION_FIELDS, factor)


def _neighbour(model: str, step: int) -> str:
    """The next smaller or larger model of the sizes for small images; the same where there is none."""
    for number, size in enumerate(SMALL_IMAGE_SIZES):
        if f"_{size}_" in model and 0 <= number + step < len(SMALL_IMAGE_SIZES):
            return model.replace(f"_{size}_", f"_{SMALL_IMAGE_SIZES[number + step]}_")
    return model


def _to_text(value: object) -> str:
    """A value of a plan as on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(_to_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- Rounds


def _write_tuning(out: Path, tuning: Tuning) -> None:
    """Write tune.json and the table of trials."""
    stored = {
        "request": request_to_json(tuning.request, tuning.settings),
        "preparation": tuning.preparation,
        "shares": list(tuning.shares),
        "trials": [dataclasses.asdict(one) for one in tuning.trials],
        "results": [dataclasses.asdict(one) for one in tuning.results],
    }
    atomic.write_json(out / TUNE_FILE, stored)
    atomic.write_text(out / TRIALS_FILE, "".join(format_csv_lines(list_results(tuning))))


def _run_rounds(out: Path, source_object: object | None, custom_functions: CustomFunctions) -> Generator[Event]:
    """Run the rounds that are left."""
    with Lock(out):
        tuning = read_tuning(out)
        for number in range(tuning.num_rounds):
            if number == len(tuning.shares):
                tuning = dataclasses.replace(tuning, shares=(*tuning.shares, tuning.choose_share(number)))
                _write_tuning(out, tuning)
            entrants = tuning.entrants(number)
            is_last = number == tuning.num_rounds - 1
            for trial in entrants:
                if tuning.result_of(trial, number) and not is_last:
                    continue
                yield Note(_describe_piece(tuning, trial, number))
                result = yield from _train_share(tuning, out, trial, number, source_object, custom_functions)
                if not tuning.result_of(trial, number):
                    tuning = dataclasses.replace(tuning, results=(*tuning.results, result))
                _write_tuning(out, tuning)
            if not is_last:
                if all(one.loss is None for one in tuning.results if one.round == number):
                    raise DivergedError("Every trial diverged. Tune with a lower --recipe.lr and --recipe.muon_lr.")
                yield Note(_describe_round(tuning, number))


def _describe_piece(tuning: Tuning, trial: int, number: int) -> str:
    share = tuning.shares[number]
    amount = f"{share:g} steps" if tuning.request.steps is not None else format_duration(60 * share)
    changes = describe_changes(tuning.trials[trial])
    return f"Round {number + 1} of {tuning.num_rounds}, trial {trial} ({changes} changed), {amount}."


def _describe_round(tuning: Tuning, number: int) -> str:
    kept = tuning.entrants(number + 1)
    losses = {one.trial: one.loss for one in tuning.results if one.round == number}
    shown = ", ".join(f"{trial} ({'diverged' if loss is None else f'{loss:.4f}'})" for trial, loss in losses.items())
    return f"Validation loss of trials {shown}; {', '.join(map(str, kept))} go on."


def _train_share(
    tuning: Tuning,
    out: Path,
    trial: int,
    number: int,
    source_object: object | None,
    functions: CustomFunctions,
) -> Generator[Event, None, TrialResult]:
    """Train a trial for its share of a round, or what is left of it; in the last round to its report."""
    run, is_last = RunFolder(trial_folder(out, trial)), number == tuning.num_rounds - 1
    before = None if number == 0 else tuning.result_of(trial, number - 1)
    begin = 0 if before is None else before.steps
    start_time = time.perf_counter()
    spent = run.elapsed_seconds() - (run.elapsed_seconds(begin) if begin else 0.0)  # before an interruption
    if is_last or not _has_reached_end(run, begin):
        events = _open_share(tuning, run, trial, number, begin, source_object, functions)
        try:
            end_time = yield from _pass_until_last_step(events, is_last)
        except DivergedError as error:
            if is_last:
                raise
            yield Note(str(error))
            seconds = spent + time.perf_counter() - start_time
            return TrialResult(trial=trial, round=number, steps=begin, seconds=seconds, loss=None, metric=None)
        spent += end_time - start_time
    steps = run.read_plan().recipe.steps
    row = next((row for row in reversed(run.read_rows()) if row["step"] == steps and "val_loss" in row), None)
    if row is None:
        raise UsageError("Trials are compared on validation pictures, and there are none: give --val or more pictures.")
    metric = next((value for name, value in row.items() if name.startswith("val_") and name != "val_loss"), None)
    return TrialResult(trial=trial, round=number, steps=steps, seconds=spent, loss=row["val_loss"], metric=metric)


def _has_reached_end(run: RunFolder, begin: int) -> bool:
    """Whether a trial has made all steps of its share, which is not recorded yet."""
    if not run.plan_file.is_file() or run.extension_file.is_file():
        return False
    recipe = run.read_plan().recipe
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    done = 0 if newest is None else int(checkpoint.read_checkpoint_facts(newest)["step"])
    return done == recipe.steps and (begin == 0 or recipe.extended_at >= begin)


def _open_share(
    tuning: Tuning,
    run: RunFolder,
    trial: int,
    number: int,
    begin: int,
    source_object: object | None,
    functions: CustomFunctions,
) -> Generator[Event]:
    """The training of a share: a new run, its extension, or what is left of either."""
    share, in_steps = tuning.shares[number], tuning.request.steps is not None
    budget: dict[str, Any] = {"steps": int(share)} if in_steps else {"minutes": share}
    if not run.plan_file.is_file():
        one = tuning.trials[trial]
        overrides = {**tuning.request.overrides, **one.overrides}
        budget = {"minutes": None, "steps": None} | budget
        request = dataclasses.replace(tuning.request, model=one.model, overrides=overrides, **budget)
        return fit(request, tuning.settings, run.path, False, source_object, functions)
    if begin and read_current_plan(run).recipe.extended_at < begin:
        return resume_run(run.path, source_object, Extension(**budget), custom_functions=functions)
    return resume_run(run.path, source_object, custom_functions=functions)


def _pass_until_last_step(events: Generator[Event], is_last: bool) -> Generator[Event, None, float]:
    """Pass the progress on until the last step is made and validated; return when. Closing the training then saves it.

    With `is_last` pass everything on, to the report, and return when the last step was made.
    """
    is_over, end_time = False, time.perf_counter()
    with closing(events):
        for event in events:
            if is_over and not is_last:
                break
            if isinstance(event, StepProgress) and not event.phase:
                is_over, end_time = event.step == event.steps, time.perf_counter()
            is_new = not isinstance(event, RunFolderEvent | PlanEvent)
            if is_new if is_last else isinstance(event, StepProgress | TaskProgress | ValidationEvent):
                yield event
    return end_time if is_last else time.perf_counter()
