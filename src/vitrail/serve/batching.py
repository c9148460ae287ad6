"""The one thread in which the model lives, and who comes next: whoever waits when the model gets free goes together.

A lone client never waits for others. While the model works, others gather, up to a batch; so the batch grows with the
load and with nothing else. Explanations and embeddings take the model for themselves, one after each batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..predict.reading import Name
from .refusals import RefusedError

Found = TypeVar("Found")
REMEMBERED = 0.2
"""Weight of the newest batch in how long a picture takes."""


class Answered(NamedTuple):
    """What was made of n pictures."""

    rows: list[dict[str, object]]
    """As `vitrail predict` writes them."""
    outputs: dict[str, np.ndarray]
    """[n, ...], under the names that exported files use."""

    def part(self, start: int, stop: int) -> Answered:
        """Some of them."""
        return Answered(self.rows[start:stop], {name: values[start:stop] for name, values in self.outputs.items()})


@runtime_checkable
class Answering(Protocol):
    """What the thread needs of a model."""

    def answer(self, names: Sequence[Name], images: UInt8[Tensor, "n C h w"]) -> Answered:
        """Rows and outputs of prepared pictures."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """Pictures of one request that wait for the model."""

    names: Sequence[Name]
    images: UInt8[Tensor, "n C h w"]
    future: asyncio.Future[Answered]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Errand:
    """Anything else that needs the model for itself."""

    do: Callable[[], Any]
    future: asyncio.Future[Any]


class Batcher:
    """The queue and the thread. Made and asked in the event loop; `opened` and `batched` are called there, too.

    Args:
        open_model: reads the model; runs in the thread, whose number of torch's threads it sets.
        opened: gets the model, or why there is none.
        batched: gets how many pictures a batch had and how many seconds it took.
        most: pictures in a batch.
    """

    def __init__(
        self,
        open_model: Callable[[], Answering],
        opened: Callable[[Any, BaseException | None], None],
        batched: Callable[[int, float], None],
        most: int,
    ):
        self._open, self._opened, self._batched, self._most = open_model, opened, batched, most
        self._loop = asyncio.get_running_loop()
        self._change = threading.Condition()
        self._waiting: deque[_Asked] = deque()
        self._errands: deque[_Errand] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._live, name="vitrail-model", daemon=True)
        self.seconds = 0.0
        """How long a picture takes at the moment, in a batch as large as the load makes it."""

    def start(self) -> None:
        """Begin to read the model."""
        self._thread.start()

    async def answer(self, names: Sequence[Name], images: UInt8[Tensor, "n C h w"]) -> Answered:
        """What the model says of these pictures; if the caller is cancelled first, nothing is computed."""
        asked = _Asked(names=names, images=images, future=self._loop.create_future())
        with self._change:
            self._waiting.append(asked)
            self._change.notify()
        return await asked.future

    async def do(self, errand: Callable[[], Found]) -> Found:
        """Run something else in the model's thread."""
        asked = _Errand(do=errand, future=self._loop.create_future())
        with self._change:
            self._errands.append(asked)
            self._change.notify()
        found: Found = await asked.future
        return found

    async def close(self, patience: float = 5.0) -> bool:
        """End the thread after what it is doing; False if that takes longer than a moment."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, patience)
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            model = self._open()
        except BaseException as problem:  # whatever it is, the one who started the server is told
            self._tell(self._opened, None, problem)
            return
        self._tell(self._opened, model, None)
        while self._wait():
            if batch := self._next_batch():
                self._compute(model, batch)
            if errand := self._next_errand():
                self._run(errand)

    def _wait(self) -> bool:
        with self._change:
            while not (self._waiting or self._errands or self._closed):
                self._change.wait()
            return not self._closed

    def _next_batch(self) -> list[_Asked]:
        """Who has waited longest, as many as fit; whoever has given up is left out before anything is computed."""
        batch: list[_Asked] = []
        pictures = 0
        with self._change:
            while self._waiting:
                if self._waiting[0].future.cancelled():
                    self._waiting.popleft()
                    continue
                pictures += len(self._waiting[0].images)
                if batch and pictures > self._most:
                    break
                batch.append(self._waiting.popleft())
        return batch

    def _next_errand(self) -> _Errand | None:
        with self._change:
            while self._errands:
                errand = self._errands.popleft()
                if not errand.future.cancelled():
                    return errand
        return None

    def _compute(self, model: Answering, batch: list[_Asked]) -> None:
        began = time.perf_counter()
        try:
            images = torch.cat([asked.images for asked in batch]) if len(batch) > 1 else batch[0].images
            found = model.answer([name for asked in batch for name in asked.names], images)
        except Exception as problem:
            self._tell(_fail, [asked.future for asked in batch], problem)
            return
        self._tell(self._deliver, batch, found, time.perf_counter() - began)

    def _run(self, errand: _Errand) -> None:
        try:
            found = errand.do()
        except Exception as problem:
            self._tell(_fail, [errand.future], problem)
            return
        self._tell(_settle, errand.future, found)

    def _deliver(self, batch: list[_Asked], found: Answered, seconds: float) -> None:
        start = 0
        for asked in batch:
            _settle(asked.future, found.part(start, start + len(asked.images)))
            start += len(asked.images)
        each = seconds / start
        self.seconds = each if not self.seconds else (1 - REMEMBERED) * self.seconds + REMEMBERED * each
        self._batched(start, seconds)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        """Call a function in the event loop, if that still runs."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return


def _settle(future: asyncio.Future[Any], found: object) -> None:
    if not future.done():
        future.set_result(found)


def _fail(futures: Sequence[asyncio.Future[Any]], problem: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(problem if len(futures) == 1 else _copy(problem))


def _copy(problem: Exception) -> Exception:
    """One for each request: raising the same object in several tasks would grow its traceback with each."""
    if isinstance(problem, RefusedError):
        return RefusedError(problem.status, problem.sentence, problem.again, problem.close)
    copy = RuntimeError(f"{type(problem).__name__}: {problem}")
    copy.__cause__ = problem
    return copy
