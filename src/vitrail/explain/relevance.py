"""Attention that raises a score: weights times their gradients, followed back through all blocks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.vit import ViT
from .map import Map
from .opening import ROOM, OpenPass, block_number, from_block, looking
from .reading import grid_of, laid_out, shares
from .target import Of, chosen, numbers, refuse_features, scores


def relevance(
    model: ViT, images: Float[Tensor, "B C H W"], of: Of = None, first: int | None = None, room: int = ROOM
) -> Map:
    """Gradient-weighted attention relevance (the general method, without rules of layer-wise propagation).

    Each block passes relevance on by the mean over heads of max(0, weight * gradient of the score): R = R + that * R,
    from the identity. The map is the rows of R that the answer is read from (`reading.shares`), less the identity.
    The rows alone are carried from the last block to the first, so the product is never formed.

    Args:
        of: the output to explain, see `target.Of`.
        first: the first block that counts, from 0; None takes all.
        room: see `OpenPass`.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: Chefer, Gur and Wolf 2021, "Generic attention-model explainability", section 3, self-attention.
    """
    refuse_features(model, "relevance")
    start, depth = block_number(model, first, 0), model.config.depth
    with looking(model):
        opened = OpenPass(model, images, start, room)
        share, gradients, target = _ends(model, opened, of)
        carried, flow = share, torch.zeros_like(opened.tokens[-1])
        for i in range(depth - 1, start - 1, -1):
            flow = flow + gradients.pop() if gradients else flow
            block = opened.block(i)
            wanted = (block.weights, block.before) if i > start else (block.weights,)
            to_weights, *to_before = torch.autograd.grad(block.after, wanted, flow)
            passed = (to_weights * block.weights.detach()).clamp(min=0).mean(1)  # [B, T, T]
            carried = carried + (carried[:, None] @ passed)[:, 0]
            flow = to_before[0] if to_before else flow
    return Map(
        values=laid_out(carried - share, model, grid_of(model, images)).numpy(force=True),
        method="relevance",
        of=numbers(target),
        layer=from_block(model, start),
        unit="relevance, no unit",
        line="Attention that raises this score. It shows what the model reacts to, not where a thing ends.",
    )


def _ends(model: ViT, opened: OpenPass, of: Of) -> tuple[Float[Tensor, "B T"], list[Tensor], Tensor]:
    """What the answer is read from, the gradients of the score by what the last blocks give, and the outputs meant."""
    last = [x.detach().requires_grad_() for x in opened.tokens[-model.config.pool_reach :]]
    read = model.encoder.normed(last)
    outputs = model.head(model.pool(read))
    target = chosen(outputs, of)
    gradients = torch.autograd.grad(scores(outputs, target).sum(), last, materialize_grads=True)
    return shares(model, read), list(gradients), target
