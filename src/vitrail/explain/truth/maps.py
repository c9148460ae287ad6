"""Maps of relevance as plain arrays, and what a method is: one number per patch, larger where it mattered more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from ...errors import UsageError
from ...model.vit import ViT
from ...randomness import uniform
from ...spec import Grid
from ..reading import grid_of

Method = Callable[[ViT, Tensor, Tensor], Tensor | np.ndarray]
"""(model, images [B, C, H, W], classes [B]) to maps [B, rows, columns] over the model's patches."""


def maps_of(
    method: Method, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float64[np.ndarray, "B rows columns"]:
    """What a method says of these images, checked.

    Raises:
        UsageError: the maps have another shape than the model's patches, or numbers that are not finite.
    """
    return checked(method(model, images, classes), len(images), grid_of(model, images))


def checked(maps: Tensor | np.ndarray, count: int, grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """Maps as float64 arrays, if there is one for each picture, one number a patch, all of them finite.

    Raises:
        UsageError: otherwise; the message names the shapes, or the first picture and patch that is not finite.
    """
    found = np.asarray(maps.detach().cpu() if isinstance(maps, Tensor) else maps, np.float64)
    if found.shape != (count, *grid):
        raise UsageError(
            f"Maps of {count} pictures must be [{count}, {grid.rows}, {grid.columns}], one number a patch. "
            f"Got {list(found.shape)}."
        )
    if not np.isfinite(found).all():
        picture, row, column = np.argwhere(~np.isfinite(found))[0]
        raise UsageError(
            f"A map must hold finite numbers. That of picture {picture} has {found[picture, row, column]} at row "
            f"{row}, column {column} (all counted from 0)."
        )
    return found


def most_relevant_first(maps: Float64[np.ndarray, "B rows columns"], seed: int = 0) -> Int64[np.ndarray, "B N"]:
    """Patch numbers, counted in reading order, from the most to the least relevant.

    Equal numbers stand in an order drawn by the seed and the picture's row: in reading order a map that is zero almost
    everywhere would owe its rank to where the picture's corner is.
    """
    flat = maps.reshape(len(maps), -1)
    drawn = uniform(seed, "equal relevance", 0, np.arange(len(flat)), flat.shape[1]).argsort(axis=1, kind="stable")
    order = np.take_along_axis(-flat, drawn, axis=1).argsort(axis=1, kind="stable")
    return np.take_along_axis(drawn, order, axis=1)
