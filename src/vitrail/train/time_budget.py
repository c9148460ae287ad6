"""Keep a training to its minutes: its clock, its pace so far, and the number of steps that fit into the seconds left.

After every sixteenth of the seconds or of the progress, whichever comes first, the steps that are left are replanned.
With the seconds alone, a machine that becomes many times as fast could be through with all steps before the next time;
with progress alone, one that becomes slow would take most of the time until then. Near the end it is half of what is
left. Once the seconds are over, only the learning rate's cool-down follows.

A decision is a number of steps, which the plan records; no step depends on the clock in any other way.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .plan import ProgressiveStage, Recipe

SHARE, SMALLEST_SHARE = 1 / 16, 1 / 64
"""Of the seconds and of the progress: what goes by until the steps are replanned, and what does near the end."""
MAX_STEP_RATIO = 4.0
"""A step counts for at most this many medians of the steps since the last time: a hiccup is over, and says nothing
about the steps to come. The time that it took is gone nevertheless."""
SMALL_CHANGE = 0.01
"""Fraction of the steps left below which their number stays, so that the plan of a steady run stays short."""
MIN_COOL_DOWN = 0.1
"""Least number of steps left, as a fraction of those done and of those that were still to come: where no time is left,
the learning rate falls to zero all the same."""
MIN_STEPS = 20
"""A training is not planned below this, unless it began below."""


class TrainingClock:
    """Seconds that a training has taken, in all its parts; it stands still until `start`."""

    def __init__(self) -> None:
        self.is_running = False
        self._before = self._start = 0.0

    def start(self, before: float) -> None:
        """Go on from the seconds of the parts before."""
        self.is_running, self._before, self._start = True, before, time.perf_counter()

    def elapsed(self) -> float:
        """The seconds so far."""
        return self._before + time.perf_counter() - self._start if self.is_running else 0.0


def limit_step_seconds(seconds: Sequence[float], tokens: Sequence[int]) -> tuple[float, ...]:
    """Measured seconds of a step in each stage, as far as the patches that it sees allow.

    Fewer patches take no longer than more, and more at most as their square. A busy machine, and what the first step of
    a process does once, make a measurement too long and never too short, so the shortest ones are believed.
    """
    return tuple(
        min(measured * max(1.0, count / seen) ** 2 for measured, seen in zip(seconds, tokens, strict=True))
        for count in tokens
    )


@dataclass(frozen=True)
class StepPrices:
    """What a step costs in each stage of a recipe, in seconds or relative to each other."""

    stages: Sequence[tuple[ProgressiveStage, float]]

    def at(self, progress: float) -> float:
        """The price of a step at a progress below 1."""
        return next(price for stage, price in reversed(self.stages) if stage.begin <= progress)

    def mean_after(self, progress: float) -> float:
        """The mean price of the steps after a progress below 1."""
        parts = ((max(progress, stage.begin), stage.begin + stage.fraction, price) for stage, price in self.stages)
        return sum(max(0.0, end - begin) * price for begin, end, price in parts) / (1 - progress)


class TimeBudget:
    """The seconds of a training or of a phase before it, and the number of steps that they allow.

    Args:
        seconds: all of them.
        clock: of the run.
        began: what it showed at the first step of this part.
        prices: of its steps.
        is_measured: whether prices are seconds on this machine; else the first steps show their scale.
        progress: where the steps begin that are watched now.
        min_steps: least number of steps, unless there were fewer before.
        evaluation: seconds of an evaluation, until one is timed; the last step is followed by one.
    """

    def __init__(
        self,
        seconds: float,
        clock: TrainingClock,
        prices: StepPrices,
        began: float = 0.0,
        is_measured: bool = False,
        progress: float = 0.0,
        min_steps: int = MIN_STEPS,
        evaluation: float = 0.0,
    ):
        self.seconds = seconds
        self._clock, self._began, self._prices, self._min_steps = clock, began, prices, min_steps
        self._pace = 1.0 if is_measured else None
        """Seconds per unit of price, of the last shares: each counts half as much as the one after it."""
        self._ratios: list[float] = []
        """The same of each step since the last time."""
        self._aside, self._first_progress = 0.0, progress
        """Seconds between steps, for evaluations and checkpoints, and the progress since when they are counted."""
        self._evaluation, self._is_evaluated = evaluation, False
        """Seconds of the newest evaluation, and whether one follows the step that is done."""
        self._mark = clock.elapsed()
        self._last = min(self._time(), 1 - SHARE), progress
        """Fraction of the seconds, and progress, at the last time."""

    def finish_step(self, recipe: Recipe, step: int) -> None:
        """Note that so many steps are done; what follows until `begin_step` is no part of a step."""
        now = self._clock.elapsed()
        self._ratios.append((now - self._mark) / self._prices.at(recipe.progress(step - 1)))
        self._mark, self._is_evaluated = now, recipe.evaluates_at(step)

    def begin_step(self) -> None:
        """Note that the next step begins."""
        now = self._clock.elapsed()
        if self._is_evaluated:
            self._evaluation = now - self._mark
        self._aside, self._mark = self._aside + now - self._mark, now

    def is_due(self, recipe: Recipe, step: int) -> bool:
        """Whether to replan after so many steps; never where the plan has recorded a later decision, nor at the end."""
        if step >= recipe.steps or (recipe.steps_history and step <= recipe.steps_history[-1][0]):
            return False
        times = zip(self._last, (self._time(), recipe.progress(step)), strict=True)
        return self._last[0] < 1 and any(now >= last + _next_share(last) for last, now in times)

    def is_short_before_first_step(self, recipe: Recipe, start: int) -> bool:
        """Whether to replan before the first step, because phases before the training have taken a share or more."""
        return not start and not recipe.steps_history and self._time() >= SHARE

    def replan(self, recipe: Recipe, step: int) -> int:
        """The number of all steps that fit, after so many are done, at the pace of the last shares."""
        progress = recipe.progress(step)
        if self._ratios:
            most = MAX_STEP_RATIO * statistics.median(self._ratios)
            recent = statistics.fmean(min(ratio, most) for ratio in self._ratios)
            self._pace = recent if self._pace is None else (self._pace + recent) / 2
            self._ratios = []
        self._last = self._time(), progress
        if self._pace is None:
            return recipe.steps
        watched = progress - self._first_progress
        aside = self._aside * (1 - progress) / watched if watched > 0 else 0.0
        seconds = self.seconds - (self._clock.elapsed() - self._began) - max(aside, self._evaluation)
        fitting = seconds / max(self._pace * self._prices.mean_after(progress), 1e-9)
        to_come = step * (1 - progress) / progress if progress else 0.0
        least = max(math.ceil(MIN_COOL_DOWN * min(step, to_come)), min(recipe.steps, self._min_steps) - step, 1)
        steps = step + max(least, round(fitting))
        is_small = abs(steps - recipe.steps) <= SMALL_CHANGE * (recipe.steps - step)
        return recipe.steps if is_small else steps

    def _time(self) -> float:
        """The fraction of the seconds that is gone."""
        return (self._clock.elapsed() - self._began) / self.seconds


def _next_share(last: float) -> float:
    """What may go by after the last time."""
    return max(SMALLEST_SHARE, min(SHARE, (1 - last) / 2))
