"""Deletion and insertion curves: scores while patches are removed or inserted in the order of a map.

Deletion removes the most relevant patches first: the curve of a faithful map falls fast, so its area is small.
Insertion shows the most relevant patches first: the curve of a faithful map rises fast, so its area is large. Insertion
is deletion in reverse order, so the gap between the areas is the area between "most relevant first" and "least relevant
first".

Source: Petsiuk, Das and Saenko 2018 (RISE), section 4.2; Samek et al. 2017 for the two orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from ...data.source import Task
from ...errors import UsageError
from ...model.config import T2T_PATCHES, ViTConfig
from ...model.tokens import pad_to_patches, patch_grid
from ...model.vit import ViT
from ...randomness import uniform
from ...spec import Grid
from ..attribution import patch_grid_of, target_scores
from ..recorder import inference_mode

# -- Removal of patches: dropped tokens, blur, or the mean of the image
#
# Painting over a patch shows the model an input that it was not trained on, which itself may change the score
# (missingness bias). A plain ViT can drop the token of a patch instead, and the others keep their positions. A method
# counts as better only where all modes agree.
#
# Source: Jain et al. 2022, "Missingness bias in model debugging", for dropped patches; Petsiuk, Das and Saenko 2018
# (RISE), section 4.2, for blur; the mean as in Ancona et al. 2018.

RemovalMode = Literal["drop", "blur", "mean"]
REMOVAL_MODES: tuple[RemovalMode, ...] = get_args(RemovalMode)
KERNEL_REACH = 3
"""Standard deviations at which the blur kernel is truncated."""


def removal_modes_for(config: ViTConfig) -> tuple[RemovalMode, ...]:
    """Valid removal modes of a model: soft splits (T2T) mix neighbouring patches before they could be dropped."""
    return tuple(way for way in REMOVAL_MODES if way != "drop" or config.patches not in T2T_PATCHES)


def removal_fill(
    images: Float[Tensor, "B C H W"], patch: tuple[int, int], mode: RemovalMode
) -> Float[Tensor, "B C H W"] | None:
    """Pixels that replace removed patches; None for `drop`.

    `blur`: the image after a Gaussian blur with a standard deviation of one patch side, for each axis.
    `mean`: the mean of each channel over the image.
    """
    if mode == "drop":
        return None
    if mode == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    down, across = (_gaussian_kernel_1d(side).to(images) for side in patch)
    return _convolve_axis(_convolve_axis(images, down, axis=2), across, axis=3)


def outputs_without_patches(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    visible: Int[Tensor, "B n"],
    mode: RemovalMode,
    fill: Float[Tensor, "B C H W"] | None,
) -> Float[Tensor, "B K"]:
    """Outputs with only the visible patches of each image.

    Args:
        images: sides are multiples of the patch.
        visible: patch indices in reading order, from 0.
        fill: from `removal_fill`.

    Raises:
        UsageError: `drop` for a model with soft splits.
    """
    if mode not in removal_modes_for(model.config):
        raise UsageError(
            f'Patches of a model with patches="{model.config.patches}" cannot be dropped: each has seen its '
            'neighbours before. Use the ways "blur" and "mean".'
        )
    visible = visible.sort(dim=1).values
    if fill is None:
        return model(images, visible)
    patch = model.config.patch
    grid = patch_grid(images.shape[-2:], patch)
    shown = torch.zeros(len(images), grid.patches, dtype=torch.bool, device=images.device).scatter(1, visible, True)
    mask = shown.view(-1, 1, *grid).repeat_interleave(patch[0], dim=2).repeat_interleave(patch[1], dim=3)
    return model(torch.where(mask, images, fill))


def _gaussian_kernel_1d(deviation: int) -> Float[Tensor, " taps"]:
    place = torch.arange(-KERNEL_REACH * deviation, KERNEL_REACH * deviation + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (place / deviation) ** 2)
    return weights / weights.sum()


def _convolve_axis(
    images: Float[Tensor, "B C H W"], weights: Float[Tensor, " taps"], axis: int
) -> Float[Tensor, "B C H W"]:
    """Convolution along one axis with replicated borders."""
    lines = images.movedim(axis, -1)
    half = len(weights) // 2
    flat = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (half, half), mode="replicate")
    return F.conv1d(flat, weights.view(1, 1, -1)).view(lines.shape).movedim(-1, axis)


# -- Maps as arrays

MapFunction = Callable[[ViT, Tensor, Tensor], Tensor | np.ndarray]
"""(model, images [B, C, H, W], classes [B]) to maps [B, rows, columns] over the model's patches."""


def compute_maps(
    method: MapFunction, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float64[np.ndarray, "B rows columns"]:
    """Compute and check the maps of a method.

    Raises:
        UsageError: as `check_maps`.
    """
    return check_maps(method(model, images, classes), len(images), patch_grid_of(model, images))


def check_maps(maps: Tensor | np.ndarray, count: int, grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """Convert maps to float64 and check them: one per image, one finite number per patch.

    Raises:
        UsageError: another shape, or a value that is not finite; the message names the image and the patch.
    """
    values = np.asarray(maps.detach().cpu() if isinstance(maps, Tensor) else maps, np.float64)
    if values.shape != (count, *grid):
        raise UsageError(
            f"Maps of {count} pictures must be [{count}, {grid.rows}, {grid.columns}], one number a patch. "
            f"Got {list(values.shape)}."
        )
    if not np.isfinite(values).all():
        image, row, column = np.argwhere(~np.isfinite(values))[0]
        raise UsageError(
            f"A map must hold finite numbers. That of picture {image} has {values[image, row, column]} at row "
            f"{row}, column {column} (all counted from 0)."
        )
    return values


def rank_patches(maps: Float64[np.ndarray, "B rows columns"], seed: int = 0) -> Int64[np.ndarray, "B N"]:
    """Patch indices from the most to the least relevant.

    Ties are in an order drawn by the seed and the image's row; in reading order a map that is zero almost everywhere
    would be ranked by position.
    """
    flat = maps.reshape(len(maps), -1)
    drawn = uniform(seed, "equal relevance", 0, np.arange(len(flat)), flat.shape[1]).argsort(axis=1, kind="stable")
    order = np.take_along_axis(-flat, drawn, axis=1).argsort(axis=1, kind="stable")
    return np.take_along_axis(drawn, order, axis=1)


# -- Scores: one number per image, the height of a curve

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, K], classes [B]) to scores [B]."""


def softmax_score(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Softmax probability of the class, for classification."""
    return target_scores(outputs.softmax(dim=1), classes)


def sigmoid_score(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Sigmoid probability of the label, for multilabel."""
    return target_scores(outputs.sigmoid(), classes)


TASK_SCORES: dict[Task, ScoreFunction] = {
    "classification": softmax_score,
    "multilabel": sigmoid_score,
    "regression": target_scores,
}
"""The score of each task; of regression the output itself."""


NUM_POINTS = 11
"""Points of a curve."""
CURVE_BATCH_SIZE = 64


class DeletionInsertionCurves(NamedTuple):
    """Scores of every image with only some of its patches visible."""

    num_visible_patches: Int64[np.ndarray, " points"]
    """Patch counts from 1 to all; never 0, because mean pooling is undefined without patches."""
    deletion: Float64[np.ndarray, "B points"]
    """The score with this many of the least relevant patches visible."""
    insertion: Float64[np.ndarray, "B points"]
    """The score with this many of the most relevant patches visible."""

    @property
    def deletion_area(self) -> Float64[np.ndarray, " B"]:
        """Area under the deletion curve: small if the map is faithful."""
        return area_under_curve(self.deletion, self.num_visible_patches)

    @property
    def insertion_area(self) -> Float64[np.ndarray, " B"]:
        """Area under the insertion curve: large if the map is faithful."""
        return area_under_curve(self.insertion, self.num_visible_patches)

    @property
    def gap(self) -> Float64[np.ndarray, " B"]:
        """Insertion minus deletion: large if the map is faithful, about 0 if it is random, negative if inverted."""
        return self.insertion_area - self.deletion_area


def deletion_insertion_curves(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    maps: Tensor | np.ndarray,
    removal: RemovalMode,
    score: ScoreFunction = softmax_score,
    points: int = NUM_POINTS,
    seed: int = 0,
) -> DeletionInsertionCurves:
    """Compute both curves of every image.

    Args:
        classes: the scored output of each image.
        maps: [B, rows, columns], one number per patch.
        points: points of a curve, evenly from 1 patch to all; each costs one forward pass.
        seed: of the order of ties in a map.

    Raises:
        UsageError: maps that do not fit or are not finite, a single patch, fewer than two points, or a removal mode
            that the model does not support.
    """
    grid = patch_grid_of(model, images)
    if grid.patches < 2 or points < 2:
        raise UsageError(f"A curve needs at least 2 patches and 2 points. Got {grid.patches} and {points}.")
    first = torch.from_numpy(rank_patches(check_maps(maps, len(images), grid), seed)).to(images.device)
    num_visible = np.unique(np.rint(np.linspace(1, grid.patches, points)).astype(np.int64))
    padded = pad_to_patches(images, model.config.patch) if model.config.pad else images
    curves = []
    for order in (first.flip(1), first):
        batches = zip(*(part.split(CURVE_BATCH_SIZE) for part in (padded, classes, order)), strict=True)
        parts = [_curve_scores(model, x, y, ranks, num_visible, removal, score) for x, y, ranks in batches]
        curves.append(np.concatenate(parts))
    return DeletionInsertionCurves(num_visible, *curves)


def area_under_curve(
    heights: Float64[np.ndarray, "B points"], num_visible: Int64[np.ndarray, " points"]
) -> Float64[np.ndarray, " B"]:
    """Normalised area under each curve by the trapezoidal rule: the area of a constant curve is its height."""
    widths = np.diff(num_visible) / (num_visible[-1] - num_visible[0])
    return ((heights[:, 1:] + heights[:, :-1]) / 2) @ widths


def _curve_scores(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    order: Int[Tensor, "B N"],
    num_visible: Int64[np.ndarray, " points"],
    removal: RemovalMode,
    score: ScoreFunction,
) -> Float64[np.ndarray, "B points"]:
    """Scores with the first patches of an order visible."""
    fill = removal_fill(images, model.config.patch, removal)
    with inference_mode(model):
        columns = [
            score(outputs_without_patches(model, images, order[:, :count], removal, fill), classes)
            for count in num_visible.tolist()
        ]
    return torch.stack(columns, dim=1).double().cpu().numpy()
