"""HTTP/1.1 connections with timeouts and size limits; uvicorn has none for request heads and slow readers.

The parser is llhttp (by httptools): strict, in C, and without limits of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .http_errors import encode_json


def _make_final_response(status: bytes, sentence: str) -> bytes:
    """A complete response, after which the connection closes."""
    body = encode_json({"error": sentence})
    head = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


HEAD_TIMEOUT_RESPONSE = _make_final_response(b"408 Request Timeout", "The head of the request came too slowly.")
HEAD_TOO_LONG_RESPONSE = _make_final_response(
    b"431 Request Header Fields Too Large", "The head of the request is too long."
)
BAD_REQUEST_RESPONSE = _make_final_response(b"400 Bad Request", "This is no HTTP request, or none for this server.")


@dataclass(eq=False)
class ConnectionLimits:
    """Timeouts of connections in seconds, and their number; shared by all connections of a server."""

    head_timeout: float
    """Time to read a request's head, from the connection or from the head's first byte."""
    discard_timeout: float = 2.0
    """Time to read and drop the rest of a refused body, so that the client sees the error before the close."""
    max_discarded_bytes: int = 2**19
    """Most bytes of a refused body that are read and dropped."""
    max_framing_bytes: int = 2**16
    """Most bytes of a head; and of a body's framing (chunk sizes, trailers) beyond 8 for each byte of the body."""
    max_pipelined_requests: int = 16
    """Most requests that a client may send before the first response (HTTP pipelining)."""
    client_read_timeout: float = 20.0
    """Time for a client to read what it was sent."""
    max_connections: int = 1000
    """Most connections; beyond them the one that has been idle longest is closed."""
    idle_connections: dict[TimeoutHttpProtocol, None] = field(default_factory=dict)
    """Idle connections, longest idle first."""


class TimeoutHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, closed when its client stalls in a request or exceeds the framing limits."""

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._message_part: Literal["", "head", "body"] = ""
        self._framing_bytes = 0
        self._final_response = b""
        self._expected_event = ""
        self._timer: asyncio.TimerHandle | None = None
        self._client_read_timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head timeout; close an idle connection if there are too many."""
        super().connection_made(transport)
        waiting = self._limits.idle_connections
        if len(self.connections) > self._limits.max_connections and waiting:
            next(iter(waiting)).transport.abort()
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, within the limits."""
        self._discarded_bytes = self._discarded_bytes + len(data) if self._expected_event == "rest" else 0
        if self._discarded_bytes > self._limits.max_discarded_bytes:
            self.transport.close()
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > self._limits.max_framing_bytes:
            self._close_after(HEAD_TOO_LONG_RESPONSE if self._message_part == "head" else BAD_REQUEST_RESPONSE)
        self._update_timer()

    def on_message_begin(self) -> None:
        """Called at the first byte of a request."""
        super().on_message_begin()
        self._message_part = "head"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for each header; trailers after a body are ignored."""
        if self._message_part == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called at the end of a head.

        Raises:
            ValueError: another HTTP version, an absolute URL, or too many pipelined requests; the parser turns it into
                a 400 response.
        """
        supported = self.parser.get_http_version() in ("1.0", "1.1") and self.url.startswith((b"/", b"*"))
        if not supported or len(self.pipeline) >= self._limits.max_pipelined_requests:
            raise ValueError
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to HTTP/2 or WebSocket: refused, and the parser reads no further
            self.cycle.keep_alive = False
        self._message_part, self._framing_bytes = "body", 0

    def on_body(self, body: bytes) -> None:
        """Called for each part of a body."""
        super().on_body(body)
        self._framing_bytes = max(0, self._framing_bytes - 9 * len(body))

    def on_message_complete(self) -> None:
        """Called at the end of a request."""
        super().on_message_complete()
        self._message_part, self._framing_bytes = "", 0

    def on_response_complete(self) -> None:
        """Called at the end of a response."""
        super().on_response_complete()
        if self._final_response:
            self._close_after(self._final_response)
        self._update_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP with our own sentence."""
        self._close_after(BAD_REQUEST_RESPONSE)

    def pause_writing(self) -> None:
        """Start the read timeout of a client that does not read its response."""
        super().pause_writing()
        self._client_read_timer = self.loop.call_later(self._limits.client_read_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the read timeout: the client reads again."""
        super().resume_writing()
        if self._client_read_timer is not None:
            self._client_read_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._limits.idle_connections.pop(self, None)
        for timer in (self._timer, self._client_read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _has_responded(self) -> bool:
        """Whether all requests have been answered."""
        return self.cycle is None or self.cycle.response_complete

    def _close_after(self, response: bytes) -> None:
        """Close the connection with a final response, after the responses to earlier requests."""
        self._final_response = response
        if self._message_part != "body" and not self._has_responded:
            self.flow.pause_reading()
        elif not self.transport.is_closing():
            self.transport.write(response)
            self.transport.close()

    def _update_timer(self) -> None:
        """Start, keep or stop the timer, by the event that the client must send next."""
        expected = self._next_expected_event()
        if expected in ("head", "next"):
            self._limits.idle_connections.setdefault(self, None)
        else:
            self._limits.idle_connections.pop(self, None)
        if expected == self._expected_event:
            return
        self._expected_event = expected
        if self._timer is not None:
            self._timer.cancel()
        seconds = {"head": self._limits.head_timeout, "rest": self._limits.discard_timeout}.get(expected)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._close_on_timeout)

    def _next_expected_event(self) -> str:
        """The event that the client must send next.

        "head": the head of the first request or of one that has begun. "next": another request, for which uvicorn has a
        timeout. "rest": the rest of a refused body. Empty: nothing, or a body, which the gate waits for.
        """
        if self._message_part == "body":
            return "rest" if self._has_responded else ""
        if not self._has_responded:
            return ""
        return "head" if self.cycle is None or self._message_part == "head" else "next"

    def _close_on_timeout(self) -> None:
        if self._expected_event == "head" and self._message_part == "head":
            self.transport.write(HEAD_TIMEOUT_RESPONSE)
        self.transport.close()
