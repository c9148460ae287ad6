"""How much a server takes on, and how long it waits for anybody: one frozen value, made from the command line."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What one server does at once and for one request; times in seconds, sizes in bytes."""

    max_body_bytes: int = 20 * MIB
    """Bytes of one request."""
    max_total_body_bytes: int = 64 * MIB
    """Bytes of all requests that are being read or answered."""
    max_images: int = 64
    """Pictures of one request."""
    max_batch_size: int = 64
    """Pictures that the model answers at once."""
    max_waiting_images: int = 256
    """Pictures that are decoded, wait or are answered at any moment."""
    max_requests_per_client: int = 64
    """Requests of one address that are answered at any moment."""
    max_tasks: int = 8
    """Explanations and embeddings that wait at any moment; each takes the model for itself."""
    deadline: float = 30.0
    """From the last byte of a request to its answer."""
    read_timeout: float = 10.0
    """For the head of a request, and for its body beyond what its size explains."""
    min_bytes_per_second: int = 64 * 2**10
    """Bytes a second that a body must come at, so that a large one from a slow line is not cut off."""
    drain_timeout: float = 15.0
    """For requests that are being answered when the server is asked to stop."""
    decode_workers: int = 2
    """Processes that decode pictures."""
    decode_timeout: float = 10.0
    """For decoding one picture."""
    decode_memory: int = 1024 * MIB
    """That a decoding process may take on top of what it starts with."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UsageError(f"{name} must be more than 0. Got {value}.")
        if self.max_body_bytes > self.max_total_body_bytes:
            raise UsageError(
                f"One request of {self.max_body_bytes:,} bytes would not fit into the {self.max_total_body_bytes:,} "
                f"of all that are answered."
            )
        if self.max_images > self.max_waiting_images:
            raise UsageError(
                f"One request of {self.max_images} pictures would not fit among the {self.max_waiting_images} that "
                f"may wait."
            )
