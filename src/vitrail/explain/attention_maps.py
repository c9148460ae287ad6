"""Class-agnostic attention maps: attention weights of one block, by head, and attention rollout over all blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.vit import Block, ViT
from .attribution import AttributionMap, patch_grid_of, token_weights, tokens_to_grid
from .recorder import describe_block_range, gradient_mode, resolve_block

PROBE_LAYER = "attention"
"""The pooling whose learned probe attends to the tokens after the last block."""


def attention_map(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None, heads: Sequence[int] | None = None
) -> AttributionMap:
    """Attention from the pooled tokens to each patch, averaged over heads.

    Args:
        layer: the block, counted from 0; None takes the last one, or the pooling's probe if the model has one.
        heads: only these; None takes all.

    Raises:
        UsageError: a block or head that the model does not have.
    """
    weights = attention_by_head(model, images, layer, heads).mean(1)
    probe = layer is None and model.config.pool == PROBE_LAYER
    where = "the pooling's probe" if probe else f"block {resolve_block(model, layer, -1)}"
    which = "" if heads is None else f", head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
    return AttributionMap(
        values=weights.numpy(force=True),
        method="attention",
        layer=where + which,
        unit="share of attention",
        description="Where the model looks, not why: the same for every class.",
    )


def attention_by_head(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None, heads: Sequence[int] | None = None
) -> Float[Tensor, "B a rows columns"]:
    """Attention from the pooled tokens to each patch, for each of the chosen heads.

    Query rows by pooling: the class token; class and distillation token, averaged; all patches or all tokens, averaged;
    class token and mean of the patches, averaged; or all tokens, weighted by the probe's attention. Only the needed
    heads, and for class pooling only the needed rows, are computed.
    """
    kind = model.pool.kind
    with gradient_mode(model), torch.no_grad():
        if kind == PROBE_LAYER and layer is None:
            weights = model.features(images, ("pool.attention",))["pool.attention"][:, :, 0]  # [B, A, T]
            weights = weights if heads is None else weights[:, _check_heads(model, heads)]
        else:
            name = f"blocks.{resolve_block(model, layer, -1)}.attention"
            rows = {"class": (0,), "class+distillation": (0, 1)}.get(kind)
            kept = model.features(images, (name, "pool.attention") if kind == PROBE_LAYER else (name,), heads, rows)
            weights = _select_query_rows(model, kept[name], kept.get("pool.attention"))
    return tokens_to_grid(weights, model, patch_grid_of(model, images))


def attention_rollout(
    model: ViT, images: Float[Tensor, "B C H W"], first: int | None = None, residual: bool = True
) -> AttributionMap:
    """Attention rollout (Abnar and Zuidema 2020): attention matrices multiplied through the blocks.

    The matrix of a block is (mean over heads + identity) / 2, or without `residual` the mean alone; only the rows of
    the pooled tokens are carried back through the blocks. A head that reads several blocks has the mean of their maps.

    Args:
        first: the first block, counted from 0; None takes all.

    Raises:
        UsageError: a block that the model does not have.

    Source: Abnar and Zuidema 2020, section 3.
    """
    start = resolve_block(model, first, 0)
    config = model.config
    with gradient_mode(model), torch.no_grad():
        share, mixing = _mean_attention_per_block(model, images, start)
        reached = torch.zeros_like(share)
        for i in range(config.depth - 1, start - 1, -1):
            reached = reached + share / config.pool_blocks if config.is_pooled_block(i) else reached
            before = (reached[:, None] @ mixing[i - start])[:, 0]  # [B, T]
            reached = (reached + before) / 2 if residual else before
    return AttributionMap(
        values=tokens_to_grid(reached, model, patch_grid_of(model, images)).numpy(force=True),
        method="rollout",
        layer=describe_block_range(model, start) + ("" if residual else ", without the residual stream"),
        unit="share of attention",
        description="Attention multiplied through the blocks, not why: the same for every class.",
    )


def _mean_attention_per_block(model: ViT, images: Tensor, start: int) -> tuple[Float[Tensor, "B T"], list[Tensor]]:
    """Token weights of the pooling, and the mean attention [B, T, T] of each block from `start` on."""
    x, positions = model.embed(images)
    x = model.encoder.prepare_tokens(x)
    last: list[Tensor] = []
    mixing: list[Tensor] = []
    for i, block in enumerate(model.encoder.blocks):
        assert isinstance(block, Block)
        if i < start:
            x = model.encoder.run_block(block, x, positions)
        else:
            x, weights = block.forward_with_attention(x, positions, None, None)
            mixing.append(weights.mean(1))
        last = [*last, x][-model.config.pool_span :]
    return token_weights(model, model.encoder.apply_final_norm(last)), mixing


def _check_heads(model: ViT, heads: Sequence[int]) -> list[int]:
    if not heads or len(set(heads)) < len(heads) or not all(0 <= head < model.config.heads for head in heads):
        raise UsageError(f"heads must list some of 0 to {model.config.heads - 1}, each once. Got {list(heads)}.")
    return list(heads)


def _select_query_rows(
    model: ViT, weights: Float[Tensor, "B a r T"], probe: Float[Tensor, "B A 1 T"] | None
) -> Float[Tensor, "B a T"]:
    """Average the rows of the pooled tokens by their weight in the pooling."""
    if probe is not None:
        return torch.einsum("bart,br->bat", weights, probe.mean(1)[:, 0])
    if model.pool.kind in ("class", "class+distillation"):
        return weights.mean(2)
    mean = weights[:, :, model.pool.prefix :].mean(2)
    return (mean + weights[:, :, 0]) / 2 if model.pool.kind == "class+mean" else mean
