"""ASGI middleware in front of FastAPI: checks headers and tokens, reads bodies, enforces deadlines and disconnects.

A request to the model passes once its whole body is in memory; slow, large or early requests are refused before
anything is decoded. All other requests (page, health, metrics) pass at once and never wait for the model.
"""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .http_errors import Headers, HttpError
from .service import Service

MAX_HEADERS, MAX_TARGET_BYTES = 100, 8192
"""Most headers of a request, and most bytes of a path with its query."""
TOKEN_MISSING = "This server asks for a token: Authorization: Bearer TOKEN."
UNEXPECTED_ERROR = "Something went wrong inside the server that nobody foresaw."
LOGGER = logging.getLogger("uvicorn.error")


class Gate:
    """An ASGI application that wraps another one."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response, began = _ResponseTracker(send), time.perf_counter()
        try:
            await self._admit(scope, receive, response)
        except HttpError as error:
            await response.send_error(error)
        except asyncio.CancelledError:  # the server ends and waits no longer
            await response.send_error(HttpError(503, "The server is stopping.", retry_after=1, close=True))
        except Exception:
            # The stack trace alone: no data of a client goes into the log.
            LOGGER.exception("A request ended in an error that nobody foresaw.")
            await response.send_error(HttpError(500, UNEXPECTED_ERROR))
        finally:
            self._service.record_request(scope["path"], response.status, time.perf_counter() - began)

    async def _admit(self, scope: Scope, receive: Receive, response: _ResponseTracker) -> None:
        headers = _check_headers(scope)
        if scope["method"] != "POST" or scope["path"] not in self._service.work_paths:
            await self._app(scope, receive, response)
            return
        service, limits = self._service, self._service.limits
        address = scope["client"][0] if scope.get("client") else ""
        service.check_available()
        if not service.tokens.is_allowed(headers.get(b"authorization", b"")):
            raise HttpError(401, TOKEN_MISSING)
        service.admission.check_client(address)
        if int(headers.get(b"content-length", b"0")) > limits.max_body_bytes:
            raise _body_too_large_error(limits.max_body_bytes)
        body, state = bytearray(), scope.setdefault("state", {})
        with service.admission.track_request():
            try:
                await self._read_body(body, receive)
                state["body"] = body
                with service.admission.admit_client(address):
                    await self._respond(scope, receive, response)
            except _ClientDisconnectedError:
                return
            finally:
                service.admission.release_bytes(len(body))
                state.clear()  # a connection that stays open must not hold the body of its last request

    async def _read_body(self, body: bytearray, receive: Receive) -> None:
        """Read a whole body within its time and size limits; `body` holds what was read even if this raises."""
        limits, admission = self._service.limits, self._service.admission
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(began + limits.read_timeout) as timeout:
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _ClientDisconnectedError
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > limits.max_body_bytes:
                        raise _body_too_large_error(limits.max_body_bytes)
                    admission.reserve_bytes(len(chunk))
                    body += chunk
                    if not message.get("more_body", False):
                        return
                    if not timeout.expired():
                        timeout.reschedule(began + limits.read_timeout + len(body) / limits.min_bytes_per_second)
        except TimeoutError as late:
            raise HttpError(
                408, f"The body came too slowly: {len(body):,} bytes in {loop.time() - began:.0f} s.", close=True
            ) from late

    async def _respond(self, scope: Scope, receive: Receive, response: _ResponseTracker) -> None:
        """Run the framework until it has responded, the deadline passes or the client disconnects."""
        work = asyncio.ensure_future(self._app(scope, _receive_empty_body, response))
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        deadline = self._service.limits.deadline
        try:
            await asyncio.wait((work, gone), timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if work.done() or response.is_complete:
                await work
                return
            if gone.done():
                raise _ClientDisconnectedError
            raise HttpError(504, f"There was no answer within {deadline:g} s. Try again later.", retry_after=1)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait((work, gone))


class _ClientDisconnectedError(Exception):
    """The client has closed the connection."""


class _ResponseTracker:
    """Wraps `send` and records the status and whether the response is complete."""

    def __init__(self, send: Send):
        self._send = send
        self.status = 0
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.is_complete = not message.get("more_body", False)
        await self._send(message)

    async def send_error(self, error: HttpError) -> None:
        """Send an error, unless a response has already started."""
        if self.status:
            return
        length = str(len(error.body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), *error.headers]
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": error.body})


async def _receive_empty_body() -> Message:
    """The framework's `receive`: the body is in the request's state, and the gate watches for disconnects."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_headers(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name.

    Raises:
        HttpError: 400, 414 or 431 for a malformed or oversized head.
    """
    headers: Headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise HttpError(431, f"A request may have {MAX_HEADERS} headers. Got {len(headers)}.", close=True)
    if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise HttpError(414, f"A path and its query may have {MAX_TARGET_BYTES:,} bytes.", close=True)
    by_name = dict(headers)
    if b"host" not in by_name and scope["http_version"] == "1.1":
        raise HttpError(400, "A request of HTTP/1.1 names its Host.", close=True)
    if b"content-length" in by_name and b"transfer-encoding" in by_name:
        raise HttpError(400, "A request has either a Content-Length or a Transfer-Encoding, not both.", close=True)
    if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
        raise HttpError(400, "A body may come in chunks, and in no other Transfer-Encoding.", close=True)
    return by_name


def _body_too_large_error(limit: int) -> HttpError:
    return HttpError(413, f"A request may hold {limit:,} bytes. Send a smaller picture, or fewer at once.")
