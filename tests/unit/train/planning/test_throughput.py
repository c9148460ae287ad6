"""The pace is measured within the time for it, and with as many threads as are fastest."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch

from unit.train.planning.test_finalize import PLAN, draft
from vitrail.caller_state import set_own_threads
from vitrail.train.context import PlanContext
from vitrail.train.plan import ComputeSettings
from vitrail.train.planning import throughput


class Clock:
    """A clock that steps move on: of each number of threads by its own seconds."""

    def __init__(self, seconds: dict[int, float]):
        self.now, self.seconds, self.steps, self.threads = 0.0, seconds, 0, 0
        self.first = 0.0
        """What the next step takes longer."""
        self.growth = 1.0
        """How many times as long each step takes as the one before."""

    def perf_counter(self) -> float:
        return self.now

    def set_threads(self, count: int) -> None:
        self.threads = count

    def make_steps(self, context: PlanContext, stage: object) -> Iterator[None]:
        for _ in itertools.count():
            self.steps += 1
            count = self.threads or context.plan.compute.threads
            self.now += self.seconds[count] + self.first
            self.seconds[count] *= self.growth
            self.first = 0.0
            yield


@pytest.fixture
def clocked(monkeypatch):
    def install(**seconds: float) -> Clock:
        clock = Clock({int(name.removeprefix("with_")): value for name, value in seconds.items()})
        monkeypatch.setattr(throughput.time, "perf_counter", clock.perf_counter)
        monkeypatch.setattr(throughput, "set_own_threads", clock.set_threads)
        monkeypatch.setattr(throughput, "_make_trial_steps", clock.make_steps)
        return clock

    return install


def context(threads: int, until: float | None = None) -> PlanContext:
    grey = dataclasses.replace(PLAN.image, channels=1)
    plan = dataclasses.replace(PLAN, compute=ComputeSettings(threads=threads), image=grey)
    return dataclasses.replace(draft(plan), measure_until=until)


def test_one_thread_is_taken_where_two_wait_for_each_other(clocked):
    clock = clocked(with_1=0.2, with_2=0.8)
    plan, reasons = throughput.choose_threads(context(2))
    assert plan.compute.threads == clock.threads == 1
    assert reasons == {"compute.threads": "measured: a step takes 0.200 s with 1, 0.800 s with 2"}


@pytest.mark.parametrize(("one", "two"), [(0.4, 0.2), (0.2, 0.21)])
def test_all_threads_stay_where_fewer_are_not_clearly_faster(one, two, clocked):
    clock = clocked(with_1=one, with_2=two)
    plan, _ = throughput.choose_threads(context(2))
    assert plan.compute.threads == clock.threads == 2


def test_of_many_threads_half_of_them_are_tried_too(clocked):
    clocked(with_1=1.0, with_4=0.2, with_8=0.9)
    assert throughput.choose_threads(context(8))[0].compute.threads == 4


def test_threads_take_turns_and_the_trial_ends_with_its_share_of_the_time(clocked):
    clock = clocked(with_1=1.0, with_2=4.5)
    throughput.choose_threads(context(2, until=20.0))  # a quarter of it is five seconds
    assert clock.steps == 2, "each at least once"
    clock = clocked(with_1=0.1, with_2=0.12)
    throughput.choose_threads(context(2, until=20.0))
    assert clock.steps == 10
    clock = clocked(with_1=0.1, with_2=0.4)
    throughput.choose_threads(context(2, until=20.0))
    assert clock.steps == 6, "one to warm up and two measured; a fourfold gain needs no more"


def test_a_measurement_takes_half_of_what_is_left_and_two_steps_at_least(clocked):
    clock = clocked(with_2=1.0)
    assert throughput.measure_throughput(context(2, until=12.0)).mean_seconds == pytest.approx(1.0)
    stages = len(PLAN.recipe.progressive_stages())
    assert clock.now <= 6.0 + 2 * stages
    clock = clocked(with_2=1.0)
    throughput.measure_throughput(context(2, until=0.0))
    assert clock.steps == 2 * stages
    clock = clocked(with_2=0.01)
    throughput.measure_throughput(context(2))
    assert clock.steps == 5 * stages, "steady: two to warm up, three measured"
    clock = clocked(with_2=0.01)
    clock.growth = 1.2
    throughput.measure_throughput(context(2))
    assert clock.steps >= 14 * stages, "every step differs from the one before"


def test_a_slow_first_step_of_the_process_is_no_price_of_its_stage(clocked):
    clock = clocked(with_2=0.1)
    clock.first = 60.0
    whole = context(2, until=500.0)
    recipe = dataclasses.replace(whole.plan.recipe, patch_keep_rate=0.5, patch_keep_until=0.5)
    measured = throughput.measure_throughput(whole.with_plan(dataclasses.replace(whole.plan, recipe=recipe)))
    assert [seconds for _, seconds in measured.stages] == pytest.approx([0.1, 0.1])


def test_real_steps_are_made_with_each_number_of_threads():
    before = torch.get_num_threads()
    try:
        plan, reasons = throughput.choose_threads(context(2))
        assert torch.get_num_threads() == plan.compute.threads in (1, 2)
        assert reasons["compute.threads"].startswith("measured: a step takes ")
    finally:
        set_own_threads(before)


def test_the_seconds_for_measuring_run_out(monkeypatch):
    assert context(1).measuring_seconds() == float("inf")
    assert context(1, until=0.0).measuring_seconds() == 0.0
