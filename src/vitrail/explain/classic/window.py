"""Our own figure: the picture as a window of panes, by day as it is, by night lit where the answer comes from."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, UInt8

from ...model.vit import ViT
from ...spec import Grid
from ..map import Map
from ..methods import METHODS, explain
from ..overlay import coloured, shares_of
from .drawing import WIDTH, listed, named, page, panels
from .shown import Choices, Drawn, Shown

SOURCE = "A figure of Vitrail's own"
PANE = 30
"""Pixels of a pane's shorter side at least."""
LEAD, EDGE = 0.10, 0.5
"""Width of the lead between two panes, and of the frame, as shares of a pane's shorter side."""
METAL = np.array([0.075, 0.075, 0.095])
"""Colour of the lead, 0..1."""
NIGHT = np.array([0.10, 0.13, 0.23])
"""Colour in which a white pane is seen that nothing lights."""
GLOW = 0.45
"""How much of the light falls on what is around a lit pane."""
FULL = 0.95
"""The share of patches below full light: the others are as bright as by day."""


def window(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """Each picture in its panes, and the same lit by the map of the model's default method for its own answer.

    By night a pane is as bright as its share of the map's largest values; one of share 0 is dark, one of the largest
    5 % is as by day. Nothing else of the picture is changed but for the lead between the panes.

    Raises:
        EmptyMapError: a map that says nothing.
    """
    found = [explain(model, image[None]) for image in shown.images]
    lights = np.stack([light(one) for one in found])
    of_class = METHODS[found[0].method].of_class
    at_night = "by night: where its answer comes from" if of_class else "by night: where it looks"
    height, width = shown.pictures.shape[1:3]
    figure = page(
        len(found) * (WIDTH / 2 * height / width + 0.2) * 0.97,
        "A picture as its panes, and what lights them",
        f"{listed(shown.names)} as the {shown.grid.rows} x {shown.grid.columns} patches that the model reads. By night "
        f"a pane is as bright as its share of the map by {found[0].method} ({found[0].layer}); the largest 5 % are as "
        f"by day. {found[0].line} {SOURCE}.",
    )
    for i, (left, right) in enumerate(panels(figure, len(found), 2)):
        day = glazed(shown.pictures[i], shown.grid)
        night = glazed(shown.pictures[i], shown.grid, lights[i])
        for axes, drawn, title in ((left, day, "by day: what it sees"), (right, night, at_night)):
            axes.imshow(drawn, interpolation="antialiased")
            named(axes, title if i == 0 else "")
    maps = np.stack([one.values[0] for one in found])
    facts = {
        "source": SOURCE, "method": found[0].method, "layer": found[0].layer, "line": found[0].line,
        "outputs": [None if one.of is None else one.of[0] for one in found],
    }  # fmt: skip
    return Drawn(figure, {"values": maps, "light": lights}, facts)


def light(found: Map) -> Float64[np.ndarray, "rows columns"]:
    """How much of a pane's own light is there, 0..1: its map's share, full for the largest 5 %."""
    shares = np.maximum(shares_of(found.values[0], found.scale), 0).astype(np.float64)
    full = float(np.quantile(shares, FULL))
    return np.minimum(shares / full, 1) if full > 0 else shares


def glazed(
    picture: UInt8[np.ndarray, "H W C"], grid: Grid, lights: Float64[np.ndarray, "rows columns"] | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """A picture in panes between lead, enlarged by whole steps, in a frame.

    Args:
        lights: of each pane, 0..1, how much of it is lit; None is daylight.
    """
    step = -(-PANE // min(picture.shape[0] // grid.rows, picture.shape[1] // grid.columns))
    glass = _enlarged(coloured(picture), step)  # [h, w, 3], 0..1
    sides = glass.shape[0] // grid.rows, glass.shape[1] // grid.columns
    across = np.meshgrid(_to_edge(glass.shape[0], sides[0]), _to_edge(glass.shape[1], sides[1]), indexing="ij")
    distance = np.minimum(across[0], across[1])  # [h, w]
    pane = float(min(sides))
    metal = np.clip(LEAD * pane / 2 + 0.5 - distance, 0, 1)[..., None]
    lit = glass * (1 - 0.3 * np.exp(-distance / (0.07 * pane)))[..., None]  # the glass is thicker towards the lead
    if lights is None:
        seen = lit * (1 - metal) + METAL * metal
    else:
        shares = lights.repeat(sides[0], 0).repeat(sides[1], 1)[..., None]
        dark = lit.mean(2, keepdims=True) * NIGHT
        seen = (dark * (1 - shares) + lit * shares) * (1 - metal) + METAL * metal
        seen = 1 - (1 - seen) * (1 - GLOW * _blurred(lit * shares**2, 0.6 * pane))
    border = max(1, round(EDGE * pane))
    framed = np.pad(seen, ((border, border), (border, border), (0, 0)))
    framed[:border], framed[-border:], framed[:, :border], framed[:, -border:] = METAL, METAL, METAL, METAL
    return np.round(255 * np.clip(framed, 0, 1)).astype(np.uint8)


def _enlarged(picture: UInt8[np.ndarray, "H W 3"], step: int) -> Float64[np.ndarray, "h w 3"]:
    """Smoothly, so that leads are the only edges that the picture did not have."""
    import torch
    import torch.nn.functional as F

    values = torch.from_numpy(picture).permute(2, 0, 1)[None].double() / 255
    large = F.interpolate(values, scale_factor=step, mode="bicubic", align_corners=False) if step > 1 else values
    return large[0].permute(1, 2, 0).clamp(0, 1).numpy()


def _to_edge(length: int, side: int) -> Float64[np.ndarray, " length"]:
    """Pixels from each pixel's middle to the nearest edge of its pane, along one axis."""
    place = np.arange(length) % side + 0.5
    return np.minimum(place, side - place)


def _blurred(values: Float[np.ndarray, "h w 3"], deviation: float) -> Float[np.ndarray, "h w 3"]:
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(values, (deviation, deviation, 0)))
