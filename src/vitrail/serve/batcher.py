"""Dynamic batching: the model's threads and their queue. Pending requests are batched when a thread is free.

A single client never waits for others and has all cores. While the model works, requests gather up to a batch, so the
batch size follows the load, without a waiting time. On several cores two batches are computed at once with half the
cores each, because threads that share an operation wait for each other at its end whenever decoding or HTTP takes one
of their cores. Explanations and embeddings run alone on the model, one after each batch.
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
from jaxtyping import Integer
from torch import Tensor

from ..data.parallel import ImageName
from ..evaluate.decisions import Decisions
from ..runtime import set_thread_count
from .http_errors import HttpError

ResultT = TypeVar("ResultT")
MOVING_AVERAGE_WEIGHT = 0.2
"""Weight of the newest batch in the average time of an image."""


class PredictionBatch(NamedTuple):
    """Predictions for n images."""

    rows: list[dict[str, object]]
    """As `vitrail predict` writes them."""
    outputs: dict[str, np.ndarray]
    """Output name of exported files -> array [n, ...]."""
    pool_inputs: np.ndarray | None = None
    """float32 [n, K + 1]: of a model that answers cases, what their answers are pooled from."""

    def slice_rows(self, start: int, stop: int) -> PredictionBatch:
        """The predictions of some images."""
        outputs = {name: values[start:stop] for name, values in self.outputs.items()}
        pooled = None if self.pool_inputs is None else self.pool_inputs[start:stop]
        return PredictionBatch(self.rows[start:stop], outputs, pooled)

    def take(self, order: Sequence[int]) -> PredictionBatch:
        """The same predictions in another order."""
        rows = [self.rows[place] for place in order]
        outputs = {name: values[order] for name, values in self.outputs.items()}
        return PredictionBatch(rows, outputs, None if self.pool_inputs is None else self.pool_inputs[order])


def concat_batches(parts: Sequence[PredictionBatch]) -> PredictionBatch:
    """Predictions of the same outputs one after the other."""
    rows, names = [row for part in parts for row in part.rows], parts[0].outputs
    outputs = {name: np.concatenate([part.outputs[name] for part in parts]) for name in names}
    pooled = [part.pool_inputs for part in parts if part.pool_inputs is not None]
    return PredictionBatch(rows, outputs, np.concatenate(pooled) if len(pooled) == len(parts) else None)


@runtime_checkable
class BatchModel(Protocol):
    """The model's interface for the batcher; two threads may call it at once."""

    @property
    def threads(self) -> int:
        """CPU threads of the forward pass; 1 on another device."""
        ...

    def predict_batch(
        self, names: Sequence[ImageName], images: Integer[Tensor, "n C h w"], decisions: Sequence[Decisions | None] = ()
    ) -> PredictionBatch:
        """Rows and outputs of preprocessed images, each decided by its own decision."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _PendingRequest:
    """The images of one request in the queue."""

    names: Sequence[ImageName]
    images: Integer[Tensor, "n C h w"]
    decisions: Decisions | None
    future: asyncio.Future[PredictionBatch]


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExclusiveTask:
    """A function that needs the model alone."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]


class Batcher:
    """The queue and the threads. Made and used in the event loop, where the callbacks run too.

    Args:
        open_model: loads the model; runs in the first thread.
        on_opened: called with the model, or with the error.
        on_batch: called with the number of images of a batch and its seconds.
        max_batch_size: most images in a batch.
    """

    def __init__(
        self,
        open_model: Callable[[], BatchModel],
        on_opened: Callable[[Any, BaseException | None], None],
        on_batch: Callable[[int, float], None],
        max_batch_size: int,
    ):
        self._open_model, self._on_opened, self._on_batch = open_model, on_opened, on_batch
        self._max_batch_size = max_batch_size
        self._loop = asyncio.get_running_loop()
        self._change = threading.Condition()
        self._pending: list[_PendingRequest] = []
        self._tasks: deque[_ExclusiveTask] = deque()
        self._closed = False
        self._num_running = 0
        """Batches that are being computed."""
        self._threads = [threading.Thread(target=self._run_first_thread, name="vitrail-model", daemon=True)]
        self.seconds_per_image = 0.0
        """Moving average of the time for one image, at the current batch sizes."""

    def start(self) -> None:
        """Start the first thread, which loads the model."""
        self._threads[0].start()

    async def submit(
        self, names: Sequence[ImageName], images: Integer[Tensor, "n C h w"], decisions: Decisions | None = None
    ) -> PredictionBatch:
        """Predict images; if the caller is cancelled before its batch starts, nothing is computed.

        Args:
            decisions: what all of these images are decided by; None takes the model's own.
        """
        request = _PendingRequest(names=names, images=images, decisions=decisions, future=self._loop.create_future())
        with self._change:
            self._pending.append(request)
            self._change.notify_all()
        return await request.future

    async def run_exclusive(self, function: Callable[[], ResultT]) -> ResultT:
        """Run a function in the model's first thread, while no batch is computed."""
        task = _ExclusiveTask(function=function, future=self._loop.create_future())
        with self._change:
            self._tasks.append(task)
            self._change.notify_all()
        result: ResultT = await task.future
        return result

    async def close(self, timeout: float = 5.0) -> bool:
        """Stop the threads after their current work; False if one is still running after `timeout` seconds."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        running = [thread for thread in self._threads if thread.ident is not None]
        for thread in running:
            await asyncio.to_thread(thread.join, timeout)
        return not any(thread.is_alive() for thread in running)

    def _run_first_thread(self) -> None:
        """Load the model, start the second thread if there are cores for it, then compute batches and tasks."""
        try:
            model = self._open_model()
        except BaseException as problem:  # passed on to the thread that started the server
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
            if self._tasks and self._wait_until(lambda: not self._num_running) and (task := self._next_task()):
                set_thread_count(model.threads)
                self._run_task(task)

    def _run_second_thread(self, model: BatchModel) -> None:
        """Compute batches while the first thread computes one, unless a task is waiting for the model."""
        while self._wait_until(lambda: bool(self._pending and self._num_running and not self._tasks)):
            self._compute_batch(model)

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; False if the batcher is closed."""
        with self._change:
            self._change.wait_for(lambda: self._closed or condition())
            return not self._closed

    def _next_batch(self, has_second_thread: bool) -> tuple[list[_PendingRequest], bool]:
        """The longest waiting requests that fit into a batch, and whether another batch runs in parallel.

        Cancelled requests are dropped.

        Args:
            has_second_thread: two threads; half of the waiting images are left to the other one, unless a single
                request waits.
        """
        with self._change:
            waiting = [request for request in self._pending if not request.future.cancelled()]
            is_parallel = has_second_thread and (self._num_running > 0 or (len(waiting) > 1 and not self._tasks))
            ends = list(accumulate(len(request.images) for request in waiting))
            limit = min(self._max_batch_size, math.ceil(ends[-1] / 2)) if is_parallel and ends else self._max_batch_size
            count = max(bisect_right(ends, limit), min(1, len(ends)))
            batch, self._pending = waiting[:count], waiting[count:]
            self._num_running += bool(batch)
            self._change.notify_all()
        return batch, is_parallel

    def _next_task(self) -> _ExclusiveTask | None:
        with self._change:
            while self._tasks:
                task = self._tasks.popleft()
                if not task.future.cancelled():
                    return task
        return None

    def _compute_batch(self, model: BatchModel) -> None:
        batch, is_parallel = self._next_batch(model.threads > 1)
        if not batch:
            return
        deliver: Callable[[], None]
        began = time.perf_counter()
        try:
            set_thread_count(model.threads // 2 if is_parallel else model.threads)
            images = torch.cat([request.images for request in batch]) if len(batch) > 1 else batch[0].images
            names = [name for request in batch for name in request.names]
            decisions = [request.decisions for request in batch for _ in request.names]
            predictions = model.predict_batch(names, images, decisions)
            deliver = partial(self._deliver_batch, batch, predictions, time.perf_counter() - began, is_parallel)
        except Exception as problem:
            deliver = partial(_set_exception, [request.future for request in batch], problem)
        with self._change:  # before the delivery: a client may send its next request at once, and this thread is free
            self._num_running -= 1
            self._change.notify_all()
        self._call_in_loop(deliver)

    def _run_task(self, task: _ExclusiveTask) -> None:
        try:
            result = task.function()
        except Exception as problem:
            self._call_in_loop(_set_exception, [task.future], problem)
            return
        self._call_in_loop(_set_result, task.future, result)

    def _deliver_batch(
        self, batch: list[_PendingRequest], predictions: PredictionBatch, seconds: float, is_parallel: bool
    ) -> None:
        start = 0
        for request in batch:
            _set_result(request.future, predictions.slice_rows(start, start + len(request.images)))
            start += len(request.images)
        each = seconds / start / (2 if is_parallel else 1)
        self.seconds_per_image = (
            each
            if not self.seconds_per_image
            else (1 - MOVING_AVERAGE_WEIGHT) * self.seconds_per_image + MOVING_AVERAGE_WEIGHT * each
        )
        self._on_batch(start, seconds)

    def _call_in_loop(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the event loop, if it is still running."""
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
    """A copy for each request: raising one object in several tasks would grow its traceback each time."""
    if isinstance(error, HttpError):
        return HttpError(error.status, error.message, error.retry_after, error.close)
    copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.__cause__ = error
    return copy
