"""HTTP errors of the server: a status, one sentence as JSON, and Retry-After."""

from __future__ import annotations

import json

Headers = list[tuple[bytes, bytes]]
NOSNIFF_HEADERS = {"x-content-type-options": "nosniff"}
"""Sent with every response: browsers must not guess another content type."""


class HttpError(Exception):
    """A request that is refused, with the reason."""

    def __init__(self, status: int, message: str, retry_after: int = 0, close: bool = False):
        super().__init__(message)
        self.status = status
        """HTTP status code."""
        self.message = message
        self.retry_after = retry_after
        """Seconds of the Retry-After header; 0 leaves it out."""
        self.close = close
        """Whether the connection is closed after the response."""

    @property
    def body(self) -> bytes:
        """The message as a JSON object."""
        return encode_json({"error": self.message})

    @property
    def headers(self) -> Headers:
        """Headers of the response, without Content-Type and Content-Length."""
        headers: Headers = [(name.encode(), value.encode()) for name, value in NOSNIFF_HEADERS.items()]
        if self.retry_after:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="vitrail"'))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


def encode_json(value: object) -> bytes:
    """Encode a value as one line of JSON.

    Raises:
        ValueError: NaN or infinity, which JSON cannot express.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
