"""Minutes that are minutes: a training is replanned by its clock, here by a simulated one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import pytest

from vitrail.train import time_budget
from vitrail.train.plan import ProgressiveStage, Recipe, replan_steps
from vitrail.train.time_budget import StepPrices, TimeBudget, TrainingClock, limit_step_seconds

STAGES = ((ProgressiveStage(0.0, 0.5), 0.01), (ProgressiveStage(0.5, 0.2), 0.02), (ProgressiveStage(0.7, 0.3), 0.04))
ONE = ((ProgressiveStage(0.0, 1.0), 0.02),)
"""Seconds of a step, as measured before the first one."""


class SimulatedTime:
    """A time that goes on only where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    simulated = SimulatedTime()
    monkeypatch.setattr(time_budget, "time", simulated)
    return simulated


def train(
    time: SimulatedTime,
    seconds: float,
    slowness: Callable[[float], float],
    stages: tuple[tuple[ProgressiveStage, float], ...] = STAGES,
    hiccups: tuple[float, ...] = (),
    evaluation: float = 0.0,
    measured: float = 1.0,
    every: int = 0,
) -> tuple[float, Recipe]:
    """The seconds and the recipe of a training that planned its steps for a quiet machine.

    Args:
        slowness: how many times as long as quiet a step takes, by the share of the seconds that is gone.
        hiccups: shares of the seconds at which a single step takes two seconds more.
        evaluation: seconds of each of ten, or of one after so many steps and after the last, which is known then.
        measured: by how much the machine was slower when its pace was measured.
    """
    prices = StepPrices(tuple((stage, price * measured) for stage, price in stages))
    steps = round(seconds / prices.mean_after(0.0))
    recipe = Recipe(steps=steps, patch_keep_rate=0.5, patch_keep_until=0.7, evaluate_every=every)
    clock = TrainingClock()
    clock.start(0.0)
    began, step, late = time.now, 0, list(hiccups)
    budget = TimeBudget(seconds, clock, prices, is_measured=True, evaluation=evaluation if every else 0.0)
    factors = []
    while step < recipe.steps:
        gone = (time.now - began) / seconds
        time.now += StepPrices(stages).at(recipe.progress(step)) * slowness(gone)
        if late and gone >= late[0]:
            time.now += 2.0
            late.pop(0)
        factors.append(recipe.lr_factor(step))
        step += 1
        budget.finish_step(recipe, step)
        if recipe.evaluates_at(step):
            time.now += evaluation * slowness(gone)
        if budget.is_due(recipe, step):
            steps = budget.replan(recipe, step)
            recipe = recipe if steps == recipe.steps else replan_steps(recipe, step, steps)
        budget.begin_step()
    assert factors == [recipe.lr_factor(each) for each in range(recipe.steps)]  # the last plan gives the same rates
    assert recipe.progress(recipe.steps) == pytest.approx(1.0) and factors[-1] < 0.1
    rise = 1 / (recipe.warmup * min(planned for _, planned in recipe.steps_history or ((0, recipe.steps),)))
    assert all(abs(after - before) < max(rise, 0.02) for before, after in pairwise(factors))
    return time.now - began, recipe


SLOW_CASE = "ten times as fast from the start"
CASES = {
    "quiet": lambda gone: 1.0,
    "busy throughout": lambda gone: 2.5,
    "busy in the first third": lambda gone: 2.0 if gone < 1 / 3 else 1.0,
    "busy in the middle third": lambda gone: 2.0 if 1 / 3 <= gone < 2 / 3 else 1.0,
    "busy from the middle on": lambda gone: 2.0 if gone >= 0.5 else 1.0,
    "quiet from the middle on": lambda gone: 0.5 if gone >= 0.5 else 1.0,
    "busy in the last quarter": lambda gone: 2.0 if gone >= 0.75 else 1.0,
    SLOW_CASE: lambda gone: 1 / 10,
    "eight times as fast late": lambda gone: 1 / 8 if gone >= 0.8 else 1.0,
    "waves": lambda gone: 2.0 if int(gone * 40) % 2 else 1.0,
}


@pytest.mark.parametrize(
    "stages", [pytest.param(STAGES, id="three stages"), pytest.param(ONE, id="one stage", marks=pytest.mark.wide)]
)
@pytest.mark.parametrize("case", [pytest.param(one, marks=[pytest.mark.wide] * (one == SLOW_CASE)) for one in CASES])
def test_the_seconds_are_kept_to_five_percent_whatever_the_machine_does(time, case, stages):
    seconds, _ = train(time, 60.0, CASES[case], stages, evaluation=0.2)
    assert seconds == pytest.approx(60.0, rel=0.05)


def test_what_patches_explain_stays_as_it_was_measured_and_the_rest_is_limited():
    assert limit_step_seconds((1.0, 2.0, 4.0), (8, 24, 49)) == (1.0, 2.0, 4.0)
    assert limit_step_seconds((0.2, 15.0), (10, 20)) == pytest.approx((0.2, 0.8)), "no more than as the square"
    assert limit_step_seconds((15.0, 0.2), (10, 20)) == (0.2, 0.2), "fewer patches never take longer"
    assert limit_step_seconds((7.0,), (10,)) == (7.0,)


@pytest.mark.wide
@pytest.mark.parametrize("measured", [0.3, 3.0, 10.0])
def test_a_wrong_measurement_before_the_first_step_is_mended(time, measured):
    seconds, recipe = train(time, 60.0, lambda gone: 1.0, measured=measured)
    quiet = 60.0 / StepPrices(STAGES).mean_after(0.0)
    assert seconds == pytest.approx(60.0, rel=0.03) and recipe.steps > 0.6 * quiet


def test_hiccups_cost_their_own_seconds_and_no_more(time):
    seconds, recipe = train(time, 60.0, lambda gone: 1.0, ONE, hiccups=(0.1, 0.3, 0.9))
    assert seconds == pytest.approx(60.0, rel=0.02) and recipe.steps == pytest.approx(54 / 0.02, rel=0.03)


def test_evaluations_count(time):
    seconds, recipe = train(time, 60.0, lambda gone: 1.0, ONE, evaluation=0.6)
    assert seconds == pytest.approx(60.0, rel=0.02) and recipe.steps == pytest.approx(54 / 0.02, rel=0.03)


def test_an_evaluation_after_the_last_step_alone_counts_from_the_beginning(time):
    few = ((ProgressiveStage(0.0, 1.0), 1.5),)
    seconds, recipe = train(time, 120.0, CASES["quiet"], few, evaluation=15.0, every=10_000)
    assert seconds == pytest.approx(120.0, abs=2.0) and recipe.num_evaluations == 1


def test_a_steady_machine_is_hardly_replanned(time):
    assert train(time, 60.0, lambda gone: 1.0, ONE)[1].steps_history == ()


def test_a_large_model_of_few_steps_keeps_to_its_seconds_too(time):
    few = ((ProgressiveStage(0.0, 1.0), 1.5),)
    for case in ("quiet", "busy from the middle on", "quiet from the middle on"):
        seconds, _ = train(time, 60.0, CASES[case], few)
        assert seconds == pytest.approx(60.0, abs=3.0)


def test_where_no_seconds_are_left_the_rate_still_falls_to_zero(time):
    """As for a run that is resumed with its minutes gone: a tenth of the steps, once."""
    recipe, clock = Recipe(steps=1000), TrainingClock()
    clock.start(100.0)
    budget = TimeBudget(60.0, clock, StepPrices(ONE), is_measured=True, progress=0.6)
    time.now += 0.02
    budget.finish_step(recipe, 601)
    assert budget.is_due(recipe, 601)
    recipe = replan_steps(recipe, 601, budget.replan(recipe, 601))
    assert recipe.steps == 601 + 40 and not budget.is_due(recipe, 602)
    factors = [recipe.lr_factor(step) for step in range(600, 641)]
    assert factors[0] == pytest.approx(0.4) and factors[1] == pytest.approx(0.399) and factors[-1] < 0.011


def test_no_decision_is_taken_where_the_plan_has_a_later_one(time):
    recipe, clock = Recipe(steps=800, steps_history=((0, 1000), (400, 800))), TrainingClock()
    clock.start(0.0)
    budget = TimeBudget(60.0, clock, StepPrices(ONE))
    time.now += 31.0
    assert not budget.is_due(recipe, 399) and not budget.is_due(recipe, 400) and budget.is_due(recipe, 401)
    assert not budget.is_due(dataclasses.replace(recipe), 800)


def test_the_clock_goes_on_from_the_parts_before(time):
    clock = TrainingClock()
    time.now += 5
    assert clock.elapsed() == 0
    clock.start(12.0)
    time.now += 3
    assert clock.elapsed() == 15
