"""Rounds in turn, warm-up, medians: on clocks that tell what the test says."""

from __future__ import annotations

import time

import pytest

from vitrail.bench.measure import InterleavedTimer, Timing


@pytest.fixture
def hands(monkeypatch):
    """A clock that only jobs move."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_jobs_are_warmed_up_and_then_timed_in_turn(hands):
    done = []

    def job(name, seconds):
        def run():
            done.append(name)
            hands[0] += seconds

        return run

    clock = InterleavedTimer({"a": job("a", 1.0), "b": job("b", 2.0)}, min_seconds=0.0)
    assert list(clock.warm_up()) == ["a", "b"]
    assert done == ["a", "a", "b", "b"]
    assert list(clock.time_rounds(2)) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert done[4:] == ["a", "b", "a", "b"]
    assert clock.timing("b") == Timing(2.0, 2.0, 2.0, rounds=2, calls=1)


def test_short_jobs_are_repeated_in_a_round(hands):
    calls = [0]

    def job():
        calls[0] += 1
        hands[0] += 0.25

    clock = InterleavedTimer({"short": job}, min_seconds=1.0)
    list(clock.warm_up())
    list(clock.time_rounds(3))
    assert calls[0] == 2 + 3 * 4
    assert clock.timing("short").calls == 4 and clock.timing("short").median == 0.25


def test_the_median_and_the_spread_are_those_of_the_rounds(hands):
    seconds = iter([9.0, 9.0, 1.0, 5.0, 2.0])

    def job():
        hands[0] += next(seconds)

    clock = InterleavedTimer({"job": job}, min_seconds=0.0)
    list(clock.warm_up())
    list(clock.time_rounds(3))
    found = clock.timing("job")
    assert (found.median, found.fastest, found.slowest) == (2.0, 1.0, 5.0)
    assert found.spread == 2.0
