"""Attribution maps, one number per patch, with the token, patch and target helpers that the methods share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from ..spec import Grid
from .map_scale import MapScale

FLAT_TOLERANCE = 1e-5
"""A map whose range is below this fraction of its largest magnitude is constant."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributionMap:
    """The maps of a method for a batch of images, with what a reader must know."""

    values: Float32[np.ndarray, "B rows columns"]
    """One number per patch."""
    method: str
    """The method's name in `methods.METHODS`."""
    layer: str
    """The explained part of the model, such as "block 11"."""
    description: str
    """One sentence on what the map shows and what it does not."""
    unit: str
    """Unit of the values, for the colour bar."""
    targets: tuple[int, ...] | None = None
    """The output that each image's map explains; None for class-agnostic methods."""
    scale: MapScale = "positive"
    notes: tuple[str, ...] = ()
    """Remarks on each image, such as the completeness gap; empty without any."""
    pixels: Float32[np.ndarray, "B H W"] | None = None
    """Values per pixel, if the method has them; `values` are their sums over patches."""


class EmptyMapError(UsageError):
    """A map without information: not finite, zero, or constant."""


def require_nonempty_map(attribution: AttributionMap, why: str) -> AttributionMap:
    """Return the map, or refuse it if that of one image is empty.

    Args:
        why: what a map of zeros means for this method, for the message.

    Raises:
        EmptyMapError: a map holds NaN or infinity, is zero everywhere, or constant.
    """
    for index, one in enumerate(attribution.values):
        name = f"The map by {attribution.method} of picture {index + 1} of {len(attribution.values)}"
        if not np.isfinite(one).all():
            raise EmptyMapError(
                f"{name} holds {int((~np.isfinite(one)).sum())} values that are not finite. The weights of the model "
                "or the values of the picture are not finite, or too large."
            )
        if not one.any():
            raise EmptyMapError(f"{name} is zero everywhere: {why}. Choose another method, class or layer.")
        if np.ptp(one) <= FLAT_TOLERANCE * np.abs(one).max():
            raise EmptyMapError(
                f"{name} has the same value {one.flat[0]:.3g} on all {one.size} patches, so it points nowhere. Choose "
                "another method, class or layer."
            )
    return attribution


# -- From tokens to maps


def token_weights(model: ViT, final_tokens: Float[Tensor, "B T P"]) -> Float[Tensor, "B T"]:
    """Weight of each token in the pooling; rows sum to 1.

    By pooling: the class token; class and distillation token, half each; all patches or all tokens equally; class
    token and patches, half each; or the attention of the learned probe, averaged over its heads.

    Args:
        final_tokens: the input of the pooling.
    """
    B, T, _ = final_tokens.shape
    kind, prefix = model.pool.kind, model.pool.prefix
    if kind == "attention":
        return model.pool.forward_with_attention(final_tokens)[1].mean(1)[:, 0].detach()
    weights = torch.zeros(B, T, device=final_tokens.device, dtype=final_tokens.dtype)
    if kind == "class":
        weights[:, 0] = 1
    elif kind == "class+distillation":
        weights[:, :2] = 0.5
    else:
        weights[:, prefix:] = 1 / (T - prefix)
    if kind == "class+mean":
        weights /= 2
        weights[:, 0] = 0.5
    return weights


def patch_grid_of(model: ViT, images: Float[Tensor, "B C H W"]) -> Grid:
    """Rows and columns of patches in these images, including partly padded ones."""
    (height, width), patch = images.shape[-2:], model.config.patch
    return Grid(math.ceil(height / patch[0]), math.ceil(width / patch[1]))


def tokens_to_grid(tokens: Float[Tensor, "*lots T"], model: ViT, grid: Grid) -> Float[Tensor, "*lots rows columns"]:
    """Drop the prefix tokens and reshape the patch tokens to the grid."""
    return tokens[..., model.config.prefix :].unflatten(-1, tuple(grid))


def sum_by_patch(pixels: Float[Tensor, "B H W"], patch: tuple[int, int], grid: Grid) -> Float[Tensor, "B rows columns"]:
    """Sum over each patch; padding counts 0."""
    height, width = pixels.shape[-2:]
    down, right = grid.rows * patch[0] - height, grid.columns * patch[1] - width
    whole = torch.nn.functional.pad(pixels, (0, right, 0, down))
    return whole.unflatten(1, (grid.rows, patch[0])).unflatten(3, (grid.columns, patch[1])).sum((2, 4))


# -- Targets: the explained output of each image

Targets = int | Sequence[int] | None
"""One output for all images, one for each, or None for the largest of each."""


def resolve_targets(outputs: Float[Tensor, "B K"], targets: Targets) -> Int[Tensor, " B"]:
    """Index of the explained output of each image.

    Raises:
        UsageError: an output that the model does not have, or not one index per image.
    """
    num_images, count = outputs.shape
    if targets is None:
        return outputs.detach().argmax(1)
    indices = [targets] * num_images if isinstance(targets, int) else list(targets)
    if len(indices) != num_images:
        raise UsageError(f"One output to explain per picture is needed, {num_images}. Got {len(indices)}.")
    if wrong := sorted({int(index) for index in indices if not 0 <= index < count}):
        raise UsageError(f"The model has outputs 0 to {count - 1}. Got {', '.join(map(str, wrong))} to explain.")
    return torch.tensor(indices, device=outputs.device)


def target_scores(outputs: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The explained output of each image: a logit, or a standardized number."""
    return outputs.gather(1, targets[:, None])[:, 0]


def require_outputs(model: ViT, method: str) -> None:
    """Raise UsageError if the model has no outputs, only features."""
    if not model.config.outputs:
        raise UsageError(
            f"{method} explains an output, and this model has none: it gives features. Choose attention, rollout or "
            "similarity, or train a head on it first."
        )
