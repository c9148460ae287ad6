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

    head: float
    """For the head of a request, from the connection or from the head's first byte."""
    rest: float = 2.0
    """For the rest of a body that was refused, so that the client reads the refusal before the connection closes."""
    refused: int = 2**19
    """Bytes of such a rest that are read and dropped, at most."""
    framing: int = 2**16
    """Bytes of a head; and of what frames a body (sizes of chunks, headers after it) beyond 8 for each byte of it."""
    queued: int = 16
    """Requests that a client may send before the first of them is answered."""
    reading: float = 20.0
    """For a client to read what it was sent."""
    most: int = 1000
    """Connections; beyond them the one that has waited longest without asking for anything is closed."""
    waiting: dict[TimeoutHttpProtocol, None] = field(default_factory=dict)
    """Those that ask for nothing at the moment, longest first."""


class TimeoutHttpProtocol(HttpToolsProtocol):
    """A connection that is closed when its client stays silent in the middle of something, or talks too much."""

    def __init__(
        self,
        patience: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
        self._inside: Literal["", "head", "body"] = ""
        self._unpaid = 0
        self._last = b""
        self._awaited = ""
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head; make room if there are too many."""
        super().connection_made(transport)
        waiting = self._patience.waiting
        if len(self.connections) > self._patience.most and waiting:
            next(iter(waiting)).transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._dropped = self._dropped + len(data) if self._awaited == "rest" else 0
        if self._dropped > self._patience.refused:
            self.transport.close()
            return
        self._unpaid += len(data)
        super().data_received(data)
        if self._unpaid > self._patience.framing:
            self._end(HEAD_TOO_LONG_RESPONSE if self._inside == "head" else BAD_REQUEST_RESPONSE)
        self._watch()

    def on_message_begin(self) -> None:
        """The first byte of a request was read."""
        super().on_message_begin()
        self._inside = "head"

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header was read; those after a body are nobody's."""
        if self._inside == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head was read.

        Raises:
            ValueError: HTTP of another age, an address of another server, or too many requests that wait on this
                connection; the parser makes it what is no HTTP.
        """
        spoken = self.parser.get_http_version() in ("1.0", "1.1") and self.url.startswith((b"/", b"*"))
        if not spoken or len(self.pipeline) >= self._patience.queued:
            raise ValueError
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to HTTP/2 or a socket: not taken, but the parser reads no further
            self.cycle.keep_alive = False
        self._inside, self._unpaid = "body", 0

    def on_body(self, body: bytes) -> None:
        """A part of a body was read."""
        super().on_body(body)
        self._unpaid = max(0, self._unpaid - 9 * len(body))

    def on_message_complete(self) -> None:
        """A request was read."""
        super().on_message_complete()
        self._inside, self._unpaid = "", 0

    def on_response_complete(self) -> None:
        """A request was answered."""
        super().on_response_complete()
        if self._last:
            self._end(self._last)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP was read; the client is told so in our words."""
        self._end(BAD_REQUEST_RESPONSE)

    def pause_writing(self) -> None:
        """The client does not read what it was sent."""
        super().pause_writing()
        self._reader = self.loop.call_later(self._patience.reading, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._patience.waiting.pop(self, None)
        for timer in (self._timer, self._reader):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _answered(self) -> bool:
        """Whether nothing is owed to the client."""
        return self.cycle is None or self.cycle.response_complete

    def _end(self, words: bytes) -> None:
        """Close the connection with these words, after the answers to what was asked before."""
        self._last = words
        if self._inside != "body" and not self._answered:
            self.flow.pause_reading()
        elif not self.transport.is_closing():
            self.transport.write(words)
            self.transport.close()

    def _watch(self) -> None:
        """Start, keep or stop the clock, by what is awaited of the client now."""
        awaited = self._what()
        if awaited in ("head", "next"):
            self._patience.waiting.setdefault(self, None)
        else:
            self._patience.waiting.pop(self, None)
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
        seconds = {"head": self._patience.head, "rest": self._patience.rest}.get(awaited)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._cut)

    def _what(self) -> str:
        """head: of a request that has begun or of the first one; next: another request, for which uvicorn has a clock;
        rest: of a body that was refused; empty: nothing, or a body that the gate waits for."""
        if self._inside == "body":
            return "rest" if self._answered else ""
        if not self._answered:
            return ""
        return "head" if self.cycle is None or self._inside == "head" else "next"

    def _cut(self) -> None:
        if self._awaited == "head" and self._inside == "head":
            self.transport.write(HEAD_TIMEOUT_RESPONSE)
        self.transport.close()
