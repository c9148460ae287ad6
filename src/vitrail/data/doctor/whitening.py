"""What makes a picture different from the others of its set: the rest when what they share has lost its weight.

All solar cells have bars, all chest films ribs; that two of them correlate says nothing. After whitening, each
independent way in which pictures of the set differ weighs the same, and two different pictures correlate hardly at all
while two copies still do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray

MOST = 4000
"""Pictures from which the differences of a set are learnt."""


class Whitening(NamedTuple):
    """Mean of a set, and the matrix that whitens it."""

    mean: Float32[np.ndarray, " D"]
    matrix: Float32[np.ndarray, "D D"]

    def __call__(self, rows: Float32[np.ndarray, "n D"]) -> Float32[np.ndarray, "n D"]:
        """Whitened rows, each of length 1 (or 0)."""
        white = (rows - self.mean) @ self.matrix
        length = np.sqrt((white**2).sum(1, keepdims=True))
        return np.asarray(white / np.maximum(length, 1e-6), dtype=np.float32)


def whitening(
    rows: Float32[np.ndarray, "n D"], expected: Float[np.ndarray, "D D"], known_from: float, floor: float
) -> Whitening:
    """Learn what the rows of a set share.

    Args:
        expected: covariance of pictures in general, but for a factor; what is believed of a set of few pictures.
        known_from: number of rows by which the set's own covariance counts as much as the expected one.
        floor: share of the mean variance below which a difference is taken for noise and not magnified.
    """
    few = rows[:: -(-len(rows) // MOST)]
    share = len(few) / (len(few) + known_from)
    mean = share * few.mean(0)
    centred = few - mean
    own = centred.T @ centred / len(few)
    level = max(float(np.trace(own)), 1e-12)
    mixed: NDArray[np.float64] = share * own + (1 - share) * expected * (level / float(np.trace(expected)))
    variances, directions = np.linalg.eigh(mixed)
    scales = 1 / np.sqrt(np.maximum(variances, 0) + floor * level / len(variances))
    return Whitening(mean.astype(np.float32), ((directions * scales) @ directions.T).astype(np.float32))


def of_photographs(down: NDArray[np.int64], across: NDArray[np.int64]) -> NDArray[np.float64]:
    """How photographs share their energy among cosine waves: falling with the square of the frequency."""
    return 1 / np.maximum(down**2 + across**2, 1)
