"""Figure 7 (left) of the ViT paper: what the patch projection looks for, as its principal components."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64

from ...errors import UsageError
from ...model.tokens import ConvPatches, LinearPatches
from ...model.vit import ViT
from .components import principal
from .drawing import page, panels, photograph, spread
from .shown import Choices, Drawn, Shown

SOURCE = "Dosovitskiy et al. 2020, figure 7 (left)"
COUNT = 28
"""Components that the paper shows."""
COLUMNS = 7


def patch_filters(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """The first 28 principal components of the projection's rows, each as a patch between its own black and white.

    No pictures and no options.

    Raises:
        UsageError: the model does not project patches by one matrix (soft splits).
    """
    filters, shares = filters_of(model)
    count, (rows, columns) = len(filters), filters.shape[2:]
    lines = -(-count // COLUMNS)
    figure = page(
        lines * 8.0 / COLUMNS * rows / columns,
        "What the patch projection looks for",
        f"The first {count} principal components of its {model.config.width} filters of {rows} x {columns} pixels"
        f"{_channels(model.config.channels)}, centred; together {100 * shares.sum():.0f} % of their variance. Each is "
        "stretched between its own smallest and largest value, and its strongest pixel is bright, so neither contrast "
        f"nor sign can be compared between them. {SOURCE}.",
    )
    for i, axes in enumerate(axes for row in panels(figure, lines, COLUMNS) for axes in row):
        if i < count:
            seen = np.rint(255 * spread(filters[i])).astype(np.uint8).transpose(1, 2, 0)
            photograph(axes, seen, f"{100 * shares[i]:.1f} %")
    return Drawn(figure, {"filters": filters, "variance_shares": shares}, {"source": SOURCE, "centred": True})


def _channels(count: int) -> str:
    return "" if count == 1 else f" and {count} channels" + " (the first is shown)" * (count != 3)


def filters_of(
    model: ViT, count: int = COUNT
) -> tuple[Float64[np.ndarray, "count C rows columns"], Float64[np.ndarray, " count"]]:
    """Components as patches [count, C, height, width], the strongest pixel of each positive, and their variance shares.

    Raises:
        UsageError: the model has soft splits.
    """
    if not isinstance(model.tokens.patches, ConvPatches | LinearPatches):
        raise UsageError("This model cuts pictures by soft splits: it has no patch filters to show.")
    config = model.config
    flat: Float[np.ndarray, "D P"] = model.tokens.patches.weight.detach().float().flatten(1).cpu().numpy()
    found = principal(flat.astype(np.float64), min(count, *flat.shape))
    strongest = np.take_along_axis(found.axes, np.abs(found.axes).argmax(1)[:, None], axis=1)
    axes = found.axes * np.sign(strongest)
    return axes.reshape(-1, config.channels, *config.patch), found.shares
