"""Small changes of place that most subjects survive: turned, stretched and moved a little, in one resampling."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, UInt8
from torch import Tensor

from .geometry import sampled

WANDERING_DRAWS = 5


def wander(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B 5"], turn: float, stretch: float, move: float
) -> UInt8[Tensor, "B C H W"]:
    """Every picture turned, made larger or smaller, and moved, each to either side; beyond its edge the edge goes on.

    Keys lie in [0, 1) and choose the angle, the height, the width, the way down and the way right; 0.5 changes nothing.

    Args:
        turn: most degrees.
        stretch: a side becomes at most 1 + stretch times as long, at least 1 / (1 + stretch) times; height and width
            each by their own key.
        move: most, as a fraction of the side; pictures move between pixels too.

    Source: the affine distortions of Simard, Steinkraus and Platt 2003, section 2.
    """
    H, W = images.shape[-2:]
    sides = 2 * keys - 1  # [B, 5] in -1..1
    angles = np.radians(turn * sides[:, 0])
    tall, wide = (1 + stretch) ** sides[:, 1], (1 + stretch) ** sides[:, 2]
    down, right = move * H * sides[:, 3], move * W * sides[:, 4]
    cosines, sines = np.cos(angles), np.sin(angles)
    places = [cosines / wide, -sines / tall, -right, sines / wide, cosines / tall, -down]
    return sampled(images, np.stack(places, axis=1), border="border")
