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
from .figures import bare, new_figure
from .map import Scale
from .words import FAINT, INK, LEADING, wrapped, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPACITY = 0.75
"""How much of the picture the strongest value of a map hides."""
COLOURS = "inferno"
"""Matplotlib's colour map of one-sided maps: even steps to the eye, and told apart by the colour-blind."""
DARKEST = 0.35
"""Where on these colours a map begins: their first third is black, which would look like shadow."""
FOR, AGAINST = (1.0, 0.56, 0.12), (0.16, 0.62, 1.0)
"""Orange and blue of maps with two sides, which the colour-blind tell apart too."""
GREY = 128
"""Half-way between black and white: what stands for 0 in maps with two sides, drawn alone."""
SHORTER = 480
"""Pixels that the shorter side of a drawn picture has at least; smaller ones are enlarged by whole steps."""
TALL = 3.1
"""Inches of a drawn picture's height, before a wide one is made smaller."""
WIDEST = 4.6
NARROWEST = 6.4
"""Inches of the paper's width at least, for the words."""
EDGE, GAP, BAR, MARKS = 0.25, 0.2, 0.16, 0.95
TITLE, NAME, TEXT = 13.0, 8.5, 8.5


class Caption(NamedTuple):
    """What stands around a picture."""

    title: str
    """Class and probability."""
    below: tuple[str, ...]
    """Method and layer, the honest line, and notes."""
    unit: str = ""
    """What the map's numbers count."""


def overlay(
    image: UInt8[np.ndarray, "H W C"],
    heat: Float[np.ndarray, "rows columns"],
    scale: Scale,
    patch: tuple[int, int],
    caption: Caption,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    opacity: float = OPACITY,
    own: UInt8[np.ndarray, "h w C"] | None = None,
) -> Figure:
    """What the model sees, the picture under its map, the map alone patch by patch, a scale bar, and words.

    All three have the picture's own shape, whatever the model's is.

    Args:
        image: as the model sees it; one channel is grey, three are colours, of any other count the first is shown.
        hidden: patches whose heat is left out.
        own: the same part of the picture in its own pixels; None where there is nothing but `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    shown = shares_of(heat, scale, hidden)
    seen, large = enlarged(coloured(image)), enlarged(coloured(image if own is None else own))
    drawn = large.shape[:2]
    mixed = blended(large, stretched(shown, image.shape[:2], patch, drawn), scale, opacity)
    alone = painted(stretched(shown, image.shape[:2], patch, drawn, smooth=False), scale)
    names = (
        f"what the model sees: {image.shape[0]} \u00d7 {image.shape[1]} pixels",
        "the picture under its map",
        f"the map: {heat.shape[0]} \u00d7 {heat.shape[1]} patches",
    )
    figure, (left, middle, right, bar) = _places(drawn[1] / drawn[0], caption, names)
    for axes, pixels in ((left, seen), (middle, mixed), (right, alone)):
        axes.imshow(pixels, aspect="auto", interpolation="nearest")
        bare(axes)
    if hidden is not None:
        _hatch(
            right, hidden, [side * large / seen for side, large, seen in zip(patch, drawn, image.shape, strict=False)]
        )
    _scale_bar(bar, heat if hidden is None else heat[~hidden], scale)
    bar.set_ylabel(caption.unit, fontsize=8, color=FAINT)
    bar.yaxis.set_label_position("right")
    return figure


def under_map(
    image: UInt8[np.ndarray, "H W C"],
    heat: Float[np.ndarray, "rows columns"],
    scale: Scale,
    patch: tuple[int, int],
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    shorter: int = SHORTER,
    opacity: float = OPACITY,
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture under its map, with no paper around it.

    Args:
        hidden: patches whose heat is left out.
        shorter: pixels that its shorter side shall have at least.

    Raises:
        UsageError: opacity outside 0..1.
    """
    large = enlarged(coloured(image), shorter)
    spread = stretched(shares_of(heat, scale, hidden), image.shape[:2], patch, large.shape[:2])
    return blended(large, spread, scale, opacity)


def save(figure: Figure, path: Path, words: str) -> None:
    """Write a figure as PNG with a description for people who cannot see it; the same figure gives the same file."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, metadata={"Software": None, "Description": words})
    atomic.write_bytes(Path(path), data.getvalue())


def shares_of(
    heat: Float[np.ndarray, "rows columns"], scale: Scale, hidden: Bool[np.ndarray, "rows columns"] | None = None
) -> Float[np.ndarray, "rows columns"]:
    """A map as shares of its `full` value: 0..1, or -1..1 where it speaks for and against; hidden patches are 0."""
    kept = heat if hidden is None else heat[~hidden]
    if scale == "cosine":
        found = np.clip(heat, -1, 1)
    elif scale == "signed":
        found = np.clip(heat / _or_one(full(np.abs(kept))), -1, 1)
    elif scale == "positive":
        found = np.clip(heat / _or_one(full(kept)), 0, 1)
    else:
        found = (heat - kept.min()) / _or_one(float(np.ptp(kept)))
    return np.where(False if hidden is None else hidden, 0, found).astype(np.float32)


def full(kept: Float[np.ndarray, "*shape"]) -> float:
    """The value that is drawn in full strength: the largest, or of a hundred patches and more that which all but the
    largest hundredth stay below, so that a few extreme patches do not silence the rest of the picture."""
    largest = float(kept.max(initial=0))
    beyond = kept.size // 100
    most = float(np.sort(kept, axis=None)[-1 - beyond]) if beyond else largest
    return most if most > 0 else largest


def stretched(
    shares: Float[np.ndarray, "rows columns"],
    size: tuple[int, int],
    patch: tuple[int, int],
    drawn: tuple[int, int],
    smooth: bool = True,
) -> Float[np.ndarray, "h w"]:
    """As large as the picture is drawn, without the padding: spread between centres of patches, or in rectangles.

    Args:
        size: pixels of the picture as the model sees it, which `patch` counts; patches beyond it are padding.
        drawn: pixels that the same part of the picture has on paper.
    """
    import torch
    import torch.nn.functional as F

    counted = zip(shares.shape, patch, drawn, size, strict=True)
    whole = [round(count * side * large / pixels) for count, side, large, pixels in counted]
    values = torch.from_numpy(shares)[None, None]
    if smooth:
        spread = F.interpolate(values, size=whole, mode="bilinear", align_corners=False)
    else:
        spread = F.interpolate(values, size=whole, mode="nearest-exact")
    return spread[0, 0, : drawn[0], : drawn[1]].numpy()


def blended(
    image: UInt8[np.ndarray, "h w 3"], shares: Float[np.ndarray, "h w"], scale: Scale, opacity: float = OPACITY
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture under the colours of a map, each as opaque as the map is strong there: untouched where it is 0.

    Raises:
        UsageError: opacity outside 0..1.
    """
    if not 0 <= opacity <= 1:
        raise UsageError(f"opacity must lie in 0..1. Got {opacity:g}.")
    alpha = opacity * np.abs(shares)[..., None]
    return np.round(image * (1 - alpha) + 255 * colours_of(shares, scale) * alpha).astype(np.uint8)


def painted(shares: Float[np.ndarray, "h w"], scale: Scale) -> UInt8[np.ndarray, "h w 3"]:
    """The map alone: the colours that the overlay mixes in, as they are; those of two sides over grey."""
    if scale in ("signed", "cosine"):
        return blended(np.full((*shares.shape, 3), GREY, np.uint8), shares, scale, opacity=1.0)
    return np.round(255 * colours_of(shares, scale)).astype(np.uint8)


def colours_of(shares: Float[np.ndarray, "*shape"], scale: Scale) -> Float[np.ndarray, "*shape 3"]:
    """The colour of each share, 0..1."""
    from matplotlib import colormaps

    if scale in ("signed", "cosine"):
        return np.where(shares[..., None] < 0, AGAINST, FOR)
    return np.asarray(colormaps[COLOURS](DARKEST + (1 - DARKEST) * shares))[..., :3]


def coloured(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Three channels as they are; of any other count the first, as grey."""
    return image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)


def enlarged(image: UInt8[np.ndarray, "H W 3"], shorter: int = SHORTER) -> UInt8[np.ndarray, "h w 3"]:
    """Every pixel as a square of pixels, so that small pictures can be seen; no value is changed."""
    step = -(-shorter // min(image.shape[:2]))
    return image.repeat(step, axis=0).repeat(step, axis=1)


def _or_one(largest: float) -> float:
    return largest or 1.0


def _places(aspect: float, caption: Caption, names: tuple[str, ...]) -> tuple[Figure, tuple[Axes, Axes, Axes, Axes]]:
    """Three pictures with their names and a bar side by side, words above and below them, all placed in inches."""
    width = min(TALL * aspect, WIDEST)
    height = width / aspect
    lefts = [EDGE + place * (width + GAP) for place in range(4)]
    paper = max(lefts[-1] + BAR + MARKS, NARROWEST)
    title = wrapped((caption.title,), paper - 2 * EDGE, TITLE)
    below = wrapped(caption.below, paper - 2 * EDGE, TEXT)
    named = [wrapped((name,), width, NAME) for name in names]
    over = 0.06 + LEADING * NAME * max(map(len, named))
    head, foot = 0.24 + LEADING * TITLE * len(title) + over, 0.3 + LEADING * TEXT * len(below)
    figure = new_figure(paper, head + height + foot)
    figure.set_layout_engine("none")
    tall = head + height + foot
    boxes = zip(lefts, (width, width, width, BAR), strict=True)
    first, second, third, bar = (
        figure.add_axes((left / paper, foot / tall, wide / paper, height / tall)) for left, wide in boxes
    )
    write(figure, title, EDGE, tall - 0.16, TITLE, bold=True)
    for left, lines in zip(lefts, named, strict=False):
        top = foot + height + 0.06 + LEADING * NAME * len(lines)
        write(figure, lines, left, top, NAME, faint=True)
    write(figure, below, EDGE, foot - 0.14, TEXT)
    return figure, (first, second, third, bar)


def _hatch(axes: Axes, hidden: Bool[np.ndarray, "rows columns"], side: Sequence[float]) -> None:
    """Stripes on the patches that are not drawn.

    Args:
        side: height and width of a patch as it is drawn.
    """
    from matplotlib.patches import Rectangle

    low, high = axes.get_xlim(), axes.get_ylim()
    for row, column in np.argwhere(hidden):
        place = (column * side[1] - 0.5, row * side[0] - 0.5)
        axes.add_patch(
            Rectangle(place, side[1], side[0], facecolor="white", edgecolor=FAINT, hatch="////", linewidth=0)
        )
    axes.set(xlim=low, ylim=high)


def _scale_bar(axes: Axes, heat: np.ndarray, scale: Scale) -> None:
    """What the colours of the map alone mean."""
    low, high = {
        "positive": (0.0, full(heat)),
        "signed": (-full(np.abs(heat)), full(np.abs(heat))),
        "cosine": (-1.0, 1.0),
        "range": (float(heat.min(initial=np.inf)), float(heat.max(initial=-np.inf))),
    }[scale]
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, 256, dtype=np.float32)[:, None]
    axes.imshow(painted(shares, scale), aspect="auto", origin="lower", interpolation="nearest", extent=(0, 1, 0, 1))
    axes.yaxis.tick_right()
    axes.set(xticks=[], yticks=[0, 0.5, 1])
    cut = scale in ("positive", "signed")
    ends = (
        _beyond("\u2264 ", low, scale == "signed" and float(heat.min(initial=0)) < low),
        _beyond("\u2265 ", high, cut and float(heat.max(initial=0)) > high),
    )
    axes.set_yticklabels([ends[0], _short((low + high) / 2), ends[1]], fontsize=8, color=INK)
    axes.tick_params(length=2, color=FAINT)
    axes.spines[:].set_visible(False)


def _beyond(sign: str, end: float, more: bool) -> str:
    """An end of the scale, and whether the map goes beyond it."""
    return f"{sign if more else ''}{_short(end)}"


def _short(number: float) -> str:
    return f"{number:.2g}" if abs(number) < 1e5 else f"{number:.1e}"
