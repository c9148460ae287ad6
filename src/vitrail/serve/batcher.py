"""The threads in which the model computes, and who comes next: whoever waits when a thread gets free goes together.

A lone client never waits for others, and has all cores. While the model works, others gather, up to a batch; so the
batch grows with the load and with nothing else. On several cores two batches are computed at once, with half the cores
each: threads that share an operation wait for each other at its end, whenever decoding or HTTP takes a core of theirs.
Explanations and embeddings take the model for themselves, one after each batch.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..data.parallel import ImageName
from ..runtime import set_thread_count
from .http_errors import HttpError

ResultT = TypeVar("ResultT")
MOVING_AVERAGE_WEIGHT = 0.2
"""Weight of the newest batch in how long an image takes."""


class PredictionBatch(NamedTuple):
    """What was made of n images."""

    rows: list[dict[str, object]]
    """As `vitrail predict` writes them."""
    outputs: dict[str, np.ndarray]
    """[n, ...], under the names that exported files use."""

    def slice_rows(self, start: int, stop: int) -> PredictionBatch:
        """Some of them."""
        return PredictionBatch(
            self.rows[start:stop], {name: values[start:stop] for name, values in self.outputs.items()}
        )


@runtime_checkable
class BatchModel(Protocol):
    """What the threads need of a model; two may ask it at once."""

    @property
    def threads(self) -> int:
        """Of the CPU that computes an answer; 1 if something else does."""
        ...

    def predict_batch(self, names: Sequence[ImageName], images: UInt8[Tensor, "n C h w"]) -> PredictionBatch:
        """Rows and outputs of prepared images."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _PendingRequest:
    """Images of one request that wait for the model."""

    names: Sequence[ImageName]
    images: UInt8[Tensor, "n C h w"]
    future: asyncio.Future[PredictionBatch]


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExclusiveTask:
    """Anything else that needs the model for itself."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]


class Batcher:
    """The queue and the threads. Made and asked in the event loop; `opened` and `batched` are called there, too.

    Args:
        open_model: reads the model; runs in the first thread.
        opened: gets the model, or why there is none.
        batched: gets how many images a batch had and how many seconds it took.
        most: images in a batch.
    """

    def __init__(
        self,
        open_model: Callable[[], BatchModel],
        on_opened: Callable[[Any, BaseException | None], None],
        on_batch: Callable[[int, float], None],
        max_batch_size: int,
    ):
        self._open_model, self._on_opened, self._on_batch, self._max_batch_size = (
            open_model,
            on_opened,
            on_batch,
            max_batch_size,
        )
        self._loop = asyncio.get_running_loop()
        self._change = threading.Condition()
        self._pending: list[_PendingRequest] = []
        self._tasks: deque[_ExclusiveTask] = deque()
        self._closed = False
        self._num_running = 0
        """Batches that are computed now."""
        self._threads = [threading.Thread(target=self._run_first_thread, name="vitrail-model", daemon=True)]
        self.seconds_per_image = 0.0
        """How long an image takes at the moment, in a batch as large as the load makes it."""

    def start(self) -> None:
        """Begin to read the model."""
        self._threads[0].start()

    async def submit(self, names: Sequence[ImageName], images: UInt8[Tensor, "n C h w"]) -> PredictionBatch:
        """What the model says of these images; if the caller is cancelled first, nothing is computed."""
        asked = _PendingRequest(names=names, images=images, future=self._loop.create_future())
        with self._change:
            self._pending.append(asked)
            self._change.notify_all()
        return await asked.future

    async def run_exclusive(self, function: Callable[[], ResultT]) -> ResultT:
        """Run something else in the model's first thread, while no other computes."""
        asked = _ExclusiveTask(function=function, future=self._loop.create_future())
        with self._change:
            self._tasks.append(asked)
            self._change.notify_all()
        found: ResultT = await asked.future
        return found

    async def close(self, timeout: float = 5.0) -> bool:
        """End the threads after what they are doing; False if that takes longer than a moment."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        running = [thread for thread in self._threads if thread.ident is not None]
        for thread in running:
            await asyncio.to_thread(thread.join, timeout)
        return not any(thread.is_alive() for thread in running)

    def _run_first_thread(self) -> None:
        """The first thread: the model, a second thread where there are cores for it, then batches and errands."""
        try:
            model = self._open_model()
        except BaseException as problem:  # whatever it is, the one who started the server is told
            self._call_in_loop(self._on_opened, None, problem)
            return
        if model.threads > 1:
            second = threading.Thread(
                target=self._run_second_thread, args=(model,), name="vitrail-model-2", daemon=True
            )
            self._threads.append(second)
            second.start()
        self._call_in_loop(self._on_opened, model, None)
        while self._wait_until(lambda: bool(self._pending or self._tasks)):
            self._compute_batch(model)
            if self._tasks and self._wait_until(lambda: not self._num_running) and (errand := self._next_task()):
                set_thread_count(model.threads)
                self._run_task(errand)

    def _run_second_thread(self, model: BatchModel) -> None:
        """The second thread: batches while the first computes one, unless an errand wants the model."""
        while self._wait_until(lambda: bool(self._pending and self._num_running and not self._tasks)):
            self._compute_batch(model)

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        """Until it is so; False if the server is closed."""
        with self._change:
            self._change.wait_for(lambda: self._closed or condition())
            return not self._closed

    def _next_batch(self, has_second_thread: bool) -> tuple[list[_PendingRequest], bool]:
        """Who has waited longest, as many as fit, and whether another batch is computed beside it.

        Whoever has given up is left out before anything is computed.

        Args:
            has_second_thread: there are two threads, so half of those who wait are left to the other, unless one
                waits alone.
        """
        with self._change:
            waiting = [asked for asked in self._pending if not asked.future.cancelled()]
            beside = has_second_thread and (self._num_running > 0 or (len(waiting) > 1 and not self._tasks))
            ends = list(accumulate(len(asked.images) for asked in waiting))
            most = min(self._max_batch_size, math.ceil(ends[-1] / 2)) if beside and ends else self._max_batch_size
            count = max(bisect_right(ends, most), min(1, len(ends)))
            batch, self._pending = waiting[:count], waiting[count:]
            self._num_running += bool(batch)
            self._change.notify_all()
        return batch, beside

    def _next_task(self) -> _ExclusiveTask | None:
        with self._change:
            while self._tasks:
                errand = self._tasks.popleft()
                if not errand.future.cancelled():
                    return errand
        return None

    def _compute_batch(self, model: BatchModel) -> None:
        batch, beside = self._next_batch(model.threads > 1)
        if not batch:
            return
        told: Callable[[], None]
        began = time.perf_counter()
        try:
            set_thread_count(model.threads // 2 if beside else model.threads)
            images = torch.cat([asked.images for asked in batch]) if len(batch) > 1 else batch[0].images
            found = model.predict_batch([name for asked in batch for name in asked.names], images)
            told = partial(self._deliver_batch, batch, found, time.perf_counter() - began, beside)
        except Exception as problem:
            told = partial(_set_exception, [asked.future for asked in batch], problem)
        with self._change:  # before a client is told, who may ask again at once and then finds this thread free
            self._num_running -= 1
            self._change.notify_all()
        self._call_in_loop(told)

    def _run_task(self, task: _ExclusiveTask) -> None:
        try:
            found = task.function()
        except Exception as problem:
            self._call_in_loop(_set_exception, [task.future], problem)
            return
        self._call_in_loop(_set_result, task.future, found)

    def _deliver_batch(
        self, batch: list[_PendingRequest], predictions: PredictionBatch, seconds: float, is_parallel: bool
    ) -> None:
        start = 0
        for asked in batch:
            _set_result(asked.future, predictions.slice_rows(start, start + len(asked.images)))
            start += len(asked.images)
        each = seconds / start / (2 if is_parallel else 1)
        self.seconds_per_image = (
            each
            if not self.seconds_per_image
            else (1 - MOVING_AVERAGE_WEIGHT) * self.seconds_per_image + MOVING_AVERAGE_WEIGHT * each
        )
        self._on_batch(start, seconds)

    def _call_in_loop(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the event loop, if that still runs."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return


def _set_result(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(futures: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error if len(futures) == 1 else _copy_exception(error))


def _copy_exception(error: Exception) -> Exception:
    """One for each request: raising the same object in several tasks would grow its traceback with each."""
    if isinstance(error, HttpError):
        return HttpError(error.status, error.message, error.retry_after, error.close)
    copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.__cause__ = error
    return copy
