"""Attention figures: heads of a block (DINO), mean attention distance and rollout (ViT paper)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from ...errors import UsageError
from ...model.vit import Block, ViT
from ...spec import Grid
from ..attention_maps import attention_rollout
from ..attribution import patch_grid_of, token_weights
from ..recorder import inference_mode, resolve_block
from .plots import (
    FIGURE_WIDTH,
    FIRST_COLOR,
    SECOND_COLOR,
    SECONDARY_COLOR,
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

HEADS_SOURCE = "Caron et al. 2021 (DINO), figures 1 and 3"
HEAD_COLUMNS = 4


def draw_attention_heads(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Attention of each head of one block for one image, with outlines around the smallest mask of a given mass.

    Options: layer, share. The paper's figures use images of 480 pixels and more.

    Raises:
        UsageError: more than one image, no such block, or a share outside 0..1.
    """
    if len(inputs.images) != 1:
        raise UsageError(f"The figure of heads shows one picture. Got {len(inputs.images)}.")
    block = resolve_block(model, options.layer, -1)
    maps = head_attention_maps(model, inputs.images, block)[0]  # [A, rows, columns]
    masks = np.stack([smallest_mask_with_mass(one, options.share) for one in maps])
    relative = maps * inputs.grid.patches
    lines = -(-(len(maps) + 2) // HEAD_COLUMNS)
    height, width = inputs.images.shape[2:]
    figure = new_page(
        lines * (FIGURE_WIDTH / HEAD_COLUMNS * 0.9 * height / width + 0.25),
        f"What each head of block {block} looks at",
        f"{join_names(inputs.names)}. Softmax weights of {describe_readout(model)} on the {inputs.grid.patches} "
        f"patches, made to sum to 1; 1 is an even share, colours end at the largest 1 %. Lines hold "
        f"{100 * options.share:.0f} % of each head's attention. Attention says where a head looks, not what the answer "
        f"is due to. {HEADS_SOURCE}.",
    )
    cells = [axes for row in add_panels(figure, lines, HEAD_COLUMNS) for axes in row]
    draw_image(cells[0], inputs.pixels[0], "picture")
    limits = (0.0, float(np.quantile(relative, 0.99)))
    mappable = draw_heatmap(cells[1], relative.mean(0), limits, "mean of the heads")
    for head, axes in enumerate(cells[2 : len(maps) + 2]):
        draw_heatmap(axes, relative[head], limits, f"head {head}")
        draw_mask_outline(axes, masks[head])
    add_colorbar(figure, mappable, cells, "times an even share")
    facts = {"source": HEADS_SOURCE, "layer": block, "reader": describe_readout(model)}
    return FigureResult(figure, {"attention": maps, "masks": masks}, facts)


def head_attention_maps(
    model: ViT, images: Float[Tensor, "B C H W"], block: int
) -> Float64[np.ndarray, "B heads rows columns"]:
    """Attention of each head from the pooled tokens to each patch, normalised to sum to 1 over the patches."""
    name, maps = f"blocks.{block}.attention", []
    with inference_mode(model):
        for image in images:
            kept = model.features(image[None], keep=(name, "tokens"))
            readout = token_weights(model, kept["tokens"])[0]  # [T]
            rows = torch.einsum("t,ats->as", readout, kept[name][0])[:, model.config.prefix :].double()
            maps.append((rows / rows.sum(1, keepdim=True)).view(-1, *patch_grid_of(model, images)).cpu().numpy())
    return np.stack(maps)


def smallest_mask_with_mass(
    values: Float64[np.ndarray, "rows columns"], share: float
) -> Bool[np.ndarray, "rows columns"]:
    """The smallest set of patches that holds a fraction of the sum of a map.

    Raises:
        UsageError: the share lies outside 0..1.
    """
    if not 0 < share < 1:
        raise UsageError(f"share must lie between 0 and 1, for example 0.6. Got {share}.")
    order = np.argsort(-values, axis=None, kind="stable")
    held = np.cumsum(values.ravel()[order])
    mask = np.zeros(values.size, bool)
    mask[order[: int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1]] = True
    return mask.reshape(values.shape)


# -- Mean attention distance: figure 7 (right) of the ViT paper

DISTANCE_SOURCE = "Dosovitskiy et al. 2020, figure 7 (right) and appendix D"
PAPER_IMAGES = 128
"""Images that the paper averages over."""


def draw_attention_distance(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Mean attention distance, one dot for each head of each block.

    Options: renormalise.
    """
    distances = mean_attention_distances(model, inputs.images, options.renormalise)  # [L, A]
    even = float(patch_distances(inputs.grid, model.config.patch).mean())
    shares = "prefix tokens keep their shares, at no distance"
    if options.renormalise:
        shares = "shares among patches sum to 1"
    few = "" if len(inputs.images) >= PAPER_IMAGES else f" The paper averages over {PAPER_IMAGES} pictures."
    height, width = inputs.images.shape[2:]
    figure = new_page(
        4.2,
        "How far each head looks",
        f"Mean distance in pixels between a patch and the patches that it looks at, by their weights ({shares}); "
        f"pictures of {height} x {width} pixels, {len(inputs.images)} of them.{few} The broken line is a head that "
        f"looks everywhere alike. {DISTANCE_SOURCE}.",
    )
    axes = figure.subplots()
    style_axes(axes, "block, counted from 0", "mean attention distance, pixels")
    depth, heads = distances.shape
    axes.axhline(even, color=SECOND_COLOR, linestyle=(0, (5, 3)), linewidth=1.3)
    axes.text(depth - 0.55, even, "even", color=SECOND_COLOR, fontsize=9, va="bottom", ha="right")
    axes.plot(np.arange(depth), distances.mean(1), color=SECONDARY_COLOR, linewidth=1.0, alpha=0.7)
    size = 34 if heads <= 8 else 20
    axes.scatter(np.repeat(np.arange(depth), heads), distances.ravel(), size, FIRST_COLOR, alpha=0.8, linewidths=0)
    axes.set(xlim=(-0.5, depth - 0.5), ylim=(0, max(even, float(distances.max())) * 1.08))
    if depth <= 16:
        axes.set_xticks(range(depth))
    facts = {"source": DISTANCE_SOURCE, "even_distance_pixels": even}
    return FigureResult(figure, {"distances": distances}, facts)


def mean_attention_distances(
    model: ViT, images: Float[Tensor, "B C H W"], renormalise: bool
) -> Float64[np.ndarray, "depth heads"]:
    """Mean attention distance in pixels of every head of every block, over all query patches and images.

    Prefix tokens (class, distillation, registers) count neither as queries nor as keys.

    Args:
        renormalise: normalise the weights among patches to sum to 1 for each query patch.
    """
    prefix = model.config.prefix
    distances = torch.from_numpy(patch_distances(patch_grid_of(model, images), model.config.patch)).to(images)
    sums = np.zeros((model.config.depth, model.config.heads))
    with inference_mode(model):
        for image in images:
            for i, weights in enumerate(iter_block_attention(model, image[None])):
                between = weights[0, :, prefix:, prefix:]  # [A, N, N]
                between = between / between.sum(-1, keepdim=True) if renormalise else between
                sums[i] += (between * distances).sum(-1).mean(-1).double().cpu().numpy()
    return sums / len(images)


def patch_distances(grid: Grid, patch: tuple[int, int]) -> Float64[np.ndarray, "N N"]:
    """Distance in pixels between the centres of every two patches."""
    rows, columns = np.divmod(np.arange(grid.patches), grid.columns)
    down, across = (np.subtract.outer(axis, axis) * side for axis, side in zip((rows, columns), patch, strict=True))
    return np.hypot(down, across).astype(np.float64)


# -- Attention rollout: figure 6 of the ViT paper

ROLLOUT_SOURCE = "Dosovitskiy et al. 2020, figure 6 and appendix D; Abnar and Zuidema 2020"


def draw_attention_rollout(model: ViT, inputs: FigureInputs, options: FigureOptions) -> FigureResult:
    """Attention rollout: each image, the image times the map, and the map itself.

    Options: residual.
    """
    maps = np.stack(
        [attention_rollout(model, image[None], residual=options.residual).values[0] for image in inputs.images]
    ).astype(np.float64)  # [B, rows, columns]
    how = "half of each block passes around attention" if options.residual else "without the connections around it"
    height, width = inputs.images.shape[2:]
    figure = new_page(
        len(maps) * FIGURE_WIDTH / 3 * height / width * 0.94,
        "Attention rolled out from the answer to the picture",
        f"{join_names(inputs.names)}. The mean over heads, multiplied through all {model.config.depth} blocks "
        f"({how}), as {describe_readout(model)} reads it; 1 is an even share; light and colours end at the largest "
        "1 %. It is blind to classes: it draws the same for every answer, and shows where information may flow from, "
        f"not why. {ROLLOUT_SOURCE}.",
    )
    rows = add_panels(figure, len(maps), 3)
    relative, mappable = maps * inputs.grid.patches, None
    limits = (0.0, float(np.quantile(relative, 0.99)))
    for i, (left, middle, right) in enumerate(rows):
        titles = ("", "", "") if i else ("input", "times attention", "attention")
        draw_image(left, inputs.pixels[i], titles[0])
        draw_image(middle, _darken_by_map(inputs.pixels[i], maps[i]), titles[1])
        mappable = draw_heatmap(right, relative[i], limits, titles[2])
    assert mappable is not None
    add_colorbar(figure, mappable, [axes for row in rows for axes in row], "times an even share")
    facts = {"source": ROLLOUT_SOURCE, "heads": "mean", "reader": describe_readout(model)}
    return FigureResult(figure, {"rollout": maps}, facts)


def _darken_by_map(image: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The image times the map, as in the paper, scaled by the map's 99th percentile.

    A few artefact tokens with very high attention would otherwise darken all the rest.
    """
    largest = np.quantile(shares, 0.99)
    relative = torch.from_numpy(np.minimum(shares / largest, 1) if largest > 0 else shares).double()
    light = F.interpolate(relative[None, None], image.shape[:2], mode="bilinear", align_corners=False)[0, 0]  # [H, W]
    return (torch.from_numpy(image) * light[..., None]).round().clamp(0, 255).to(torch.uint8).numpy()


# -- Attention weights and pooled tokens


def iter_block_attention(model: ViT, images: Float[Tensor, "B C H W"]) -> Iterator[Float[Tensor, "B A T T"]]:
    """Attention weights of every block in turn, one block in memory at a time.

    The caller sets evaluation mode and gradients.
    """
    x, positions = model.embed(images)
    x = model.encoder.prepare_tokens(x)
    for block in model.encoder.blocks:
        assert isinstance(block, Block)
        x, weights = block.forward_with_attention(x, positions, None, None)
        yield weights


def describe_readout(model: ViT) -> str:
    """The pooled tokens, for a caption."""
    if model.config.distillation_head:
        return "the class and the distillation token"
    return {
        "class": "the class token",
        "mean": "all patches alike, because their mean is read",
        "class+mean": "the class token and the mean of the patches",
        "mean-all": "all tokens alike, because their mean is read",
        "attention": "the learned probe",
        "patches": "every patch by itself",
    }[model.config.pool]
