"""What each block's attention would do for a score if the answer were read after that block."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.vit import ViT
from .map import Map
from .opening import ROOM, OpenPass, block_number, from_block, looking
from .reading import grid_of, laid_out
from .target import Of, chosen, numbers, refuse_features, scores


def legrad(
    model: ViT, images: Float[Tensor, "B C H W"], of: Of = None, first: int | None = None, room: int = ROOM
) -> Map:
    """The gradient of every block's own score by its attention weights, where it is positive.

    The mean over heads, over looking tokens and over blocks. A block's own score is what norm, pooling and head make of
    its tokens. Where a learned probe pools, the weights are those of the probe, looking at the block's tokens.

    Args:
        of, first, room: as `relevance.relevance`.

    Raises:
        UsageError: as `relevance.relevance`.

    Source: Bousselham et al. 2024, "LeGrad", section 3; 3.3 for the probe.
    """
    refuse_features(model, "legrad")
    start, depth = block_number(model, first, 0), model.config.depth
    probe = model.config.pool == "attention"
    with looking(model):
        opened = OpenPass(model, images, depth if probe else start, room)
        with torch.no_grad():
            target = chosen(model.head(model.pool(opened.read_after(depth - 1))), of)
        found = torch.zeros(opened.tokens[0].shape[:2], device=images.device)  # [B, T]
        for i in range(start, depth):
            gradient = _of_probe(model, opened, i, target) if probe else _of_block(model, opened, i, target)
            found += gradient.clamp(min=0).mean((1, 2)) / (depth - start)
    return Map(
        values=laid_out(found, model, grid_of(model, images)).numpy(force=True),
        method="legrad",
        of=numbers(target),
        layer=from_block(model, start) + (", through the pooling's probe" if probe else ""),
        unit="score per unit of attention",
        line="Where more attention would raise this score. It shows what the model reacts to, not where a thing ends.",
    )


def _of_block(model: ViT, opened: OpenPass, i: int, target: Tensor) -> Float[Tensor, "B A T T"]:
    block = opened.block(i)
    outputs = model.head(model.pool(opened.read_after(i, block.after)))
    (gradient,) = torch.autograd.grad(scores(outputs, target).sum(), block.weights)
    return gradient


def _of_probe(model: ViT, opened: OpenPass, i: int, target: Tensor) -> Float[Tensor, "B A 1 T"]:
    pooled, weights = model.pool.opened(opened.read_after(i).detach().requires_grad_())
    (gradient,) = torch.autograd.grad(scores(model.head(pooled), target).sum(), weights)
    return gradient
