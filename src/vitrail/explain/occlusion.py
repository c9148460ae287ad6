"""Occlusion: how much a score falls when a patch is covered, or really taken out. It needs answers only."""

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
    target_list,
    target_scores,
)
from .recorder import gradient_mode

OCCLUSION_BATCH_SIZE = 64
"""Pictures in one pass."""


def occlusion_map(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    targets: Targets = None,
    window: int = 1,
    cover: Float[Tensor, "b C H W"] | None = None,
    drop: bool = False,
) -> AttributionMap:
    """The fall of the score when a window of patches is gone; of a patch, the mean over the windows that hold it.

    Args:
        targets: the output to explain, see `target.Of`.
        window: rows and columns of patches that are gone at once.
        cover: what is seen in their place, normalised as the images are; None is zeros, the mean of the training
            pictures.
        drop: take the patches out of the sequence instead, so that nothing stands in their place.

    Raises:
        UsageError: an output that the model does not have, no outputs at all, a window that is no part of the grid,
            both a cover and drop, or drop where every patch has seen its neighbours before it can be taken out.

    Source: Zeiler and Fergus 2014, section 4.2; Jain et al. 2022 ("missingness bias") for taking patches out.
    """
    require_outputs(model, "occlusion")
    grid = patch_grid_of(model, images)
    if drop and cover is not None:
        raise UsageError("Patches are either covered or dropped. Got a cover and drop=True.")
    with gradient_mode(model), torch.no_grad():
        target = resolve_targets(model(images), targets)
        if drop:
            _check_drop_possible(model, grid, window)
            found = _patch_drop_scores(model, images, target, grid, window)
        else:
            found = occlusion_from_outputs(
                lambda pictures, rows: target_scores(model(pictures), target[rows]), images, model.config.patch, grid,
                window, cover,
            )  # fmt: skip
    size = "a patch" if window == 1 else f"{window} x {window} patches"
    return AttributionMap(
        values=found.numpy(force=True),
        method="occlusion",
        targets=target_list(target),
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
    """The same for anything that answers pictures, such as an exported model.

    Args:
        forward: from pictures [n, C, H, W] and their numbers [n] in the batch to scores [n].

    Raises:
        UsageError: the window is no part of the grid.
    """
    under = torch.zeros_like(images) if cover is None else cover.expand_as(images)
    windows = _window_masks(grid, window, images.device)  # [n, rows, columns]
    todo = [(b, i) for i in range(len(windows)) for b in range(len(images))]
    whole = forward(images, torch.arange(len(images), device=images.device))
    falls = torch.zeros(len(images), len(windows), device=images.device)
    for first in range(0, len(todo), OCCLUSION_BATCH_SIZE):
        rows, places = (
            torch.tensor(part, device=images.device)
            for part in zip(*todo[first : first + OCCLUSION_BATCH_SIZE], strict=True)
        )
        hidden = windows[places].repeat_interleave(patch[0], 1).repeat_interleave(patch[1], 2)
        hidden = hidden[:, None, : images.shape[2], : images.shape[3]]  # [n, 1, H, W]
        answers = forward(torch.where(hidden, under[rows], images[rows]), rows)
        falls[rows, places] = (whole[rows] - answers).to(falls.dtype)
    return _average_over_windows(falls, windows)


def _patch_drop_scores(
    model: ViT, images: Tensor, target: Tensor, grid: Grid, window: int
) -> Float[Tensor, "B rows columns"]:
    windows = _window_masks(grid, window, images.device)
    whole = target_scores(model(images), target)
    falls = []
    for left in ~windows.flatten(1):
        visible = left.nonzero()[:, 0].expand(len(images), -1)  # [B, n]
        falls.append(whole - target_scores(model(images, visible), target))
    return _average_over_windows(torch.stack(falls, dim=1), windows)


def _window_masks(grid: Grid, window: int, device: torch.device) -> Tensor:
    """bool [n, rows, columns]: every place where a window of patches lies whole on the grid."""
    if not 1 <= window <= min(grid):
        raise UsageError(f"window must lie in 1..{min(grid)} for {grid.rows} x {grid.columns} patches. Got {window}.")
    places = [(row, column) for row in range(grid.rows - window + 1) for column in range(grid.columns - window + 1)]
    found = torch.zeros(len(places), *grid, dtype=torch.bool, device=device)
    for i, (row, column) in enumerate(places):
        found[i, row : row + window, column : column + window] = True
    return found


def _average_over_windows(falls: Float[Tensor, "B n"], windows: Tensor) -> Float[Tensor, "B rows columns"]:
    """Of each patch, the mean over the windows that hold it."""
    holds = windows.to(falls.dtype)
    return torch.einsum("bn,nrc->brc", falls, holds) / holds.sum(0)


def _check_drop_possible(model: ViT, grid: Grid, window: int) -> None:
    if model.config.patches in T2T_PATCHES:
        raise UsageError(
            "Patches of this model overlap: each has seen its neighbours before it can be taken out. Cover them "
            "instead."
        )
    if window == min(grid) == max(grid):
        raise UsageError(f"A window of {window} x {window} takes out every patch. Choose a smaller one.")
