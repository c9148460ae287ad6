"""A server in a thread of this process, whose model a test may slow down or break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from served import reading
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.serve.auth import BearerTokens
from vitrail.serve.limits import ServerLimits
from vitrail.serve.served_model import ServedModel
from vitrail.serve.server import ServeRequest, StoppableServer, _make_uvicorn_config, _raise_file_limit, bind_socket
from vitrail.serve.service import Service


class Here:
    """The server's parts, for tests to look at and to change."""

    port: int
    service: Service
    opened: ServedModel
    loop: asyncio.AbstractEventLoop


@contextmanager
def serving_here(
    found: PredictorMember | None = None, limits: ServerLimits | None = None, tokens: BearerTokens | None = None
) -> Iterator[Here]:
    """Ready to answer; everything is ended afterwards."""
    here, ready, problems = Here(), threading.Event(), []
    limits = limits or ServerLimits(decode_workers=1)
    _raise_file_limit()
    listener = bind_socket("127.0.0.1", 0)
    here.port = listener.getsockname()[1]

    async def run() -> None:
        here.loop = asyncio.get_running_loop()

        def opened(broken):
            here.opened = ServedModel(Predictor([found or reading()]), "tiny", "Apache-2.0", broken)
            return here.opened

        def failed(problem: BaseException) -> None:
            problems.append(problem)
            ready.set()

        here.service = Service("tiny", limits, tokens or BearerTokens(), opened, lambda _: ready.set(), failed)
        asked = ServeRequest(model="tiny", name="tiny", limits=limits)
        server = StoppableServer(_make_uvicorn_config(asked, here.service), lambda: None)
        here.stop = lambda: here.loop.call_soon_threadsafe(setattr, server, "should_exit", True)
        here.service.batcher.start()
        try:
            await server.serve([listener])
        finally:
            assert await here.service.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60)
        assert not problems, problems
        yield here
    finally:
        here.stop()
        thread.join(30)
        assert not thread.is_alive()
