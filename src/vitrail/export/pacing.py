"""How many pictures a second several answerers take, measured in turns, so that a busy machine slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import UInt8

ROUNDS = 5
BATCH = 16
"""Pictures that are asked about at once."""


def rates(
    answerers: Mapping[str, Callable[[np.ndarray], object]],
    pictures: UInt8[np.ndarray, "n H W C"],
    rounds: int = ROUNDS,
    batch: int = BATCH,
) -> dict[str, float]:
    """Pictures per second of each: the median of some rounds in which all take their turn, after one that warms up.

    Args:
        pictures: at least one; repeated to a batch.
    """
    asked = np.resize(pictures, (batch, *pictures.shape[1:]))
    seconds: dict[str, list[float]] = {name: [] for name in answerers}
    for turn in range(rounds + 1):
        for name, answer in answerers.items():
            began = time.perf_counter()
            answer(asked)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: batch / statistics.median(taken) for name, taken in seconds.items()}
