"""The server process: bind the socket, load the model, serve, and shut down gracefully.

A graceful shutdown answers accepted requests and refuses new ones.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
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

from ..errors import ResourceError, UsageError
from .app import create_app
from .auth import BearerTokens
from .http_timeouts import ConnectionLimits, TimeoutHttpProtocol
from .limits import ServerLimits
from .served_model import ServedModel, load_served_model
from .service import RequestLog, Service

RESERVED_FILES = 64
"""File descriptors kept for other uses than connections."""
MAX_CONNECTIONS = 4096
CLOSE_TIMEOUT = 2
"""Seconds for connections to close after the last response."""
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What to serve, where, and within which limits."""

    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    proxy: str = ""
    """Addresses, with commas between them, whose X-Forwarded-For is believed."""
    device: str = "auto"
    precision: str = "float32"
    threads: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    limits: ServerLimits = field(default_factory=ServerLimits)
    log: RequestLog | None = None
    """As `log_request` of `Service`."""
    score_log: Path | None = None
    """As in `ServedModel`."""


def choose_model_name(model: str, name: str) -> str:
    """The model's name in URL paths: `name` if given, else its folder's name without characters that need escaping.

    Raises:
        UsageError: `name` has characters that need escaping.
    """
    if name:
        if not re.fullmatch(NAME_PATTERN, name):
            raise UsageError(f"--name may hold letters, digits, dots, dashes and underscores. Got {name!r}.")
        return name
    path = Path(model.rstrip("/")).absolute() if not model.startswith("hf:") else Path(model[3:].partition("@")[0])
    own = path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-._")[:100] or "model"


def run_server(
    request: ServeRequest,
    tokens: BearerTokens,
    on_listening: Callable[[socket.socket], None],
    on_ready: Callable[[ServedModel], None],
) -> None:
    """Serve until a signal asks the process to stop, which may be before the model is loaded.

    Args:
        on_listening: called with the socket, before the model is loaded.
        on_ready: called with the model once requests are answered.

    Raises:
        VitrailError: the port is taken, or there is no such model.
    """
    listener = bind_socket(request.host, request.port)
    all_ended, problem = asyncio.run(_run_until_stopped(request, tokens, listener, on_listening, on_ready))
    if problem is not None:
        raise problem
    if not all_ended:  # torch still computes in its thread, and an interpreter that ends under it would crash
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class StoppableServer(uvicorn.Server):
    """uvicorn's server with a graceful shutdown: the first signal drains it, a second one ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]):
        super().__init__(config)
        self._drain = drain
        self._stop_requested = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        if self._stop_requested:
            self.should_exit = self.force_exit = True
            return
        self._stop_requested = True
        self._drain()


async def _run_until_stopped(
    request: ServeRequest,
    tokens: BearerTokens,
    listener: socket.socket,
    on_listening: Callable[[socket.socket], None],
    on_ready: Callable[[ServedModel], None],
) -> tuple[bool, BaseException | None]:
    """Run the server; returns whether all threads have ended, and the error if the model could not be loaded."""
    loop = asyncio.get_running_loop()
    problems: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    def on_failed(problem: BaseException) -> None:
        problems.append(problem)
        server.should_exit = True

    def start_draining() -> None:
        tasks.append(loop.create_task(_drain_requests(service, server)))

    def drain() -> None:
        loop.call_soon_threadsafe(start_draining)

    open_model = partial(
        load_served_model,
        request.model,
        request.name,
        request.device,
        request.precision,
        request.threads,
        request.changes,
        score_log=request.score_log,
    )
    service = Service(request.name, request.limits, tokens, open_model, on_ready, on_failed, request.log)
    server = StoppableServer(_make_uvicorn_config(request, service), drain)
    tasks.append(loop.create_task(_announce_listening(server, partial(on_listening, listener))))
    service.batcher.start()
    try:
        await server.serve([listener])
    finally:
        all_ended = await service.close()
    return all_ended, problems[0] if problems else None


async def _announce_listening(server: uvicorn.Server, on_listening: Callable[[], None]) -> None:
    """Call `on_listening` once the server accepts connections and handles signals."""
    while not server.started:
        await asyncio.sleep(0.005)
    on_listening()


async def _drain_requests(service: Service, server: uvicorn.Server) -> None:
    """Refuse new requests, wait for those in flight, then stop listening."""
    service.is_draining = True
    loop = asyncio.get_running_loop()
    until = loop.time() + service.limits.drain_timeout
    while service.admission.num_requests and loop.time() < until and not server.should_exit:
        await asyncio.sleep(0.02)
    server.should_exit = True


def _make_uvicorn_config(request: ServeRequest, service: Service) -> uvicorn.Config:
    limits = ConnectionLimits(head_timeout=request.limits.read_timeout, max_connections=_raise_file_limit())
    return uvicorn.Config(
        create_app(service),
        loop="asyncio",
        http=cast("type[asyncio.Protocol]", partial(TimeoutHttpProtocol, limits)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=bool(request.proxy),
        forwarded_allow_ips=request.proxy or None,
        timeout_graceful_shutdown=CLOSE_TIMEOUT,
    )


def _raise_file_limit() -> int:
    """Raise the soft limit of open files as far as the hard limit allows; returns how many connections fit."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))


# -- The listening socket: bound before the model is loaded, so that a port in use fails at once.

MAX_PORT = 65535


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to an address; port 0 takes a free one.

    Raises:
        UsageError: no such host or port, or a port that another program uses.
        ResourceError: permission is missing.
    """
    if not 0 <= port <= MAX_PORT:
        raise UsageError(f"--port must lie in 0..{MAX_PORT}. Got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as problem:
        raise UsageError(
            f"--host must be an address of this machine, such as 127.0.0.1, 0.0.0.0 or ::1. Got {host}."
        ) from problem
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as problem:
        listener.close()
        raise _explain_bind_error(problem, host, port) from problem
    listener.set_inheritable(False)
    return listener


def get_listener_url(listener: socket.socket) -> str:
    """The URL of the server for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def is_public(listener: socket.socket) -> bool:
    """Whether other machines can reach the socket."""
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _explain_bind_error(problem: OSError, host: str, port: int) -> UsageError | ResourceError:
    if problem.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} is used by another program; try --port {min(port + 1, MAX_PORT)}.")
    if problem.errno in (errno.EACCES, errno.EPERM):
        return ResourceError(
            f"Permission is missing for port {port}; those below 1024 are the system's. Try --port {port + 8000}."
        )
    if problem.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"--host must be an address of this machine, such as 127.0.0.1. Got {host}.")
    return UsageError(f"Cannot listen on {host}, port {port}: {problem.strerror or problem}.")
