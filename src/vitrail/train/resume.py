"""More time for a run: `vitrail train --resume RUN --extend --minutes 10`, for a finished run or one on its way.

From the present step on, everything that depends on the step is as in a run that was planned so long from the start;
only the rate, which has fallen below that, rises to it first over the recipe's warm-up. So the plan alone still says
what every coming step does, and an extended run can be stopped and resumed like any other.

The old end, if there was one, is moved to `earlier/step-00000060/` with its plan; what is done is written down in
`extension.toml` first, so that a crash in between is made good by the next resume. The same
--extend given again then adds no further steps.
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
from ..errors import UsageError
from ..files import atomic
from ..files.lock import Lock
from . import checkpoint, phase, plan_changes
from .events import Note
from .guards import Guards
from .loop import TrainState
from .plan import Plan
from .run_folder import RunFolder

REPORT_FILES = ("report.html", "report.json", "thumbnails.npz", "explanations.npz", "groups.npy")
RESULT_FILES = (*REPORT_FILES, "results.csv", "model", "predictions", "exports")
ROUNDS = 8  # in which the number of steps settles
SAMPLED_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Extension:
    """How much longer; one of the three."""

    minutes: float | None = None
    epochs: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise UsageError(f"--extend takes one budget, --minutes, --epochs or --steps. Got {len(given) or 'none'}.")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise UsageError(f"--{name} must be above 0. Got {value}.")

    def __str__(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in vars(self).items() if value is not None)


def read_current_plan(run: RunFolder) -> Plan:
    """The plan that a run goes on with: the longer one, if a crash came while it was extended."""
    return config.read_toml(run.extension_file, Plan) if run.extension_file.is_file() else run.read_plan()


def extend_run(run: RunFolder, extension: Extension) -> str:
    """Give a run more steps, and move its old end aside; what was done, in a sentence.

    Nothing, if it was given these after the same step already and has not come to its end since.

    Raises:
        UsageError: minutes for a run that has not recorded how long its steps take, or one without any steps.
        DamagedFileError: there are checkpoints and none is whole.
    """
    plan, reasons = run.read_plan(), run.read_reasons()
    if not plan.recipe.steps:
        raise UsageError(f"{run.path} has no steps to go on with: its answers come from frozen features alone.")
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    done = 0 if newest is None else int(checkpoint.read_checkpoint_facts(newest)["step"])
    recipe = plan.recipe
    how = f"by --extend after step {done:,} ({extension})"
    if reasons.get("recipe.steps", "").endswith(how) and not run.is_finished():
        return (
            f"Extended {how} already, and no later step is saved: nothing is added now, {recipe.steps:,} steps in all. "
            "For yet more, extend it again when a later step is saved."
        )
    then = (
        recipe if newest is None else (checkpoint.read_checkpoint_plan(newest) or plan).recipe
    )  # what the last step followed
    before = then.lr_factor(done - 1) if done else 0.0
    if done == then.steps and then.lr_schedule != "constant":
        before = 0.0  # where the last step was heading
    more = _additional_steps(run, plan, done, extension)
    steps = recipe.steps + more
    longer_recipe = dataclasses.replace(recipe, steps=steps, extended_at=done, extended_lr_factor=before)
    minutes = plan.minutes + extension.minutes if plan.minutes and extension.minutes else 0.0
    reasons |= dict.fromkeys(("recipe.extended_at", "recipe.extended_lr_factor"), how)
    reasons["recipe.steps"] = f"{recipe.steps:,}, and {more:,} more {how}"
    changed = dataclasses.replace(plan, minutes=minutes, recipe=longer_recipe)
    atomic.write_text(run.extension_file, config.to_toml(changed, reasons))
    aside = finish_extension(run)
    where = f" The old end is kept in {aside}." if aside and (aside / "model").is_dir() else ""
    return (
        f"Extended after step {done:,}: {recipe.steps:,} steps become {steps:,}, and the rate rises again to "
        f"{100 * longer_recipe.lr_factor(min(steps - 1, done + math.ceil(recipe.warmup * (steps - done)))):.0f} % of "
        f"its peak.{where}"
    )


def finish_extension(run: RunFolder) -> Path | None:
    """Carry out what `extension.toml` says, whatever of it was done before; where the plan before and its end then are.

    None if there is nothing to do, or only to forget the file.
    """
    if not run.extension_file.is_file():
        return None
    plan, aside = read_current_plan(run), None
    if run.read_plan() != plan:
        end = [path for name in (*RESULT_FILES, "metrics-*.json") for path in sorted(run.path.glob(name))]
        aside = _earlier_folder(run, plan.recipe.extended_at, end)
        atomic.write_bytes(aside / "plan.toml", run.plan_file.read_bytes())
        for path in end:
            path.rename(aside / path.name)
        atomic.write_bytes(run.plan_file, run.extension_file.read_bytes())
    run.extension_file.unlink()
    return aside


def _earlier_folder(run: RunFolder, step: int, end: Sequence[Path]) -> Path:
    """The first `earlier/step-00000060`, `-2`, ... that is free, or that a crash has left with a part of this very end.

    A run is extended twice after one step where the later checkpoints were damaged, or never came.
    """
    first = aside = run.path / "earlier" / f"step-{step:08d}"
    number, plan = 1, run.plan_file.read_bytes()
    while _holds_another_plan(aside / "plan.toml", plan) or any((aside / path.name).exists() for path in end):
        number += 1
        aside = first.with_name(f"{first.name}-{number}")
    return aside


def _holds_another_plan(file: Path, plan: bytes) -> bool:
    return file.exists() and file.read_bytes() != plan


def _additional_steps(run: RunFolder, plan: Plan, done: int, extension: Extension) -> int:
    """How many steps the budget adds to the plan's."""
    recipe = plan.recipe
    if extension.steps is not None:
        return extension.steps
    if extension.epochs is not None:
        pictures = _count_training_images(run.splits_file)
        return max(
            1, math.ceil(extension.epochs * pictures / min(recipe.batch_size // recipe.repeated_augmentation, pictures))
        )
    assert extension.minutes is not None
    pace = _measured_step_seconds(run, plan)
    wanted = _estimate_seconds(plan, pace, done, recipe.steps) + 60 * extension.minutes
    steps = recipe.steps
    for _ in range(ROUNDS):
        taken = _estimate_seconds(plan, pace, done, steps)
        steps = max(recipe.steps + 1, done + round((steps - done) * wanted / taken) if taken else steps + 1)
    return steps - recipe.steps


def _estimate_seconds(plan: Plan, step_seconds: Mapping[int, float], done: int, steps: int) -> float:
    """What the steps after `done` take if there are to be `steps` in all, from as many of them as are worth asking."""
    recipe = dataclasses.replace(plan.recipe, steps=steps)
    asked = [done + (steps - done) * (2 * number + 1) // (2 * SAMPLED_STEPS) for number in range(SAMPLED_STEPS)]
    return (steps - done) * fmean(
        _step_seconds_at(step_seconds, recipe.tokens_at(step, plan.model.grid)) for step in asked
    )


def _step_seconds_at(step_seconds: Mapping[int, float], tokens: int) -> float:
    """Seconds of a step that sees so many patches: measured, or in proportion to the nearest that was."""
    nearest = min(step_seconds, key=lambda other: abs(other - tokens))
    return step_seconds[nearest] * tokens / nearest


def _measured_step_seconds(run: RunFolder, plan: Plan) -> dict[int, float]:
    """Mean seconds of a step by the patches that it sees of a picture, from the run's own record."""
    found: dict[int, list[float]] = {}
    for row in run.read_rows():
        if "seconds" in row:
            tokens = plan.recipe.tokens_at(int(row["step"]) - 1, plan.model.grid)
            found.setdefault(tokens, []).append(row["seconds"])
    if not found:
        raise UsageError(f"{run.path} has not recorded how long its steps take. Extend it by --steps or --epochs.")
    return {tokens: max(fmean(seconds), 1e-6) for tokens, seconds in found.items()}


def _count_training_images(splits_file: Path) -> int:
    with splits_file.open(newline="", encoding="utf-8") as file:
        return sum(row["split"] == "train" for row in csv.DictReader(file))


# -- Resuming a stopped run: leftover files, plan changes, newest complete checkpoint


def reopen_run(
    run: RunFolder, extension: Extension | None = None, compute: Mapping[str, str] | None = None
) -> Generator[Note, None, Plan]:
    """The plan to go on with, after everything that a crash left has been put in order.

    Args:
        extension: more steps than the plan has.
        compute: plan fields by their dotted names, of those that change how and not what is computed.

    Raises:
        UsageError: another process has the run, or its plan was changed in a way that it cannot follow.
        DamagedFileError: there are checkpoints and none is whole.
    """
    with Lock(run.path) as lock:
        atomic.remove_leftovers(run.path, before=lock.since)
        if run.extension_file.is_file():
            finish_extension(run)
            yield Note(f"The extension that was begun is carried out: {run.read_plan().recipe.steps:,} steps in all.")
        newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
        plan = config.override(run.read_plan(), compute or {})
        told = plan_changes.check_plan_changes(
            _changes_since_checkpoint(run, plan, newest)
        )  # may refuse, so it comes before the run is changed
        if extension is not None:
            yield Note(extend_run(run, extension))
            plan = config.override(run.read_plan(), compute or {})
        if compute:
            run.write_plan(plan, run.read_reasons() | dict.fromkeys(compute, "asked for with --resume"))
        if newest is None and not phase.has_phase_checkpoint(run):
            yield Note("The run stopped before its first checkpoint, so it begins again at step 0 of its plan.")
        yield from map(Note, told)
        return plan


def reopen_run_as_json(
    run: RunFolder, extension: Extension | None, compute: Mapping[str, str] | None
) -> dict[str, Any]:
    """What `reopen` has to say, as JSON has words for it: only rank 0 may touch the run folder."""
    notes, work = [], reopen_run(run, extension, compute)
    while True:
        try:
            notes.append(next(work).text)
        except StopIteration as done:
            return {"notes": notes, "plan": config.write(done.value), "reasons": run.read_reasons()}


def _changes_since_checkpoint(run: RunFolder, plan: Plan, newest: Path | None) -> list[plan_changes.PlanChange]:
    """What has changed since a checkpoint was saved, or what comes before the training was done; no extension."""
    if newest is None:
        before = phase.read_phase_plan(run)
        return [] if before is None else plan_changes.drop_extension_changes(plan_changes.diff_plans(before, plan))
    saved = checkpoint.read_checkpoint_plan(newest)
    if saved is None:
        return []
    found, at = plan_changes.diff_plans(saved, plan), plan.recipe.extended_at
    extended = at > saved.recipe.extended_at or at == checkpoint.read_checkpoint_facts(newest)["step"]
    return plan_changes.drop_extension_changes(found) if extended else found


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
