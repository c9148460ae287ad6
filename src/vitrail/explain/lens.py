"""The patch lens: what norm, pooling and head would answer if every token were this patch's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.vit import ViT
from .map import Map
from .opening import OpenPass, block_number, looking
from .reading import grid_of
from .target import Of, chosen, numbers, refuse_features


def lens(model: ViT, images: Float[Tensor, "B C H W"], of: Of = None, layer: int | None = None) -> Map:
    """The score that each patch's token gives alone after a block, read as the answer is read after the last.

    Args:
        of: the output to explain, see `target.Of`.
        layer: the block, counted from 0; None takes the last.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: nostalgebraist 2020, "the logit lens", on patches.
    """
    refuse_features(model, "lens")
    number = block_number(model, layer, -1)
    with looking(model), torch.no_grad():
        opened = OpenPass(model, images, model.config.depth)
        target = chosen(model.head(model.pool(opened.read_after(model.config.depth - 1))), of)
        (found,) = _seen(model, opened, (number,), target)
    return Map(
        values=found.unflatten(-1, tuple(grid_of(model, images))).numpy(force=True),
        method="lens",
        of=numbers(target),
        layer=f"after block {number}",
        unit="score of the patch alone",
        line="The score that each patch's token would give alone. The model was not trained to answer from patches.",
        scale="range",
    )


def after_every_block(model: ViT, images: Float[Tensor, "B C H W"], of: Of = None) -> Float[Tensor, "L B rows columns"]:
    """The same after each block in turn, from one forward pass.

    Raises:
        UsageError: as `lens`.
    """
    refuse_features(model, "lens")
    last = block_number(model, None, -1)
    with looking(model), torch.no_grad():
        opened = OpenPass(model, images, model.config.depth)
        target = chosen(model.head(model.pool(opened.read_after(last))), of)
        found = _seen(model, opened, range(last + 1), target)
    return torch.stack(found).unflatten(-1, tuple(grid_of(model, images)))


def _seen(model: ViT, opened: OpenPass, blocks: Sequence[int], target: Tensor) -> list[Float[Tensor, "B N"]]:
    found = []
    for i in blocks:
        patches = opened.read_after(i)[:, model.config.prefix :]  # [B, N, P]
        alone = patches.flatten(0, 1)[:, None].expand(-1, model.config.prefix + 1, -1)  # each prefix token is it, too
        outputs = model.head(model.pool(alone)).unflatten(0, patches.shape[:2])  # [B, N, K]
        found.append(outputs.gather(2, target[:, None, None].expand(-1, patches.shape[1], 1))[..., 0])
    return found
