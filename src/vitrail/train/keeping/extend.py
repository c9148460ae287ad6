"""More time for a run: `vitrail train --resume RUN --extend --minutes 10`, for a finished run or one on its way.

From the present step on, everything that depends on the step is as in a run that was planned so long from the start;
only the rate, which has fallen below that, rises to it first over the recipe's warm-up. So the plan alone still says
what every coming step does, and an extended run can be stopped and resumed like any other.

The old end, if there was one, is moved to `earlier/step-00000060/` with its plan; what is done is written down in
`extension.toml` first, so that a crash in between is made good by the next resume. Whoever then types the same
--extend again gets no more steps than he asked for.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ... import config
from ...errors import UsageError
from ...files import atomic
from ..plan import Plan
from ..run import RunFolder
from . import state

REPORT = ("report.html", "report.json", "thumbnails.npz", "explanations.npz", "groups.npy")
RESULTS = (*REPORT, "results.csv", "model", "predictions", "exports")
ROUNDS = 8  # in which the number of steps settles
ASKED = 200


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


def plan_of(run: RunFolder) -> Plan:
    """The plan that a run goes on with: the longer one, if a crash came while it was extended."""
    return config.read_toml(run.extension_file, Plan) if run.extension_file.is_file() else run.read_plan()


def extend(run: RunFolder, longer: Extension) -> str:
    """Give a run more steps, and move its old end aside; what was done, in a sentence.

    Nothing, if it was given these after the same step already and has not come to its end since.

    Raises:
        UsageError: minutes for a run that has not recorded how long its steps take, or one without any steps.
        DamagedFileError: there are checkpoints and none is whole.
    """
    plan, reasons = run.read_plan(), run.read_reasons()
    if not plan.recipe.steps:
        raise UsageError(f"{run.path} has no steps to go on with: its answers come from frozen features alone.")
    newest, _ = state.newest(run.checkpoints)
    done = 0 if newest is None else int(state.facts(newest)["step"])
    recipe = plan.recipe
    how = f"by --extend after step {done:,} ({longer})"
    if reasons.get("recipe.steps", "").endswith(how) and not run.finished():
        return (
            f"Extended {how} already, and no later step is saved: nothing is added now, {recipe.steps:,} steps in all. "
            "For yet more, extend it again when a later step is saved."
        )
    then = recipe if newest is None else (state.saved_plan(newest) or plan).recipe  # what the last step followed
    before = then.rate_factor(done - 1) if done else 0.0
    if done == then.steps and then.decay != "constant":
        before = 0.0  # where the last step was heading
    more = _steps(run, plan, done, longer)
    steps = recipe.steps + more
    longer_recipe = dataclasses.replace(recipe, steps=steps, extended_at=done, extended_from=before)
    minutes = plan.minutes + longer.minutes if plan.minutes and longer.minutes else 0.0
    reasons |= dict.fromkeys(("recipe.extended_at", "recipe.extended_from"), how)
    reasons["recipe.steps"] = f"{recipe.steps:,}, and {more:,} more {how}"
    changed = dataclasses.replace(plan, minutes=minutes, recipe=longer_recipe)
    atomic.write_text(run.extension_file, config.to_toml(changed, reasons))
    aside = finish(run)
    where = f" The old end is kept in {aside}." if aside and (aside / "model").is_dir() else ""
    return (
        f"Extended after step {done:,}: {recipe.steps:,} steps become {steps:,}, and the rate rises again to "
        f"{100 * longer_recipe.rate_factor(min(steps - 1, done + math.ceil(recipe.warmup * (steps - done)))):.0f} % of "
        f"its peak.{where}"
    )


def finish(run: RunFolder) -> Path | None:
    """Carry out what `extension.toml` says, whatever of it was done before; where the plan before and its end then are.

    None if there is nothing to do, or only to forget the file.
    """
    if not run.extension_file.is_file():
        return None
    plan, aside = plan_of(run), None
    if run.read_plan() != plan:
        end = [path for name in (*RESULTS, "metrics-*.json") for path in sorted(run.path.glob(name))]
        aside = _aside(run, plan.recipe.extended_at, end)
        atomic.write_bytes(aside / "plan.toml", run.plan_file.read_bytes())
        for path in end:
            path.rename(aside / path.name)
        atomic.write_bytes(run.plan_file, run.extension_file.read_bytes())
    run.extension_file.unlink()
    return aside


def _aside(run: RunFolder, step: int, end: Sequence[Path]) -> Path:
    """The first `earlier/step-00000060`, `-2`, ... that is free, or that a crash has left with a part of this very end.

    A run is extended twice after one step where the later checkpoints were damaged, or never came.
    """
    first = aside = run.path / "earlier" / f"step-{step:08d}"
    number, plan = 1, run.plan_file.read_bytes()
    while _taken(aside / "plan.toml", plan) or any((aside / path.name).exists() for path in end):
        number += 1
        aside = first.with_name(f"{first.name}-{number}")
    return aside


def _taken(file: Path, plan: bytes) -> bool:
    return file.exists() and file.read_bytes() != plan


def _steps(run: RunFolder, plan: Plan, done: int, longer: Extension) -> int:
    """How many steps the budget adds to the plan's."""
    recipe = plan.recipe
    if longer.steps is not None:
        return longer.steps
    if longer.epochs is not None:
        pictures = _training_pictures(run.splits_file)
        return max(1, math.ceil(longer.epochs * pictures / min(recipe.batch // recipe.repeats, pictures)))
    assert longer.minutes is not None
    pace = _pace(run, plan)
    wanted = _seconds(plan, pace, done, recipe.steps) + 60 * longer.minutes
    steps = recipe.steps
    for _ in range(ROUNDS):
        taken = _seconds(plan, pace, done, steps)
        steps = max(recipe.steps + 1, done + round((steps - done) * wanted / taken) if taken else steps + 1)
    return steps - recipe.steps


def _seconds(plan: Plan, pace: Mapping[int, float], done: int, steps: int) -> float:
    """What the steps after `done` take if there are to be `steps` in all, from as many of them as are worth asking."""
    recipe = dataclasses.replace(plan.recipe, steps=steps)
    asked = [done + (steps - done) * (2 * number + 1) // (2 * ASKED) for number in range(ASKED)]
    return (steps - done) * fmean(_at(pace, recipe.tokens_at(step, plan.model.grid)) for step in asked)


def _at(pace: Mapping[int, float], tokens: int) -> float:
    """Seconds of a step that sees so many patches: measured, or in proportion to the nearest that was."""
    nearest = min(pace, key=lambda other: abs(other - tokens))
    return pace[nearest] * tokens / nearest


def _pace(run: RunFolder, plan: Plan) -> dict[int, float]:
    """Mean seconds of a step by the patches that it sees of a picture, from the run's own record."""
    found: dict[int, list[float]] = {}
    for row in run.rows():
        if "seconds" in row:
            tokens = plan.recipe.tokens_at(int(row["step"]) - 1, plan.model.grid)
            found.setdefault(tokens, []).append(row["seconds"])
    if not found:
        raise UsageError(f"{run.path} has not recorded how long its steps take. Extend it by --steps or --epochs.")
    return {tokens: max(fmean(seconds), 1e-6) for tokens, seconds in found.items()}


def _training_pictures(splits_file: Path) -> int:
    with splits_file.open(newline="", encoding="utf-8") as file:
        return sum(row["split"] == "train" for row in csv.DictReader(file))
