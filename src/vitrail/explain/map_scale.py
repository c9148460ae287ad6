"""How the values of a map are read: what 0 means, and the value that is drawn at full strength."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

MapScale = Literal["positive", "signed", "cosine", "range"]
"""positive: from 0; signed: for and against, around 0; cosine: -1 to 1; range: no meaningful zero."""
NOT_CHECKED = "Whether maps of this model are right was not checked"
"""Beginning of the sentence that stands beside maps whose method was not checked."""


def normalize_map(
    heat: Float[np.ndarray, "rows columns"], scale: MapScale, hidden: Bool[np.ndarray, "rows columns"] | None = None
) -> Float[np.ndarray, "rows columns"]:
    """Scale a map by its full-scale value to 0..1, or -1..1 for signed maps; hidden patches are 0."""
    kept = heat if hidden is None else heat[~hidden]
    if scale == "cosine":
        shares = np.clip(heat, -1, 1)
    elif scale == "signed":
        shares = np.clip(heat / (full_scale_value(np.abs(kept)) or 1.0), -1, 1)
    elif scale == "positive":
        shares = np.clip(heat / (full_scale_value(kept) or 1.0), 0, 1)
    else:
        shares = (heat - kept.min()) / (float(np.ptp(kept)) or 1.0)
    return np.where(False if hidden is None else hidden, 0, shares).astype(np.float32)


def full_scale_value(values: Float[np.ndarray, "*shape"]) -> float:
    """The value drawn at full strength: the maximum, or with 100 or more patches the 99th percentile.

    A few extreme patches would otherwise hide the rest of the map.
    """
    largest = float(values.max(initial=0))
    beyond = values.size // 100
    most = float(np.sort(values, axis=None)[-1 - beyond]) if beyond else largest
    return most if most > 0 else largest
