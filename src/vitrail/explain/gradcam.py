"""Grad-CAM on tokens: features of the patches, added up by how much each feature raises the score."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.vit import Block, ViT
from .map import Map
from .opening import OpenPass, block_number, looking
from .reading import grid_of, laid_out
from .target import Of, chosen, numbers, refuse_features, scores


def gradcam(model: ViT, images: Float[Tensor, "B C H W"], of: Of = None, layer: int | None = None) -> Map:
    """The patches' features where a block reads them, after its first norm; negative sums are cut off.

    A feature's factor is its gradient's mean over the patches. Not the last block's output is taken: there only the
    class token has a gradient in most models, and the map would be zero.

    Args:
        of: the output to explain, see `target.Of`.
        layer: the block, counted from 0; None takes the last.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: Selvaraju et al. 2017, section 3, on tokens instead of the last convolution.
    """
    refuse_features(model, "grad-cam")
    number = block_number(model, layer, -1)
    with looking(model):
        opened = OpenPass(model, images, model.config.depth)
        normal, outputs = _from_normal(model, opened, number)
        target = chosen(outputs, of)
        (gradient,) = torch.autograd.grad(scores(outputs, target).sum(), normal)
    factors = gradient[:, model.config.prefix :].mean(1, keepdim=True)  # [B, 1, D]
    found = (factors * normal.detach()).sum(-1).clamp(min=0)  # [B, T]
    return Map(
        values=laid_out(found, model, grid_of(model, images)).numpy(force=True),
        method="grad-cam",
        of=numbers(target),
        layer=f"block {number}, after its first norm",
        unit="weighted features, no unit",
        line="Features that raise this score, where they lie; what speaks against it is cut off.",
    )


def _from_normal(model: ViT, opened: OpenPass, number: int) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B K"]]:
    """What block `number` reads after its first norm, and the outputs that follow from it, in one graph."""
    reach = model.config.pool_reach
    block = model.encoder.blocks[number]
    assert isinstance(block, Block)
    normal = block.norm1(opened.tokens[number]).detach().requires_grad_()
    x = block.from_normal(opened.tokens[number], normal, opened.places)
    last = [*opened.tokens[1 : number + 1], x][-reach:]
    for block in model.encoder.blocks[number + 1 :]:
        x = model.encoder.through(block, x, opened.places)
        last = [*last, x][-reach:]
    return normal, model.head(model.pool(model.encoder.normed(last)))
