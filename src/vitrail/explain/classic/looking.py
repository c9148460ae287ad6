"""Attention weights block by block, and which tokens' view of the patches counts, whatever the model pools."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from ...errors import UsageError
from ...model.attention import attention_weights
from ...model.encoder import Block
from ...model.heads import ProbePooling
from ...model.vit import ViT


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
    config = model.config
    tokens = model.features(images)["tokens"]
    shares = tokens.new_zeros(tokens.shape[:2])
    if config.pool == "attention":
        assert isinstance(model.pool.attention, ProbePooling)
        return _probed(model.pool.attention, tokens)
    if config.distillation_head:
        shares[:, :2] = 1 / 2
        return shares
    patches = {"class": 0.0, "mean": 1.0, "class+mean": 0.5}[config.pool]
    shares[:, 0] = 1 - patches
    shares[:, config.prefix :] += patches / (tokens.shape[1] - config.prefix)
    return shares


def _probed(probe: ProbePooling, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """The probe's weights as `ProbePooling` computes them."""
    q = probe.q(probe.probe.expand(len(tokens), -1, -1)).unflatten(-1, (probe.heads, -1)).transpose(1, 2)
    k = probe.kv(tokens).unflatten(-1, (2, probe.heads, -1))[:, :, 0].transpose(1, 2)  # [B, A, T, d]
    return attention_weights(q, k, q.shape[-1] ** -0.5).mean(1)[:, 0]


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
