"""The scale that numbers are learnt on: training targets with mean 0 and deviation 1, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import DamagedFileError

KEY = "scaling"
"""What a bundle calls it among its notes."""


@dataclass(frozen=True)
class Scaling:
    """Mean and deviation of each column of the training targets, in the user's units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """1 for a column that never changes, so that nothing is divided by 0."""

    def standardised(self, targets: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Targets as the loss wants them, float32; NaN stays NaN."""
        return ((targets.astype(np.float64) - self.mean) / self.deviation).astype(np.float32)

    def values(self, outputs: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """A model's outputs in the user's units, float32."""
        return (outputs.astype(np.float64) * self.deviation + self.mean).astype(np.float32)

    def to_json(self) -> dict[str, list[float]]:
        """As a bundle keeps it."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}


def scaling_of(targets: Float[np.ndarray, "n K"]) -> Scaling:
    """The scale of training targets; unknown ones (NaN) count for nothing, and a column of them gets mean 0."""
    means, deviations = [], []
    for column in targets.astype(np.float64).T:
        known = np.sort(column[~np.isnan(column)])  # so that the order of the pictures changes no bit of the sums
        changes = len(known) > 0 and known.min() < known.max()
        means.append(float(known.mean()) if len(known) else 0.0)
        deviations.append(float(known.std()) if changes else 1.0)
    return Scaling(tuple(means), tuple(deviations))


def scaling_in(info: Mapping[str, object], columns: int, where: str) -> Scaling | None:
    """The scale that a bundle has noted; None if it has noted none, as one of a model that answers in units by itself.

    Raises:
        DamagedFileError: it is not one of this many columns.
    """
    if KEY not in info:
        return None
    noted = info[KEY]
    parts = [noted.get(name) for name in ("mean", "deviation")] if isinstance(noted, Mapping) else []
    good = [
        part for part in parts
        if isinstance(part, list) and len(part) == columns
        and all(isinstance(number, int | float) and np.isfinite(number) for number in part)
    ]  # fmt: skip
    if len(good) != 2 or not all(number > 0 for number in good[1]):
        raise DamagedFileError(
            f"{where} must note the mean and deviation of {columns} training targets, without which its numbers have "
            f"no unit. Got {noted!r}. Use another copy."
        )
    return Scaling(tuple(map(float, good[0])), tuple(map(float, good[1])))
