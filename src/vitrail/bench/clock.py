"""Seconds that can be compared: everything is warmed up first, then timed in turn, round by round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

Job = Callable[[], object]
"""One call of what is measured."""
LEAST = 0.2
"""Seconds that a job is repeated for in each round, so that the clock's own steps do not matter."""
MOST_CALLS = 10_000


@dataclass(frozen=True)
class Timing:
    """Seconds of one call in each round: their median, the fastest and the slowest."""

    median: float
    fastest: float
    slowest: float
    rounds: int
    calls: int
    """In each round."""

    @property
    def spread(self) -> float:
        """From the fastest to the slowest round, as a share of the median."""
        return (self.slowest - self.fastest) / self.median


class Clock:
    """Jobs by their names, timed in turn: one, the other, one, the other.

    Args:
        device: whose work is waited for before a clock is read.
        least: seconds that each job is repeated for in a round.
    """

    def __init__(self, jobs: Mapping[str, Job], device: str = "cpu", least: float = LEAST):
        self.jobs = dict(jobs)
        self.device = device
        self.least = least
        self._calls: dict[str, int] = {}
        self._seconds: dict[str, list[float]] = {name: [] for name in self.jobs}

    def warm_up(self) -> Iterator[str]:
        """Call every job twice, the second time to see how long it takes; the name of each, before it begins."""
        for name, job in self.jobs.items():
            yield name
            job()
            seconds = self._timed(job, 1)
            self._calls[name] = min(MOST_CALLS, max(1, math.ceil(self.least / max(seconds, 1e-9))))

    def rounds(self, count: int) -> Iterator[tuple[int, str]]:
        """Time every job so many times, in turn; the number of the round from 1 and the name, before each."""
        for number in range(1, count + 1):
            for name, job in self.jobs.items():
                yield number, name
                self._seconds[name].append(self._timed(job, self._calls[name]) / self._calls[name])

    def timing(self, name: str) -> Timing:
        """What the rounds so far say of a job."""
        found = self._seconds[name]
        return Timing(statistics.median(found), min(found), max(found), len(found), self._calls[name])

    def _timed(self, job: Job, calls: int) -> float:
        finish(self.device)
        began = time.perf_counter()
        for _ in range(calls):
            job()
        finish(self.device)
        return time.perf_counter() - began


def finish(device: str) -> None:
    """Wait until a device has done what it was told."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()
