"""What every corruption is given: the values of one picture, how severe it is to be, and random numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from ...randomness import uniform

Values = Float64[np.ndarray, "C H W"]
"""One picture, 0 black and 1 white."""


@dataclass(frozen=True)
class Draws:
    """Random numbers that depend on these four and on what they are for, never on what else was drawn."""

    seed: int
    kind: str
    severity: int
    index: int
    """Of the picture."""

    def uniform(self, purpose: str, *shape: int) -> Float64[np.ndarray, ...]:
        """Numbers in [0, 1)."""
        count, which = math.prod(shape), np.array([self.index], np.int64)
        return uniform(self.seed, f"corruption {self.kind} {purpose}", self.severity, which, count).reshape(shape)

    def normal(self, purpose: str, *shape: int) -> Float64[np.ndarray, ...]:
        """Numbers with mean 0 and deviation 1."""
        from scipy.special import ndtri

        return np.asarray(ndtri(np.maximum(self.uniform(purpose, *shape), 2.0**-54)))

    def between(self, low: float, high: float, purpose: str) -> float:
        """One number."""
        return low + (high - low) * float(self.uniform(purpose, 1)[0])

    def either(self, purpose: str) -> int:
        """-1 or 1, as a toss says."""
        return 1 if float(self.uniform(purpose, 1)[0]) < 0.5 else -1


Corruption = Callable[[Values, int, Draws], Values]
"""The values of one picture and a severity from 1 to 5 -> other values, which may lie outside of 0..1."""
