"""Deletion and insertion: how an answer falls when patches go and rises when they come, in the order of a map.

Deletion takes the most relevant patches first: a true map's curve falls at once, so its area is small. Insertion shows
the most relevant first: a true map's curve rises at once, so its area is large. Insertion is the same as deletion from
the other end, so the gap between the two areas is the area between "most relevant first" and "least relevant first".

Source: Petsiuk, Das and Saenko 2018 (RISE), section 4.2; Samek et al. 2017 for the two orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from ..attribution import patch_grid_of

# Three ways of taking patches away: dropped for real, blurred, or painted in the picture's mean.
#
# Whoever paints over a patch also shows the model something that it has never seen, and the answer may move because
# of the paint. A plain ViT can do without: a dropped patch is no token, the others keep their positions. A method is
# called better only where all three ways agree.
#
# Source: Jain et al. 2022, "Missingness bias in model debugging", for dropped patches; Petsiuk, Das and Saenko 2018
# (RISE), section 4.2, for blur; the mean as in Ancona et al. 2018.

RemovalMode = Literal["drop", "blur", "mean"]
REMOVAL_MODES: tuple[RemovalMode, ...] = get_args(RemovalMode)
KERNEL_REACH = 3
"""Standard deviations after which a blur is cut off."""


def removal_modes_for(config: ViTConfig) -> tuple[RemovalMode, ...]:
    """The ways that are honest for a model: after soft splits every patch has seen its neighbours before it is dropped,
    so there only what is painted over is really gone."""
    return tuple(way for way in REMOVAL_MODES if way != "drop" or config.patches not in T2T_PATCHES)


def removal_fill(
    images: Float[Tensor, "B C H W"], patch: tuple[int, int], mode: RemovalMode
) -> Float[Tensor, "B C H W"] | None:
    """What stands where a patch was taken away; None where nothing does.

    `blur`: the picture through a Gaussian whose standard deviation is a patch's side, along each axis its own.
    `mean`: each channel's mean over the picture.
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
    """The outputs when only the kept patches of each picture are there.

    Args:
        images: sides are whole patches.
        visible: patch numbers in reading order, from 0.
        fill: what `stand_in` made of the images.

    Raises:
        UsageError: dropping was asked of a model with soft splits.
    """
    if mode not in removal_modes_for(model.config):
        raise UsageError(
            f'Patches of a model with patches="{model.config.patches}" cannot be dropped: each has seen its '
            'neighbours before. Use the ways "blur" and "mean".'
        )
    visible = visible.sort(dim=1).values
    if fill is None:
        return model(images, visible)
    return model(torch.where(_patch_pixel_mask(visible, images, model.config.patch), images, fill))


def _patch_pixel_mask(visible: Int[Tensor, "B n"], images: Float[Tensor, "B C H W"], patch: tuple[int, int]) -> Tensor:
    """Which pixels lie in kept patches: bool [B, 1, H, W]."""
    grid = patch_grid(images.shape[-2:], patch)
    there = torch.zeros(len(images), grid.patches, dtype=torch.bool, device=images.device).scatter(1, visible, True)
    cells = there.view(-1, 1, grid.rows, grid.columns)
    return cells.repeat_interleave(patch[0], dim=2).repeat_interleave(patch[1], dim=3)


def _gaussian_kernel_1d(deviation: int) -> Float[Tensor, " taps"]:
    place = torch.arange(-KERNEL_REACH * deviation, KERNEL_REACH * deviation + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (place / deviation) ** 2)
    return weights / weights.sum()


def _convolve_axis(
    images: Float[Tensor, "B C H W"], weights: Float[Tensor, " taps"], axis: int
) -> Float[Tensor, "B C H W"]:
    """Every line of pixels along an axis averaged by the weights; pixels beyond the border repeat it."""
    lines = images.movedim(axis, -1)
    half = len(weights) // 2
    flat = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (half, half), mode="replicate")
    return F.conv1d(flat, weights.view(1, 1, -1)).view(lines.shape).movedim(-1, axis)


# Maps of relevance as plain arrays, and what a method is: one number per patch, larger where it mattered more.

MapFunction = Callable[[ViT, Tensor, Tensor], Tensor | np.ndarray]
"""(model, images [B, C, H, W], classes [B]) to maps [B, rows, columns] over the model's patches."""


def compute_maps(
    method: MapFunction, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float64[np.ndarray, "B rows columns"]:
    """What a method says of these images, checked.

    Raises:
        UsageError: the maps have another shape than the model's patches, or numbers that are not finite.
    """
    return check_maps(method(model, images, classes), len(images), patch_grid_of(model, images))


def check_maps(maps: Tensor | np.ndarray, count: int, grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """Maps as float64 arrays, if there is one for each picture, one number a patch, all of them finite.

    Raises:
        UsageError: otherwise; the message names the shapes, or the first picture and patch that is not finite.
    """
    found = np.asarray(maps.detach().cpu() if isinstance(maps, Tensor) else maps, np.float64)
    if found.shape != (count, *grid):
        raise UsageError(
            f"Maps of {count} pictures must be [{count}, {grid.rows}, {grid.columns}], one number a patch. "
            f"Got {list(found.shape)}."
        )
    if not np.isfinite(found).all():
        picture, row, column = np.argwhere(~np.isfinite(found))[0]
        raise UsageError(
            f"A map must hold finite numbers. That of picture {picture} has {found[picture, row, column]} at row "
            f"{row}, column {column} (all counted from 0)."
        )
    return found


def rank_patches(maps: Float64[np.ndarray, "B rows columns"], seed: int = 0) -> Int64[np.ndarray, "B N"]:
    """Patch numbers, counted in reading order, from the most to the least relevant.

    Equal numbers stand in an order drawn by the seed and the picture's row: in reading order a map that is zero almost
    everywhere would owe its rank to where the picture's corner is.
    """
    flat = maps.reshape(len(maps), -1)
    drawn = uniform(seed, "equal relevance", 0, np.arange(len(flat)), flat.shape[1]).argsort(axis=1, kind="stable")
    order = np.take_along_axis(-flat, drawn, axis=1).argsort(axis=1, kind="stable")
    return np.take_along_axis(drawn, order, axis=1)


# What a model says of one output, as one number a picture: the height of every curve.

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, K], classes [B]) to one number a picture [B]."""


def softmax_score(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The share of the softmax that the class has: for one of K classes."""
    return raw_score(outputs.softmax(dim=1), classes)


def sigmoid_score(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The label's own probability, whatever the others say: for any of K labels."""
    return raw_score(outputs.sigmoid(), classes)


def raw_score(outputs: Float[Tensor, "B K"], classes: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The output itself, as the head gives it: for numbers."""
    return outputs.gather(1, classes[:, None])[:, 0]


TASK_SCORES: dict[Task, ScoreFunction] = {"classes": softmax_score, "labels": sigmoid_score, "number": raw_score}
"""The score of each task."""


@contextmanager
def inference_mode(model: ViT) -> Iterator[None]:
    """Nothing is dropped at random and nothing is kept for gradients; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


NUM_POINTS = 11
"""Places at which a curve is measured."""
CURVE_BATCH_SIZE = 64
"""Pictures that are asked about at once."""


class DeletionInsertionCurves(NamedTuple):
    """Scores of every picture while only some patches are there."""

    num_visible_patches: Int64[np.ndarray, " points"]
    """How many patches are there, from 1 to all of them. The last is never taken: a model that averages over its
    patches has no answer without any."""
    deletion: Float64[np.ndarray, "B points"]
    """The score with so many of the least relevant patches there."""
    insertion: Float64[np.ndarray, "B points"]
    """The score with so many of the most relevant patches there."""

    @property
    def deletion_area(self) -> Float64[np.ndarray, " B"]:
        """Mean height of the deletion curve: small if the map is true."""
        return area_under_curve(self.deletion, self.num_visible_patches)

    @property
    def insertion_area(self) -> Float64[np.ndarray, " B"]:
        """Mean height of the insertion curve: large if the map is true."""
        return area_under_curve(self.insertion, self.num_visible_patches)

    @property
    def gap(self) -> Float64[np.ndarray, " B"]:
        """Insertion less deletion: large if the map is true, around 0 if it is random, negative if upside down."""
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
    """Both curves of every picture.

    Args:
        classes: which output of each picture is watched.
        maps: [B, rows, columns], one number a patch.
        points: places at which the curves are measured, evenly from 1 patch to all; each costs a forward pass for each
            curve.
        seed: of the order of patches that a map finds equally relevant.

    Raises:
        UsageError: maps that do not fit or are not finite, a single patch, fewer than two points, or a way that the
            model does not have.
    """
    grid = patch_grid_of(model, images)
    if grid.patches < 2 or points < 2:
        raise UsageError(f"A curve needs at least 2 patches and 2 points. Got {grid.patches} and {points}.")
    first = rank_patches(check_maps(maps, len(images), grid), seed)
    shown = np.unique(np.rint(np.linspace(1, grid.patches, points)).astype(np.int64))
    falling, rising = (
        np.concatenate(
            [
                _curve_scores(model, *part, shown, removal, score)
                for part in _split_into_batches(model, images, classes, order)
            ]
        )
        for order in (first[:, ::-1], first)
    )
    return DeletionInsertionCurves(shown, falling, rising)


def area_under_curve(
    heights: Float64[np.ndarray, "B points"], num_visible: Int64[np.ndarray, " points"]
) -> Float64[np.ndarray, " B"]:
    """Mean height of curves by the trapezium rule, in the unit of the score: a flat curve's area is its height."""
    widths = np.diff(num_visible) / (num_visible[-1] - num_visible[0])
    return ((heights[:, 1:] + heights[:, :-1]) / 2) @ widths


def _split_into_batches(
    model: ViT, images: Tensor, classes: Tensor, order: Int64[np.ndarray, "B N"]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Pictures, classes and orders in batches, on the device of the images; sides padded to whole patches."""
    whole = pad_to_patches(images, model.config.patch) if model.config.pad else images
    ranks = torch.from_numpy(order.copy()).to(images.device)
    return [
        (
            whole[start : start + CURVE_BATCH_SIZE],
            classes[start : start + CURVE_BATCH_SIZE],
            ranks[start : start + CURVE_BATCH_SIZE],
        )
        for start in range(0, len(images), CURVE_BATCH_SIZE)
    ]


def _curve_scores(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    classes: Int[Tensor, " B"],
    order: Int[Tensor, "B N"],
    num_visible: Int64[np.ndarray, " points"],
    removal: RemovalMode,
    score: ScoreFunction,
) -> Float64[np.ndarray, "B points"]:
    """Scores with the first 1 .. N patches of an order there."""
    instead = removal_fill(images, model.config.patch, removal)
    with inference_mode(model):
        columns = [
            score(outputs_without_patches(model, images, order[:, :count], removal, instead), classes)
            for count in num_visible.tolist()
        ]
    return torch.stack(columns, dim=1).double().cpu().numpy()
