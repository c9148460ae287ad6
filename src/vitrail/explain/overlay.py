"""A map over its picture: coloured as strongly as the map speaks, the picture's own values where it is silent."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from ..errors import UsageError
from ..files import atomic
from .attribution import MapScale
from .figures import DARK_TEXT, FAINT_TEXT, LINE_SPACING, draw_text_lines, hide_axes, new_figure, wrap_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OVERLAY_OPACITY = 0.75
"""How much of the picture the strongest value of a map hides."""
OVERLAY_COLORMAP = "inferno"
"""Matplotlib's colour map of one-sided maps: even steps to the eye, and told apart by the colour-blind."""
COLORMAP_START = 0.35
"""Where on these colours a map begins: their first third is black, which would look like shadow."""
POSITIVE_COLOR, NEGATIVE_COLOR = (1.0, 0.56, 0.12), (0.16, 0.62, 1.0)
"""Orange and blue of maps with two sides, which the colour-blind tell apart too."""
NEUTRAL_GRAY = 128
"""Half-way between black and white: what stands for 0 in maps with two sides, drawn alone."""
MIN_SIDE_PIXELS = 480
"""Pixels that the shorter side of a drawn picture has at least; smaller ones are enlarged by whole steps."""
PANEL_HEIGHT = 3.1
"""Inches of a drawn picture's height, before a wide one is made smaller."""
MAX_PANEL_WIDTH = 4.6
MIN_FIGURE_WIDTH = 6.4
"""Inches of the paper's width at least, for the words."""
OVERLAY_MARGIN, OVERLAY_GAP, COLORBAR_WIDTH, COLORBAR_LABEL_WIDTH = 0.25, 0.2, 0.16, 0.95
OVERLAY_TITLE_SIZE, OVERLAY_NAME_SIZE, OVERLAY_TEXT_SIZE = 13.0, 8.5, 8.5


class OverlayCaption(NamedTuple):
    """What stands around a picture."""

    title: str
    """Class and probability."""
    below: tuple[str, ...]
    """Method and layer, the honest line, and notes."""
    unit: str = ""
    """What the map's numbers count."""


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
    """What the model sees, the picture under its map, the map alone patch by patch, a scale bar, and words.

    All three have the picture's own shape, whatever the model's is.

    Args:
        image: as the model sees it; one channel is grey, three are colours, of any other count the first is shown.
        hidden: patches whose heat is left out.
        original_image: the same part of the picture in its own pixels; None where there is nothing but `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    shown = normalize_map(heat, scale, hidden)
    seen, large = (
        enlarge_pixels(to_rgb(image)),
        enlarge_pixels(to_rgb(image if original_image is None else original_image)),
    )
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
        _hatch_hidden_patches(
            right, hidden, [side * large / seen for side, large, seen in zip(patch, drawn, image.shape, strict=False)]
        )
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
    """The picture under its map, with no paper around it.

    Args:
        hidden: patches whose heat is left out.
        shorter: pixels that its shorter side shall have at least.

    Raises:
        UsageError: opacity outside 0..1.
    """
    large = enlarge_pixels(to_rgb(image), shorter)
    spread = upsample_map(normalize_map(heat, scale, hidden), image.shape[:2], patch, large.shape[:2])
    return blend_colors(large, spread, scale, opacity)


def save_described_png(figure: Figure, path: Path, words: str) -> None:
    """Write a figure as PNG with a description for people who cannot see it; the same figure gives the same file."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, metadata={"Software": None, "Description": words})
    atomic.write_bytes(Path(path), data.getvalue())


def normalize_map(
    heat: Float[np.ndarray, "rows columns"], scale: MapScale, hidden: Bool[np.ndarray, "rows columns"] | None = None
) -> Float[np.ndarray, "rows columns"]:
    """A map as shares of its `full` value: 0..1, or -1..1 where it speaks for and against; hidden patches are 0."""
    kept = heat if hidden is None else heat[~hidden]
    if scale == "cosine":
        found = np.clip(heat, -1, 1)
    elif scale == "signed":
        found = np.clip(heat / _nonzero_or_one(full_scale_value(np.abs(kept))), -1, 1)
    elif scale == "positive":
        found = np.clip(heat / _nonzero_or_one(full_scale_value(kept)), 0, 1)
    else:
        found = (heat - kept.min()) / _nonzero_or_one(float(np.ptp(kept)))
    return np.where(False if hidden is None else hidden, 0, found).astype(np.float32)


def full_scale_value(values: Float[np.ndarray, "*shape"]) -> float:
    """The value that is drawn in full strength: the largest, or of a hundred patches and more that which all but the
    largest hundredth stay below, so that a few extreme patches do not silence the rest of the picture."""
    largest = float(values.max(initial=0))
    beyond = values.size // 100
    most = float(np.sort(values, axis=None)[-1 - beyond]) if beyond else largest
    return most if most > 0 else largest


def upsample_map(
    shares: Float[np.ndarray, "rows columns"],
    size: tuple[int, int],
    patch: tuple[int, int],
    drawn_size: tuple[int, int],
    smooth: bool = True,
) -> Float[np.ndarray, "h w"]:
    """As large as the picture is drawn, without the padding: spread between centres of patches, or in rectangles.

    Args:
        size: pixels of the picture as the model sees it, which `patch` counts; patches beyond it are padding.
        drawn_size: pixels that the same part of the picture has on paper.
    """
    import torch
    import torch.nn.functional as F

    counted = zip(shares.shape, patch, drawn_size, size, strict=True)
    whole = [round(count * side * large / pixels) for count, side, large, pixels in counted]
    values = torch.from_numpy(shares)[None, None]
    if smooth:
        spread = F.interpolate(values, size=whole, mode="bilinear", align_corners=False)
    else:
        spread = F.interpolate(values, size=whole, mode="nearest-exact")
    return spread[0, 0, : drawn_size[0], : drawn_size[1]].numpy()


def blend_colors(
    image: UInt8[np.ndarray, "h w 3"],
    shares: Float[np.ndarray, "h w"],
    scale: MapScale,
    opacity: float = OVERLAY_OPACITY,
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture under the colours of a map, each as opaque as the map is strong there: untouched where it is 0.

    Raises:
        UsageError: opacity outside 0..1.
    """
    if not 0 <= opacity <= 1:
        raise UsageError(f"opacity must lie in 0..1. Got {opacity:g}.")
    alpha = opacity * np.abs(shares)[..., None]
    return np.round(image * (1 - alpha) + 255 * map_colors(shares, scale) * alpha).astype(np.uint8)


def colorize_map(shares: Float[np.ndarray, "h w"], scale: MapScale) -> UInt8[np.ndarray, "h w 3"]:
    """The map alone: the colours that the overlay mixes in, as they are; those of two sides over grey."""
    if scale in ("signed", "cosine"):
        return blend_colors(np.full((*shares.shape, 3), NEUTRAL_GRAY, np.uint8), shares, scale, opacity=1.0)
    return np.round(255 * map_colors(shares, scale)).astype(np.uint8)


def map_colors(shares: Float[np.ndarray, "*shape"], scale: MapScale) -> Float[np.ndarray, "*shape 3"]:
    """The colour of each share, 0..1."""
    from matplotlib import colormaps

    if scale in ("signed", "cosine"):
        return np.where(shares[..., None] < 0, NEGATIVE_COLOR, POSITIVE_COLOR)
    return np.asarray(colormaps[OVERLAY_COLORMAP](COLORMAP_START + (1 - COLORMAP_START) * shares))[..., :3]


def to_rgb(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Three channels as they are; of any other count the first, as grey."""
    return image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)


def enlarge_pixels(image: UInt8[np.ndarray, "H W 3"], shorter: int = MIN_SIDE_PIXELS) -> UInt8[np.ndarray, "h w 3"]:
    """Every pixel as a square of pixels, so that small pictures can be seen; no value is changed."""
    step = -(-shorter // min(image.shape[:2]))
    return image.repeat(step, axis=0).repeat(step, axis=1)


def _nonzero_or_one(largest: float) -> float:
    return largest or 1.0


def _overlay_layout(
    aspect: float, caption: OverlayCaption, names: tuple[str, ...]
) -> tuple[Figure, tuple[Axes, Axes, Axes, Axes]]:
    """Three pictures with their names and a bar side by side, words above and below them, all placed in inches."""
    width = min(PANEL_HEIGHT * aspect, MAX_PANEL_WIDTH)
    height = width / aspect
    lefts = [OVERLAY_MARGIN + place * (width + OVERLAY_GAP) for place in range(4)]
    paper = max(lefts[-1] + COLORBAR_WIDTH + COLORBAR_LABEL_WIDTH, MIN_FIGURE_WIDTH)
    title = wrap_lines((caption.title,), paper - 2 * OVERLAY_MARGIN, OVERLAY_TITLE_SIZE)
    below = wrap_lines(caption.below, paper - 2 * OVERLAY_MARGIN, OVERLAY_TEXT_SIZE)
    named = [wrap_lines((name,), width, OVERLAY_NAME_SIZE) for name in names]
    over = 0.06 + LINE_SPACING * OVERLAY_NAME_SIZE * max(map(len, named))
    head, foot = (
        0.24 + LINE_SPACING * OVERLAY_TITLE_SIZE * len(title) + over,
        0.3 + LINE_SPACING * OVERLAY_TEXT_SIZE * len(below),
    )
    figure = new_figure(paper, head + height + foot)
    figure.set_layout_engine("none")
    tall = head + height + foot
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
    """Stripes on the patches that are not drawn.

    Args:
        side: height and width of a patch as it is drawn.
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
    """What the colours of the map alone mean."""
    low, high = {
        "positive": (0.0, full_scale_value(heat)),
        "signed": (-full_scale_value(np.abs(heat)), full_scale_value(np.abs(heat))),
        "cosine": (-1.0, 1.0),
        "range": (float(heat.min(initial=np.inf)), float(heat.max(initial=-np.inf))),
    }[scale]
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, 256, dtype=np.float32)[:, None]
    axes.imshow(
        colorize_map(shares, scale), aspect="auto", origin="lower", interpolation="nearest", extent=(0, 1, 0, 1)
    )
    axes.yaxis.tick_right()
    axes.set(xticks=[], yticks=[0, 0.5, 1])
    cut = scale in ("positive", "signed")
    ends = (
        _format_scale_end("\u2264 ", low, scale == "signed" and float(heat.min(initial=0)) < low),
        _format_scale_end("\u2265 ", high, cut and float(heat.max(initial=0)) > high),
    )
    axes.set_yticklabels([ends[0], _format_number((low + high) / 2), ends[1]], fontsize=8, color=DARK_TEXT)
    axes.tick_params(length=2, color=FAINT_TEXT)
    axes.spines[:].set_visible(False)


def _format_scale_end(sign: str, end: float, more: bool) -> str:
    """An end of the scale, and whether the map goes beyond it."""
    return f"{sign if more else ''}{_format_number(end)}"


def _format_number(number: float) -> str:
    return f"{number:.2g}" if abs(number) < 1e5 else f"{number:.1e}"


# One page for a picture: the picture, and its maps by all methods side by side.

SHEET_COLUMNS = 5
"""Pictures in a row."""
SHEET_PANEL_WIDTH, SHEET_PANEL_HEIGHT = 2.3, 2.6
"""Inches of one picture at most."""
SHEET_MARGIN, SHEET_GAP = 0.3, 0.25
SHEET_TITLE_SIZE, SHEET_NAME_SIZE, SHEET_TEXT_SIZE = 14.0, 9.5, 7.0
COLOR_LEGEND = "Purple to yellow: the brighter, the more. Of two sides orange is for it, blue against it."
SHEET_DESCRIPTION_LINES = 5
"""Lines of text below a picture's name."""


class SheetPanel(NamedTuple):
    """One method's part of the page."""

    name: str
    description: str
    """The honest line, or why there is no map."""
    heat: Float[np.ndarray, "rows columns"] | None
    """None where there is no map: the picture stands there as it is."""
    scale: MapScale = "positive"
    unit: str = ""
    """What the map's numbers count."""


def plot_sheet(
    image: UInt8[np.ndarray, "H W C"],
    patch: tuple[int, int],
    panels: Sequence[SheetPanel],
    title: str,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    opacity: float = OVERLAY_OPACITY,
    original_image: UInt8[np.ndarray, "h w C"] | None = None,
) -> Figure:
    """What the model sees, then the picture under every map, each with its name, its numbers and its line.

    Args:
        hidden: patches whose heat is left out.
        original_image: the same part of the picture in its own pixels; None where there is nothing but `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    seen, large = (
        enlarge_pixels(to_rgb(image)),
        enlarge_pixels(to_rgb(image if original_image is None else original_image)),
    )
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
    draw_text_lines(
        figure,
        wrap_lines((title,), paper - 2 * SHEET_MARGIN, SHEET_TITLE_SIZE)[:1],
        SHEET_MARGIN,
        tall - 0.15,
        SHEET_TITLE_SIZE,
        bold=True,
    )
    draw_text_lines(
        figure, [COLOR_LEGEND], SHEET_MARGIN, tall - 0.17 - LINE_SPACING * SHEET_TITLE_SIZE, SHEET_TEXT_SIZE, faint=True
    )
    for place, panel in enumerate(shown):
        left = SHEET_MARGIN + place % across * (SHEET_PANEL_WIDTH + SHEET_GAP)
        top = tall - head - place // across * cell
        axes = figure.add_axes((left / paper, (top - wide / aspect) / tall, wide / paper, wide / aspect / tall))
        mixed = large if place else seen
        if panel.heat is not None:
            shares = normalize_map(panel.heat, panel.scale, hidden)
            mixed = blend_colors(
                large, upsample_map(shares, image.shape[:2], patch, large.shape[:2]), panel.scale, opacity
            )
        axes.imshow(mixed, aspect="auto", interpolation="nearest")
        hide_axes(axes)
        below = top - wide / aspect - 0.06
        draw_text_lines(figure, [panel.name], left, below, SHEET_NAME_SIZE, bold=True)
        lines = wrap_lines((_describe_range(panel), panel.description), SHEET_PANEL_WIDTH, SHEET_TEXT_SIZE)[
            :SHEET_DESCRIPTION_LINES
        ]
        draw_text_lines(figure, lines, left, below - LINE_SPACING * SHEET_NAME_SIZE, SHEET_TEXT_SIZE)
    return figure


def _describe_range(panel: SheetPanel) -> str:
    """From where to where the map goes, and what it counts."""
    return "" if panel.heat is None else f"{panel.heat.min():.2g} to {panel.heat.max():.2g}: {panel.unit}"
