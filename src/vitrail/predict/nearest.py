"""The most similar of a set of pictures, by the cosine of the angle between their features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from ..errors import UsageError

CELLS = 2**24
"""Similarities that are held at once, 64 MiB of them."""


class Neighbours(NamedTuple):
    """For each asked vector the rows of the nearest, nearest first, and how similar they are."""

    rows: Int64[np.ndarray, "m k"]
    similarities: Float32[np.ndarray, "m k"]
    """Cosines, from -1 to 1; 0 beside a vector of zeros, which points nowhere."""


def nearest(
    asked: Float32[np.ndarray, "m D"],
    among: Float32[np.ndarray, "n E"],
    count: int,
    itself: bool = True,
) -> Neighbours:
    """The `count` nearest of a set, every pair compared; as many as there are, if there are fewer.

    Equally similar ones among them come in the order of the set.

    Args:
        itself: False where both are the same set, and no vector shall find itself.

    Raises:
        UsageError: a count below 1, nothing to find, or features of different models.
    """
    others = len(among) - (not itself)
    if count < 1:
        raise UsageError(f"At least one nearest picture must be asked for. Got {count}.")
    if others < 1:
        raise UsageError(f"There is nothing to find among {len(among)} pictures{'' if itself else ' but each itself'}.")
    if asked.shape[1] != among.shape[1]:
        raise UsageError(
            f"Only features of one model can be compared. Got {asked.shape[1]} numbers a picture and {among.shape[1]}."
        )
    known = F.normalize(torch.from_numpy(among), dim=1)
    rows, similarities = [], []
    for start in range(0, len(asked), lot := max(1, CELLS // len(among))):
        part = F.normalize(torch.from_numpy(asked[start : start + lot]), dim=1) @ known.T  # [c, n]
        if not itself:
            part[torch.arange(len(part)), torch.arange(start, start + len(part))] = -torch.inf
        values, places = _ordered(part, min(count, others))
        rows.append(places)
        similarities.append(values.clamp(-1, 1))
    if not rows:
        return Neighbours(np.zeros((0, min(count, others)), np.int64), np.zeros((0, min(count, others)), np.float32))
    return Neighbours(torch.cat(rows).numpy(), torch.cat(similarities).numpy())


def _ordered(similar: Float[Tensor, "c n"], count: int) -> tuple[Float[Tensor, "c k"], Int[Tensor, "c k"]]:
    """The largest of each row, largest first, equal ones by their place."""
    values, places = similar.topk(count, dim=1)
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
