"""How many threads the model computes with: measured when it is read, for what one more core brings differs a lot."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

WORTH = 1.3
"""So many times faster all threads must be than one; below, the other cores serve clients better than the model."""
TIMES = 3


def choose_threads(work: Callable[[], object], most: int) -> int:
    """1 or `most`, whichever serves more; torch is left with it in the calling thread.

    A small model computes hardly faster with two threads, but takes the core that decodes and speaks HTTP.

    Args:
        work: a typical piece of the model's work.
    """
    seconds = {}
    for threads in {1, most}:
        torch.set_num_threads(threads)
        work()  # what is slow only once
        seconds[threads] = min(_timed(work) for _ in range(TIMES))
    chosen = most if seconds[1] > WORTH * seconds[most] else 1
    torch.set_num_threads(chosen)
    return chosen


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
