"""Resume a run, and extend it: `vitrail train --resume RUN --extend --minutes 10`, whether it is finished or not.

After an extension, everything that depends on the step is as in a run that was planned so long from the start; only the
learning rate, which has fallen, rises first over the recipe's warm-up. So the plan alone determines every coming step,
and an extended run can be stopped and resumed like any other.

The old report and model, if any, move to `earlier/step-00000060/` with their plan. The extension is written to
`extension.toml` first, so that the next resume completes it after a crash. The same --extend again adds no steps.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from .. import config
from ..data.source import Source
from ..errors import DataError, UsageError
from ..files import atomic
from ..files.lock import Lock
from ..formatting import format_count
from . import checkpoint, phase, plan_changes
from .dataset import is_same_data
from .events import Note
from .guards import Guards
from .loop import TrainState
from .plan import Plan
from .plan_changes import PLACES
from .run_folder import RunFolder

REPORT_FILES = ("report.html", "report.json", "thumbnails.npz", "explanations.npz", "groups.npy")
RESULT_FILES = (*REPORT_FILES, "results.csv", "model", "predictions", "exports", "evaluations")
SOLVER_ROUNDS = 8  # fixed-point iterations for the number of steps
SAMPLED_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The additional budget: one of the three."""

    minutes: float | None = None
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        budgets = {name: value for name, value in vars(self).items() if value is not None}
        if len(budgets) != 1:
            raise UsageError(
                f"--extend takes one budget, --minutes, --epochs or --steps. Got {len(budgets) or 'none'}."
            )
        for name, value in budgets.items():
            if not 0 < value < math.inf:
                raise UsageError(f"--{name} must be above 0. Got {value}.")

    def __str__(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in vars(self).items() if value is not None)


def read_current_plan(run: RunFolder) -> Plan:
    """The plan that a run continues with: the longer one after a crash during its extension."""
    return config.read_toml(run.extension_file, Plan) if run.extension_file.is_file() else run.read_plan()


def extend_run(run: RunFolder, extension: Extension) -> str:
    """Give a run more steps and move its old report and model aside; return a sentence about it.

    The same extension after the same step, of a run that has not finished since, changes nothing.

    Raises:
        UsageError: minutes for a run without recorded step times, or a run without steps.
        DamagedFileError: there are checkpoints and none is complete.
    """
    plan, reasons = run.read_plan(), run.read_reasons()
    if not plan.recipe.steps:
        raise UsageError(f"{run.path} has no steps to go on with: its answers come from frozen features alone.")
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    done = 0 if newest is None else int(checkpoint.read_checkpoint_facts(newest)["step"])
    recipe = plan.recipe
    origin = f"by --extend after step {done:,} ({extension})"
    has_ended = (run.path / REPORT_FILES[0]).is_file() and not run.extension_file.is_file()
    if origin in reasons.get("recipe.steps", "") and not has_ended:
        return (
            f"Extended {origin} already, and no later step is saved: nothing is added now, "
            f"{format_count(recipe.steps, 'step')} in all. For yet more, extend it again when a later step is saved."
        )
    # The learning rate continues from the recipe that the last step followed.
    last_recipe = recipe if newest is None else (checkpoint.read_checkpoint_plan(newest) or plan).recipe
    factor_before = last_recipe.lr_factor(done - 1) if done else 0.0
    if done == last_recipe.steps and last_recipe.lr_schedule != "constant":
        factor_before = 0.0  # where the last step was heading
    added, seconds = _additional_steps(run, plan, done, extension)
    steps = recipe.steps + added
    longer = dataclasses.replace(
        recipe, steps=steps, steps_history=(), extended_at=done, extended_lr_factor=factor_before
    )
    reasons |= dict.fromkeys(("recipe.extended_at", "recipe.extended_lr_factor"), origin)
    reasons["recipe.steps"] = f"{recipe.steps:,}, and {added:,} more {origin}"
    changed = dataclasses.replace(plan, minutes=seconds / 60, recipe=longer)
    atomic.write_text(run.extension_file, config.to_toml(changed, reasons))
    old_end = finish_extension(run)
    kept = f" The old end is kept in {old_end}." if old_end and (old_end / "model").is_dir() else ""
    warm = min(steps - 1, done + math.ceil(recipe.warmup * (steps - done)))
    return (
        f"Extended after step {done:,}: {format_count(recipe.steps, 'step becomes', 'steps become')} {steps:,}, and "
        f"the rate rises again to {100 * longer.lr_factor(warm):.0f} % of its peak.{kept}"
    )


def finish_extension(run: RunFolder) -> Path | None:
    """Complete the extension of `extension.toml`; return the folder of the old results, None if nothing moved."""
    if not run.extension_file.is_file():
        return None
    plan, old_end = read_current_plan(run), None
    if run.read_plan() != plan:
        files = [path for name in (*RESULT_FILES, "metrics-*.json") for path in sorted(run.path.glob(name))]
        old_end = _earlier_folder(run, plan.recipe.extended_at, files)
        atomic.write_bytes(old_end / "plan.toml", run.plan_file.read_bytes())
        for path in files:
            path.rename(old_end / path.name)
        atomic.write_bytes(run.plan_file, run.extension_file.read_bytes())
    run.extension_file.unlink()
    return old_end


def _earlier_folder(run: RunFolder, step: int, end: Sequence[Path]) -> Path:
    """The first of `earlier/step-00000060`, `-2`, ... that is free, or holds a part of these files after a crash.

    A run is extended twice after one step where the later checkpoints were damaged or never written.
    """
    folder, number = run.path / "earlier" / f"step-{step:08d}", 1
    base, plan = folder.name, run.plan_file.read_bytes()
    while True:
        saved_plan = folder / "plan.toml"
        other_plan = saved_plan.exists() and saved_plan.read_bytes() != plan
        if not other_plan and not any((folder / path.name).exists() for path in end):
            return folder
        number += 1
        folder = folder.with_name(f"{base}-{number}")


def _additional_steps(run: RunFolder, plan: Plan, done: int, extension: Extension) -> tuple[int, float]:
    """The number of steps that the budget adds to the plan's, and with minutes the seconds of the whole run."""
    recipe = plan.recipe
    if extension.steps is not None:
        return extension.steps, 0.0
    if extension.epochs is not None:
        with run.splits_file.open(newline="", encoding="utf-8") as file:
            num_images = sum(row["split"] == "train" for row in csv.DictReader(file))
        distinct = min(recipe.batch_size // recipe.repeated_augmentation, num_images)
        return max(1, math.ceil(extension.epochs * num_images / distinct)), 0.0
    assert extension.minutes is not None
    step_seconds = _measured_step_seconds(run, plan)
    target_seconds = _estimate_seconds(plan, step_seconds, done, recipe.steps) + 60 * extension.minutes
    steps = recipe.steps
    for _ in range(SOLVER_ROUNDS):
        seconds = _estimate_seconds(plan, step_seconds, done, steps)
        steps = max(recipe.steps + 1, done + round((steps - done) * target_seconds / seconds) if seconds else steps + 1)
    return steps - recipe.steps, run.elapsed_seconds(done) + target_seconds


def _estimate_seconds(plan: Plan, step_seconds: Mapping[int, float], done: int, steps: int) -> float:
    """Seconds of the steps after `done` in a run of `steps`, from a sample of them."""
    recipe = dataclasses.replace(plan.recipe, steps=steps, steps_history=())
    sampled = [done + (steps - done) * (2 * index + 1) // (2 * SAMPLED_STEPS) for index in range(SAMPLED_STEPS)]
    return (steps - done) * fmean(
        _step_seconds_at(step_seconds, recipe.tokens_at(step, plan.model.grid)) for step in sampled
    )


def _step_seconds_at(step_seconds: Mapping[int, float], tokens: int) -> float:
    """Seconds of a step of so many patches: measured, or in proportion to the nearest measured count."""
    nearest = min(step_seconds, key=lambda other: abs(other - tokens))
    return step_seconds[nearest] * tokens / nearest


def _measured_step_seconds(run: RunFolder, plan: Plan) -> dict[int, float]:
    """Mean seconds of a step by its patches per image, from metrics.jsonl."""
    seconds_by_tokens: dict[int, list[float]] = {}
    for row in run.read_rows():
        if "seconds" in row:
            tokens = plan.recipe.tokens_at(int(row["step"]) - 1, plan.model.grid)
            seconds_by_tokens.setdefault(tokens, []).append(row["seconds"])
    if not seconds_by_tokens:
        raise UsageError(f"{run.path} has not recorded how long its steps take. Extend it by --steps or --epochs.")
    return {tokens: max(fmean(seconds), 1e-6) for tokens, seconds in seconds_by_tokens.items()}


# -- Resuming a stopped run: leftover files, plan changes, newest complete checkpoint


def reopen_run_as_json(
    run: RunFolder, extension: Extension | None, compute: Mapping[str, str] | None
) -> dict[str, Any]:
    """Repair what a crash left, extend or change the run, and return its plan, reasons and notes as JSON values.

    JSON, because rank 0 calls it and sends the result to the other ranks.

    Args:
        extension: more steps than the plan has.
        compute: plan fields by their dotted names, of those that do not change what is computed.

    Raises:
        UsageError: another process has the run, or its plan was changed in a way that it cannot follow.
        DamagedFileError: there are checkpoints and none is complete.
    """
    notes = []
    lost = [] if run.extension_file.is_file() else run.lost_results()
    if lost:
        notes.append(f"{run.path} has its report and lacks {', '.join(lost)}: what is missing is made again.")
    with Lock(run.path) as lock:
        atomic.remove_leftovers(run.path, before=lock.since)
        if run.extension_file.is_file():
            finish_extension(run)
            notes.append(
                f"The extension that was begun is carried out: {format_count(run.read_plan().recipe.steps, 'step')} in "
                "all."
            )
        newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
        plan = config.override(run.read_plan(), compute or {})
        # May refuse, so it comes before the run is changed.
        change_notes = plan_changes.check_plan_changes(_changes_since_checkpoint(run, plan, newest))
        if extension is not None:
            notes.append(extend_run(run, extension))
            plan = config.override(run.read_plan(), compute or {})
        if compute:
            run.write_plan(plan, run.read_reasons() | dict.fromkeys(compute, "asked for with --resume"))
        if newest is None and not phase.has_phase_checkpoint(run):
            lacks = "has no checkpoint any more" if lost else "stopped before its first checkpoint"
            notes.append(f"The run {lacks}, so it begins again at step 0 of its plan.")
        return {"notes": [*notes, *change_notes], "plan": config.write(plan), "reasons": run.read_reasons()}


def _changes_since_checkpoint(run: RunFolder, plan: Plan, newest: Path | None) -> list[plan_changes.PlanChange]:
    """Changes of the plan since the newest checkpoint or the last phase, without those of an extension."""
    if newest is None:
        phase_plan = phase.read_phase_plan(run)
        return (
            [] if phase_plan is None else plan_changes.drop_extension_changes(plan_changes.diff_plans(phase_plan, plan))
        )
    saved = checkpoint.read_checkpoint_plan(newest)
    if saved is None:
        return []
    done = int(checkpoint.read_checkpoint_facts(newest)["step"])
    changes, at = plan_changes.diff_plans(saved, plan, done), plan.recipe.extended_at
    extended = at > saved.recipe.extended_at or at == done
    return plan_changes.drop_extension_changes(changes) if extended else changes


def relocate_data(run: RunFolder, plan: Plan, source: Source) -> str:
    """Write the new place of a run's images into its plan; return a sentence about it.

    Args:
        plan: with the new place.
        source: what is there.

    Raises:
        DataError: the images there are not those of the run.
    """
    if not is_same_data(run.data_file, source):
        raise DataError(
            f"{plan.data.source} does not hold the pictures of {run.path}: names, labels, splits or sizes of the files "
            "differ. Give the folder or table that the run was begun with, at its new place, or begin a new run."
        )
    with Lock(run.path):
        reasons = run.read_reasons() | dict.fromkeys(PLACES, "moved since the run began")
        run.write_plan(plan, reasons)
    return f"{run.path} reads its pictures from {plan.data.source} now; they are the same."


def restore_checkpoint(run: RunFolder, train_state: TrainState, guards: Guards) -> Generator[Note, None, int]:
    """Put the newest complete checkpoint into a train state and its guards; return its number of finished steps.

    Raises:
        DamagedFileError: there are checkpoints and none is complete, or one does not fit.
        ResourceError: the disk has no room for the next ones.
    """
    newest, complaints = checkpoint.find_newest_checkpoint(run.checkpoints)
    for complaint in complaints:
        yield Note(f"{complaint} Falling back to the checkpoint before it.")
    start = 0
    if newest is not None:
        facts = checkpoint.load_train_state(newest, train_state, guards)
        start = int(facts["step"])
        for text in plan_changes.check_machine(facts, checkpoint.describe_machine()):
            yield Note(text)
    run.drop_rows_after(start)
    checkpoint.check_disk_space(run.checkpoints, train_state)
    return start
