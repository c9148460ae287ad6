"""How long the patch tokens are, block by block, and where those lie that are far too long: artefacts of large ViTs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from ...model.vit import ViT
from ...spec import Grid
from ..outliers import DEVIATIONS
from ..outliers import limit as limit_of
from ..truth.scores import asked
from .drawing import FIRST, SECOND, SOFT, WIDTH, heat, listed, outline, page, panels, photograph, plain, scale
from .looking import block_of
from .shown import Choices, Drawn, Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE = "Darcet et al. 2023, figures 3 and 4"
PICTURES = 4
"""Pictures that get a map; all of them are in the histogram."""


def token_norms(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """Lengths by block, their histogram at one block, and up to four pictures with their outliers outlined.

    Options: layer.
    """
    block = block_of(model, choices.layer)
    found = lengths(model, shown.images)  # [L, B, rows, columns]
    here, limit = found[block], limit_of(found[block])
    far = here > limit
    some = min(len(here), PICTURES)
    height, width = shown.images.shape[2:]
    tall = WIDTH / max(some, 2) * 0.9 * height / width
    figure = page(
        2.9 + 2 * tall,
        "How long the patch tokens are",
        f"{listed(shown.names)}. Euclidean length of the {here.size:,} patch tokens. Above left: median, middle 98 % "
        f"and longest after every block. Above right: after block {block}; the line is the median and {DEVIATIONS:g} "
        f"median absolute deviations, at least twice the median: {limit:.1f}. {_beyond(int(far.sum()))} {SOURCE}; "
        "their limit is a fixed length.",
    )
    parts = figure.add_gridspec(2, 1, height_ratios=(2.9, 2 * tall))
    above, below = (figure.add_subfigure(parts[half, 0]) for half in (0, 1))
    left, right = above.subplots(1, 2)
    _by_block(left, found, block)
    _histogram(right, here, limit)
    rows = panels(below, 2, some)
    limits, drawn = (float(here.min()), float(here.max())), None
    for i in range(some):
        photograph(rows[0][i], shown.pictures[i])
        drawn = heat(rows[1][i], here[i], limits)
        outline(rows[1][i], far[i])
    assert drawn is not None
    scale(below, drawn, [axes for row in rows for axes in row], "length")
    facts = {"source": SOURCE, "layer": block, "limit": limit, "outliers": int(far.sum()), "tokens": here.size}
    return Drawn(figure, {"lengths": found, "outliers": far}, facts)


def _beyond(count: int) -> str:
    if not count:
        return "No token lies beyond it."
    said = "1 token lies beyond it and is" if count == 1 else f"{count} tokens lie beyond it and are"
    return f"{said} outlined below; what a map shows there is not about the picture's content at that place."


def lengths(model: ViT, images: Float[Tensor, "B C H W"]) -> Float64[np.ndarray, "depth B rows columns"]:
    """Euclidean length of every patch token after every block, before the final norm."""
    patch, depth = model.config.patch, model.config.depth
    grid = Grid(images.shape[2] // patch[0], images.shape[3] // patch[1])
    names, found = tuple(f"blocks.{i}" for i in range(depth)), []
    with asked(model):
        for image in images:
            kept = model.features(image[None], keep=names)
            tokens = [kept[name][0, model.config.prefix :].double().norm(dim=1).view(tuple(grid)) for name in names]
            found.append(np.stack([one.cpu().numpy() for one in tokens]))
    return np.stack(found, axis=1)


def _by_block(axes: Axes, found: Float64[np.ndarray, "depth B rows columns"], block: int) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    flat = found.reshape(len(found), -1)
    at = np.arange(len(found))
    low, middle, high = np.quantile(flat, (0.01, 0.5, 0.99), axis=1)
    plain(axes, "block, counted from 0", "length")
    axes.fill_between(at, low, high, color=FIRST, alpha=0.2, linewidth=0)
    axes.plot(at, middle, color=FIRST, linewidth=1.8)
    axes.plot(at, flat.max(1), color=SECOND, linewidth=0, marker="o", markersize=3.5)
    axes.axvline(block, color=SOFT, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _histogram(axes: Axes, here: Float64[np.ndarray, "B rows columns"], limit: float) -> None:
    plain(axes, "length", "tokens")
    axes.hist(here.ravel(), bins=60, color=FIRST, log=True)
    axes.axvline(limit, color=SECOND, linewidth=1.3, linestyle=(0, (5, 3)))
