"""Batches that show one class only teach its frequency and little else: said before the first step."""

from __future__ import annotations

from itertools import islice

import numpy as np
from jaxtyping import Int64, Shaped

from ...data.sampler import iter_step_indices
from ..recipe import Recipe

ASKED = 50
SMALLEST = 8  # in smaller batches it happens by chance
SHARE = 0.1


def warning(
    targets: Shaped[np.ndarray, " n *K"],
    rows: Int64[np.ndarray, " n"],
    recipe: Recipe,
    seed: int,
    blocks: Int64[np.ndarray, " n"] | None,
) -> str | None:
    """A sentence if more than a tenth of the first batches are of one class; targets that are no classes have none."""
    if targets.ndim > 1 or min(recipe.batch // recipe.repeats, len(rows)) < SMALLEST:
        return None
    first = islice(iter_step_indices(rows, recipe.batch, seed, 0, recipe.repeats, blocks), ASKED)
    alike = sum(len(set(targets[share.places].tolist())) == 1 for share in first)
    if alike <= SHARE * ASKED:
        return None
    why = "the shards are sorted by class: write them in a random order" if blocks is not None else "use a larger batch"
    return f"{alike} of the first {ASKED} batches show one class only, so little can be learnt from each; {why}."
