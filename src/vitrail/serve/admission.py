"""Who may come in: bounds on pictures, requests of one address, errands and bytes, each told when to return."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .http_errors import HttpError
from .limits import ServerLimits

MAX_RETRY_SECONDS = 60
"""Seconds that anybody is sent away for at most."""


class AdmissionControl:
    """Counts of what is inside at the moment. Lives in the event loop, so nothing needs a lock.

    Args:
        seconds: how long the model takes for a picture at the moment.
    """

    def __init__(self, limits: ServerLimits, seconds_per_image: Callable[[], float]):
        self._limits, self._seconds_per_image = limits, seconds_per_image
        self._clients: Counter[str] = Counter()
        self.num_images = 0
        """Pictures that are decoded, wait or are answered."""
        self.num_tasks = 0
        """Explanations and embeddings that wait or are computed."""
        self.body_bytes = 0
        """Of requests that are read or answered."""
        self.num_requests = 0
        """Requests for answers, from their head to the end of their response."""

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Whoever is counted here is waited for when the server stops."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    @contextmanager
    def admit_client(self, address: str) -> Iterator[None]:
        """One request of an address.

        Raises:
            RefusedError: 429, so many of them are being answered.
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
        """Raise RefusedError (429) if no further request of an address would be answered."""
        if self._clients[address] >= self._limits.max_requests_per_client:
            raise HttpError(
                429, f"{self._limits.max_requests_per_client} requests of this address are being answered. Wait for "
                     f"one of them.",
                retry_after=self._retry_after(),
            )  # fmt: skip

    @contextmanager
    def admit_images(self, count: int) -> Iterator[None]:
        """Some pictures, from decoding to their answers.

        Raises:
            RefusedError: 503, the queue is full.
        """
        if self.num_images + count > self._limits.max_waiting_images:
            raise HttpError(
                503, f"{self.num_images} pictures wait for the model, and it takes "
                     f"{self._limits.max_waiting_images} at most. Try "
                "again.", retry_after=self._retry_after(),
            )  # fmt: skip
        self.num_images += count
        try:
            yield
        finally:
            self.num_images -= count

    @contextmanager
    def admit_task(self) -> Iterator[None]:
        """One explanation or embedding.

        Raises:
            RefusedError: 503, too many wait.
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
        """Make room for bytes of a body.

        Raises:
            RefusedError: 503, the bodies of all requests together are too large.
        """
        if self.body_bytes + count > self._limits.max_total_body_bytes:
            raise HttpError(
                503, f"the requests that are being read hold {self.body_bytes:,} bytes, and together they may hold "
                f"{self._limits.max_total_body_bytes:,}. Try again.", retry_after=self._retry_after(),
            )  # fmt: skip
        self.body_bytes += count

    def release_bytes(self, count: int) -> None:
        """Bytes that are no longer held."""
        self.body_bytes -= count

    def _retry_after(self) -> int:
        """When the pictures that wait now will be answered, in whole seconds from 1 to a minute."""
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(self.num_images * self._seconds_per_image())))
