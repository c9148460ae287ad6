"""A thread pool that returns results in order.

Threads and not processes: reading, libjpeg, Pillow's decoders, torch's resize and NumPy's large copies all release the
GIL, so that threads use every core, and no image is copied between processes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

from ..runtime import count_usable_cores

Work = TypeVar("Work")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
MAX_QUEUED_PER_THREAD = 8  # pending pieces of work per thread: few, so that an error or Ctrl-C takes effect soon
NAME = "vitrail-worker"


def map_in_order(
    function: Callable[[Work], Result], work: Iterable[Work], threads: int | None = None
) -> Iterator[Result]:
    """Apply `function` to `work` in threads (by default one per core) and yield the results in order.

    With 0 threads the calling thread does the work. An exception of `function` is raised in place of its result;
    pending work is then dropped.
    """
    workers = Workers(threads)
    waiting: deque[Callable[[], Result]] = deque()
    try:
        for piece in work:
            waiting.append(workers.begin(function, piece))
            if len(waiting) > MAX_QUEUED_PER_THREAD * workers.threads:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()
    finally:
        workers.close()


class Workers:
    """A thread pool whose work starts at once; with 0 threads, work is done when its result is requested."""

    def __init__(self, threads: int | None = None):
        self.threads = count_usable_cores() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Callable[[], Result]:
        """Submit a piece of work; calling the returned function waits for its result, or raises its exception."""
        if self.threads == 0:
            return partial(function, *args)
        if self._pool is None:
            torch = sys.modules.get("torch")  # not imported here: prediction with ONNX Runtime must not wait for it
            initializer = (_limit_torch_threads, (torch.get_num_threads(),)) if torch else ()
            self._pool = ThreadPoolExecutor(self.threads, NAME, *initializer)
        return self._pool.submit(function, *args).result

    def close(self) -> None:
        """Drop pending work, wait for running work, and stop the threads; new work starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_THREAD_COUNT_LOCK = threading.Lock()


def _limit_torch_threads(other_threads: int) -> None:
    """Keep torch from starting intra-op threads for each worker: they would take the cores from the training.

    torch's number of threads is a property of the thread that sets it, but new threads start with the number that was
    set last; so another thread sets the old one again. Reading the number first makes torch initialise this thread,
    which would otherwise happen later and undo the setting.
    """
    import torch

    with _THREAD_COUNT_LOCK:
        torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(other_threads,))
        other.start()
        other.join()
