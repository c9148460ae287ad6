"""Thresholds to choose from: each found on the validation pictures by a rule, and measured on the held-out ones.

A single threshold parts what is passed from what is rejected; two leave a grey zone between them, whose parts are
inspected again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..evaluate import thresholds
from ..evaluate.thresholds import MIN_PER_SIDE, ThresholdRule
from .shares import Share
from .sought import Sought

TARGETS = (0.05, 0.02, 0.01, 0.005)
"""Shares of false rejects, or of escapes, that are aimed at."""
COSTS = (1.0, 10.0, 100.0)
"""Of an escape, in false rejects."""


class Operated(NamedTuple):
    """One threshold."""

    aim: str
    """What it was chosen for, in words."""
    rule: str
    """As `--answers.rule` takes it; empty for the threshold that the model has."""
    threshold: float | None
    """None where the likeliest class is answered."""
    missed: Share | None
    alarms: Share | None
    kept: bool = True
    """Whether the aim is kept on the pictures that it is measured on."""


class Zone(NamedTuple):
    """Two thresholds: below the lower one a part passes, from the upper one on it is rejected."""

    aim: float
    """Share of misses, and of false alarms, that it was chosen for."""
    low: float
    high: float
    missed: Share | None
    """Of those with it, the share that passes."""
    alarms: Share | None
    """Of those without it, the share that is rejected."""
    grey: float
    """Of all parts at the stated prevalence, the share between the two."""

    @property
    def empty(self) -> bool:
        """Whether one threshold does what the two were to do."""
        return self.low >= self.high


class Choices(NamedTuple):
    """What can be chosen for one class or label."""

    thing: Sought
    rows: list[Operated]
    zones: list[Zone]
    why_not: str
    """Why there is nothing to choose by; empty otherwise."""
    basis: Sought | None
    """The pictures that thresholds were chosen on; None where these are the same that they are measured on."""


def choices(thing: Sought, basis: Sought | None) -> Choices:
    """Every threshold worth a look.

    Args:
        basis: the same class or label on the validation pictures; None where there are none stored.
    """
    as_it_is = Operated("as the model answers", "", thing.threshold, thing.missed, thing.alarms)
    chosen_on = thing if basis is None else basis
    if min(chosen_on.positives, chosen_on.negatives) < MIN_PER_SIDE:
        why = (
            f"thresholds need {MIN_PER_SIDE} validation pictures with {thing.name} and {MIN_PER_SIDE} without it, "
            f"and there are "
            f"{chosen_on.positives:,} and {chosen_on.negatives:,}"
        )
        return Choices(thing, [as_it_is], [], why, basis)
    rows = [as_it_is]
    for target in TARGETS:
        aim = f"false rejects at most {100 * target:g}\u202f%"
        row = _operated(aim, ThresholdRule("specificity", 1 - target), thing, chosen_on)
        rows.append(row._replace(kept=row.alarms is None or row.alarms.value <= target))
    for target in TARGETS:
        aim = f"escapes at most {100 * target:g}\u202f%"
        row = _operated(aim, ThresholdRule("sensitivity", 1 - target), thing, chosen_on)
        rows.append(row._replace(kept=row.missed is None or row.missed.value <= target))
    for cost in COSTS:
        aim = f"an escape costs {cost:g} false reject{'s' if cost > 1 else ''}"
        rows.append(
            _operated(aim, ThresholdRule("cost", float(f"{cost * _rarer(thing, chosen_on):.3g}")), thing, chosen_on)
        )
    return Choices(thing, rows, [_zone(target, thing, chosen_on) for target in TARGETS], "", basis)


def _operated(aim: str, rule: ThresholdRule, thing: Sought, basis: Sought) -> Operated:
    value = thresholds.choose_threshold(rule, basis.present, basis.chances).value
    said = thing.chances >= value
    return Operated(aim, str(rule), value, thing.of_present(~said), thing.of_absent(said))


def _zone(target: float, thing: Sought, basis: Sought) -> Zone:
    low = thresholds.choose_threshold(ThresholdRule("sensitivity", 1 - target), basis.present, basis.chances).value
    high = thresholds.choose_threshold(ThresholdRule("specificity", 1 - target), basis.present, basis.chances).value
    passed, rejected = thing.chances < min(low, high), thing.chances >= high
    between = ~passed & ~rejected
    return Zone(
        aim=target,
        low=low,
        high=high,
        missed=thing.of_present(passed),
        alarms=thing.of_absent(rejected),
        grey=thing.prevalence * _mean(between[thing.present]) + (1 - thing.prevalence) * _mean(between[~thing.present]),
    )


def _rarer(thing: Sought, basis: Sought) -> float:
    """What a miss among the pictures chosen on weighs where the stated share has it: odds by odds; 1 if none was
    stated. With one defect in a hundred parts an escape is rare, and false rejects are what costs.
    """
    if not thing.stated:
        return 1.0
    return thing.prevalence / (1 - thing.prevalence) * basis.negatives / basis.positives


def _mean(which: np.ndarray) -> float:
    return float(which.mean()) if len(which) else 0.0
