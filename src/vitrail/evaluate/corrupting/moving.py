"""Every pixel taken from another place of the picture, between four pixels by their distance."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float64

from .drawn import Values


def taken_from(
    values: Values,
    rows: Float64[np.ndarray, "H W"],
    columns: Float64[np.ndarray, "H W"],
    beyond: Literal["nearest", "reflect"],
) -> Values:
    """The picture whose pixel (i, j) is the old one at (rows[i, j], columns[i, j]).

    Args:
        beyond: what stands outside: the edge goes on, or its mirror image.
    """
    from scipy.ndimage import map_coordinates

    return np.stack([map_coordinates(channel, [rows, columns], order=1, mode=beyond) for channel in values])


def grid_of(values: Values) -> tuple[Float64[np.ndarray, "H W"], Float64[np.ndarray, "H W"]]:
    """The row and the column of every pixel."""
    places = np.indices(values.shape[1:], dtype=np.float64)
    return places[0], places[1]


def middle_of(values: Values) -> tuple[float, float]:
    """Where the picture has its middle: row and column."""
    return (values.shape[1] - 1) / 2, (values.shape[2] - 1) / 2
