"""Where a model looks, blind to classes: attention weights of one block, head by head, and of all blocks multiplied."""

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
"""The pooling whose learned probe looks for itself, after the last block."""


def attention_map(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None, heads: Sequence[int] | None = None
) -> AttributionMap:
    """How much the tokens that the answer is read from look at each patch, the mean over heads.

    Args:
        layer: the block, counted from 0; None takes the last one, or the probe of a model that pools with one.
        heads: only these; None takes all.

    Raises:
        UsageError: a block or head that the model does not have.
    """
    found = attention_by_head(model, images, layer, heads).mean(1)
    probe = layer is None and model.config.pool == PROBE_LAYER
    where = "the pooling's probe" if probe else f"block {resolve_block(model, layer, -1)}"
    which = "" if heads is None else f", head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
    return AttributionMap(
        values=found.numpy(force=True),
        method="attention",
        layer=where + which,
        unit="share of attention",
        description="Where the model looks, not why: the same for every class.",
    )


def attention_by_head(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None, heads: Sequence[int] | None = None
) -> Float[Tensor, "B a rows columns"]:
    """The same for each of the chosen heads. Only these heads, and where that suffices only a token's row, are opened.

    The rows are those of the class token; of class and distillation token, by half; of all patches; of class token and
    patches, by half; or of all tokens as much as the probe looks at them.
    """
    kind = model.pool.kind
    with gradient_mode(model), torch.no_grad():
        if kind == PROBE_LAYER and layer is None:
            weights = _probe_attention(model, images, heads)  # [B, a, T]
        else:
            name = f"blocks.{resolve_block(model, layer, -1)}.attention"
            rows = {"class": (0,), "class+distillation": (0, 1)}.get(kind)
            kept = model.features(images, (name, "pool.attention") if kind == PROBE_LAYER else (name,), heads, rows)
            weights = _select_query_rows(model, kept[name], kept.get("pool.attention"))
    return tokens_to_grid(weights, model, patch_grid_of(model, images))


def attention_rollout(
    model: ViT, images: Float[Tensor, "B C H W"], first: int | None = None, residual: bool = True
) -> AttributionMap:
    """Attention of all blocks multiplied: how much of each patch has reached the answer, if attention were all.

    A block takes tokens to (mean over heads + identity) / 2 of them, or without `residual` to the mean alone; the
    answer's tokens are followed back through the blocks. Where the head reads several blocks, the mean of their maps.

    Args:
        first: the first block that counts, from 0; None takes all.

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
    """What the answer is read from, and the mean attention [B, T, T] of each block from `start` on."""
    x, places = model.embed(images)
    x = model.encoder.prepare_tokens(x)
    last: list[Tensor] = []
    mixing: list[Tensor] = []
    for i, block in enumerate(model.encoder.blocks):
        assert isinstance(block, Block)
        if i < start:
            x = model.encoder.run_block(block, x, places)
        else:
            x, weights = block.forward_with_attention(x, places, None, None)
            mixing.append(weights.mean(1))
        last = [*last, x][-model.config.pool_span :]
    return token_weights(model, model.encoder.apply_final_norm(last)), mixing


def _probe_attention(model: ViT, images: Tensor, heads: Sequence[int] | None) -> Float[Tensor, "B a T"]:
    weights = model.features(images, ("pool.attention",))["pool.attention"][:, :, 0]
    return weights if heads is None else weights[:, _check_heads(model, heads)]


def _check_heads(model: ViT, heads: Sequence[int]) -> list[int]:
    if not heads or len(set(heads)) < len(heads) or not all(0 <= head < model.config.heads for head in heads):
        raise UsageError(f"heads must list some of 0 to {model.config.heads - 1}, each once. Got {list(heads)}.")
    return list(heads)


def _select_query_rows(
    model: ViT, weights: Float[Tensor, "B a r T"], probe: Float[Tensor, "B A 1 T"] | None
) -> Float[Tensor, "B a T"]:
    """The rows of the tokens that the answer is read from, each by its share."""
    if probe is not None:
        return torch.einsum("bart,br->bat", weights, probe.mean(1)[:, 0])
    if model.pool.kind in ("class", "class+distillation"):
        return weights.mean(2)
    of_patches = weights[:, :, model.config.prefix :].mean(2)
    return of_patches if model.pool.kind == "mean" else (of_patches + weights[:, :, 0]) / 2
