"""uvicorn's connection with an end to its patience, for uvicorn waits for ever for a head and for a slow reader."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

SENTENCE = b'{"error":"The head of the request came too slowly."}'
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
LATE += b"content-length: %d\r\n\r\n%s" % (len(SENTENCE), SENTENCE)


@dataclass(eq=False)
class Patience:
    """How long connections are waited for, in seconds, and how many there may be; shared by all of a server."""

    head: float
    """For the head of a request, from the connection or from the head's first byte."""
    rest: float = 2.0
    """For the rest of a body that was refused, so that the client reads the refusal before the connection closes."""
    refused: int = 2**19
    """Bytes of such a rest that are read and dropped, at most."""
    reading: float = 20.0
    """For a client to read what it was sent."""
    most: int = 1000
    """Connections; beyond them the one that has waited longest without asking for anything is closed."""
    waiting: dict[PatientConnection, None] = field(default_factory=dict)
    """Those that ask for nothing at the moment, longest first."""


class PatientConnection(H11Protocol):
    """A connection that is closed when its client stays silent in the middle of something."""

    def __init__(
        self,
        patience: Patience,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
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
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request was answered."""
        super().on_response_complete()
        self._watch()

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
        if self.conn.their_state is h11.IDLE:
            return "head" if self.cycle is None or self.conn.trailing_data[0] else "next"
        refused = self.cycle is not None and self.cycle.response_complete
        return "rest" if self.conn.their_state is h11.SEND_BODY and refused else ""

    def _cut(self) -> None:
        if self._awaited == "head" and self.conn.trailing_data[0]:
            self.transport.write(LATE)
        self.transport.close()
