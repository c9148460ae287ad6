"""What is said to a client that gets no answer: a status, one sentence as JSON, and when to come again."""

from __future__ import annotations

import json

from starlette.types import Send

Headers = list[tuple[bytes, bytes]]
JSON_MEDIA_TYPE = b"application/json"
NOSNIFF_HEADERS = {"x-content-type-options": "nosniff"}
"""With every answer: it is what its type says, whatever words of clients or models it holds."""


class HttpError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, message: str, retry_after: int = 0, close: bool = False):
        super().__init__(message)
        self.status = status
        """Of HTTP."""
        self.message = message
        self.retry_after = retry_after
        """Seconds after which it is worth trying again; 0 says nothing of it."""
        self.close = close
        """Whether the connection ends, too."""

    @property
    def body(self) -> bytes:
        """The sentence as JSON."""
        return encode_json({"error": self.message})

    @property
    def headers(self) -> Headers:
        """Of the response, all but its type and length."""
        found: Headers = [(name.encode(), words.encode()) for name, words in NOSNIFF_HEADERS.items()]
        found += [(b"retry-after", str(self.retry_after).encode())] if self.retry_after else []
        if self.status == 401:
            found.append((b"www-authenticate", b'Bearer realm="vitrail"'))
        return [*found, (b"connection", b"close")] if self.close else found


def encode_json(value: object) -> bytes:
    """One line of JSON; NaN and infinity are refused, because JSON has no word for them.

    Raises:
        ValueError: a number that is not finite.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


async def send_http_error(send: Send, error: HttpError) -> None:
    """Say it by hand, where no framework has been asked yet."""
    body = error.body
    headers = [(b"content-type", JSON_MEDIA_TYPE), (b"content-length", str(len(body)).encode()), *error.headers]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
