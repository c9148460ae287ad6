"""How many steps of each plan take the same time, so that plans are compared by what a minute buys on any machine.

A shared machine makes a step in 31 ms in one minute and in 41 in the next, and a comparison in minutes would measure
that. So paces are taken first, plan after plan and round after round with nothing else running: a plan's steps are the
baseline's times the median of their ratios within a round. The trainings then have fixed steps and may run side by
side, at whatever speed.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median, mode

from .records import Results, Row, number, train_command

ROUNDS, ROUNDS_ALONE = 7, 3
"""Of plans that are compared in pace, and of one that has nothing beside it."""
Words = Sequence[object]


FIRST = ("pretrain", "distill")
"""Sections of a plan with steps of their own, before those of the training."""
CHOSEN = ("model", "pixels", "frozen_blocks")
"""What a plan fits to its minutes beside its steps."""


def steps_of(name: str, plans: Mapping[str, Words], minutes: float) -> dict[str, list[object]]:
    """The words that give every plan its steps, measured if need be; the first plan is the baseline.

    Args:
        name: of the results file; of plans that it has nothing is measured again, but for the baseline beside new ones.
    """
    results = Results(name)
    missing = [plan for plan in plans if all(row["plan"] != plan for row in results.rows)]
    if missing:
        baseline, *_ = plans
        asked = dict.fromkeys([baseline, *missing])
        count = ROUNDS if len(asked) > 1 else ROUNDS_ALONE
        rounds = [{plan: dry_run(plans[plan], minutes) for plan in asked} for _ in range(count)]
        if not all(found[plan]["steps"] for found in rounds for plan in asked):
            raise SystemExit(f"{name}: {minutes:g} minutes leave no time for steps on this machine; give it more.")
        there = [number(row, "steps") for row in results.rows if row["plan"] == baseline]
        reference = there[0] if there else median(found[baseline]["steps"] for found in rounds)
        for plan in missing:
            results.row({"plan": plan, "minutes": minutes}, partial(plan_paces, rounds, baseline, plan, reference))
    kinds = ("steps", *(f"{section}.steps" for section in FIRST))
    return {
        str(row["plan"]): [word for kind in kinds if kind in row for word in (f"--{kind}", round(number(row, kind)))]
        for row in results.rows
    }


def row_of(name: str, plan: str) -> Row:
    """What a plan fitted to its minutes, the most frequent where rounds differ: model, pixels, blocks left frozen."""
    return next(row for row in Results(name).rows if row["plan"] == plan)


def plan_paces(rounds: Sequence[Mapping[str, Row]], baseline: str, plan: str, reference: float) -> Row:
    """What a plan chose, and its steps of each kind in the minutes in which the baseline makes `reference`."""
    kinds = [kind for kind in rounds[0][plan] if kind.endswith("steps")]
    ratios = {kind: [found[plan][kind] / found[baseline]["steps"] for found in rounds] for kind in kinds}
    steps = {kind: round(reference * median(each)) for kind, each in ratios.items()}
    chosen = {kind: mode(found[plan][kind] for found in rounds) for kind in CHOSEN}
    return {**chosen, **steps, "ratios": [round(ratio, 3) for ratio in ratios["steps"]]}


def dry_run(words: Words, minutes: float) -> Row:
    """What a plan of so many minutes chooses, and the steps of each kind that it would make, by its first real ones."""
    command = train_command(*words, "--minutes", minutes, "--dry-run", "--full")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plan = tomllib.loads(said)
    before = {f"{section}.steps": int(plan.get(section, {}).get("steps", 0)) for section in FIRST}
    first = {kind: count for kind, count in before.items() if count}
    chosen = (plan["model_name"], plan["model"]["image_size"][0], plan["finetune"]["freeze_blocks"])
    return {**dict(zip(CHOSEN, chosen, strict=True)), "steps": int(plan["recipe"]["steps"]), **first}
