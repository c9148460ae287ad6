"""How many threads the model computes with: measured when it is read, for what one more core brings differs a lot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

WORTH = 1.3
"""So many times faster all threads must be than one; below, the other cores serve clients better than the model."""
CHEAP = 2e-3
"""Seconds of one core that a picture costs before and after the model: HTTP, decoding, its row."""
TIMES = 5
"""That each is timed, in turns."""


def choose_threads(work: Callable[[], object], pictures: int, most: int) -> int:
    """1 or `most`, whichever serves more; torch is left with it in the calling thread.

    A small model is hardly faster with two threads, or is not what clients wait for; and its second thread, which spins
    between one operation and the next, takes the core that decodes and speaks HTTP.

    Args:
        work: answers so many `pictures`.
    """
    seconds = dict.fromkeys((1, most), math.inf)
    for turn in range(1 + TIMES):
        for threads in seconds:
            torch.set_num_threads(threads)
            took = _timed(work)
            if turn:  # not what is slow only once
                seconds[threads] = min(seconds[threads], took)
    awaited = seconds[1] > CHEAP * pictures
    chosen = most if awaited and seconds[1] > WORTH * seconds[most] else 1
    torch.set_num_threads(chosen)
    return chosen


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
