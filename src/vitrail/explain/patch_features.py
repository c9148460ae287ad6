"""Patch features: artefact tokens (Darcet et al. 2023), the patch lens, and similarity to one patch."""

from __future__ import annotations

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
    tokens_to_grid,
)
from .recorder import BlockRecorder, gradient_mode, resolve_block

# -- Artefact tokens: high-norm tokens of uninformative patches
#
# Large models store global information in patches with little content (Darcet et al. 2023, "Vision Transformers need
# registers", section 2). Attention concentrates there, and a map is high where the image is empty.

OUTLIER_DEVIATIONS = 6.0
"""Threshold of the norm in median absolute deviations above the median."""
OUTLIER_RATIO = 2.0
"""Least ratio to the median norm: norms vary little in images with a plain background."""
EARLY_OUTLIER_RATIO = 1.5
"""A token with this ratio to the median norm before the first block is an unusual patch and no artefact."""
ATTENTION_METHODS = ("attention", "rollout", "relevance", "legrad")
"""Methods that concentrate on artefact tokens."""


def find_artifact_patches(model: ViT, images: Float[Tensor, "B C H W"]) -> Bool[np.ndarray, "B rows columns"]:
    """Mask of the artefact tokens: high norm after the last block, but not before the first one.

    A high norm before the first block means an unusual patch, such as the dark part of a solar cell, which may be the
    evidence itself.
    """
    last = f"blocks.{model.config.depth - 1}"
    with gradient_mode(model), torch.no_grad():
        kept = model.features(images, ("embedded", last))
    before, after = (
        tokens_to_grid(kept[name].norm(dim=-1), model, patch_grid_of(model, images)).numpy(force=True)
        for name in ("embedded", last)
    )
    return outlier_mask(after) & (before < EARLY_OUTLIER_RATIO * np.median(before, axis=(1, 2), keepdims=True))


def outlier_mask(lengths: Float[np.ndarray, "B rows columns"]) -> Bool[np.ndarray, "B rows columns"]:
    """Mask of the outlying norms of each image."""
    return lengths > np.array([outlier_limit(one) for one in lengths])[:, None, None]


def outlier_limit(lengths: Float[np.ndarray, "*shape"]) -> float:
    """The norm beyond which a token is an outlier among the given ones."""
    median = float(np.median(lengths))
    return max(median + OUTLIER_DEVIATIONS * float(np.median(np.abs(lengths - median))), OUTLIER_RATIO * median)


def patch_lens(
    model: ViT, images: Float[Tensor, "B C H W"], targets: Targets = None, layer: int | None = None
) -> AttributionMap:
    """Patch lens: the score of each patch token alone after a block, through the final norm, pooling and head.

    Args:
        targets: the output to explain, see `attribution.Targets`.
        layer: the block, counted from 0; None takes the last.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: nostalgebraist 2020, "the logit lens", on patches.
    """
    require_outputs(model, "lens")
    number = resolve_block(model, layer, -1)
    with gradient_mode(model), torch.no_grad():
        recorder = BlockRecorder(model, images, model.config.depth)
        target = resolve_targets(model.head(model.pool(recorder.readout_after(model.config.depth - 1))), targets)
        patches = recorder.readout_after(number)[:, model.config.prefix :]  # [B, N, P]
        alone = patches.flatten(0, 1)[:, None].expand(-1, model.config.prefix + 1, -1)  # prefix tokens are copies of it
        outputs = model.head(model.pool(alone)).unflatten(0, patches.shape[:2])  # [B, N, K]
        scores = outputs.gather(2, target[:, None, None].expand(-1, patches.shape[1], 1))[..., 0]
    return AttributionMap(
        values=scores.unflatten(-1, tuple(patch_grid_of(model, images))).numpy(force=True),
        method="lens",
        targets=tuple(target.tolist()),
        layer=f"after block {number}",
        unit="score of the patch alone",
        description="The score that each patch's token would give alone. The model was not trained to answer from "
        "patches.",
        scale="range",
    )


# -- Similarity


def patch_similarity(
    model: ViT, images: Float[Tensor, "B C H W"], patch: int, layer: int | None = None
) -> AttributionMap:
    """Cosine similarity of every patch token to that of patch number `patch`, from -1 to 1.

    Args:
        patch: counted from 1 in reading order, as in `vitrail inspect --token`.
        layer: compare tokens after this block, counted from 0; None after the final norm.

    Raises:
        UsageError: a patch or block that does not exist.
    """
    grid = patch_grid_of(model, images)
    if not 1 <= patch <= grid.patches:
        raise UsageError(f"patch must lie in 1..{grid.patches} for {grid.rows} x {grid.columns} patches. Got {patch}.")
    name = "tokens" if layer is None else f"blocks.{resolve_block(model, layer, -1)}"
    with gradient_mode(model), torch.no_grad():
        tokens = model.features(images, (name,))[name]
        one = tokens[:, model.config.prefix + patch - 1, None]  # [B, 1, D]
        similarity = F.cosine_similarity(tokens, one, dim=-1)  # [B, T]
    row, column = divmod(patch - 1, grid.columns)
    return AttributionMap(
        values=tokens_to_grid(similarity, model, grid).numpy(force=True),
        method="similarity",
        layer="after the final norm" if layer is None else f"after block {layer}",
        unit="cosine of the angle",
        description=f"How alike each patch is to patch {patch} (row {row + 1}, column {column + 1}), whatever the "
        f"class.",
        scale="cosine",
    )


def patch_distances(model: ViT, images: Float[Tensor, "B C H W"]) -> AttributionMap:
    """The distance of every patch from the nearest good one, of an anomaly model; its score is the mean of the largest.

    Raises:
        UsageError: another model.
    """
    if model.config.head != "bank":
        raise UsageError("distances are those of an anomaly model, which has a bank of good patches. Choose another.")
    with gradient_mode(model), torch.no_grad():
        values = model.features(images, keep=("distances",))["distances"]
    return AttributionMap(
        values=values.float().cpu().numpy(),
        method="distances",
        layer="bank",
        description="How far every patch is from the most similar one in good pictures.",
        unit="1 - cosine",
        scale="range",
    )
