"""How much a server takes on, and how long it waits for anybody: one frozen value, made from the command line."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What one server does at once and for one request; times in seconds, sizes in bytes."""

    body: int = 20 * MIB
    """Bytes of one request."""
    bodies: int = 64 * MIB
    """Bytes of all requests that are being read or answered."""
    pictures: int = 64
    """Pictures of one request."""
    batch: int = 64
    """Pictures that the model answers at once."""
    waiting: int = 256
    """Pictures that are decoded, wait or are answered at any moment."""
    per_client: int = 64
    """Requests of one address that are answered at any moment."""
    tasks: int = 8
    """Explanations and embeddings that wait at any moment; each takes the model for itself."""
    deadline: float = 30.0
    """From the last byte of a request to its answer."""
    slow: float = 10.0
    """For the head of a request, and for its body beyond what its size explains."""
    pace: int = 64 * 2**10
    """Bytes a second that a body must come at, so that a large one from a slow line is not cut off."""
    drain: float = 15.0
    """For requests that are being answered when the server is asked to stop."""
    workers: int = 2
    """Processes that decode pictures."""
    decode: float = 10.0
    """For decoding one picture."""
    memory: int = 1024 * MIB
    """That a decoding process may take on top of what it starts with."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UsageError(f"{name} must be more than 0. Got {value}.")
        if self.body > self.bodies:
            raise UsageError(
                f"One request of {self.body:,} bytes would not fit into the {self.bodies:,} of all that are answered."
            )
        if self.pictures > self.waiting:
            raise UsageError(
                f"One request of {self.pictures} pictures would not fit among the {self.waiting} that may wait."
            )
