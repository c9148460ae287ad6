"""How unlike the training pictures a picture is, by what the model makes of it: a score, and a cut that few pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from ..errors import DamagedFileError
from .conformal import fewest, reached

NEIGHBOURS = 50
MOST = 2000
"""Training pictures that are kept as neighbours, evenly taken."""
LEAST_SHARE = 20
"""Of n training pictures at most n / 20 count as neighbours."""
LEAST_SCATTER = 1e-6
MISS = 0.01
"""Share of validation pictures beyond the cut."""


@dataclass(frozen=True)
class Familiar:
    """What training pictures look like to the model: features of length 1, their classes' means and scatter."""

    means: Float32[np.ndarray, "K D"]
    """One per class, or a single one where pictures have no class."""
    whitening: Float32[np.ndarray, "D D"]
    """Features times this have unit scatter around their class's mean."""
    bank: Float32[np.ndarray, "n D"]
    """Training pictures, for the distance to neighbours."""

    def tensors(self) -> dict[str, Tensor]:
        """As a bundle keeps them."""
        return {
            "means": torch.from_numpy(self.means),
            "whitening": torch.from_numpy(self.whitening),
            "bank": torch.from_numpy(self.bank).half(),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], width: int, where: str) -> Familiar | None:
        """What a bundle has kept for a model of this width; None if it has kept nothing.

        Raises:
            DamagedFileError: its arrays are not those three, or do not fit together.
        """
        if not tensors:
            return None
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        fits = set(shapes) == {"means", "whitening", "bank"} and all(
            len(shape) == 2 and shape[1] == width and shape[0] for shape in shapes.values()
        )
        if not fits or shapes["whitening"] != (width, width):
            raise DamagedFileError(
                f"{where} must hold means [K, {width}], whitening [{width}, {width}] and bank [n, {width}]. "
                f"Got {shapes}. Use another copy."
            )
        return cls(*(tensors[name].float().numpy() for name in ("means", "whitening", "bank")))

    def distances(self, features: Float[np.ndarray, "m D"]) -> Float64[np.ndarray, " m"]:
        """The Mahalanobis distance to the nearest mean, squared.

        Source: Lee et al. 2018, "A simple unified framework for detecting out-of-distribution samples"; on features of
        length 1 as in Mueller and Hein 2025, "Mahalanobis++".
        """
        white = _unit(features) @ self.whitening.astype(np.float64)  # [m, D]
        centres = self.means.astype(np.float64) @ self.whitening.astype(np.float64)  # [K, D]
        squares = np.square(white).sum(1)[:, None] + np.square(centres).sum(1) - 2 * white @ centres.T
        return np.asarray(np.maximum(squares, 0).min(1))

    def remoteness(self, features: Float[np.ndarray, "m D"]) -> Float64[np.ndarray, " m"]:
        """1 less the cosine to the k-th most similar training picture, k being 50 or fewer where those are few.

        Source: Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors".
        """
        k = max(1, min(NEIGHBOURS, len(self.bank) // LEAST_SHARE))
        unit, bank = _unit(features).astype(np.float32), self.bank.T
        parts = [
            np.partition(part @ bank, len(self.bank) - k, axis=1)[:, len(self.bank) - k]
            for part in np.array_split(unit, max(1, len(unit) // 1000))
        ]
        return 1 - np.concatenate(parts).astype(np.float64)


def familiar(features: Float[np.ndarray, "n D"], classes: Int64[np.ndarray, " n"] | None) -> Familiar | None:
    """From features of training pictures, which nobody has augmented; None where they do not scatter at all.

    Args:
        classes: of each picture, where it has one class.
    """
    from sklearn.covariance import ledoit_wolf

    if not len(features):
        return None
    unit = _unit(features)
    numbers = np.zeros(len(unit), np.int64) if classes is None else np.unique(classes, return_inverse=True)[1]
    means = np.stack([unit[numbers == k].mean(0) for k in range(int(numbers.max()) + 1)])
    scatter = unit - means[numbers]
    if float(np.abs(scatter).max()) < LEAST_SCATTER:  # one picture, or one for each class
        return None
    covariance, _ = ledoit_wolf(scatter, assume_centered=True)
    values, turn = np.linalg.eigh(covariance)
    whitening = turn / np.sqrt(np.maximum(values, values.max() * 1e-10))
    kept = np.unique(np.linspace(0, len(unit) - 1, min(MOST, len(unit))).round().astype(np.int64))
    bank = unit[kept].astype(np.float16).astype(np.float32)  # as it will be read again
    return Familiar(means.astype(np.float32), whitening.astype(np.float32), bank)


def cut_of(scores: Float64[np.ndarray, " n"], miss: float = MISS) -> float | None:
    """The score that a further picture of the same kind passes with a chance of at most `miss`.

    Half-way to the next larger score, or a little above the largest, so that rounding moves no picture over it. None
    with fewer than 99 pictures (for 0.01), of which even the largest score promises less.
    """
    if len(scores) < fewest(miss):
        return None
    cut = reached(scores, miss)
    larger = scores[scores > cut]
    return float((cut + larger.min()) / 2) if larger.size else cut + abs(cut) / 1000


def _unit(features: np.ndarray) -> np.ndarray:
    wide = features.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))
