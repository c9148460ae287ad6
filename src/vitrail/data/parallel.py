"""Work on many images at once, with results in order.

Threads and not processes: reading, libjpeg, Pillow's decoders, torch's resize and NumPy's large copies all let go of
the interpreter, so that threads use every core, and no image is ever copied from one process to another.
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
MAX_QUEUED_PER_THREAD = 8  # pieces of work a thread that may wait: few, so that an error or Ctrl-C ends it soon
NAME = "vitrail-worker"


def map_in_order(
    function: Callable[[Work], Result], work: Iterable[Work], threads: int | None = None
) -> Iterator[Result]:
    """The results of `function`, in the order of `work`, by as many threads as there are cores unless said.

    With 0 threads the caller's own does the work. The first exception of `function` is raised where its result would
    have come; what was not begun is dropped.
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
    """Threads that begin at once what they are given; with 0 of them, work is done when its result is asked for."""

    def __init__(self, threads: int | None = None):
        self.threads = count_usable_cores() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Callable[[], Result]:
        """Start a piece of work; calling what comes back waits for its result, or raises its exception."""
        if self.threads == 0:
            return partial(function, *args)
        if self._pool is None:
            torch = sys.modules.get("torch")  # ONNX Runtime answers without it, and to import it takes seconds
            told = (_limit_torch_threads, (torch.get_num_threads(),)) if torch else ()
            self._pool = ThreadPoolExecutor(self.threads, NAME, *told)
        return self._pool.submit(function, *args).result

    def close(self) -> None:
        """Drop what was not begun, wait for what was, and end the threads; new work starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_THREAD_COUNT_LOCK = threading.Lock()


def _limit_torch_threads(other_threads: int) -> None:
    """Keep torch from starting a team of threads for each worker: they would take the cores from the training.

    torch's number of threads belongs to the thread that sets it, but threads yet to come begin with the number that was
    set last; so another thread sets the old one again. Asking first makes torch initialise this thread, which would
    otherwise happen later and undo the setting.
    """
    import torch

    with _THREAD_COUNT_LOCK:
        torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(other_threads,))
        other.start()
        other.join()
