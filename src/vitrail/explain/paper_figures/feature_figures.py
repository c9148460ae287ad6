"""Feature figures: PCA colours (DINOv2, DINOv3), token norms (registers paper), and patch filters (ViT paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from ...errors import UsageError
from ...formatting import format_count
from ...model.tokens import ConvPatches, LinearPatches
from ...model.vit import ViT
from ..attribution import patch_grid_of
from ..patch_features import OUTLIER_DEVIATIONS, outlier_limit
from ..recorder import inference_mode, resolve_block
from .plots import (
    FIGURE_WIDTH,
    FIRST_COLOR,
    SECOND_COLOR,
    SECONDARY_COLOR,
    SIMILARITY_COLORMAP,
    FigureInputs,
    FigureOptions,
    FigureResult,
    add_colorbar,
    add_panels,
    draw_heatmap,
    draw_image,
    draw_mask_outline,
    join_names,
    new_page,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DINOV2_SOURCE = "Oquab et al. 2023 (DINOv2), figure 1 and section 7.5"
DINOV3_SOURCE = "Siméoni et al. 2025 (DINOv3), figures of features as colours, and the authors' notebook"


class FeatureColors(NamedTuple):
    """Patch features of several images in one PCA basis, as colours."""

    first_component: Float64[np.ndarray, "B rows columns"]
    """First component of all patches in standard deviations; the foreground is above the threshold."""
    foreground: Bool[np.ndarray, "B rows columns"]
    rgb: Float64[np.ndarray, "B rows columns 3"]
    """0 to 1; black in the background."""
    mean: Float64[np.ndarray, " D"]
    axes: Float64[np.ndarray, "3 D"]
    """The three components, with which further images get comparable colours."""
    explained_variance_ratio: Float64[np.ndarray, " 3"]
    """Of the foreground's variance."""


def draw_pca(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """PCA colours of DINOv2: foreground where the first component of all patches is above the threshold; three
    components of the foreground, min-max scaled, as red, green, blue.

    All images share one basis, so equal colours are equal features. Options: threshold, together.

    Raises:
        UsageError: fewer than four patches are foreground.
    """
    colors = pca_colors_dinov2(patch_features(model, inputs.images), options.threshold, options.together)
    above = f"above {options.threshold:g} standard deviations, towards the middle"
    how = f"{_describe_foreground(options)} {above}; colours between smallest and largest value"
    return _draw_feature_colors(inputs, colors, how, DINOV2_SOURCE)


def draw_pca_whitened(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """PCA colours of DINOv3: three whitened components of the foreground through a sigmoid of twice their value.

    The authors segment the foreground with a classifier trained on nine masks. Here it is the first component of all
    patches above Otsu's threshold, oriented towards the centre, after a majority filter. Options: together.

    Raises:
        UsageError: fewer than four patches are foreground.
    """
    colors = pca_colors_dinov3(patch_features(model, inputs.images), options.together)
    parted = "parted by Otsu's threshold (the authors train a classifier)"
    how = f"{_describe_foreground(options)}, {parted}; colours: whitened, then a sigmoid"
    return _draw_feature_colors(inputs, colors, how, DINOV3_SOURCE)


def patch_features(model: ViT, images: Float[Tensor, "B C H W"]) -> Float64[np.ndarray, "B rows columns D"]:
    """Patch tokens after the final norm."""
    with inference_mode(model):
        dense = torch.cat([model.dense(image[None]) for image in images])  # [B, D, rows, columns]
    return np.asarray(dense.permute(0, 2, 3, 1).double().cpu().numpy(), np.float64)


def pca_colors_dinov2(
    features: Float64[np.ndarray, "B rows columns D"], threshold: float = 0.0, joint: bool = True
) -> FeatureColors:
    """The colours of `draw_pca`."""
    first = _first_component(features, joint)
    return _color_foreground(features, first, first > threshold, _min_max_colors)


def pca_colors_dinov3(features: Float64[np.ndarray, "B rows columns D"], joint: bool = True) -> FeatureColors:
    """The colours of `draw_pca_whitened`."""
    first = _first_component(features, joint)
    levels = [otsu_threshold(first if joint else one) for one in first]
    mask = np.stack([majority_filter(one > level) for one, level in zip(first, levels, strict=True)])
    return _color_foreground(features, first, mask, _whitened_colors)


def _first_component(
    features: Float64[np.ndarray, "B rows columns D"], joint: bool
) -> Float64[np.ndarray, "B rows columns"]:
    """The first component over the patches of all images, or of each image, in standard deviations."""
    if not joint:
        return np.concatenate([_first_component(one[None], True) for one in features])
    components = fit_principal_components(features.reshape(-1, features.shape[-1]), 1)
    return orient_to_center((components.scores / components.score_stds).reshape(features.shape[:3]))


def _color_foreground(
    features: Float64[np.ndarray, "B rows columns D"],
    first: Float64[np.ndarray, "B rows columns"],
    foreground: Bool[np.ndarray, "B rows columns"],
    to_colours: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> FeatureColors:
    if foreground.sum() < 4:
        raise UsageError(
            f"Colours need at least 4 patches of foreground. Got {int(foreground.sum())} of {foreground.size}. "
            "Lower the threshold, or show other pictures."
        )
    fitted = fit_principal_components(features[foreground], min(3, features.shape[-1]))
    colours = np.zeros((*foreground.shape, 3))
    colours[foreground, : len(fitted.axes)] = to_colours(fitted.scores, fitted.score_stds)
    return FeatureColors(first, foreground, colours, fitted.mean, fitted.axes, fitted.explained_variance_ratio)


def _min_max_colors(scores: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    span = np.ptp(scores, axis=0)
    return (scores - scores.min(0)) / np.where(span > 0, span, 1)


def _whitened_colors(scores: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-2 * scores / deviations)))


def _describe_foreground(options: FigureOptions) -> str:
    patches = "all patches" if options.together else "each picture's own patches"
    return f"foreground: first component of {patches}"


def _draw_feature_colors(inputs: FigureInputs, colors: FeatureColors, how: str, source: str) -> FigureResult:
    count, (height, width) = len(inputs.images), inputs.images.shape[2:]
    figure = new_page(
        count * FIGURE_WIDTH / 3 * height / width * 0.94,
        "Patch features as colours",
        f"{join_names(inputs.names)}. Left to right: the picture; the first principal component, lines "
        "around the foreground; three components of the foreground as red, green and blue, "
        f"{100 * colors.explained_variance_ratio.sum():.0f} % of its variance. {how[0].upper()}{how[1:]}. One basis "
        f"for all pictures here: equal colours are like features. {source}.",
    )
    rows, limit, mappable = add_panels(figure, count, 3), float(np.abs(colors.first_component).max()), None
    for i, (left, middle, right) in enumerate(rows):
        titles = ("", "", "") if i else ("picture", "first component", "three components")
        draw_image(left, inputs.pixels[i], titles[0])
        mappable = draw_heatmap(middle, colors.first_component[i], (-limit, limit), titles[1], SIMILARITY_COLORMAP)
        draw_mask_outline(middle, colors.foreground[i])
        draw_image(right, np.rint(255 * colors.rgb[i]).astype(np.uint8), titles[2])
    assert mappable is not None
    add_colorbar(figure, mappable, [axes for row in rows for axes in row], "standard deviations")
    return FigureResult(figure, colors._asdict(), {"source": source, "foreground": how})


# -- Token norms: artefacts of large ViTs (registers paper)

NORMS_SOURCE = "Darcet et al. 2023, figures 3 and 4"
MAX_OUTLIER_IMAGES = 4
"""Images with a map; the histogram has all of them."""


def draw_token_norms(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Token norms by block, their histogram at one block, and up to four images with outliers outlined.

    Options: layer.
    """
    block = resolve_block(model, options.layer, -1)
    norms = token_norms_by_block(model, inputs.images)  # [L, B, rows, columns]
    selected, limit = norms[block], outlier_limit(norms[block])
    outliers = selected > limit
    num_outliers = int(outliers.sum())
    some = min(len(selected), MAX_OUTLIER_IMAGES)
    height, width = inputs.images.shape[2:]
    tall = FIGURE_WIDTH / max(some, 2) * 0.9 * height / width
    figure = new_page(
        2.9 + 2 * tall,
        "How long the patch tokens are",
        f"{join_names(inputs.names)}. Euclidean length of the {format_count(selected.size, 'patch token')}. Above "
        f"left: median, middle 98 % and longest after every block. Above right: after block {block}; the line is the "
        f"median and {OUTLIER_DEVIATIONS:g} median absolute deviations, at least twice the median: {limit:.1f}. "
        f"{_describe_outliers(num_outliers)} {NORMS_SOURCE}; their limit is a fixed length.",
    )
    parts = figure.add_gridspec(2, 1, height_ratios=(2.9, 2 * tall))
    above, below = (figure.add_subfigure(parts[half, 0]) for half in (0, 1))
    left, right = above.subplots(1, 2)
    _draw_norms_by_block(left, norms, block)
    style_axes(right, "length", "tokens")
    right.hist(selected.ravel(), bins=60, color=FIRST_COLOR, log=True)
    right.axvline(limit, color=SECOND_COLOR, linewidth=1.3, linestyle=(0, (5, 3)))
    rows = add_panels(below, 2, some)
    limits, mappable = (float(selected.min()), float(selected.max())), None
    for i in range(some):
        draw_image(rows[0][i], inputs.pixels[i])
        mappable = draw_heatmap(rows[1][i], selected[i], limits)
        draw_mask_outline(rows[1][i], outliers[i])
    assert mappable is not None
    add_colorbar(below, mappable, [axes for row in rows for axes in row], "length")
    facts = {"source": NORMS_SOURCE, "layer": block, "limit": limit, "outliers": num_outliers, "tokens": selected.size}
    return FigureResult(figure, {"lengths": norms, "outliers": outliers}, facts)


def _describe_outliers(count: int) -> str:
    if not count:
        return "No token lies beyond it."
    subject = "1 token lies beyond it and is" if count == 1 else f"{count} tokens lie beyond it and are"
    return f"{subject} outlined below; what a map shows there is not about the picture's content at that place."


def token_norms_by_block(model: ViT, images: Float[Tensor, "B C H W"]) -> Float64[np.ndarray, "depth B rows columns"]:
    """Euclidean norm of every patch token after every block, before the final norm."""
    grid = patch_grid_of(model, images)
    names, norms = tuple(f"blocks.{i}" for i in range(model.config.depth)), []
    with inference_mode(model):
        for image in images:
            kept = model.features(image[None], keep=names)
            tokens = torch.stack([kept[name][0, model.config.prefix :].double() for name in names])  # [L, N, D]
            norms.append(tokens.norm(dim=2).view(-1, *grid).cpu().numpy())
    return np.stack(norms, axis=1)


def _draw_norms_by_block(axes: Axes, norms: Float64[np.ndarray, "depth B rows columns"], block: int) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    flat = norms.reshape(len(norms), -1)
    at = np.arange(len(norms))
    low, middle, high = np.quantile(flat, (0.01, 0.5, 0.99), axis=1)
    style_axes(axes, "block, counted from 0", "length")
    axes.fill_between(at, low, high, color=FIRST_COLOR, alpha=0.2, linewidth=0)
    axes.plot(at, middle, color=FIRST_COLOR, linewidth=1.8)
    axes.plot(at, flat.max(1), color=SECOND_COLOR, linewidth=0, marker="o", markersize=3.5)
    axes.axvline(block, color=SECONDARY_COLOR, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


# -- Principal components and thresholds


class PrincipalComponents(NamedTuple):
    """Principal components and the scores of the rows they were fitted to."""

    mean: Float64[np.ndarray, " D"]
    axes: Float64[np.ndarray, "count D"]
    """Unit length, by falling variance."""
    scores: Float64[np.ndarray, "n count"]
    """Projections of the centred rows; the entry of largest magnitude in each column is positive."""
    explained_variance_ratio: Float64[np.ndarray, " count"]
    """Fractions of the total variance."""

    @property
    def score_stds(self) -> Float64[np.ndarray, " count"]:
        """Standard deviation of the scores; 1 where it is 0."""
        deviations = self.scores.std(0, ddof=1)
        return np.where(deviations > 0, deviations, 1.0)


def fit_principal_components(rows: Float64[np.ndarray, "n D"], count: int) -> PrincipalComponents:
    """PCA by the eigenvectors of the covariance or of the Gram matrix, whichever is smaller.

    The sign of a component is arbitrary and differs between libraries. Here the scores determine it, so that it is the
    same on every machine.

    Args:
        count: of components, at most min(n, D).

    Source: Pearson 1901; signs as in Bro, Acar and Kolda 2008, simplified.
    """
    mean = rows.mean(0)
    centred = rows - mean
    n, width = rows.shape
    values, vectors = np.linalg.eigh(centred.T @ centred if width <= n else centred @ centred.T)
    values, vectors = np.maximum(values[::-1][:count], 0), vectors[:, ::-1][:, :count]
    if width <= n:
        axes = vectors.T
    else:
        lengths = np.sqrt(values)
        axes = (centred.T @ vectors / np.where(lengths > 0, lengths, 1)).T
    scores = centred @ axes.T
    furthest = np.take_along_axis(scores, np.abs(scores).argmax(0)[None], axis=0)[0]
    signs = np.where(furthest < 0, -1.0, 1.0)
    total = float(np.square(centred).sum())
    return PrincipalComponents(mean, axes * signs[:, None], scores * signs, values / total if total > 0 else values)


def orient_to_center(scores: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B rows columns"]:
    """Flip the sign of the scores so that fewer patches at the image borders are above 0."""
    rim = np.ones(scores.shape[1:], bool)
    rim[1:-1, 1:-1] = False
    at_rim = scores[:, rim]
    return -scores if (at_rim > 0).sum() > (at_rim < 0).sum() else scores


def otsu_threshold(values: Float64[np.ndarray, "*shape"]) -> float:
    """Otsu's threshold: maximises the between-class variance; half-way between two values.

    Source: Otsu 1979, "A threshold selection method from gray-level histograms", on the values instead of a histogram.
    """
    ordered = np.sort(values, axis=None)
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    low, high = sums / below, (ordered.sum() - sums) / (len(ordered) - below)
    at = int((below * (len(ordered) - below) * (high - low) ** 2).argmax())
    return float((ordered[at] + ordered[at + 1]) / 2)


def majority_filter(mask: Bool[np.ndarray, "rows columns"]) -> Bool[np.ndarray, "rows columns"]:
    """3 x 3 majority filter with replicated borders."""
    from scipy.ndimage import median_filter

    return np.asarray(median_filter(mask.astype(np.uint8), size=3, mode="nearest"), bool)


# -- Patch filters: figure 7 (left) of the ViT paper

FILTERS_SOURCE = "Dosovitskiy et al. 2020, figure 7 (left)"
NUM_FILTERS = 28
"""Components that the paper shows."""
FILTER_COLUMNS = 7


def draw_patch_filters(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """The first 28 principal components of the patch projection's filters, each min-max scaled.

    No images and no options.

    Raises:
        UsageError: the model does not project patches by one matrix (soft splits).
    """
    filters, shares = patch_filter_components(model)
    count, (rows, columns) = len(filters), filters.shape[2:]
    lines = -(-count // FILTER_COLUMNS)
    channels = model.config.channels
    size = f"{rows} x {columns} pixels" + (f" and {format_count(channels, 'channel')}" if channels != 1 else "")
    size += " (the first is shown)" if channels not in (1, 3) else ""
    figure = new_page(
        lines * 8.0 / FILTER_COLUMNS * rows / columns,
        "What the patch projection looks for",
        f"The first {count} principal components of its {model.config.width} filters of {size}, centred; together "
        f"{100 * shares.sum():.0f} % of their variance. Each is stretched between its own smallest and largest value, "
        "and its strongest pixel is bright, so neither contrast nor sign can be compared between them. "
        f"{FILTERS_SOURCE}.",
    )
    for i, axes in enumerate(axes for row in add_panels(figure, lines, FILTER_COLUMNS) for axes in row):
        if i < count:
            stretched = (filters[i] - filters[i].min()) / (np.ptp(filters[i]) or 1)
            pixels = np.rint(255 * stretched).astype(np.uint8).transpose(1, 2, 0)
            draw_image(axes, pixels, f"{100 * shares[i]:.1f} %")
    arrays = {"filters": filters, "variance_shares": shares}
    return FigureResult(figure, arrays, {"source": FILTERS_SOURCE, "centred": True})


def patch_filter_components(
    model: ViT, count: int = NUM_FILTERS
) -> tuple[Float64[np.ndarray, "count C rows columns"], Float64[np.ndarray, " count"]]:
    """Filter components [count, C, height, width], each with a positive strongest pixel, and their variance ratios.

    Raises:
        UsageError: the model has soft splits.
    """
    if not isinstance(model.tokens.patches, ConvPatches | LinearPatches):
        raise UsageError("This model cuts pictures by soft splits: it has no patch filters to show.")
    config = model.config
    flat: Float[np.ndarray, "D P"] = model.tokens.patches.weight.detach().float().flatten(1).cpu().numpy()
    fitted = fit_principal_components(flat.astype(np.float64), min(count, *flat.shape))
    strongest = np.take_along_axis(fitted.axes, np.abs(fitted.axes).argmax(1)[:, None], axis=1)
    axes = fitted.axes * np.sign(strongest)
    return axes.reshape(-1, config.channels, *config.patch), fitted.explained_variance_ratio
