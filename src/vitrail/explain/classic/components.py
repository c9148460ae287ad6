"""Principal components whose signs do not depend on the machine, and the border between two kinds of patches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64


class Components(NamedTuple):
    """A basis of rows of numbers and the rows in it."""

    mean: Float64[np.ndarray, " D"]
    axes: Float64[np.ndarray, "count D"]
    """Unit length, by falling variance."""
    scores: Float64[np.ndarray, "n count"]
    """Of each row less the mean, along each axis; of each column the number furthest from 0 is positive."""
    shares: Float64[np.ndarray, " count"]
    """Of all variance."""

    @property
    def deviations(self) -> Float64[np.ndarray, " count"]:
        """Standard deviation of the scores; 1 where there is none, so that it can be divided by."""
        deviations = self.scores.std(0, ddof=1)
        return np.where(deviations > 0, deviations, 1.0)


def principal(rows: Float64[np.ndarray, "n D"], count: int) -> Components:
    """Principal components by the eigenvectors of whichever is smaller, the covariance or the products of rows.

    The sign of a component is arbitrary, and libraries differ. Here the scores decide: if every feature changes its
    sign, the axes do and the scores stay.

    Args:
        count: of components, at most min(n, D).

    Source: Pearson 1901; signs as in Bro, Acar and Kolda 2008, simplified.
    """
    mean = rows.mean(0)
    centred = rows - mean
    n, width = rows.shape
    values, vectors = np.linalg.eigh(centred.T @ centred if width <= n else centred @ centred.T)
    values, vectors = np.maximum(values[::-1][:count], 0), vectors[:, ::-1][:, :count]
    if width <= n:
        axes = vectors.T
    else:
        lengths = np.sqrt(values)
        axes = (centred.T @ vectors / np.where(lengths > 0, lengths, 1)).T
    scores = centred @ axes.T
    furthest = np.take_along_axis(scores, np.abs(scores).argmax(0)[None], axis=0)[0]
    signs = np.where(furthest < 0, -1.0, 1.0)
    total = float(np.square(centred).sum())
    return Components(mean, axes * signs[:, None], scores * signs, values / total if total > 0 else values)


def towards_the_middle(scores: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B rows columns"]:
    """The same numbers with the sign that leaves fewer patches at the pictures' borders above 0."""
    rim = np.ones(scores.shape[1:], bool)
    rim[1:-1, 1:-1] = False
    at_rim = scores[:, rim]
    return -scores if (at_rim > 0).sum() > (at_rim < 0).sum() else scores


def otsu(values: Float64[np.ndarray, "*shape"]) -> float:
    """The threshold that parts numbers into two kinds as unlike each other as can be; halfway between the two.

    Source: Otsu 1979, "A threshold selection method from gray-level histograms", on the numbers themselves.
    """
    ordered = np.sort(values, axis=None)
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    low, high = sums / below, (ordered.sum() - sums) / (len(ordered) - below)
    at = int((below * (len(ordered) - below) * (high - low) ** 2).argmax())
    return float((ordered[at] + ordered[at + 1]) / 2)


def without_specks(mask: Bool[np.ndarray, "rows columns"]) -> Bool[np.ndarray, "rows columns"]:
    """Every patch as most of the 3 x 3 around it are; the border is repeated."""
    from scipy.ndimage import median_filter

    return np.asarray(median_filter(mask.astype(np.uint8), size=3, mode="nearest"), bool)
