"""Attention weights block by block, and which tokens' view of the patches counts, whatever the model pools."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from ...errors import UsageError
from ...model.vit import Block, ViT
from ..reading import shares


def blocks(model: ViT, images: Float[Tensor, "B C H W"]) -> Iterator[Float[Tensor, "B A T T"]]:
    """The weights of every block in turn, computed in the open and held one block at a time.

    The caller decides on gradients and evaluation mode.
    """
    x, places = model.embed(images)
    x = model.encoder.enter(x)
    for block in model.encoder.blocks:
        assert isinstance(block, Block)
        x, weights = block.opened(x, places, None, None)
        yield weights


def readers(model: ViT, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T"]:
    """How much of the answer is read from each token after the last block; rows sum to 1.

    The class token alone; class and distillation token by halves; all patches alike where their mean is taken; class
    token and patches by halves where both are; where a learned probe pools, what it attends to, the mean of its heads.
    """
    return shares(model, model.features(images)["tokens"])


def reader_words(model: ViT) -> str:
    """Whose view `readers` takes, for a caption."""
    if model.config.distillation_head:
        return "the class and the distillation token"
    return {
        "class": "the class token",
        "mean": "all patches alike, because their mean is read",
        "class+mean": "the class token and the mean of the patches",
        "attention": "the learned probe",
    }[model.config.pool]


def block_of(model: ViT, chosen: int | None) -> int:
    """Which block was asked for; the last unless one was.

    Raises:
        UsageError: the model has no such block.
    """
    depth = model.config.depth
    if depth == 0 or not 0 <= (depth - 1 if chosen is None else chosen) < depth:
        raise UsageError(f"The model has {depth} blocks, counted from 0. Got layer={chosen}.")
    return depth - 1 if chosen is None else chosen
