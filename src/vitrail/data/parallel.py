"""Work on many pictures at once, with results in order. Decoders release the interpreter, so threads are enough."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")
AHEAD = 8  # pieces of work a thread that may wait: few, so that an error or Ctrl-C ends it soon


def in_order(function: Callable[[Work], Result], work: Iterable[Work], threads: int | None = None) -> Iterator[Result]:
    """The results of `function`, in the order of `work`, by as many threads as there are cores unless said.

    The first exception of `function` is raised where its result would have come; what was not begun is dropped.
    """
    threads = threads or usable_cores()
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for piece in work:
            waiting.append(pool.submit(function, piece))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
