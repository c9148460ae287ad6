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
from statistics import median

from .records import VITRAIL, Results, Row, number

ROUNDS = 3
Words = Sequence[object]


def steps_of(name: str, plans: Mapping[str, Words], minutes: float) -> dict[str, int]:
    """Steps of every plan, measured if need be; the first is the baseline.

    Args:
        name: of the results file; of plans that it has nothing is measured again, but for the baseline beside new ones.
    """
    results = Results(name)
    missing = [plan for plan in plans if all(row["plan"] != plan for row in results.rows)]
    if missing:
        baseline, *_ = plans
        asked = dict.fromkeys([baseline, *missing])
        rounds = [{plan: dry_run(plans[plan], minutes) for plan in asked} for _ in range(ROUNDS)]
        there = [number(row, "steps") for row in results.rows if row["plan"] == baseline]
        reference = there[0] if there else median(found[baseline] for found in rounds)
        for plan in missing:
            results.row({"plan": plan, "minutes": minutes}, partial(paced, rounds, baseline, plan, reference))
    return {str(row["plan"]): round(number(row, "steps")) for row in results.rows}


def paced(rounds: Sequence[Mapping[str, int]], baseline: str, plan: str, reference: float) -> Row:
    """The steps of a plan in the minutes in which the baseline makes `reference`."""
    ratios = [found[plan] / found[baseline] for found in rounds]
    return {"steps": round(reference * median(ratios)), "ratios": [round(ratio, 3) for ratio in ratios]}


def dry_run(words: Words, minutes: float) -> int:
    """The steps that a plan of so many minutes would make, by its first real steps."""
    command = [VITRAIL, "train", *map(str, words), "--minutes", str(minutes), "--dry-run"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(tomllib.loads(said)["recipe"]["steps"])
