"""Figures with matplotlib: patch grid, token strip and positions; shared drawing helpers; reading an image to draw.

Every function returns a new Figure; the global state of matplotlib is not changed.
"""

from __future__ import annotations

import difflib
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8

from ..data.decoding.decode import decode_image
from ..errors import DataError, UsageError
from ..files import atomic
from ..spec import Grid, ImageSpec
from .matplotlib_style import default_style, import_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..model.vit import ViT


HIGHLIGHT_COLOR = "#f4b942"
"""Colour of the lines between patches."""


@default_style()
def plot_patch_grid(
    image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int], show_numbers: bool = True, cmap: str = "viridis"
) -> Figure:
    """Plot the image with its patches outlined and numbered 1 .. N in reading order.

    Args:
        cmap: matplotlib colormap for one channel; three channels are shown as RGB.

    Raises:
        UsageError: a side is not a multiple of the patch, or there is no such colormap.
    """
    grid = patch_grid_of_image(image, patch)
    height, width = image.shape[:2]
    figure = new_figure(8.0, 8.0 * height / width + 0.5)
    axes = figure.add_subplot()
    show_image(axes, image, cmap)
    thin = 1.6 if grid.patches <= 100 else 0.7
    rows, columns = np.arange(0, height + 1, patch[0]) - 0.5, np.arange(0, width + 1, patch[1]) - 0.5
    axes.hlines(rows, -0.5, width - 0.5, HIGHLIGHT_COLOR, linewidth=thin, clip_on=False)
    axes.vlines(columns, -0.5, height - 0.5, HIGHLIGHT_COLOR, linewidth=thin, clip_on=False)
    if show_numbers:
        _draw_patch_numbers(axes, grid, patch)
    hide_axes(axes)
    axes.set_title(
        f"[{height}, {width}, {image.shape[2]}] in patches of {patch[0]} x {patch[1]}: "
        f"{grid.rows} rows x {grid.columns} columns = {grid.patches} tokens"
    )
    return figure


@default_style()
def plot_token_strip(
    image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int], token: int, cmap: str = "viridis"
) -> Figure:
    """Plot the position of patch `token` (1 .. N), the patch, and the flattened patch that the projection reads.

    The flattened patch is in the order channel, row, column.

    Raises:
        UsageError: as `plot_patch_grid`, or a token outside 1 .. N.
    """
    from matplotlib.patches import Rectangle

    grid = patch_grid_of_image(image, patch)
    if not 1 <= token <= grid.patches:
        raise UsageError(f"token must lie in 1..{grid.patches} for {grid.rows} x {grid.columns} patches. Got {token}.")
    row, column = divmod(token - 1, grid.columns)
    top, left = row * patch[0], column * patch[1]
    cut = image[top : top + patch[0], left : left + patch[1]]
    flat = cut.transpose(2, 0, 1).reshape(-1)
    figure = new_figure(10.0, 5.4)
    aspect = image.shape[1] / image.shape[0]
    cells = figure.add_gridspec(2, 2, width_ratios=(max(aspect, 1.0), 1.0), height_ratios=(4.2, 1.0))
    whole, one, strip = (figure.add_subplot(cell) for cell in (cells[0, 0], cells[0, 1], cells[1, :]))
    show_image(whole, image, cmap)
    corner = (left - 0.5, top - 0.5)
    whole.add_patch(
        Rectangle(corner, patch[1], patch[0], fill=False, edgecolor=HIGHLIGHT_COLOR, linewidth=3, clip_on=False)
    )
    whole.set_title(f"row {row + 1}, column {column + 1}")
    show_image(one, cut, cmap)
    one.set_title(f"patch {token} of {grid.patches}: [{', '.join(map(str, cut.shape))}]")
    _draw_strip(strip, flat, patch, cmap)
    strip.set_title(f"token {token} before projection: {' x '.join(map(str, cut.shape))} = [{len(flat)}] numbers")
    for axes in (whole, one):
        hide_axes(axes)
    return figure


@default_style()
def save_png(figure: Figure, path: Path, description: str | None = None) -> None:
    """Write a figure as PNG atomically and without a date: the same figure gives the same bytes.

    Args:
        description: the figure in words, for accessibility.
    """
    data = io.BytesIO()
    metadata = {"Software": None} | ({} if description is None else {"Description": description})
    figure.savefig(data, format="png", dpi=150, metadata=metadata)
    atomic.write_bytes(Path(path), data.getvalue())


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure, sizes in inches, with constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def patch_grid_of_image(image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int]) -> Grid:
    """Rows and columns of patches in an image.

    Raises:
        UsageError: a side is not a multiple of the patch.
    """
    for side, pixels, step in zip(("height", "width"), image.shape, patch, strict=False):
        if step < 1 or pixels % step:
            raise UsageError(f"The image {side} {pixels} is not a multiple of the patch {side} {step}.")
    return Grid(image.shape[0] // patch[0], image.shape[1] // patch[1])


def show_image(axes: Axes, image: UInt8[np.ndarray, "H W C"], cmap: str) -> None:
    """Draw one channel with a colormap, three channels as RGB, of any other count the first."""
    if image.shape[2] == 3:
        axes.imshow(image, interpolation="nearest")
    else:
        axes.imshow(image[..., 0], check_colormap(cmap), vmin=0, vmax=255, interpolation="nearest")


def check_colormap(cmap: str) -> str:
    """Return the name if matplotlib has such a colormap.

    Raises:
        UsageError: it has none; the message lists similar names.
    """
    colormaps = import_matplotlib().colormaps
    if cmap not in colormaps:
        near = difflib.get_close_matches(cmap, list(colormaps), n=3) or ["viridis", "cividis", "gray"]
        raise UsageError(f"There is no colour map named {cmap!r}. Did you mean {' or '.join(near)}?")
    return cmap


def hide_axes(axes: Axes) -> None:
    """Remove ticks and frame."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_patch_numbers(axes: Axes, grid: Grid, patch: tuple[int, int]) -> None:
    from matplotlib.patheffects import withStroke

    points = 8.0 * 72 / grid.columns  # width of a patch in the figure
    size = min(17.0, 0.36 * points * min(1.0, patch[0] / patch[1]))
    edge = withStroke(linewidth=max(1.0, size / 6), foreground="#1b1b22")
    for i in range(grid.patches):
        row, column = divmod(i, grid.columns)
        y, x = (row + 0.5) * patch[0] - 0.5, (column + 0.5) * patch[1] - 0.5
        axes.text(x, y, str(i + 1), color="white", fontsize=size, ha="center", va="center", path_effects=[edge])


def _draw_strip(axes: Axes, flat: np.ndarray, patch: tuple[int, int], cmap: str) -> None:
    axes.imshow(flat[None], check_colormap(cmap), vmin=0, vmax=255, aspect="auto", interpolation="nearest")
    area = patch[0] * patch[1]
    for channel in range(1, len(flat) // area):
        axes.axvline(channel * area - 0.5, color=HIGHLIGHT_COLOR, linewidth=2)
    axes.set(yticks=[], xlabel="channel, then row, then column of the patch; values 0 to 255")
    axes.set_xticks(np.unique(np.linspace(0, len(flat) - 1, 11).round()))


# -- Positions

MAX_TILES = 14
"""Tiles per side; a larger grid shows every second, third, ... row and column."""


@default_style()
def plot_positions(model: ViT, cmap: str = "viridis") -> Figure:
    """Plot the position table [rows, D], and for each patch a map of its cosine similarity to every other patch.

    A model with rotary positions only shows its table of angles, and the similarity is the mean cosine of the angle
    between two positions, the product of an equal query and key after rotation.

    Raises:
        UsageError: the model has no positions, or there is no such colormap.
    """
    table, patches, title, across, down = _position_table(model)
    check_colormap(cmap)
    figure = new_figure(14.0, 5.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    mappable = left.imshow(table, cmap, aspect="auto", interpolation="nearest")
    figure.colorbar(mappable, ax=left, shrink=0.75)
    left.set(title=title, xlabel=across, ylabel=down)
    _draw_tiles(right, cosine_similarities(patches), model.config.grid, cmap)
    return figure


def cosine_similarities(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N N"]:
    """Cosine similarity of every two rows; 0 for a row of zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths == 0, 1, lengths)
    return unit @ unit.T


def _position_table(model: ViT) -> tuple[np.ndarray, np.ndarray, str, str, str]:
    """The position table, its vectors of patches for cosine similarities, its title, and labels of columns and rows."""
    import torch

    grid = model.config.grid
    if model.positions.table is not None:
        table = model.positions.table.detach().float().cpu().numpy()
        kind = "trained" if isinstance(model.positions.table, torch.nn.Parameter) else "fixed"
        title = f"{model.config.positions} positions ({kind}): [{table.shape[0]}, {table.shape[1]}]"
        return table, table[-grid.patches :], title, "number within the token", "token"
    if model.config.rotary in ("none", "mixed"):
        if model.config.relative or model.config.relative_bias or model.config.rotary == "mixed":
            raise UsageError("This model learns places in every block for itself, of which there is no figure.")
        raise UsageError("This model has no positions to draw: it adds no table and rotates nothing.")
    angles = model.rotary.angles(grid, torch.device("cpu")).double().numpy()
    title = f"{model.config.rotary} rotary positions: angles of [{angles.shape[0]}, {angles.shape[1]}], radians"
    return angles, np.hstack([np.cos(angles), np.sin(angles)]), title, "pair of numbers in a head", "patch"


def tile_similarities(similarities: np.ndarray, grid: Grid) -> tuple[np.ndarray, int]:
    """Arrange the similarity map of each patch in the grid of patches, with gaps of NaN.

    Returns the canvas and the stride of the shown rows and columns, at most MAX_TILES a side.
    """
    every = -(-max(grid) // MAX_TILES)
    rows, columns = range(0, grid.rows, every), range(0, grid.columns, every)
    canvas = np.full((len(rows) * (grid.rows + 1) - 1, len(columns) * (grid.columns + 1) - 1), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            top, left = i * (grid.rows + 1), j * (grid.columns + 1)
            one = similarities[row * grid.columns + column].reshape(grid)
            canvas[top : top + grid.rows, left : left + grid.columns] = one
    return canvas, every


def _draw_tiles(axes: Axes, similarities: np.ndarray, grid: Grid, cmap: str) -> None:
    canvas, every = tile_similarities(similarities, grid)
    rows, columns = -(-grid.rows // every), -(-grid.columns // every)
    mappable = axes.imshow(canvas, cmap, vmin=min(0.0, float(similarities.min())), vmax=1.0, interpolation="nearest")
    assert axes.figure is not None
    axes.figure.colorbar(mappable, ax=axes, shrink=0.75)
    shown = "" if every == 1 else f", every {every}. row and column"
    axes.set_title(f"cosine similarity: {rows} x {columns} places, {grid.rows} x {grid.columns} each{shown}")
    hide_axes(axes)


# -- The image of a figure

SAMPLE_IMAGE = Path(__file__).parent / "panes_60x100.png"
"""Sample image of a stained-glass window, 60 x 100 pixels, one channel, drawn by examples/draw_panes.py."""


def read_image(path: Path, channels: int = 1) -> UInt8[np.ndarray, "H W C"]:
    """Read an image at its own size, from an image file or a `.npy` array.

    Floats of a `.npy` file are 0..1, black to white; 8-bit numbers are used unchanged.

    Raises:
        DataError: unreadable, floats outside 0..1, or another number of channels; the message names the file.
    """
    path = Path(path)
    if path.suffix.lower() != ".npy":
        return decode_image(path, ImageSpec(channels=channels))
    return decode_image(_read_array(path), ImageSpec(channels=channels, low=0.0, high=1.0))


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} must hold one array of numbers. It cannot be read: {problem}.") from problem
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3) or array.dtype.kind not in "fiub":
        shape = list(getattr(array, "shape", ()))
        raise DataError(f"{path} must hold numbers [H, W] or [H, W, C]. Got shape {shape}.")
    if array.dtype.kind == "f" and array.size and not (array.min() >= 0 and array.max() <= 1):
        raise DataError(
            f"{path} must hold floats from 0 (black) to 1 (white). Got {array.min():g} to {array.max():g}; "
            "divide by the largest value, or save 8-bit numbers."
        )
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise DataError(f"{path} must hold floats in 0..1 or 8-bit numbers. Got {array.dtype}.")
    return array


# -- Text in figures, placed in inches

LINE_SPACING = 1.5 / 72
"""Line spacing in inches per point of font size."""
DARK_TEXT, FAINT_TEXT = "#1b1b22", "#5d5d6b"


def wrap_lines(lines: Sequence[str], inches: float, size: float) -> list[str]:
    """Wrap lines to a width in inches, for a font of `size` points whose letters are 0.6 of that wide."""
    letters = max(8, int(inches * 72 / (0.6 * size)))
    return [part for line in lines for part in textwrap.wrap(line, letters)]


def draw_text_lines(
    figure: Figure, lines: Sequence[str], left: float, top: float, size: float, bold: bool = False, faint: bool = False
) -> None:
    """Draw lines of text from an upper left corner, in inches from the left and lower edge of the figure.

    The first line is darker than the others, unless all are bold or faint.
    """
    paper, tall = figure.get_size_inches()
    for index, line in enumerate(lines):
        y = (top - index * LINE_SPACING * size) / tall
        colour = FAINT_TEXT if faint or (index and not bold) else DARK_TEXT
        weight = "bold" if bold and not faint else "normal"
        figure.text(left / paper, y, line, fontsize=size, color=colour, weight=weight, va="top")
