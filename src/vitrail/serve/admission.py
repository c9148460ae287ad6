"""Admission control: limits on images, requests per client, tasks and bytes, refused with Retry-After."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .http_errors import HttpError
from .limits import ServerLimits

MAX_RETRY_SECONDS = 60
"""Largest Retry-After, in seconds."""


class AdmissionControl:
    """Counters of what is in flight. Used in the event loop only, so it needs no lock.

    Args:
        seconds_per_image: current time of the model for one image.
    """

    def __init__(self, limits: ServerLimits, seconds_per_image: Callable[[], float]):
        self._limits, self._seconds_per_image = limits, seconds_per_image
        self._clients: Counter[str] = Counter()
        self.num_images = 0
        """Images that are being decoded, queued or computed."""
        self.num_tasks = 0
        """Explanations and embeddings that are queued or computed."""
        self.body_bytes = 0
        """Bytes of the bodies that are held in memory."""
        self.num_requests = 0
        """Requests to the model in flight, from their head to the end of their response."""

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count a request in flight; a graceful shutdown waits for it."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @contextmanager
    def admit_client(self, address: str) -> Iterator[None]:
        """Count a request of a client address.

        Raises:
            HttpError: 429, the address has too many requests in flight.
        """
        self.check_client(address)
        self._clients[address] += 1
        try:
            yield
        finally:
            self._clients[address] -= 1
            if not self._clients[address]:
                del self._clients[address]

    def check_client(self, address: str) -> None:
        """Raise HttpError (429) if an address has too many requests in flight."""
        if self._clients[address] >= self._limits.max_requests_per_client:
            raise HttpError(
                429,
                f"{self._limits.max_requests_per_client} requests of this address are being answered. "
                "Wait for one of them.",
                retry_after=self._retry_after(),
            )

    @contextmanager
    def admit_images(self, count: int) -> Iterator[None]:
        """Reserve places for images, from decoding to the response.

        Raises:
            HttpError: 503, the queue is full.
        """
        if self.num_images + count > self._limits.max_waiting_images:
            raise HttpError(
                503,
                f"{self.num_images} pictures wait for the model, and it takes {self._limits.max_waiting_images} "
                "at most. Try again.",
                retry_after=self._retry_after(),
            )
        self.num_images += count
        try:
            yield
        finally:
            self.num_images -= count

    @contextmanager
    def admit_task(self) -> Iterator[None]:
        """Reserve a place for one explanation or embedding.

        Raises:
            HttpError: 503, the queue is full.
        """
        if self.num_tasks >= self._limits.max_tasks:
            raise HttpError(
                503,
                f"{self.num_tasks} explanations and embeddings wait for the model. Try again.",
                retry_after=self._retry_after(),
            )
        self.num_tasks += 1
        try:
            yield
        finally:
            self.num_tasks -= 1

    def reserve_bytes(self, count: int) -> None:
        """Reserve memory for bytes of a body.

        Raises:
            HttpError: 503, the bodies of all requests together are too large.
        """
        if self.body_bytes + count > self._limits.max_total_body_bytes:
            raise HttpError(
                503,
                f"the requests that are being read hold {self.body_bytes:,} bytes, and together they may hold "
                f"{self._limits.max_total_body_bytes:,}. Try again.",
                retry_after=self._retry_after(),
            )
        self.body_bytes += count

    def release_bytes(self, count: int) -> None:
        """Release reserved bytes."""
        self.body_bytes -= count

    def _retry_after(self) -> int:
        """Expected time to compute all waiting images, in whole seconds from 1 to MAX_RETRY_SECONDS."""
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(self.num_images * self._seconds_per_image())))
