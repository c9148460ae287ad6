"""One server from its first line to its last: listen, read the model, answer, and stop without losing anybody."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from ..errors import UsageError
from .app import application
from .connection import Patience, PatientConnection
from .listening import listen
from .opened import Opened, open_model
from .service import Log, Service
from .settings import Limits
from .tokens import Tokens

RESERVE = 64
"""Files that stay open beside connections."""
CONNECTIONS = 4096
CLOSING = 2
"""Seconds for connections to close after everybody was answered."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person wants served."""

    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    proxy: str = ""
    """Addresses, with commas between them, whose X-Forwarded-For is believed."""
    device: str = "auto"
    threads: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    log: Log | None = None
    """As of `Service`."""


def name_of(model: str, wish: str) -> str:
    """What a model is called in paths: as it was wished, else as its folder, in letters that need no escaping.

    Raises:
        UsageError: a wish that would need some.
    """
    if wish:
        if not re.fullmatch(NAME, wish):
            raise UsageError(f"--name may hold letters, digits, dots, dashes and underscores. Got {wish!r}.")
        return wish
    path = Path(model.rstrip("/")).absolute() if not model.startswith("hf:") else Path(model[3:].partition("@")[0])
    own = path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-._")[:100] or "model"


def serve(
    asked: Asked,
    tokens: Tokens,
    listening: Callable[[socket.socket], None],
    ready: Callable[[Opened], None],
) -> int:
    """Serve until somebody says stop.

    Args:
        listening: told of the socket, before the model is read.
        ready: told of the model, when pictures are answered.

    Returns:
        The exit code: 0 when it was asked to stop, also while the model was being read.

    Raises:
        VitrailError: the port is taken, or there is no such model.
    """
    listener = listen(asked.host, asked.port)
    _allow_connections()
    whole, problem = asyncio.run(_run(asked, tokens, listener, listening, ready))
    if problem is not None:
        raise problem
    if not whole:  # torch still computes in its thread, and an interpreter that ends under it would crash
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


class StoppableServer(uvicorn.Server):
    """uvicorn's server, which is told by a signal to drain first; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]):
        super().__init__(config)
        self._drain = drain
        self._asked = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """What a signal does."""
        if self._asked:
            self.should_exit = self.force_exit = True
            return
        self._asked = True
        self._drain()


async def _run(
    asked: Asked,
    tokens: Tokens,
    listener: socket.socket,
    listening: Callable[[socket.socket], None],
    ready: Callable[[Opened], None],
) -> tuple[bool, BaseException | None]:
    """Until the end; whether all threads have ended, and why there was no model, if there was none."""
    loop = asyncio.get_running_loop()
    problems: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    def failed(problem: BaseException) -> None:
        problems.append(problem)
        server.should_exit = True

    def begin() -> None:
        tasks.append(loop.create_task(_drained(service, server)))

    def drain() -> None:
        loop.call_soon_threadsafe(begin)

    opening = partial(open_model, asked.model, asked.name, asked.device, asked.threads, asked.changes)
    service = Service(asked.name, asked.limits, tokens, opening, ready, failed, asked.log)
    server = StoppableServer(_config(asked, service), drain)
    tasks.append(loop.create_task(_told(server, partial(listening, listener))))
    service.batcher.start()
    try:
        await server.serve([listener])
    finally:
        whole = await service.close()
    return whole, problems[0] if problems else None


async def _told(server: uvicorn.Server, listening: Callable[[], None]) -> None:
    """Say that it listens, once it does and signals are heard."""
    while not server.started:
        await asyncio.sleep(0.005)
    listening()


async def _drained(service: Service, server: uvicorn.Server) -> None:
    """Refuse new requests, wait for those inside, then stop listening."""
    service.draining = True
    loop = asyncio.get_running_loop()
    until = loop.time() + service.limits.drain
    while service.admission.inside and loop.time() < until and not server.should_exit:
        await asyncio.sleep(0.02)
    server.should_exit = True


def _config(asked: Asked, service: Service) -> uvicorn.Config:
    patience = Patience(head=asked.limits.slow, most=_most_connections())
    return uvicorn.Config(
        application(service),
        loop="asyncio",
        http=cast("type[asyncio.Protocol]", partial(PatientConnection, patience)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=bool(asked.proxy),
        forwarded_allow_ips=asked.proxy or None,
        timeout_graceful_shutdown=CLOSING,
    )


def _allow_connections() -> None:
    """As many open files as the system grants without asking."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _most_connections() -> int:
    try:
        import resource
    except ImportError:
        return CONNECTIONS
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, soft - RESERVE))
