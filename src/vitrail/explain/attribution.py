"""A map: for every patch of some pictures one number, and what a person must know to read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from ..spec import Grid

MapScale = Literal["positive", "signed", "cosine", "range"]
FLAT_TOLERANCE = 1e-5
"""A map whose values differ by less than this share of the largest one says nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributionMap:
    """What a method found in a batch of pictures."""

    values: Float32[np.ndarray, "B rows columns"]
    """One number per patch."""
    method: str
    """The method's name in `methods.METHODS`."""
    layer: str
    """Which part of the model was looked at, for people: such as "block 11"."""
    description: str
    """What the picture shows and what it does not, in one honest sentence."""
    unit: str
    """What its numbers count, in a few words: the name beside a scale of colours."""
    targets: tuple[int, ...] | None = None
    """The output that each picture's map explains; None if the method is blind to classes."""
    scale: MapScale = "positive"
    """How to read the numbers. positive: from 0; signed: for and against, around 0; cosine: -1 to 1; range: only their
    order and distance mean something."""
    notes: tuple[str, ...] = ()
    """What was measured of each picture on the way, such as a gap; nothing where there is nothing to say."""
    pixels: Float32[np.ndarray, "B H W"] | None = None
    """The same for every pixel, where the method knows it: the values are its sums over patches."""


class EmptyMapError(UsageError):
    """A map that says nothing."""


def require_nonempty_map(attribution: AttributionMap, why: str) -> AttributionMap:
    """The map itself, if every picture's part of it says something.

    Args:
        why: what it means where a map of this method is zero everywhere.

    Raises:
        EmptyMapError: a picture's map holds NaN or infinity, is zero everywhere, or the same everywhere.
    """
    for place, one in enumerate(attribution.values):
        name = f"The map by {attribution.method} of picture {place + 1} of {len(attribution.values)}"
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


# From tokens to a map: which tokens the answer is read from, and where the patches lie.


def token_weights(model: ViT, final_tokens: Float[Tensor, "B T P"]) -> Float[Tensor, "B T"]:
    """How much of each token goes into the answer; rows sum to 1.

    The class token, or the class and the distillation token by half, or the mean of the patches, or class token and
    mean by half, or what a learned probe looks at (the mean over its heads).

    Args:
        final_tokens: what the pooling reads.
    """
    B, T, _ = final_tokens.shape
    kind, prefix = model.pool.kind, model.config.prefix
    if kind == "attention":
        return model.pool.forward_with_attention(final_tokens)[1].mean(1)[:, 0].detach()
    found = torch.zeros(B, T, device=final_tokens.device, dtype=final_tokens.dtype)
    if kind == "class":
        found[:, 0] = 1
    elif kind == "class+distillation":
        found[:, :2] = 0.5
    else:
        found[:, prefix:] = 1 / (T - prefix)
    if kind == "class+mean":
        found /= 2
        found[:, 0] = 0.5
    return found


def patch_grid_of(model: ViT, images: Float[Tensor, "B C H W"]) -> Grid:
    """Rows and columns of patches in these pictures, those that reach into the padding too."""
    height, width = images.shape[-2:]
    patch = model.config.patch
    return Grid(math.ceil(height / patch[0]), math.ceil(width / patch[1]))


def tokens_to_grid(tokens: Float[Tensor, "*lots T"], model: ViT, grid: Grid) -> Float[Tensor, "*lots rows columns"]:
    """One number per token as the grid of patches; the tokens before them are left out."""
    return tokens[..., model.config.prefix :].unflatten(-1, tuple(grid))


def sum_by_patch(pixels: Float[Tensor, "B H W"], patch: tuple[int, int], grid: Grid) -> Float[Tensor, "B rows columns"]:
    """The sum over each patch; pixels beyond the picture count 0."""
    height, width = pixels.shape[-2:]
    down, right = grid.rows * patch[0] - height, grid.columns * patch[1] - width
    whole = torch.nn.functional.pad(pixels, (0, right, 0, down))
    return whole.unflatten(1, (grid.rows, patch[0])).unflatten(3, (grid.columns, patch[1])).sum((2, 4))


# Which output of a model is explained, picture by picture.

Targets = int | Sequence[int] | None
"""One output for all pictures, one for each, or None: the largest of each."""


def resolve_targets(outputs: Float[Tensor, "B K"], targets: Targets) -> Int[Tensor, " B"]:
    """The number of the output that each picture's map explains.

    Raises:
        UsageError: an output that the model does not have, or not one number per picture.
    """
    pictures, count = outputs.shape
    if targets is None:
        return outputs.detach().argmax(1)
    numbers = [targets] * pictures if isinstance(targets, int) else list(targets)
    if len(numbers) != pictures:
        raise UsageError(f"One output to explain per picture is needed, {pictures}. Got {len(numbers)}.")
    if wrong := sorted({int(number) for number in numbers if not 0 <= number < count}):
        raise UsageError(f"The model has outputs 0 to {count - 1}. Got {', '.join(map(str, wrong))} to explain.")
    return torch.tensor(numbers, device=outputs.device)


def target_scores(outputs: Float[Tensor, "B K"], targets: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The explained output of each picture: a logit, or a number as it was learnt."""
    return outputs.gather(1, targets[:, None])[:, 0]


def require_outputs(model: ViT, method: str) -> None:
    """Raise UsageError if the model has no outputs, only features, of which none is there to explain."""
    if not model.config.outputs:
        raise UsageError(
            f"{method} explains an output, and this model has none: it gives features. Choose attention, rollout or "
            "similarity, or train a head on it first."
        )


def target_list(targets: Int[Tensor, " B"]) -> tuple[int, ...]:
    """As plain values."""
    return tuple(int(number) for number in targets.tolist())
