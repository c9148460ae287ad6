"""Occlusion (Zeiler and Fergus 2014): drop of a score when patches are covered or dropped. It needs outputs only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.config import T2T_PATCHES
from ..model.vit import ViT
from ..spec import Grid
from .attribution import (
    AttributionMap,
    Targets,
    patch_grid_of,
    require_outputs,
    resolve_targets,
    target_scores,
)
from .recorder import gradient_mode

OCCLUSION_BATCH_SIZE = 64


def occlusion_map(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    targets: Targets = None,
    window: int = 1,
    cover: Float[Tensor, "b C H W"] | None = None,
    drop: bool = False,
) -> AttributionMap:
    """Drop of the score without a window of patches; for each patch the mean over the windows that contain it.

    Args:
        targets: the output to explain, see `attribution.Targets`.
        window: rows and columns of patches that are removed at once.
        cover: pixels that replace them, normalised as the images are; None is zeros, the training mean.
        drop: drop the patch tokens from the sequence instead.

    Raises:
        UsageError: an output that the model does not have, no outputs at all, a window that does not fit the grid, both
            a cover and drop, or drop for a model with soft splits.

    Source: Zeiler and Fergus 2014, section 4.2; Jain et al. 2022 ("missingness bias") for dropping patches.
    """
    require_outputs(model, "occlusion")
    grid = patch_grid_of(model, images)
    if drop and cover is not None:
        raise UsageError("Patches are either covered or dropped. Got a cover and drop=True.")
    with gradient_mode(model), torch.no_grad():
        target = resolve_targets(model(images), targets)
        if drop:
            falls = _patch_drop_scores(model, images, target, grid, window)
        else:
            falls = occlusion_from_outputs(
                lambda part, rows: target_scores(model(part), target[rows]), images, model.config.patch, grid,
                window, cover,
            )  # fmt: skip
    size = "a patch" if window == 1 else f"{window} x {window} patches"
    return AttributionMap(
        values=falls.numpy(force=True),
        method="occlusion",
        targets=tuple(target.tolist()),
        layer=f"pixels, {size} {'taken out' if drop else 'covered'} at a time",
        unit="fall of the score",
        description="How far this score falls without the patch. What two patches say together, one alone may not "
        "lose.",
        scale="signed",
    )


def occlusion_from_outputs(
    forward: Callable[[Tensor, Tensor], Tensor],
    images: Float[Tensor, "B C H W"],
    patch: tuple[int, int],
    grid: Grid,
    window: int = 1,
    cover: Float[Tensor, "b C H W"] | None = None,
) -> Float[Tensor, "B rows columns"]:
    """Occlusion by covering for any scoring function, such as an exported model.

    Args:
        forward: from images [n, C, H, W] and their indices [n] in the batch to scores [n].

    Raises:
        UsageError: the window does not fit the grid.
    """
    under = torch.zeros_like(images) if cover is None else cover.expand_as(images)
    windows = _window_masks(grid, window, images.device)  # [n, rows, columns]
    pairs = [(b, i) for i in range(len(windows)) for b in range(len(images))]
    whole = forward(images, torch.arange(len(images), device=images.device))
    falls = torch.zeros(len(images), len(windows), device=images.device)
    for first in range(0, len(pairs), OCCLUSION_BATCH_SIZE):
        rows, places = torch.tensor(pairs[first : first + OCCLUSION_BATCH_SIZE], device=images.device).T
        hidden = windows[places].repeat_interleave(patch[0], 1).repeat_interleave(patch[1], 2)
        hidden = hidden[:, None, : images.shape[2], : images.shape[3]]  # [n, 1, H, W]
        scores = forward(torch.where(hidden, under[rows], images[rows]), rows)
        falls[rows, places] = (whole[rows] - scores).to(falls.dtype)
    return _average_over_windows(falls, windows)


def _patch_drop_scores(
    model: ViT, images: Tensor, target: Tensor, grid: Grid, window: int
) -> Float[Tensor, "B rows columns"]:
    if model.config.patches in T2T_PATCHES:
        raise UsageError(
            "Patches of this model overlap: each has seen its neighbours before it can be taken out. Cover them "
            "instead."
        )
    if window == min(grid) == max(grid):
        raise UsageError(f"A window of {window} x {window} takes out every patch. Choose a smaller one.")
    windows = _window_masks(grid, window, images.device)
    whole = target_scores(model(images), target)
    falls = []
    for remaining in ~windows.flatten(1):
        visible = remaining.nonzero()[:, 0].expand(len(images), -1)  # [B, n]
        falls.append(whole - target_scores(model(images, visible), target))
    return _average_over_windows(torch.stack(falls, dim=1), windows)


def _window_masks(grid: Grid, window: int, device: torch.device) -> Tensor:
    """bool [n, rows, columns]: every window of patches that fits the grid."""
    if not 1 <= window <= min(grid):
        raise UsageError(f"window must lie in 1..{min(grid)} for {grid.rows} x {grid.columns} patches. Got {window}.")
    places = [(row, column) for row in range(grid.rows - window + 1) for column in range(grid.columns - window + 1)]
    masks = torch.zeros(len(places), *grid, dtype=torch.bool, device=device)
    for i, (row, column) in enumerate(places):
        masks[i, row : row + window, column : column + window] = True
    return masks


def _average_over_windows(falls: Float[Tensor, "B n"], windows: Tensor) -> Float[Tensor, "B rows columns"]:
    """For each patch the mean over the windows that contain it."""
    holds = windows.to(falls.dtype)
    return torch.einsum("bn,nrc->brc", falls, holds) / holds.sum(0)
