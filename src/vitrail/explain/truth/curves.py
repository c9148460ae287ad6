"""Deletion and insertion: how an answer falls when patches go and rises when they come, in the order of a map.

Deletion takes the most relevant patches first: a true map's curve falls at once, so its area is small. Insertion shows
the most relevant first: a true map's curve rises at once, so its area is large. Insertion is the same as deletion from
the other end, so the gap between the two areas is the area between "most relevant first" and "least relevant first".

Source: Petsiuk, Das and Saenko 2018 (RISE), section 4.2; Samek et al. 2017 for the two orders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from ...errors import UsageError
from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ..reading import grid_of
from .maps import checked, most_relevant_first
from .removal import Way, answer, stand_in
from .scores import Score, asked, probability

POINTS = 11
"""Places at which a curve is measured."""
BATCH = 64
"""Pictures that are asked about at once."""


class Curves(NamedTuple):
    """Scores of every picture while only some patches are there."""

    shown: Int64[np.ndarray, " points"]
    """How many patches are there, from 1 to all of them. The last is never taken: a model that averages over its
    patches has no answer without any."""
    deletion: Float64[np.ndarray, "B points"]
    """The score with so many of the least relevant patches there."""
    insertion: Float64[np.ndarray, "B points"]
    """The score with so many of the most relevant patches there."""

    @property
    def deletion_area(self) -> Float64[np.ndarray, " B"]:
        """Mean height of the deletion curve: small if the map is true."""
        return area(self.deletion, self.shown)

    @property
    def insertion_area(self) -> Float64[np.ndarray, " B"]:
        """Mean height of the insertion curve: large if the map is true."""
        return area(self.insertion, self.shown)

    @property
    def gap(self) -> Float64[np.ndarray, " B"]:
        """Insertion less deletion: large if the map is true, around 0 if it is random, negative if upside down."""
        return self.insertion_area - self.deletion_area


def curves(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    maps: Tensor | np.ndarray,
    way: Way,
    score: Score = probability,
    points: int = POINTS,
    seed: int = 0,
) -> Curves:
    """Both curves of every picture.

    Args:
        classes: which output of each picture is watched.
        maps: [B, rows, columns], one number a patch.
        points: places at which the curves are measured, evenly from 1 patch to all; each costs a forward pass for each
            curve.
        seed: of the order of patches that a map finds equally relevant.

    Raises:
        UsageError: maps that do not fit or are not finite, a single patch, fewer than two points, or a way that the
            model does not have.
    """
    grid = grid_of(model, images)
    if grid.patches < 2 or points < 2:
        raise UsageError(f"A curve needs at least 2 patches and 2 points. Got {grid.patches} and {points}.")
    first = most_relevant_first(checked(maps, len(images), grid), seed)
    shown = np.unique(np.rint(np.linspace(1, grid.patches, points)).astype(np.int64))
    falling, rising = (
        np.concatenate([_heights(model, *part, shown, way, score) for part in _parts(model, images, classes, order)])
        for order in (first[:, ::-1], first)
    )
    return Curves(shown, falling, rising)


def area(heights: Float64[np.ndarray, "B points"], shown: Int64[np.ndarray, " points"]) -> Float64[np.ndarray, " B"]:
    """Mean height of curves by the trapezium rule, in the unit of the score: a flat curve's area is its height."""
    widths = np.diff(shown) / (shown[-1] - shown[0])
    return ((heights[:, 1:] + heights[:, :-1]) / 2) @ widths


def _parts(
    model: ViT, images: Tensor, classes: Tensor, order: Int64[np.ndarray, "B N"]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Pictures, classes and orders in batches, on the device of the images; sides padded to whole patches."""
    whole = pad_to_patches(images, model.config.patch) if model.config.pad else images
    ranks = torch.from_numpy(order.copy()).to(images.device)
    return [
        (whole[start : start + BATCH], classes[start : start + BATCH], ranks[start : start + BATCH])
        for start in range(0, len(images), BATCH)
    ]


def _heights(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    order: Int[Tensor, "B N"],
    shown: Int64[np.ndarray, " points"],
    way: Way,
    score: Score,
) -> Float64[np.ndarray, "B points"]:
    """Scores with the first 1 .. N patches of an order there."""
    instead = stand_in(images, model.config.patch, way)
    with asked(model):
        columns = [score(answer(model, images, order[:, :count], way, instead), classes) for count in shown.tolist()]
    return torch.stack(columns, dim=1).double().cpu().numpy()
