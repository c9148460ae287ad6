"""More time for a run: `vitrail train --resume RUN --extend --minutes 10`, for a finished run or one on its way.

From the present step on, everything that depends on the step is as in a run that was planned so long from the start;
only the rate, which has fallen below that, rises to it first over the recipe's warm-up. So the plan alone still says
what every coming step does, and an extended run can be stopped and resumed like any other.

The old end, if there was one, is moved to `earlier/step-00000060/` with its plan; what is done is written down in
`extension.toml` first, so that a crash in between is made good by the next resume.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping
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
            raise UsageError("--extend needs one budget: --minutes, --epochs or --steps.")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise UsageError(f"--{name} must be above 0. Got {value}.")


def extend(run: RunFolder, longer: Extension) -> str:
    """Give a run more steps, and move its old end aside; what was done, in a sentence.

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
    before = recipe.rate_factor(done - 1) if done else 0.0
    if done == recipe.steps and recipe.decay != "constant":
        before = 0.0  # where the last step was heading
    more = _steps(run, plan, done, longer)
    steps = recipe.steps + more
    longer_recipe = dataclasses.replace(recipe, steps=steps, extended_at=done, extended_from=before)
    minutes = plan.minutes + longer.minutes if plan.minutes and longer.minutes else 0.0
    reasons["recipe.steps"] = f"{recipe.steps:,}, and {more:,} more by --extend after step {done:,}"
    changed = dataclasses.replace(plan, minutes=minutes, recipe=longer_recipe)
    atomic.write_text(run.extension_file, config.to_toml(changed, reasons))
    finish(run)
    where = f" The old end is kept in {_aside(run, done)}." if (_aside(run, done) / "model").is_dir() else ""
    return (
        f"Extended after step {done:,}: {recipe.steps:,} steps become {steps:,}, and the rate rises again to "
        f"{100 * longer_recipe.rate_factor(min(steps - 1, done + math.ceil(recipe.warmup * (steps - done)))):.0f} % of "
        f"its peak.{where}"
    )


def finish(run: RunFolder) -> None:
    """Carry out what `extension.toml` says, whatever of it was done before; nothing if there is none."""
    if not run.extension_file.is_file():
        return
    plan = config.read_toml(run.extension_file, Plan)
    aside = _aside(run, plan.recipe.extended_at)
    aside.mkdir(parents=True, exist_ok=True)
    if run.read_plan() != plan:
        atomic.write_bytes(aside / "plan.toml", run.plan_file.read_bytes())
    for name in (*RESULTS, *(path.name for path in sorted(run.path.glob("metrics-*.json")))):
        if (run.path / name).exists():
            (run.path / name).rename(aside / name)
    atomic.write_bytes(run.plan_file, run.extension_file.read_bytes())
    run.extension_file.unlink()


def _aside(run: RunFolder, step: int) -> Path:
    return run.path / "earlier" / f"step-{step:08d}"


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
