"""`Case`: one file, and what must come of it in training, in the check and in the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file of one of the 64 kinds."""

    number: int
    """Of the kind."""
    name: str
    """Of the file; endings lie in some of them."""
    what: str
    """In words, for the page."""
    make: Callable[[], bytes]
    status: int
    """What an HTTP server must answer to it."""
    says: str = ""
    """Pattern of the sentence that refuses it; empty if it is read."""
    remarks: tuple[str, ...] = ()
    """What is remarked, beyond its ending."""
    golden: Callable[[], np.ndarray] | None = None
    """Its pixels as uint8 RGB [H, W, 3], known without any decoder."""
    within: int = 0
    """Grey levels that the decoded pixels may be away from the golden ones."""
    low: float = 0
    high: float = 255
    heavy: bool = False
    """Slow to make, though quick to refuse."""

    def __str__(self) -> str:
        return f"{self.number}-{self.name or self.what}"
