"""Where it is known what makes the class: does a map lie on it?

A map has one number a patch, so a target of pixels is first told in shares: how much of each patch it covers. Only
positive relevance counts, because that is what a map claims to speak for the class.

Source: Zhang et al. 2018, "Top-down neural attention by excitation backprop", section 4.1, for the pointing game;
Arras, Osman and Samek 2022, "CLEVR-XAI", section 3, for relevance mass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from ...errors import UsageError
from ...spec import Grid


class Landed(NamedTuple):
    """How well each map lies on its target, and what knowing nothing would give; one number a picture."""

    pointing: Float64[np.ndarray, " B"]
    """1 where the most relevant patch touches the target, else 0; of several equals the share that do."""
    mass: Float64[np.ndarray, " B"]
    """Share of the positive relevance that lies on the target, spread evenly over each patch; 0 where there is none."""
    overlap: Float64[np.ndarray, " B"]
    """Intersection over union of the patches above the map's mean and the patches that the target covers by half."""
    chance_pointing: Float64[np.ndarray, " B"]
    """Share of the patches that touch the target: the pointing of a random map."""
    chance_mass: Float64[np.ndarray, " B"]
    """Share of the picture that the target covers: the mass of a flat map."""


def land(maps: Float64[np.ndarray, "B rows columns"], targets: Bool[np.ndarray, "n H W"]) -> Landed:
    """How well maps lie on targets.

    Args:
        targets: pixels of the evidence in the whole picture; their number need not be the images' own, so that masks of
            64 x 64 pixels serve a model that reads the same pictures larger.

    Raises:
        UsageError: not one target for each map, or a target without a pixel.
    """
    if len(maps) != len(targets):
        raise UsageError(f"Every map needs its target. Got {len(maps)} maps and {len(targets)} targets.")
    if (empty := ~targets.any((1, 2))).any():
        raise UsageError(f"A target must hold a pixel. That of picture {int(empty.argmax())} (from 0) is empty.")
    claims, shares = _claims(maps), covered(targets, Grid(*maps.shape[1:]))  # [B, rows, columns]
    touched = shares > 1e-9  # less is rounding
    return Landed(
        pointing=_mean_over(touched, maps == maps.max((1, 2), keepdims=True)),
        mass=(claims * shares).sum((1, 2)),
        overlap=_overlap(maps > maps.mean((1, 2), keepdims=True), shares >= 0.5),
        chance_pointing=touched.mean((1, 2)),
        chance_mass=shares.mean((1, 2)),
    )


class Sensitivity(NamedTuple):
    """Pictures that show two classes, each with a map of its own; one number a picture."""

    own: Float64[np.ndarray, " B"]
    """Share of the positive relevance on either glyph that lies on the map's own: the mean of both maps."""
    own_of_all: Float64[np.ndarray, " B"]
    """The same as a share of all positive relevance, wherever it lies."""
    correlation: Float64[np.ndarray, " B"]
    """Pearson's correlation of the two maps; 1 for a map that is blind to the class."""


def class_sensitivity(
    maps: tuple[Float64[np.ndarray, "B rows columns"], Float64[np.ndarray, "B rows columns"]],
    targets: tuple[Bool[np.ndarray, "B H W"], Bool[np.ndarray, "B H W"]],
) -> Sensitivity:
    """Does the map of either class lie on what makes that class?

    A picture whose map has nothing on either glyph has an `own` of 0.

    Args:
        maps: of the first class of each picture, and of the second.
        targets: what makes the first class, and what makes the second.

    Raises:
        UsageError: as `land`.
    """
    on = np.stack([[land(one, target).mass for target in targets] for one in maps])  # [map, target, B]
    either = on.sum(1)  # [map, B]
    mine = np.stack([on[0, 0], on[1, 1]])
    own = np.divide(mine, either, out=np.zeros_like(mine), where=either > 0)
    flat = [one.reshape(len(one), -1) for one in maps]
    return Sensitivity(own.mean(0), mine.mean(0), correlation(*flat))


def covered(targets: Bool[np.ndarray, "B H W"], grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """Share of each patch that the target covers, however many pixels a patch has, whole or not."""
    down, across = (_parts(side, pixels) for side, pixels in zip(grid, targets.shape[1:], strict=True))
    return np.asarray(down @ targets.astype(np.float64) @ across.T)


def correlation(first: Float64[np.ndarray, "B N"], second: Float64[np.ndarray, "B N"]) -> Float64[np.ndarray, " B"]:
    """Pearson's, row by row; 0 where either row is flat, which is like nothing."""
    one, other = (row - row.mean(1, keepdims=True) for row in (first, second))
    product, lengths = (one * other).sum(1), np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.divide(product, lengths, out=np.zeros_like(product), where=lengths > 0)


def _parts(cells: int, pixels: int) -> Float64[np.ndarray, "cells pixels"]:
    """How much of each cell every pixel makes up, along one axis; rows sum to 1."""
    step = pixels / cells
    start = np.arange(cells)[:, None] * step
    pixel = np.arange(pixels)
    return np.clip(np.minimum(start + step, pixel + 1) - np.maximum(start, pixel), 0, 1) / step


def _claims(maps: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B rows columns"]:
    """Positive relevance as shares of its sum; zeros where there is none."""
    positive = np.maximum(maps, 0)
    sums = positive.sum((1, 2), keepdims=True)
    return np.divide(positive, sums, out=np.zeros_like(positive), where=sums > 0)


def _mean_over(values: Bool[np.ndarray, "B rows columns"], where: Bool[np.ndarray, "B rows columns"]) -> np.ndarray:
    return (values & where).sum((1, 2)) / where.sum((1, 2))


def _overlap(first: Bool[np.ndarray, "B rows columns"], second: Bool[np.ndarray, "B rows columns"]) -> np.ndarray:
    """Intersection over union; 0 where neither holds anything."""
    both, either = (first & second).sum((1, 2)), (first | second).sum((1, 2))
    return both / np.maximum(either, 1)
