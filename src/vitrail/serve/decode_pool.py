"""A pool of decoding processes with a time limit per image; a process that dies or hangs is replaced."""

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
from jaxtyping import Integer
from torch import Tensor

from ..spec import ImageSpec
from .decode_worker import INPUT_KINDS, REPLY_HEADER, REQUEST_HEADER, DecodeReply, InputKind, run_worker
from .http_errors import HttpError
from .limits import ServerLimits

MAX_DEATHS, DEATH_WINDOW_SECONDS = 5, 60.0
"""This many deaths in this many seconds: the cause is the machine and not single images."""
TaskResultT = TypeVar("TaskResultT")


class PreparedImages(NamedTuple):
    """Preprocessed images and what is known about their request."""

    images: Integer[Tensor, "n C h w"]
    info: dict[str, Any]
    """The JSON object of `DecodeReply.text`."""


class _DecodeProcess(NamedTuple):
    """One decoding process and the streams to it."""

    process: ForkServerProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class DecodePool:
    """The decoding processes of a server. Used in the event loop; a process is started in a helper thread.

    Processes are forked from a fork server that has imported everything, so that a new one starts at once.
    """

    def __init__(self, spec: ImageSpec, limits: ServerLimits):
        self._spec, self._limits = spec, limits
        self._idle: asyncio.LifoQueue[_DecodeProcess] = asyncio.LifoQueue()
        self._all: dict[ForkServerProcess, asyncio.StreamWriter | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._closed = False
        self.num_died = 0
        """Processes that died."""
        self.num_stopped = 0
        """Processes that were killed because an image took too long."""

    @property
    def is_healthy(self) -> bool:
        """False after MAX_DEATHS deaths within DEATH_WINDOW_SECONDS, until the first of them is older."""
        return len(self._deaths) < MAX_DEATHS or time.monotonic() - self._deaths[0] > DEATH_WINDOW_SECONDS

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process IDs of the pool."""
        return tuple(process.pid for process in tuple(self._all) if process.pid is not None)

    async def start(self) -> None:
        """Start all processes, one after another."""
        for _ in range(self._limits.decode_workers):
            await self._add_process()

    async def decode(self, kind: InputKind, body: bytes | bytearray | memoryview) -> PreparedImages:
        """Decode and preprocess an image, or check a tensor.

        Raises:
            HttpError: 413 too large or too slow to decode, 415 no image, 422 damaged, 503 its process died.
        """
        process = await self._idle.get()
        # If the client disconnects, the exchange with the process must still be completed, hence shield().
        reply = await asyncio.shield(self._keep_task(asyncio.create_task(self._send_request(process, kind, body))))
        if reply.status != 200:
            raise HttpError(reply.status, reply.text, retry_after=int(reply.status == 503))
        spec = self._spec
        pixels = np.frombuffer(bytearray(reply.pixels), spec.dtype)  # a copy that may be written to
        images = torch.from_numpy(pixels.reshape(-1, spec.channels, spec.height, spec.width))
        return PreparedImages(images, json.loads(reply.text))

    async def close(self) -> None:
        """Stop all processes."""
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
        """Send one request and receive its reply; a process that fails is replaced, any other becomes idle."""
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
            except (OSError, EOFError):  # no memory or file for one more at the moment, or what starts them was ended
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
        """Start a process, which then holds the only handle to its end of the channel."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vitrail.serve.decode_worker"])
        arguments = (channel, self._spec, self._limits.decode_memory, self._limits.max_images)
        process = context.Process(target=run_worker, args=arguments, daemon=True)
        process.start()
        channel.close()
        self._all[process] = None
        if self._closed:  # while it started
            process.kill()
        return process

    def _keep_task(self, task: asyncio.Task[TaskResultT]) -> asyncio.Task[TaskResultT]:
        """Hold a reference to a task until it is done; the event loop's own is weak."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _exchange_messages(
    process: _DecodeProcess, kind: InputKind, body: bytes | bytearray | memoryview
) -> DecodeReply:
    process.writer.write(REQUEST_HEADER.pack(INPUT_KINDS.index(kind), len(body)))
    process.writer.write(body)
    await process.writer.drain()
    status, text_length, pixels_length = REPLY_HEADER.unpack(await process.reader.readexactly(REPLY_HEADER.size))
    text = await process.reader.readexactly(text_length)
    return DecodeReply(status, text.decode("utf-8"), await process.reader.readexactly(pixels_length))


def _stop_process(process: ForkServerProcess) -> None:
    """Give a process a moment to see that its channel is closed, then kill it."""
    with suppress(ValueError):  # it is closed already
        process.join(0.2)
        if process.is_alive():
            process.kill()
            process.join(5)
        process.close()
