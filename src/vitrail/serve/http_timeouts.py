"""uvicorn's connection with an end to its patience, for uvicorn waits for ever for a head and for a slow reader.

The parser of HTTP is llhttp, by httptools: strict, in C, and without limits of its own, so those are here.
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
    """A whole response, after which the connection closes."""
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
    """How long connections are waited for, in seconds, and how many there may be; shared by all of a server."""

    head_timeout: float
    """For the head of a request, from the connection or from the head's first byte."""
    discard_timeout: float = 2.0
    """For the rest of a body that was refused, so that the client reads the refusal before the connection closes."""
    max_discarded_bytes: int = 2**19
    """Bytes of such a rest that are read and dropped, at most."""
    max_framing_bytes: int = 2**16
    """Bytes of a head; and of what frames a body (sizes of chunks, headers after it) beyond 8 for each byte of it."""
    max_pipelined_requests: int = 16
    """Requests that a client may send before the first of them is answered."""
    client_read_timeout: float = 20.0
    """For a client to read what it was sent."""
    max_connections: int = 1000
    """Connections; beyond them the one that has waited longest without asking for anything is closed."""
    idle_connections: dict[TimeoutHttpProtocol, None] = field(default_factory=dict)
    """Those that ask for nothing at the moment, longest first."""


class TimeoutHttpProtocol(HttpToolsProtocol):
    """A connection that is closed when its client stays silent in the middle of something, or talks too much."""

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
        """Begin to wait for a head; make room if there are too many."""
        super().connection_made(transport)
        waiting = self._limits.idle_connections
        if len(self.connections) > self._limits.max_connections and waiting:
            next(iter(waiting)).transport.abort()
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Something came."""
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
        """The first byte of a request was read."""
        super().on_message_begin()
        self._message_part = "head"

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header was read; those after a body are nobody's."""
        if self._message_part == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head was read.

        Raises:
            ValueError: HTTP of another age, an address of another server, or too many requests that wait on this
                connection; the parser makes it what is no HTTP.
        """
        spoken = self.parser.get_http_version() in ("1.0", "1.1") and self.url.startswith((b"/", b"*"))
        if not spoken or len(self.pipeline) >= self._limits.max_pipelined_requests:
            raise ValueError
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to HTTP/2 or a socket: not taken, but the parser reads no further
            self.cycle.keep_alive = False
        self._message_part, self._framing_bytes = "body", 0

    def on_body(self, body: bytes) -> None:
        """A part of a body was read."""
        super().on_body(body)
        self._framing_bytes = max(0, self._framing_bytes - 9 * len(body))

    def on_message_complete(self) -> None:
        """A request was read."""
        super().on_message_complete()
        self._message_part, self._framing_bytes = "", 0

    def on_response_complete(self) -> None:
        """A request was answered."""
        super().on_response_complete()
        if self._final_response:
            self._close_after(self._final_response)
        self._update_timer()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP was read; the client is told so in our words."""
        self._close_after(BAD_REQUEST_RESPONSE)

    def pause_writing(self) -> None:
        """The client does not read what it was sent."""
        super().pause_writing()
        self._client_read_timer = self.loop.call_later(self._limits.client_read_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._client_read_timer is not None:
            self._client_read_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._limits.idle_connections.pop(self, None)
        for timer in (self._timer, self._client_read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _has_responded(self) -> bool:
        """Whether nothing is owed to the client."""
        return self.cycle is None or self.cycle.response_complete

    def _close_after(self, response: bytes) -> None:
        """Close the connection with these words, after the answers to what was asked before."""
        self._final_response = response
        if self._message_part != "body" and not self._has_responded:
            self.flow.pause_reading()
        elif not self.transport.is_closing():
            self.transport.write(response)
            self.transport.close()

    def _update_timer(self) -> None:
        """Start, keep or stop the clock, by what is awaited of the client now."""
        awaited = self._next_expected_event()
        if awaited in ("head", "next"):
            self._limits.idle_connections.setdefault(self, None)
        else:
            self._limits.idle_connections.pop(self, None)
        if awaited == self._expected_event:
            return
        self._expected_event = awaited
        if self._timer is not None:
            self._timer.cancel()
        seconds = {"head": self._limits.head_timeout, "rest": self._limits.discard_timeout}.get(awaited)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._close_on_timeout)

    def _next_expected_event(self) -> str:
        """head: of a request that has begun or of the first one; next: another request, for which uvicorn has a clock;
        rest: of a body that was refused; empty: nothing, or a body that the gate waits for."""
        if self._message_part == "body":
            return "rest" if self._has_responded else ""
        if not self._has_responded:
            return ""
        return "head" if self.cycle is None or self._message_part == "head" else "next"

    def _close_on_timeout(self) -> None:
        if self._expected_event == "head" and self._message_part == "head":
            self.transport.write(HEAD_TIMEOUT_RESPONSE)
        self.transport.close()
