"""Position figures: rotary kernel, similarity of position embeddings (ViT paper), and the image as panes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, UInt8

from ...errors import UsageError
from ...model.vit import ViT
from ...spec import Grid
from ..attribution import AttributionMap
from ..figures import cosine_similarities, hide_axes, tile_similarities
from ..map_scale import normalize_map
from ..methods import METHODS, explain_images
from ..overlay import to_rgb
from .plots import (
    FIGURE_WIDTH,
    SECONDARY_COLOR,
    SIMILARITY_COLORMAP,
    FigureInputs,
    FigureOptions,
    FigureResult,
    add_colorbar,
    add_panels,
    join_names,
    new_page,
    set_panel_title,
)

WINDOW_SOURCE = "A figure of Vitrail's own"
PANE_SIDE = 30
"""Least length of a pane's shorter side in pixels."""
LEAD_WIDTHS, LEAD_EDGE = 0.10, 0.5
"""Width of the lead between two panes, and of the frame, as fractions of a pane's shorter side."""
METAL_COLOR = np.array([0.075, 0.075, 0.095])
"""Colour of the lead, 0..1."""
NIGHT_COLOR = np.array([0.10, 0.13, 0.23])
"""Colour of an unlit white pane."""
GLOW_STRENGTH = 0.45
"""Strength of the glow around a lit pane."""
FULL_QUANTILE = 0.95
"""Quantile of the map that is fully lit."""


def draw_window(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Each image as a window of patches, and the same lit by the map of the model's default method.

    By night the brightness of a pane is its map value; a value of 0 is dark, and the largest 5 % are as by day.

    Raises:
        EmptyMapError: a map is not finite, zero, or constant.
    """
    maps = [explain_images(model, image[None]) for image in inputs.images]
    first, lights = maps[0], np.stack([pane_light(one) for one in maps])
    at_night = "by night: where it looks"
    if METHODS[first.method].class_specific:
        at_night = "by night: where its answer comes from"
    height, width = inputs.pixels.shape[1:3]
    figure = new_page(
        len(maps) * (FIGURE_WIDTH / 2 * height / width + 0.2) * 0.97,
        "A picture as its panes, and what lights them",
        f"{join_names(inputs.names)} as the {inputs.grid.rows} x {inputs.grid.columns} patches that the model reads. "
        f"By night a pane is as bright as its share of the map by {first.method} ({first.layer}); the largest 5 % are "
        f"as by day. {first.description} {WINDOW_SOURCE}.",
    )
    for i, (left, right) in enumerate(add_panels(figure, len(maps), 2)):
        day = render_window(inputs.pixels[i], inputs.grid)
        night = render_window(inputs.pixels[i], inputs.grid, lights[i])
        for axes, mappable, title in ((left, day, "by day: what it sees"), (right, night, at_night)):
            axes.imshow(mappable, interpolation="antialiased")
            set_panel_title(axes, title if i == 0 else "")
    facts = {
        "source": WINDOW_SOURCE, "method": first.method, "layer": first.layer, "line": first.description,
        "outputs": [None if one.targets is None else one.targets[0] for one in maps],
    }  # fmt: skip
    return FigureResult(figure, {"values": np.stack([one.values[0] for one in maps]), "light": lights}, facts)


def pane_light(attribution: AttributionMap) -> Float64[np.ndarray, "rows columns"]:
    """Brightness of each pane, 0..1: the map's value, 1 for the largest 5 %."""
    shares = np.maximum(normalize_map(attribution.values[0], attribution.scale), 0).astype(np.float64)
    full = float(np.quantile(shares, FULL_QUANTILE))
    return np.minimum(shares / full, 1) if full > 0 else shares


def render_window(
    image: UInt8[np.ndarray, "H W C"], grid: Grid, lights: Float64[np.ndarray, "rows columns"] | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """Render an image as panes between lead in a frame, enlarged by a whole factor.

    Args:
        lights: brightness of each pane, 0..1; None is daylight.
    """
    from scipy.ndimage import gaussian_filter

    step = -(-PANE_SIDE // min(image.shape[0] // grid.rows, image.shape[1] // grid.columns))
    glass = _enlarge_smoothly(to_rgb(image), step)  # [h, w, 3], 0..1
    sides = glass.shape[0] // grid.rows, glass.shape[1] // grid.columns
    down, across = (_distance_to_pane_edge(*pair) for pair in zip(glass.shape[:2], sides, strict=True))
    distance = np.minimum(down[:, None], across)  # [h, w]
    pane = float(min(sides))
    metal = np.clip(LEAD_WIDTHS * pane / 2 + 0.5 - distance, 0, 1)[..., None]
    lit = glass * (1 - 0.3 * np.exp(-distance / (0.07 * pane)))[..., None]  # the glass is thicker towards the lead
    if lights is None:
        glass_pixels = lit * (1 - metal) + METAL_COLOR * metal
    else:
        shares = lights.repeat(sides[0], 0).repeat(sides[1], 1)[..., None]
        dark = lit.mean(2, keepdims=True) * NIGHT_COLOR
        glass_pixels = (dark * (1 - shares) + lit * shares) * (1 - metal) + METAL_COLOR * metal
        glow = gaussian_filter(lit * shares**2, (0.6 * pane, 0.6 * pane, 0))
        glass_pixels = 1 - (1 - glass_pixels) * (1 - GLOW_STRENGTH * glow)
    border = max(1, round(LEAD_EDGE * pane))
    height, width = glass_pixels.shape[:2]
    window = np.tile(METAL_COLOR, (height + 2 * border, width + 2 * border, 1))
    window[border:-border, border:-border] = glass_pixels
    return np.round(255 * np.clip(window, 0, 1)).astype(np.uint8)


def _enlarge_smoothly(image: UInt8[np.ndarray, "H W 3"], step: int) -> Float64[np.ndarray, "h w 3"]:
    """Bicubic enlargement, so that the leads are the only added edges."""
    values = torch.from_numpy(image).permute(2, 0, 1)[None].double() / 255
    large = F.interpolate(values, scale_factor=step, mode="bicubic", align_corners=False) if step > 1 else values
    return large[0].permute(1, 2, 0).clamp(0, 1).numpy()


def _distance_to_pane_edge(length: int, side: int) -> Float64[np.ndarray, " length"]:
    """Distance in pixels from each pixel centre to the nearest edge of its pane, along one axis."""
    place = np.arange(length) % side + 0.5
    return np.minimum(place, side - place)


# -- Rotary kernel: product of equal queries and keys by offset

ROTARY_SOURCE = "Su et al. 2021 (RoFormer), section 3.4.3; Heo et al. 2024 for rows and columns"
MAX_PAIR_PANELS = 16
"""Pairs of dimensions with a panel of their own."""


def draw_rotary_kernel(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Rotary kernel by row and column offset: the mean over all pairs of dimensions of a head, and single pairs.

    No images and no options.

    Raises:
        UsageError: the model has no rotary positions.
    """
    waves = rotary_kernel_by_offset(model, inputs.grid)  # [half, 2 rows - 1, 2 columns - 1]
    chosen = np.unique(np.rint(np.linspace(0, len(waves) - 1, MAX_PAIR_PANELS)).astype(np.int64))
    lines = -(-len(chosen) // 4)
    aspect = waves.shape[1] / waves.shape[2]
    figure = new_page(
        max(FIGURE_WIDTH / 2 * aspect * 0.92, lines * (FIGURE_WIDTH / 8 * aspect + 0.2)),
        f"What {model.config.rotary} rotation tells of places",
        f"Product of an equal query and key, of length 1, {inputs.grid.rows} x {inputs.grid.columns} patches: the "
        f"middle is the same place. Left: the mean over the {len(waves)} pairs of numbers of a head, as if all were "
        f"equally large; what is learnt weighs them. Right: single pairs. {ROTARY_SOURCE}.",
    )
    parts = figure.add_gridspec(1, 2, width_ratios=(1.1, 1.0))
    left, right = (figure.add_subfigure(parts[0, side]) for side in (0, 1))
    ((panel,),) = add_panels(left, 1, 1)
    reach = (-inputs.grid.columns + 0.5, inputs.grid.columns - 0.5, inputs.grid.rows - 0.5, -inputs.grid.rows + 0.5)
    mappable = panel.imshow(waves.mean(0), SIMILARITY_COLORMAP, vmin=-1, vmax=1, interpolation="nearest", extent=reach)
    panel.set_xticks([-inputs.grid.columns + 1, 0, inputs.grid.columns - 1])
    panel.set_yticks([-inputs.grid.rows + 1, 0, inputs.grid.rows - 1])
    panel.tick_params(labelsize=9, colors=SECONDARY_COLOR)
    panel.set_xlabel("columns apart", fontsize=9.5)
    panel.set_ylabel("rows apart", fontsize=9.5)
    set_panel_title(panel, "mean of all pairs")
    add_colorbar(left, mappable, [panel], "product")
    cells = [axes for row in add_panels(right, lines, 4) for axes in row]
    for pair, axes in zip(chosen.tolist(), cells, strict=False):
        axes.imshow(waves[pair], SIMILARITY_COLORMAP, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(f"pair {pair}", fontsize=8.5)
    facts = {"source": ROTARY_SOURCE, "rotary": model.config.rotary, "pairs": len(waves)}
    return FigureResult(figure, {"kernel": waves.mean(0), "pairs": waves}, facts)


def rotary_kernel_by_offset(model: ViT, grid: Grid) -> Float64[np.ndarray, "half down across"]:
    """Cosine of the rotation angle between two positions, for every pair of dimensions and offset; 0 is in the middle.

    All rotations here are linear in the row and the column, so only the offset matters.

    Raises:
        UsageError: the model has no rotary positions.
    """
    if model.config.rotary == "none":
        raise UsageError(
            "This model does not tell places by rotation. Its position table is the figure position-similarity."
        )
    if model.config.rotary == "mixed":
        raise UsageError(
            "This model has learned a rotation for every head of every block, of which there is no figure."
        )
    angles = model.rotary.angles(grid, torch.device("cpu")).double().numpy()
    angles = (angles - angles[0]).reshape(*grid, -1)  # [rows, columns, half], from the first patch
    down, across = (np.concatenate([-side[:0:-1], side]) for side in (angles[:, 0], angles[0]))
    both = down[:, None] + across[None]  # [2 rows - 1, 2 columns - 1, half]
    return np.cos(both).transpose(2, 0, 1).astype(np.float64)


# -- Similarity of position embeddings: figure 7 (centre) of the ViT paper

SIMILARITY_SOURCE = "Dosovitskiy et al. 2020, figure 7 (centre)"


def draw_position_similarity(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Cosine similarity of the position embedding of each patch to those of all patches, one small map per patch.

    No images and no options.

    Raises:
        UsageError: the model adds no position table.
    """
    likeness = position_cosines(model, inputs.grid)  # [N, N]
    canvas, every = tile_similarities(likeness, inputs.grid)
    kind = "trained" if isinstance(model.positions.table, torch.nn.Parameter) else "fixed"
    some = "" if every == 1 else f" Every {every}. row and column of places is shown."
    figure = new_page(
        min(FIGURE_WIDTH * 0.86 * canvas.shape[0] / canvas.shape[1], 9.0),
        "How alike the positions are",
        f"Cosine similarity between the {kind} position embedding ({model.config.positions}) of each of "
        f"{inputs.grid.rows} x {inputs.grid.columns} patches and those of all patches; each small map is one patch's "
        f"view of the whole picture.{some} {SIMILARITY_SOURCE}.",
    )
    axes = figure.subplots()
    hide_axes(axes)
    mappable = axes.imshow(canvas, SIMILARITY_COLORMAP, vmin=-1, vmax=1, interpolation="nearest")
    axes.set_xlabel("column of the patch", fontsize=10)
    axes.set_ylabel("row of the patch", fontsize=10)
    add_colorbar(figure, mappable, [axes], "cosine similarity")
    facts = {"source": SIMILARITY_SOURCE, "positions": model.config.positions}
    return FigureResult(figure, {"similarity": likeness}, facts)


def position_cosines(model: ViT, grid: Grid) -> Float64[np.ndarray, "N N"]:
    """Cosine similarities of the position embeddings of a grid, patches only.

    Raises:
        UsageError: the model has no position table.
    """
    if model.positions.table is None:
        other = "rotation tells its places: see the figure rotary-kernel" if model.config.rotary != "none" else ""
        offsets = model.config.relative or model.config.relative_bias
        other = other or "it knows offsets only" * bool(offsets) or "it knows no places"
        raise UsageError(f"This model adds no position table; {other}.")
    table = model.positions.table_for_grid(grid)[model.positions.table_prefix :].detach().double().cpu().numpy()
    return np.asarray(cosine_similarities(table), np.float64)
