"""Guarded decoding: processes that may die of an image, each with a time limit, replaced as soon as they are gone."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from collections import deque
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..spec import ImageSpec
from .decode_worker import INPUT_KINDS, REPLY_HEADER, REQUEST_HEADER, DecodeReply, InputKind, run_worker
from .http_errors import HttpError
from .limits import ServerLimits

MAX_DEATHS, DEATH_WINDOW_SECONDS = 5, 60.0
"""So many deaths within so many seconds mean that something is wrong with the machine and not with images."""
TaskResultT = TypeVar("TaskResultT")


class PreparedImages(NamedTuple):
    """What the model reads, and what came with it."""

    images: UInt8[Tensor, "n C h w"]
    info: dict[str, Any]
    """As `worker.Reply.words`."""


class _DecodeProcess(NamedTuple):
    """One decoding process and the way to it."""

    process: ForkServerProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class DecodePool:
    """The decoding processes of a server. All of it runs in the event loop; starting one takes a thread for a moment.

    They are forked from a process that has imported everything and done nothing, so that a new one is there at once.
    """

    def __init__(self, spec: ImageSpec, limits: ServerLimits):
        self._spec, self._limits = spec, limits
        self._idle: asyncio.LifoQueue[_DecodeProcess] = asyncio.LifoQueue()
        self._all: dict[ForkServerProcess, asyncio.StreamWriter | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._closed = False
        self.num_died = 0
        """Processes that ended without being asked to."""
        self.num_stopped = 0
        """Processes that were ended because an image took too long."""

    @property
    def is_healthy(self) -> bool:
        """False once five processes have died within a minute, until that minute is over."""
        return len(self._deaths) < MAX_DEATHS or time.monotonic() - self._deaths[0] > DEATH_WINDOW_SECONDS

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The numbers of the processes that are there."""
        return tuple(process.pid for process in tuple(self._all) if process.pid is not None)

    async def start(self) -> None:
        """All processes, one after another."""
        for _ in range(self._limits.decode_workers):
            await self._add_process()

    async def decode(self, kind: InputKind, body: bytes | bytearray | memoryview) -> PreparedImages:
        """An image or a tensor as the model reads it.

        Raises:
            HttpError: 413 too large or too slow to decode, 415 no image, 422 damaged, 503 its process died.
        """
        process = await self._idle.get()
        # A client that leaves must not leave a half-spoken process behind, so the conversation goes on without it.
        reply = await asyncio.shield(self._keep_task(asyncio.create_task(self._send_request(process, kind, body))))
        if reply.status != 200:
            raise HttpError(reply.status, reply.text, retry_after=int(reply.status == 503))
        spec = self._spec
        pixels = np.frombuffer(bytearray(reply.pixels), np.uint8)  # a copy that may be written to
        images = torch.from_numpy(pixels.reshape(-1, spec.channels, spec.height, spec.width))
        return PreparedImages(images, json.loads(reply.text))

    async def close(self) -> None:
        """End every process."""
        self._closed = True
        for process, writer in tuple(self._all.items()):
            if writer is not None:
                writer.close()
            await asyncio.to_thread(_stop_process, process)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        self._all.clear()

    async def _send_request(
        self, process: _DecodeProcess, kind: InputKind, body: bytes | bytearray | memoryview
    ) -> DecodeReply:
        """One request and its reply; a process that fails is replaced, any other is free again."""
        try:
            async with asyncio.timeout(self._limits.decode_timeout):
                reply = await _exchange_messages(process, kind, body)
        except TimeoutError:
            self.num_stopped += 1
            reply = DecodeReply(413, f"the picture took longer than {self._limits.decode_timeout:g} s to decode.", b"")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.num_died += 1
            self._deaths.append(time.monotonic())
            reply = DecodeReply(503, "the process that decoded this picture died; a new one is there. Try again.", b"")
        else:
            self._idle.put_nowait(process)
            return reply
        process.writer.close()
        self._keep_task(asyncio.create_task(self._replace_process(process.process)))
        return reply

    async def _replace_process(self, process: ForkServerProcess) -> None:
        self._all.pop(process, None)
        await asyncio.to_thread(_stop_process, process)
        while not self._closed:
            try:
                await self._add_process()
            except OSError:  # no memory or no file for one more process at the moment
                await asyncio.sleep(1)
            else:
                return

    async def _add_process(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(self._start_process, theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            for end in (ours, theirs):
                end.close()
            raise
        self._all[process] = writer
        self._idle.put_nowait(_DecodeProcess(process, reader, writer))

    def _start_process(self, channel: socket.socket) -> ForkServerProcess:
        """A new process, which alone holds its end of the channel."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vitrail.serve.decode_worker"])
        words = (channel, self._spec, self._limits.decode_memory, self._limits.max_images)
        process = context.Process(target=run_worker, args=words, daemon=True)
        process.start()
        channel.close()
        self._all[process] = None
        if self._closed:  # while it began
            process.kill()
        return process

    def _keep_task(self, task: asyncio.Task[TaskResultT]) -> asyncio.Task[TaskResultT]:
        """The task itself, which nobody but the loop would hold otherwise."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _exchange_messages(
    process: _DecodeProcess, kind: InputKind, body: bytes | bytearray | memoryview
) -> DecodeReply:
    process.writer.write(REQUEST_HEADER.pack(INPUT_KINDS.index(kind), len(body)))
    process.writer.write(body)
    await process.writer.drain()
    status, words, pixels = REPLY_HEADER.unpack(await process.reader.readexactly(REPLY_HEADER.size))
    said = await process.reader.readexactly(words)
    return DecodeReply(status, said.decode("utf-8"), await process.reader.readexactly(pixels))


def _stop_process(process: ForkServerProcess) -> None:
    """Wait a moment for it to notice that nobody speaks to it any more; then it has to go."""
    with suppress(ValueError):  # somebody has ended it already
        process.join(0.2)
        if process.is_alive():
            process.kill()
            process.join(5)
        process.close()
