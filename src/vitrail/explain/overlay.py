"""Overlays: a map blended over its image with an opacity proportional to its values, and sheets of several maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from ..errors import UsageError
from .figures import DARK_TEXT, FAINT_TEXT, LINE_SPACING, draw_text_lines, hide_axes, new_figure, wrap_lines
from .map_scale import MapScale, full_scale_value, normalize_map
from .matplotlib_style import default_style, import_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OVERLAY_OPACITY = 0.75
"""Opacity of the largest value of a map."""
OVERLAY_COLORMAP = "inferno"
"""Colormap of one-sided maps: perceptually uniform and safe for colour-blind readers."""
COLORMAP_START = 0.35
"""Start of the used part of the colormap: its first third is black, which would look like shadow."""
POSITIVE_COLOR, NEGATIVE_COLOR = (1.0, 0.56, 0.12), (0.16, 0.62, 1.0)
"""Orange and blue of signed maps, safe for colour-blind readers."""
NEUTRAL_GRAY = 128
"""Background of signed maps drawn without the image."""
MIN_SIDE_PIXELS = 480
"""Least length of the shorter side of a drawn image; smaller images are enlarged by whole factors."""
PANEL_HEIGHT = 3.1
"""Height of a panel in inches, unless its width is limited."""
MAX_PANEL_WIDTH = 4.6
MIN_FIGURE_WIDTH = 6.4
"""Least width of a figure in inches, for the text."""
OVERLAY_MARGIN, OVERLAY_GAP, COLORBAR_WIDTH, COLORBAR_LABEL_WIDTH = 0.25, 0.2, 0.16, 0.95
OVERLAY_TITLE_SIZE, OVERLAY_NAME_SIZE, OVERLAY_TEXT_SIZE = 13.0, 8.5, 8.5


class OverlayCaption(NamedTuple):
    """The text around an overlay."""

    title: str
    """Class and probability."""
    below: tuple[str, ...]
    """Method and layer, description, and notes."""
    unit: str = ""
    """Unit of the map's values."""


@default_style()
def plot_overlay(
    image: UInt8[np.ndarray, "H W C"],
    heat: Float[np.ndarray, "rows columns"],
    scale: MapScale,
    patch: tuple[int, int],
    caption: OverlayCaption,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    opacity: float = OVERLAY_OPACITY,
    original_image: UInt8[np.ndarray, "h w C"] | None = None,
) -> Figure:
    """Plot the model's input, the image under its map, the map alone, a colour bar, and a caption.

    All three panels have the aspect ratio of the original image.

    Args:
        image: the model's input; one channel is grey, three are RGB, of any other count the first is shown.
        hidden: patches whose values are not drawn.
        original_image: the same region at its original resolution; None uses `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    shown = normalize_map(heat, scale, hidden)
    seen = enlarge_pixels(to_rgb(image))
    large = seen if original_image is None else enlarge_pixels(to_rgb(original_image))
    drawn = large.shape[:2]
    mixed = blend_colors(large, upsample_map(shown, image.shape[:2], patch, drawn), scale, opacity)
    alone = colorize_map(upsample_map(shown, image.shape[:2], patch, drawn, smooth=False), scale)
    names = (
        f"what the model sees: {image.shape[0]} \u00d7 {image.shape[1]} pixels",
        "the picture under its map",
        f"the map: {heat.shape[0]} \u00d7 {heat.shape[1]} patches",
    )
    figure, (left, middle, right, bar) = _overlay_layout(drawn[1] / drawn[0], caption, names)
    for axes, pixels in ((left, seen), (middle, mixed), (right, alone)):
        axes.imshow(pixels, aspect="auto", interpolation="nearest")
        hide_axes(axes)
    if hidden is not None:
        sides = [side * large / seen for side, large, seen in zip(patch, drawn, image.shape, strict=False)]
        _hatch_hidden_patches(right, hidden, sides)
    _draw_colorbar(bar, heat if hidden is None else heat[~hidden], scale)
    bar.set_ylabel(caption.unit, fontsize=8, color=FAINT_TEXT)
    bar.yaxis.set_label_position("right")
    return figure


def blend_map(
    image: UInt8[np.ndarray, "H W C"],
    heat: Float[np.ndarray, "rows columns"],
    scale: MapScale,
    patch: tuple[int, int],
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    shorter: int = MIN_SIDE_PIXELS,
    opacity: float = OVERLAY_OPACITY,
) -> UInt8[np.ndarray, "h w 3"]:
    """The image under its map as pixels, without a figure.

    Args:
        hidden: patches whose values are not drawn.
        shorter: least length of the shorter side in pixels.

    Raises:
        UsageError: opacity outside 0..1.
    """
    large = enlarge_pixels(to_rgb(image), shorter)
    spread = upsample_map(normalize_map(heat, scale, hidden), image.shape[:2], patch, large.shape[:2])
    return blend_colors(large, spread, scale, opacity)


def upsample_map(
    shares: Float[np.ndarray, "rows columns"],
    size: tuple[int, int],
    patch: tuple[int, int],
    drawn_size: tuple[int, int],
    smooth: bool = True,
) -> Float[np.ndarray, "h w"]:
    """Upsample a map to the drawn image without padding: bilinear between patch centres, or nearest.

    Args:
        size: pixels of the model's input, in the units of `patch`; patches beyond it are padding.
        drawn_size: pixels of the same region as drawn.
    """
    counted = zip(shares.shape, patch, drawn_size, size, strict=True)
    whole = [round(count * side * large / pixels) for count, side, large, pixels in counted]
    from PIL import Image
    from PIL.Image import Resampling

    method = Resampling.BILINEAR if smooth else Resampling.NEAREST
    spread = np.asarray(Image.fromarray(shares.astype(np.float32)).resize((whole[1], whole[0]), method))
    return spread[: drawn_size[0], : drawn_size[1]]


def blend_colors(
    image: UInt8[np.ndarray, "h w 3"],
    shares: Float[np.ndarray, "h w"],
    scale: MapScale,
    opacity: float = OVERLAY_OPACITY,
) -> UInt8[np.ndarray, "h w 3"]:
    """Blend the colours of a map over the image, with opacity proportional to the map: unchanged where it is 0.

    Raises:
        UsageError: opacity outside 0..1.
    """
    if not 0 <= opacity <= 1:
        raise UsageError(f"opacity must lie in 0..1. Got {opacity:g}.")
    alpha = opacity * np.abs(shares)[..., None]
    return np.round(image * (1 - alpha) + 255 * map_colors(shares, scale) * alpha).astype(np.uint8)


def colorize_map(shares: Float[np.ndarray, "h w"], scale: MapScale) -> UInt8[np.ndarray, "h w 3"]:
    """The colours of a map without the image; signed maps over grey."""
    if scale in ("signed", "cosine"):
        return blend_colors(np.full((*shares.shape, 3), NEUTRAL_GRAY, np.uint8), shares, scale, opacity=1.0)
    return np.round(255 * map_colors(shares, scale)).astype(np.uint8)


def map_colors(shares: Float[np.ndarray, "*shape"], scale: MapScale) -> Float[np.ndarray, "*shape 3"]:
    """The colour of each value, 0..1."""
    if scale in ("signed", "cosine"):
        return np.where(shares[..., None] < 0, NEGATIVE_COLOR, POSITIVE_COLOR)
    colormap = import_matplotlib().colormaps[OVERLAY_COLORMAP]
    return np.asarray(colormap(COLORMAP_START + (1 - COLORMAP_START) * shares))[..., :3]


def to_rgb(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Three channels unchanged; of any other count the first, as grey."""
    return image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)


def enlarge_pixels(image: UInt8[np.ndarray, "H W 3"], shorter: int = MIN_SIDE_PIXELS) -> UInt8[np.ndarray, "h w 3"]:
    """Enlarge by repeating pixels; values stay unchanged."""
    step = -(-shorter // min(image.shape[:2]))
    return image.repeat(step, axis=0).repeat(step, axis=1)


def _overlay_layout(
    aspect: float, caption: OverlayCaption, names: tuple[str, ...]
) -> tuple[Figure, tuple[Axes, Axes, Axes, Axes]]:
    """Axes of three named panels and a colour bar side by side, with text above and below, placed in inches."""
    width = min(PANEL_HEIGHT * aspect, MAX_PANEL_WIDTH)
    height = width / aspect
    lefts = [OVERLAY_MARGIN + place * (width + OVERLAY_GAP) for place in range(4)]
    paper = max(lefts[-1] + COLORBAR_WIDTH + COLORBAR_LABEL_WIDTH, MIN_FIGURE_WIDTH)
    title = wrap_lines((caption.title,), paper - 2 * OVERLAY_MARGIN, OVERLAY_TITLE_SIZE)
    below = wrap_lines(caption.below, paper - 2 * OVERLAY_MARGIN, OVERLAY_TEXT_SIZE)
    named = [wrap_lines((name,), width, OVERLAY_NAME_SIZE) for name in names]
    over = 0.06 + LINE_SPACING * OVERLAY_NAME_SIZE * max(map(len, named))
    head = 0.24 + LINE_SPACING * OVERLAY_TITLE_SIZE * len(title) + over
    foot = 0.3 + LINE_SPACING * OVERLAY_TEXT_SIZE * len(below)
    tall = head + height + foot
    figure = new_figure(paper, tall)
    figure.set_layout_engine("none")
    boxes = zip(lefts, (width, width, width, COLORBAR_WIDTH), strict=True)
    first, second, third, bar = (
        figure.add_axes((left / paper, foot / tall, wide / paper, height / tall)) for left, wide in boxes
    )
    draw_text_lines(figure, title, OVERLAY_MARGIN, tall - 0.16, OVERLAY_TITLE_SIZE, bold=True)
    for left, lines in zip(lefts, named, strict=False):
        top = foot + height + 0.06 + LINE_SPACING * OVERLAY_NAME_SIZE * len(lines)
        draw_text_lines(figure, lines, left, top, OVERLAY_NAME_SIZE, faint=True)
    draw_text_lines(figure, below, OVERLAY_MARGIN, foot - 0.14, OVERLAY_TEXT_SIZE)
    return figure, (first, second, third, bar)


def _hatch_hidden_patches(axes: Axes, hidden: Bool[np.ndarray, "rows columns"], side: Sequence[float]) -> None:
    """Hatch the patches that are not drawn.

    Args:
        side: height and width of a patch as drawn.
    """
    from matplotlib.patches import Rectangle

    low, high = axes.get_xlim(), axes.get_ylim()
    for row, column in np.argwhere(hidden):
        place = (column * side[1] - 0.5, row * side[0] - 0.5)
        axes.add_patch(
            Rectangle(place, side[1], side[0], facecolor="white", edgecolor=FAINT_TEXT, hatch="////", linewidth=0)
        )
    axes.set(xlim=low, ylim=high)


def _draw_colorbar(axes: Axes, heat: np.ndarray, scale: MapScale) -> None:
    """Draw the colour bar of the map."""
    low, high = {
        "positive": (0.0, full_scale_value(heat)),
        "signed": (-full_scale_value(np.abs(heat)), full_scale_value(np.abs(heat))),
        "cosine": (-1.0, 1.0),
        "range": (float(heat.min(initial=np.inf)), float(heat.max(initial=-np.inf))),
    }[scale]
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, 256, dtype=np.float32)[:, None]
    colours = colorize_map(shares, scale)
    axes.imshow(colours, aspect="auto", origin="lower", interpolation="nearest", extent=(0, 1, 0, 1))
    axes.yaxis.tick_right()
    axes.set(xticks=[], yticks=[0, 0.5, 1])
    below = "\u2264 " if scale == "signed" and float(heat.min(initial=0)) < low else ""  # the map exceeds the scale
    above = "\u2265 " if scale in ("positive", "signed") and float(heat.max(initial=0)) > high else ""
    labels = [f"{below}{_format_number(low)}", _format_number((low + high) / 2), f"{above}{_format_number(high)}"]
    axes.set_yticklabels(labels, fontsize=8, color=DARK_TEXT)
    axes.tick_params(length=2, color=FAINT_TEXT)
    axes.spines[:].set_visible(False)


def _format_number(number: float) -> str:
    return f"{number:.2g}" if abs(number) < 1e5 else f"{number:.1e}"


# -- Sheet: an image and its maps by several methods side by side

SHEET_COLUMNS = 5
"""Panels in a row."""
SHEET_PANEL_WIDTH, SHEET_PANEL_HEIGHT = 2.3, 2.6
"""Largest size of a panel in inches."""
SHEET_MARGIN, SHEET_GAP = 0.3, 0.25
SHEET_TITLE_SIZE, SHEET_NAME_SIZE, SHEET_TEXT_SIZE = 14.0, 9.5, 7.0
COLOR_LEGEND = "Brighter is more. In two-colour maps orange supports the answer, blue opposes it."
SHEET_DESCRIPTION_LINES = 5
"""Lines of text below the name of a panel."""


class SheetPanel(NamedTuple):
    """The panel of one method."""

    name: str
    description: str
    """The description of the map, or why there is none."""
    heat: Float[np.ndarray, "rows columns"] | None
    """None where there is no map; the image is drawn without an overlay."""
    scale: MapScale = "positive"
    unit: str = ""
    """Unit of the map's values."""


@default_style()
def plot_sheet(
    image: UInt8[np.ndarray, "H W C"],
    patch: tuple[int, int],
    panels: Sequence[SheetPanel],
    title: str,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    opacity: float = OVERLAY_OPACITY,
    original_image: UInt8[np.ndarray, "h w C"] | None = None,
) -> Figure:
    """Plot the model's input, then the image under every map with its name, range and description.

    Args:
        hidden: patches whose values are not drawn.
        original_image: the same region at its original resolution; None uses `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    seen = enlarge_pixels(to_rgb(image))
    large = seen if original_image is None else enlarge_pixels(to_rgb(original_image))
    aspect = large.shape[1] / large.shape[0]
    wide = min(SHEET_PANEL_WIDTH, SHEET_PANEL_HEIGHT * aspect)
    shown = [SheetPanel("what the model sees", f"{image.shape[0]} \u00d7 {image.shape[1]} pixels", None), *panels]
    across = min(SHEET_COLUMNS, len(shown))
    down = -(-len(shown) // across)
    paper = 2 * SHEET_MARGIN + across * SHEET_PANEL_WIDTH + (across - 1) * SHEET_GAP
    words = LINE_SPACING * (SHEET_NAME_SIZE + SHEET_DESCRIPTION_LINES * SHEET_TEXT_SIZE) + 0.25
    cell, head = wide / aspect + words, 0.32 + LINE_SPACING * (SHEET_TITLE_SIZE + SHEET_TEXT_SIZE)
    tall = head + down * cell
    figure = new_figure(paper, tall)
    figure.set_layout_engine("none")
    heading = wrap_lines((title,), paper - 2 * SHEET_MARGIN, SHEET_TITLE_SIZE)[:1]
    draw_text_lines(figure, heading, SHEET_MARGIN, tall - 0.15, SHEET_TITLE_SIZE, bold=True)
    legend_top = tall - 0.17 - LINE_SPACING * SHEET_TITLE_SIZE
    draw_text_lines(figure, [COLOR_LEGEND], SHEET_MARGIN, legend_top, SHEET_TEXT_SIZE, faint=True)
    for place, panel in enumerate(shown):
        left = SHEET_MARGIN + place % across * (SHEET_PANEL_WIDTH + SHEET_GAP)
        top = tall - head - place // across * cell
        axes = figure.add_axes((left / paper, (top - wide / aspect) / tall, wide / paper, wide / aspect / tall))
        mixed = large if place else seen
        if panel.heat is not None:
            shares = normalize_map(panel.heat, panel.scale, hidden)
            shares = upsample_map(shares, image.shape[:2], patch, large.shape[:2])
            mixed = blend_colors(large, shares, panel.scale, opacity)
        axes.imshow(mixed, aspect="auto", interpolation="nearest")
        hide_axes(axes)
        below = top - wide / aspect - 0.06
        draw_text_lines(figure, [panel.name], left, below, SHEET_NAME_SIZE, bold=True)
        value_range = "" if panel.heat is None else f"{panel.heat.min():.2g} to {panel.heat.max():.2g}: {panel.unit}"
        lines = wrap_lines((value_range, panel.description), SHEET_PANEL_WIDTH, SHEET_TEXT_SIZE)
        top = below - LINE_SPACING * SHEET_NAME_SIZE
        draw_text_lines(figure, lines[:SHEET_DESCRIPTION_LINES], left, top, SHEET_TEXT_SIZE)
    return figure
