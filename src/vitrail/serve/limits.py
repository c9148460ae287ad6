"""Limits of a server on load, sizes and times, made from the command line."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of one server; times in seconds, sizes in bytes."""

    max_body_bytes: int = 20 * MIB
    """Body of one request."""
    max_total_body_bytes: int = 64 * MIB
    """Bodies of all requests that are being read or answered."""
    max_images: int = 64
    """Images of one request."""
    max_batch_size: int = 64
    """Images in one batch of the model."""
    max_waiting_images: int = 256
    """Images that are being decoded, queued or computed at any moment."""
    max_requests_per_client: int = 64
    """Concurrent requests of one client address."""
    max_tasks: int = 8
    """Explanations and embeddings in the queue; each runs alone on the model."""
    deadline: float = 30.0
    """Time from the last byte of a request to its response."""
    read_timeout: float = 10.0
    """Time to read the head of a request; and its body, on top of body size / min_bytes_per_second."""
    min_bytes_per_second: int = 64 * 2**10
    """Slowest accepted upload; it extends the read timeout of large bodies."""
    drain_timeout: float = 15.0
    """Time for accepted requests to finish when the server is asked to stop."""
    decode_workers: int = 2
    """Processes that decode images."""
    decode_timeout: float = 10.0
    """Time to decode one image."""
    decode_memory: int = 1024 * MIB
    """Memory that a decoding process may take beyond what it has at its start."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UsageError(f"{name} must be more than 0. Got {value}.")
        if self.max_body_bytes > self.max_total_body_bytes:
            raise UsageError(
                f"One request of {self.max_body_bytes:,} bytes would not fit into the {self.max_total_body_bytes:,} "
                "of all that are answered."
            )
        if self.max_images > self.max_waiting_images:
            raise UsageError(
                f"One request of {self.max_images} pictures would not fit among the {self.max_waiting_images} that "
                "may wait."
            )
