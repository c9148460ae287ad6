"""Work on many images at once, with results in order, and the batches of prepared images that prediction reads.

Threads and not processes: reading, libjpeg, Pillow's decoders, torch's resize and NumPy's large copies all release the
GIL, so that threads use every core, and no image is copied between processes.
"""

from __future__ import annotations

import os
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


# -- Batches of prepared images: the next one is made ready while the model works on this one.

NUM_READERS = 4
"""Threads that prepare the images."""
PreparedT = TypeVar("PreparedT")


class ImageName(NamedTuple):
    """The names of an image in a table of predictions; an array has no path, and its position as its id.

    The id is the file's name, or where two of the images have one name, the path below the folder of them all.
    """

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

    folder = find_id_folder(images)
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
                prepared, name = ahead.popleft()(), _image_name(images[i], i, folder)
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


def _image_name(image: ImageInput | bytes, position: int, folder: str | None) -> ImageName:
    if isinstance(image, np.ndarray | bytes):
        return ImageName("", str(position))
    id = make_id(image, folder) if isinstance(image, Path) else image.name
    return ImageName(str(image) if isinstance(image, Path) else image.name, id)


def find_id_folder(images: Sequence[ImageInput | bytes]) -> str | None:
    """The folder below which the paths of files are their ids; None where no two files have one name.

    Only lists and tuples are looked through: any other sequence may read an image for each element.
    """
    paths = {image for image in images if isinstance(image, Path)} if isinstance(images, list | tuple) else set()
    if len({path.name for path in paths}) == len(paths):
        return None
    try:
        return os.path.commonpath([path.parent for path in paths])
    except ValueError:  # absolute paths and relative ones
        return ""


def make_id(path: Path, folder: str | None) -> str:
    """The id of a file, by the folder of `find_id_folder`."""
    if folder is None:
        return path.name
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
