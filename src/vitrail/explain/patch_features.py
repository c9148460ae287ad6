"""The patch lens: what norm, pooling and head would answer if every token were this patch's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from .attribution import (
    AttributionMap,
    Targets,
    patch_grid_of,
    require_outputs,
    resolve_targets,
    target_list,
    tokens_to_grid,
)
from .recorder import BlockRecorder, gradient_mode, resolve_block

# Artefact tokens: a few patches whose tokens are far longer than the others, which hold no picture but notes.
#
# Large models put notes about the whole picture into patches with little to see (Darcet et al. 2023, "Vision
# Transformers need registers", section 2). Attention goes there, and a map lights up where nothing is.

OUTLIER_DEVIATIONS = 6.0
"""Median absolute deviations above the median from which on a token is one."""
OUTLIER_RATIO = 2.0
"""It must also be so many times as long as the median one: pictures with a plain background deviate by little."""
EARLY_OUTLIER_RATIO = 1.5
"""A token that is so many times as long as the median one before the first block shows an odd patch, and no note."""
ATTENTION_METHODS = ("attention", "rollout", "relevance", "legrad")
"""Methods whose heat gathers on artefact tokens."""


def patch_token_norms(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None
) -> Float[np.ndarray, "B rows columns"]:
    """The length of each patch's token after a block; None is the last block, before the final norm.

    Raises:
        UsageError: a block that the model does not have.
    """
    name = f"blocks.{resolve_block(model, layer, -1)}"
    with gradient_mode(model), torch.no_grad():
        lengths = model.features(images, (name,))[name].norm(dim=-1)  # [B, T]
    return tokens_to_grid(lengths, model, patch_grid_of(model, images)).numpy(force=True)


def find_artifact_patches(model: ViT, images: Float[Tensor, "B C H W"]) -> Bool[np.ndarray, "B rows columns"]:
    """Patches whose tokens the model has made far longer than the others, to write notes on.

    What is long before the first block is a patch that looks unlike the others, such as the dark part of a solar cell:
    it may be the very thing that the answer comes from.
    """
    last = f"blocks.{model.config.depth - 1}"
    with gradient_mode(model), torch.no_grad():
        kept = model.features(images, ("embedded", last))
        lengths = [
            tokens_to_grid(kept[name].norm(dim=-1), model, patch_grid_of(model, images)) for name in ("embedded", last)
        ]
    before, after = (each.numpy(force=True) for each in lengths)
    return outlier_mask(after) & (before < EARLY_OUTLIER_RATIO * np.median(before, axis=(1, 2), keepdims=True))


def outlier_mask(lengths: Float[np.ndarray, "B rows columns"]) -> Bool[np.ndarray, "B rows columns"]:
    """Which lengths are far beyond the others, picture by picture."""
    limits = np.array([outlier_limit(one) for one in lengths])
    return lengths > limits[:, None, None]


def outlier_limit(lengths: Float[np.ndarray, "*shape"]) -> float:
    """The length beyond which a token is an artefact, from all that are given."""
    median = float(np.median(lengths))
    return max(median + OUTLIER_DEVIATIONS * float(np.median(np.abs(lengths - median))), OUTLIER_RATIO * median)


def patch_lens(
    model: ViT, images: Float[Tensor, "B C H W"], targets: Targets = None, layer: int | None = None
) -> AttributionMap:
    """The score that each patch's token gives alone after a block, read as the answer is read after the last.

    Args:
        targets: the output to explain, see `target.Of`.
        layer: the block, counted from 0; None takes the last.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: nostalgebraist 2020, "the logit lens", on patches.
    """
    require_outputs(model, "lens")
    number = resolve_block(model, layer, -1)
    with gradient_mode(model), torch.no_grad():
        opened = BlockRecorder(model, images, model.config.depth)
        target = resolve_targets(model.head(model.pool(opened.readout_after(model.config.depth - 1))), targets)
        (found,) = _lens_scores(model, opened, (number,), target)
    return AttributionMap(
        values=found.unflatten(-1, tuple(patch_grid_of(model, images))).numpy(force=True),
        method="lens",
        targets=target_list(target),
        layer=f"after block {number}",
        unit="score of the patch alone",
        description="The score that each patch's token would give alone. The model was not trained to answer from "
        "patches.",
        scale="range",
    )


def patch_lens_per_block(
    model: ViT, images: Float[Tensor, "B C H W"], targets: Targets = None
) -> Float[Tensor, "L B rows columns"]:
    """The same after each block in turn, from one forward pass.

    Raises:
        UsageError: as `lens`.
    """
    require_outputs(model, "lens")
    last = resolve_block(model, None, -1)
    with gradient_mode(model), torch.no_grad():
        opened = BlockRecorder(model, images, model.config.depth)
        target = resolve_targets(model.head(model.pool(opened.readout_after(last))), targets)
        found = _lens_scores(model, opened, range(last + 1), target)
    return torch.stack(found).unflatten(-1, tuple(patch_grid_of(model, images)))


def _lens_scores(
    model: ViT, recorder: BlockRecorder, blocks: Sequence[int], target: Tensor
) -> list[Float[Tensor, "B N"]]:
    found = []
    for i in blocks:
        patches = recorder.readout_after(i)[:, model.config.prefix :]  # [B, N, P]
        alone = patches.flatten(0, 1)[:, None].expand(-1, model.config.prefix + 1, -1)  # each prefix token is it, too
        outputs = model.head(model.pool(alone)).unflatten(0, patches.shape[:2])  # [B, N, K]
        found.append(outputs.gather(2, target[:, None, None].expand(-1, patches.shape[1], 1))[..., 0])
    return found


# How alike the patches of a picture are to one of them, as the model sees them.


def patch_similarity(
    model: ViT, images: Float[Tensor, "B C H W"], patch: int, layer: int | None = None
) -> AttributionMap:
    """The cosine between every patch's token and that of patch number `patch`, from -1 to 1.

    Args:
        patch: counted from 1 in reading order, as `vitrail inspect --token` does.
        layer: the block after which tokens are compared, counted from 0; None takes them after the final norm.

    Raises:
        UsageError: a patch or block that is not there.
    """
    grid = patch_grid_of(model, images)
    if not 1 <= patch <= grid.patches:
        raise UsageError(f"patch must lie in 1..{grid.patches} for {grid.rows} x {grid.columns} patches. Got {patch}.")
    name = "tokens" if layer is None else f"blocks.{resolve_block(model, layer, -1)}"
    with gradient_mode(model), torch.no_grad():
        tokens = model.features(images, (name,))[name]
        one = tokens[:, model.config.prefix + patch - 1, None]  # [B, 1, D]
        found = F.cosine_similarity(tokens, one, dim=-1)  # [B, T]
    row, column = divmod(patch - 1, grid.columns)
    return AttributionMap(
        values=tokens_to_grid(found, model, grid).numpy(force=True),
        method="similarity",
        layer="after the final norm" if layer is None else f"after block {layer}",
        unit="cosine of the angle",
        description=f"How alike each patch is to patch {patch} (row {row + 1}, column {column + 1}), whatever the "
        f"class.",
        scale="cosine",
    )
