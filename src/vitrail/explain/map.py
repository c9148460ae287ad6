"""A map: for every patch of some pictures one number, and what a person must know to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

from ..errors import UsageError

Scale = Literal["positive", "signed", "cosine", "range"]
FLAT = 1e-5
"""A map whose values differ by less than this share of the largest one says nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Map:
    """What a method found in a batch of pictures."""

    values: Float32[np.ndarray, "B rows columns"]
    """One number per patch."""
    method: str
    """The method's name in `methods.METHODS`."""
    layer: str
    """Which part of the model was looked at, for people: such as "block 11"."""
    line: str
    """What the picture shows and what it does not, in one honest sentence."""
    unit: str
    """What its numbers count, in a few words: the name beside a scale of colours."""
    of: tuple[int, ...] | None = None
    """The output that each picture's map explains; None if the method is blind to classes."""
    scale: Scale = "positive"
    """How to read the numbers. positive: from 0; signed: for and against, around 0; cosine: -1 to 1; range: only their
    order and distance mean something."""
    notes: tuple[str, ...] = ()
    """What was measured of each picture on the way, such as a gap; nothing where there is nothing to say."""
    pixels: Float32[np.ndarray, "B H W"] | None = None
    """The same for every pixel, where the method knows it: the values are its sums over patches."""


class EmptyMapError(UsageError):
    """A map that says nothing."""


def refuse_empty(found: Map, why: str) -> Map:
    """The map itself, if every picture's part of it says something.

    Args:
        why: what it means where a map of this method is zero everywhere.

    Raises:
        EmptyMapError: a picture's map holds NaN or infinity, is zero everywhere, or the same everywhere.
    """
    for place, one in enumerate(found.values):
        name = f"The map by {found.method} of picture {place + 1} of {len(found.values)}"
        if not np.isfinite(one).all():
            raise EmptyMapError(
                f"{name} holds {int((~np.isfinite(one)).sum())} values that are not finite. The weights of the model "
                "or the values of the picture are not finite, or too large."
            )
        if not one.any():
            raise EmptyMapError(f"{name} is zero everywhere: {why}. Choose another method, class or layer.")
        if np.ptp(one) <= FLAT * np.abs(one).max():
            raise EmptyMapError(
                f"{name} has the same value {one.flat[0]:.3g} on all {one.size} patches, so it points nowhere. Choose "
                "another method, class or layer."
            )
    return found
