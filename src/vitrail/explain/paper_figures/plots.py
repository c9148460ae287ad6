"""Inputs, results and layout of the paper figures, and the two figures of patches: patch grid and token strip."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ...data.decoding.decode import to_8_bits
from ...data.preprocess import normalize, preprocess_image
from ...data.source import ImageInput
from ...errors import UsageError
from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ...spec import Grid, ImageSpec
from .. import figures
from ..attribution import patch_grid_of
from ..figures import hide_axes, new_figure, show_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.image import AxesImage


HEAT_COLORMAP = "inferno"
"""Colormap of relevance and attention: perceptually uniform, bright is high."""
SIMILARITY_COLORMAP = "viridis"
"""Colormap of similarity."""
FIGURE_WIDTH = 8.0
"""Inches; 9 points are 10 pixels where a page shows the figure 800 pixels wide."""
TEXT_COLOR, SECONDARY_COLOR = "#1b1b22", "#55555f"
FIRST_COLOR, SECOND_COLOR = "#1f5fa8", "#d1495b"
CAPTION_COLUMNS = 108
"""Letters in a line of the caption."""


def new_page(height: float, heading: str, caption: str) -> Figure:
    """An empty figure with a heading above and a caption below the panels."""
    lines = textwrap.wrap(caption.replace(" %", "\u00a0%"), CAPTION_COLUMNS, break_on_hyphens=False)
    figure = new_figure(FIGURE_WIDTH, height + 0.45 + 0.19 * len(lines))
    figure.suptitle(heading, x=0.012, ha="left", fontsize=12.5, fontweight="bold", color=TEXT_COLOR)
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=9, color=SECONDARY_COLOR, linespacing=1.35)
    return figure


def add_panels(figure: FigureBase, rows: int, columns: int) -> list[list[Axes]]:
    """Rows of axes for images, without ticks."""
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        hide_axes(axes)
    return [list(row) for row in panels]


def draw_image(axes: Axes, image: UInt8[np.ndarray, "H W C"], title: str = "") -> None:
    """Draw three channels as RGB, one as grey, of any other count the first as grey."""
    show_image(axes, image, "gray")
    set_panel_title(axes, title)


def draw_heatmap(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    limits: tuple[float, float],
    title: str = "",
    cmap: str = HEAT_COLORMAP,
) -> AxesImage:
    """Draw a map, one square per patch, between fixed limits."""
    mappable = axes.imshow(values, cmap, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    set_panel_title(axes, title)
    return mappable


def add_colorbar(figure: FigureBase, mappable: AxesImage, axes: list[Axes], label: str) -> None:
    """Add a colour bar."""
    bar = figure.colorbar(mappable, ax=axes, shrink=0.8, aspect=26, pad=0.015)
    bar.set_label(label, fontsize=9, color=SECONDARY_COLOR)
    bar.ax.tick_params(labelsize=8.5, colors=SECONDARY_COLOR)
    bar.outline.set_visible(False)


def set_panel_title(axes: Axes, title: str) -> None:
    """Set the title of a panel."""
    axes.set_title(title, fontsize=9.5, color=TEXT_COLOR)


def style_axes(axes: Axes, across: str, up: str) -> None:
    """Style the axes of a diagram: labels, integer x ticks, a light frame, a fine grid."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(across, fontsize=10, color=TEXT_COLOR)
    axes.set_ylabel(up, fontsize=10, color=TEXT_COLOR)
    axes.tick_params(labelsize=9, colors=SECONDARY_COLOR)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SECONDARY_COLOR)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(color="#e4e4ea", linewidth=0.7)
    axes.set_axisbelow(True)


def join_names(names: tuple[str, ...]) -> str:
    """The image names for a caption."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def draw_mask_outline(axes: Axes, mask: Bool[np.ndarray, "rows columns"], colour: str = "#f5f5f5") -> None:
    """Outline the patches of a mask on a map of one square per patch."""
    wide = np.pad(mask, 1)
    rows, columns = np.nonzero(wide[1:] != wide[:-1])  # between patch row r - 1 and r
    axes.hlines(rows - 0.5, columns - 1.5, columns - 0.5, colour, linewidth=1.1)
    rows, columns = np.nonzero(wide[:, 1:] != wide[:, :-1])
    axes.vlines(columns - 0.5, rows - 1.5, rows - 0.5, colour, linewidth=1.1)


# -- Inputs, options and results


class FigureInputs(NamedTuple):
    """Images before and after normalisation."""

    images: Float[Tensor, "B C H W"]
    """Normalised; sides are multiples of the patch."""
    pixels: UInt8[np.ndarray, "B H W C"]
    """The same before normalisation."""
    names: tuple[str, ...]
    grid: Grid


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options of all figures; a figure refuses those that it does not have (see `all_figures.draw_figure`)."""

    layer: int | None = None
    """The block, counted from 0; None is the last one."""
    residual: bool = True
    """rollout: add the identity for the residual connections, and renormalise rows to sum to 1."""
    renormalise: bool = True
    """attention-distance: renormalise attention among patches to sum to 1, without class token and registers."""
    share: float = 0.6
    """heads: the fraction of attention inside the masks (0.6 in the DINO paper)."""
    threshold: float = 0.0
    """pca: threshold of the first component, in standard deviations, above which a patch is foreground."""
    together: bool = True
    """pca and pca-whitened: find the foreground jointly in all images, as the papers do for images of similar objects;
    otherwise in each image. The colours are always joint."""
    token: int = 1
    """token-strip: the patch, counted from 1 in reading order."""


class FigureResult(NamedTuple):
    """A figure with its arrays and facts."""

    figure: Figure
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    """Method, source and options in plain values."""


def prepare_figure_inputs(
    model: ViT, spec: ImageSpec, source_images: Sequence[ImageInput], names: Sequence[str]
) -> FigureInputs:
    """Prepare images of any size for a model's figures, at the spec's size, padded if the model pads.

    Raises:
        DataError: an image cannot be read.
        UsageError: the spec's size is not a multiple of the patch.
    """
    stack = torch.stack([preprocess_image(image, spec) for image in source_images])  # [B, C, H, W]
    images, patch = normalize(stack, spec), model.config.patch
    if model.config.pad:
        images, stack = pad_to_patches(images, patch), pad_to_patches(stack.float(), patch).to(stack.dtype)
    pixels = np.ascontiguousarray(to_8_bits(stack.permute(0, 2, 3, 1).numpy()))
    return FigureInputs(images, pixels, tuple(names), patch_grid_of(model, images))


def empty_figure_inputs(model: ViT) -> FigureInputs:
    """Inputs without images, at the model's own size, for figures of the model alone."""
    config = model.config
    size = tuple(side * patch for side, patch in zip(config.grid, config.patch, strict=True))
    empty = np.zeros((0, *size, config.channels), np.uint8)
    return FigureInputs(torch.zeros(0, config.channels, *size), empty, (), config.grid)


def resize_spec(spec: ImageSpec, size: tuple[int, int]) -> ImageSpec:
    """The spec for another image size: DINO's figures use 480 pixels instead of 224."""
    return replace(spec, height=size[0], width=size[1])


def hash_model_state(model: ViT) -> str:
    """SHA-256 over the names and values of a model's state dict."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def figure_facts(model: ViT, inputs: FigureInputs) -> dict[str, Any]:
    """Hashes of the weights and of the images."""
    pixels = [hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest() for image in inputs.pixels]
    return {
        "model_sha256": hash_model_state(model),
        "pictures": [{"name": name, "sha256": pixel} for name, pixel in zip(inputs.names, pixels, strict=True)],
        "image_size": list(inputs.images.shape[2:]),
        "grid": list(inputs.grid),
    }


# -- The figures of patches

PATCHES_SOURCE = "Dosovitskiy et al. 2020, figure 1 and equation 1"


def draw_patch_grid(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """One image with its patches numbered in reading order. No options.

    Raises:
        UsageError: more than one image.
    """
    image = _single_image(inputs)
    figure = figures.plot_patch_grid(image, model.config.patch)
    return FigureResult(figure, {"picture": image}, {"source": PATCHES_SOURCE, "patch": list(model.config.patch)})


def draw_token_strip(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """The position of one patch, the patch, and the flattened patch that the projection reads. Options: token.

    Raises:
        UsageError: more than one image, or no such patch.
    """
    image, (height, width) = _single_image(inputs), model.config.patch
    figure = figures.plot_token_strip(image, model.config.patch, options.token)
    row, column = divmod(options.token - 1, inputs.grid.columns)
    cut = image[row * height : (row + 1) * height, column * width : (column + 1) * width]
    facts = {"source": PATCHES_SOURCE, "patch": [height, width]}
    return FigureResult(figure, {"strip": cut.transpose(2, 0, 1).reshape(-1)}, facts)


def _single_image(inputs: FigureInputs) -> np.ndarray:
    if len(inputs.pixels) != 1:
        raise UsageError(f"This figure shows one picture. Got {len(inputs.pixels)}.")
    return np.asarray(inputs.pixels[0])
