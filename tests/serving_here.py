"""A server in a thread of this process, whose model a test may slow down or break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from served import reading
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.serve.listening import listen
from vitrail.serve.opened import Opened
from vitrail.serve.running import Asked, StoppableServer, _allow_connections, _config
from vitrail.serve.service import Service
from vitrail.serve.settings import Limits
from vitrail.serve.tokens import Tokens


class Here:
    """The server's parts, for tests to look at and to change."""

    port: int
    service: Service
    opened: Opened
    loop: asyncio.AbstractEventLoop


@contextmanager
def serving_here(
    found: PredictorMember | None = None, limits: Limits | None = None, tokens: Tokens | None = None
) -> Iterator[Here]:
    """Ready to answer; everything is ended afterwards."""
    here, ready, problems = Here(), threading.Event(), []
    limits = limits or Limits(workers=1)
    _allow_connections()
    listener = listen("127.0.0.1", 0)
    here.port = listener.getsockname()[1]

    async def run() -> None:
        here.loop = asyncio.get_running_loop()

        def opened(broken):
            here.opened = Opened(Predictor([found or reading()]), "tiny", "Apache-2.0", broken)
            return here.opened

        def failed(problem: BaseException) -> None:
            problems.append(problem)
            ready.set()

        here.service = Service("tiny", limits, tokens or Tokens(), opened, lambda _: ready.set(), failed)
        asked = Asked(model="tiny", name="tiny", limits=limits)
        server = StoppableServer(_config(asked, here.service), lambda: None)
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
