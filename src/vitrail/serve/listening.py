"""A socket to listen on, taken before the model is read, so that a port in use is told at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

from ..errors import ResourceError, UsageError

LAST = 65535


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 takes a free one.

    Raises:
        UsageError: no such host or port, or a port that another program uses.
        ResourceError: permission is missing.
    """
    if not 0 <= port <= LAST:
        raise UsageError(f"--port must lie in 0..{LAST}. Got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as problem:
        raise UsageError(
            f"--host must be an address of this machine, such as 127.0.0.1, 0.0.0.0 or ::1. Got {host}."
        ) from problem
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as problem:
        found.close()
        raise _reason(problem, host, port) from problem
    found.set_inheritable(False)
    return found


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine finds it."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def is_public(listener: socket.socket) -> bool:
    """Whether other machines may reach it."""
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _reason(problem: OSError, host: str, port: int) -> UsageError | ResourceError:
    if problem.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} is used by another program; try --port {min(port + 1, LAST)}.")
    if problem.errno in (errno.EACCES, errno.EPERM):
        return ResourceError(
            f"Permission is missing for port {port}; those below 1024 are the system's. Try --port {port + 8000}."
        )
    if problem.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"--host must be an address of this machine, such as 127.0.0.1. Got {host}.")
    return UsageError(f"Cannot listen on {host}, port {port}: {problem.strerror or problem}.")
