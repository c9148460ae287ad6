"""The one way to disturb pictures: by kind and severity, each picture by its own random numbers."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ...config.schema import suggest_name
from ...errors import UsageError
from ...plural import counted
from . import blur, digital, films, noise, weather
from .drawn import Corruption, Draws

SEVERITIES = (1, 2, 3, 4, 5)

SUITES: dict[str, dict[str, Corruption]] = {
    "imagenet-c": noise.KINDS | blur.KINDS | weather.KINDS | digital.KINDS,
    "films": films.KINDS,
}
"""The fifteen kinds of Hendrycks and Dietterich 2019 in their order, and eleven of ours for films and cameras."""


def corrupt(
    images: UInt8[Tensor, "n C H W"], kind: str, severity: int, seed: int, indices: Int64[np.ndarray, " m"]
) -> UInt8[Tensor, "n C H W"]:
    """Pictures disturbed in one way, of any size and any number of channels.

    What happens to a picture depends on (seed, kind, severity, its index) alone, never on its batch. Lengths such as
    the radius of a blur are those of the tables for sides of 224 pixels, in proportion to the shorter side for others;
    noise and JPEG's blocks keep to pixels. Where nothing says otherwise, beyond the edge stands the mirror image.

    Args:
        kind: a name in one of the `SUITES`.
        severity: 1 (hardly there) to 5.
        indices: of each picture in its source.

    Raises:
        UsageError: no such kind or severity, or not one index per picture.
    """
    known = {name: function for suite in SUITES.values() for name, function in suite.items()}
    if kind not in known:
        raise UsageError(
            f"There is no corruption {kind!r}.{suggest_name(kind, known)} The kinds are {', '.join(known)}."
        )
    if severity not in SEVERITIES:
        raise UsageError(f"A severity is a whole number from 1 to 5. Got {severity!r}.")
    if len(indices) != len(images):
        raise UsageError(
            f"Every picture needs its index. Got {counted(len(images), 'picture')} and {len(indices):,} indices."
        )
    before = images.cpu().numpy()
    after = np.empty_like(before)
    for place, index in enumerate(indices.tolist()):
        values = known[kind](before[place] / 255.0, severity, Draws(seed, kind, severity, index))
        after[place] = np.rint(255 * values.clip(0, 1))
    return torch.from_numpy(after).to(images.device)
