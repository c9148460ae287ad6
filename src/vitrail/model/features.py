"""Named intermediates of a forward pass: what is asked for is computed in the open, the rest takes the fast path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ..errors import UsageError
from .encoder import Block

if TYPE_CHECKING:
    from .vit import ViT


def features(
    model: ViT,
    images: Tensor,
    keep: Sequence[str],
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    visible: Tensor | None = None,
) -> dict[str, Tensor]:
    """What a model computes on the way to its outputs, by name; no hooks, and gradients flow through all of it.

    The pass ends where the last thing that was asked for is known.

    Args:
        keep: any of `names(model)`: "embedded" [B, T, D], what the first block reads; "blocks.I" [B, T, D], what block
            I gives; "blocks.I.attention" [B, A, T, T], its weights; "tokens" [B, T, D], after the final norm;
            "pool.attention" [B, A, 1, T], of a learned probe where there is one; "pooled" [B, P]; "outputs" [B, K].
        heads, rows: of the blocks' attention weights, only these heads and these looking tokens (0 is the first prefix
            token).
        visible: as in `ViT`; rows then count the tokens that are left.

    Raises:
        UsageError: a name, head or row that the model does not have.
    """
    _check(model, keep, heads, rows)
    x, places = model.embed(images, visible)
    _check_rows(x.shape[1], rows)
    x = model.encoder.enter(x)
    kept, last = {"embedded": x} if "embedded" in keep else {}, [x]
    for i in range(_blocks_needed(model, keep)):
        block = model.encoder.blocks[i]
        if f"blocks.{i}.attention" in keep:
            assert isinstance(block, Block)
            x, kept[f"blocks.{i}.attention"] = block.opened(x, places, heads, rows)
        else:
            x = model.encoder.through(block, x, places, _read(model, keep) if i + 1 == model.config.depth else None)
        last = [*last, x][-model.config.pool_reach :]
        if f"blocks.{i}" in keep:
            kept[f"blocks.{i}"] = x
    if any(name in keep for name in _AFTER):
        x = model.encoder.normed(last)
        kept["tokens"] = x[..., -model.config.width :]
    if "pool.attention" in keep:
        x, kept["pool.attention"] = model.pool.opened(x)
    elif "pooled" in keep or "outputs" in keep:
        x = model.pool(x)
    kept["pooled"] = x
    if "outputs" in keep:
        kept["outputs"] = model.head(x)
    return {name: kept[name] for name in keep}


def names(model: ViT) -> tuple[str, ...]:
    """Everything that `features` can keep, in the order of the pass."""
    blocks = (f"blocks.{i}{part}" for i in range(model.config.depth) for part in (".attention", ""))
    after = (name for name in _AFTER if name != "pool.attention" or model.config.pool == "attention")
    return ("embedded", *blocks, *after)


_AFTER = ("tokens", "pool.attention", "pooled", "outputs")


def _blocks_needed(model: ViT, keep: Sequence[str]) -> int:
    if any(name in keep for name in _AFTER):
        return model.config.depth
    return max((int(name.split(".")[1]) + 1 for name in keep if name.startswith("blocks.")), default=0)


def _read(model: ViT, keep: Sequence[str]) -> int | None:
    """How many tokens the last block computes: as in the plain forward, unless its other tokens are asked for."""
    last = model.config.depth - 1
    whole = model.config.pool_blocks > 1 or any(name in keep for name in ("tokens", f"blocks.{last}"))
    return None if whole else model.pool.reads


def _check(model: ViT, keep: Sequence[str], heads: Sequence[int] | None, rows: Sequence[int] | None) -> None:
    known = names(model)
    if unknown := [name for name in keep if name not in known]:
        shown = ", ".join(known[:3] + ("...",) * (len(known) > 8) + known[-5:] if len(known) > 8 else known)
        raise UsageError(f"There are no features called {', '.join(map(repr, unknown))}. Known: {shown}.")
    if wrong := [head for head in heads or () if not 0 <= head < model.config.heads]:
        raise UsageError(f"The model has heads 0 to {model.config.heads - 1}. Got {', '.join(map(str, wrong))}.")

    for name, chosen in (("heads", heads), ("rows", rows)):
        if chosen is not None and (len(chosen) == 0 or len(set(chosen)) < len(chosen)):
            raise UsageError(f"{name} must list numbers, each once; leave {name} out for all. Got {list(chosen)}.")
        if chosen is not None and not any(kept.startswith("blocks.") and kept.endswith(".attention") for kept in keep):
            raise UsageError(
                f"{name} chooses among attention weights, and keep asks for none. Add blocks.0.attention to keep, "
                f"or leave {name} out."
            )


def _check_rows(tokens: int, rows: Sequence[int] | None) -> None:
    if wrong := [row for row in rows or () if not 0 <= row < tokens]:
        raise UsageError(f"The pictures make tokens 0 to {tokens - 1}. Got rows={', '.join(map(str, wrong))}.")
