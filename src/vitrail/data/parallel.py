"""Work on many images at once, with results in order, and the batches of prepared images that prediction reads.

Threads and not processes: reading, libjpeg, Pillow's decoders, torch's resize and NumPy's large copies all let go of
the interpreter, so that threads use every core, and no image is ever copied from one process to another.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar, TypeVarTuple

import numpy as np

from ..errors import DataError, UsageError
from ..runtime import count_usable_cores
from .source import ImageInput

Work = TypeVar("Work")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
MAX_QUEUED_PER_THREAD = 8  # pieces of work a thread that may wait: few, so that an error or Ctrl-C ends it soon
NAME = "vitrail-worker"


def map_in_order(
    function: Callable[[Work], Result], work: Iterable[Work], threads: int | None = None
) -> Iterator[Result]:
    """The results of `function`, in the order of `work`, by one thread for each core by default.

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
    """A pool of threads; with 0 of them, work is done by the caller when it takes the result."""

    def __init__(self, threads: int | None = None):
        self.threads = count_usable_cores() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Callable[[], Result]:
        """Start a piece of work; calling what comes back waits for its result, or raises its exception."""
        if self.threads == 0:
            return partial(function, *args)
        if self._pool is None:
            torch = sys.modules.get("torch")  # ONNX Runtime works without it, and to import it takes seconds
            initializer = (_limit_torch_threads, (torch.get_num_threads(),)) if torch else ()
            self._pool = ThreadPoolExecutor(self.threads, NAME, *initializer)
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


# -- Batches of prepared images: the next one is made ready while the model works on this one.

NUM_READERS = 4
"""Threads that prepare the images."""
PreparedT = TypeVar("PreparedT")


class ImageName(NamedTuple):
    """The names of an image in a table of predictions; an array has no path, and its position as its id."""

    path: str
    id: str


def prepare_batches(
    images: Sequence[ImageInput | bytes],
    batch_size: int,
    prepare: Callable[[ImageInput | bytes], PreparedT],
    skip_bad: bool,
) -> Iterator[tuple[list[ImageName], list[PreparedT], list[tuple[str, str]]]]:
    """For each batch the names of its readable images, the prepared images, and (path, reason) of what was left out.

    Args:
        skip_bad: leave unreadable images out instead of raising at the first.

    Raises:
        DataError: an image that cannot be read, by name.
        UsageError: batch below 1.
    """
    if batch_size < 1:
        raise UsageError(f"batch must be at least 1. Got {batch_size}.")

    def prepare_or_error(image: ImageInput | bytes) -> PreparedT | DataError:
        try:
            return prepare(image)
        except DataError as problem:
            return problem

    workers = Workers(NUM_READERS)
    ahead: deque[Callable[[], PreparedT | DataError]] = deque()
    todo = iter(images)
    try:
        for start in range(0, len(images), batch_size):
            ahead.extend(workers.begin(prepare_or_error, image) for image in islice(todo, 2 * batch_size - len(ahead)))
            names: list[ImageName] = []
            batch: list[PreparedT] = []
            skipped: list[tuple[str, str]] = []
            for i in range(start, min(start + batch_size, len(images))):
                prepared, name = ahead.popleft()(), _image_name(images[i], i)
                if not isinstance(prepared, DataError):
                    names.append(name)
                    batch.append(prepared)
                elif skip_bad:
                    skipped.append((name.path or name.id, str(prepared)))
                else:
                    raise prepared
            yield names, batch, skipped
    finally:
        workers.close()


def _image_name(image: ImageInput | bytes, position: int) -> ImageName:
    if isinstance(image, np.ndarray | bytes):
        return ImageName("", str(position))
    return ImageName(str(image) if isinstance(image, Path) else image.name, image.name)
