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
            "pooled" [B, P]; "outputs" [B, K].
        heads, rows: of attention weights, only these heads and these looking tokens (0 is the first prefix token).

    Raises:
        UsageError: a name, head or row that the model does not have.
    """
    _check(model, keep, heads)
    x, places = model.embed(images, visible)
    _check_rows(x.shape[1], rows)
    x = model.encoder.enter(x)
    kept = {"embedded": x}
    for i in range(_blocks_needed(model, keep)):
        block = model.encoder.blocks[i]
        if f"blocks.{i}.attention" in keep:
            assert isinstance(block, Block)
            x, kept[f"blocks.{i}.attention"] = block.opened(x, places, heads, rows)
        else:
            x = model.encoder.through(block, x, places)
        kept[f"blocks.{i}"] = x
    if any(name in keep for name in _AFTER):
        kept["tokens"] = model.encoder.norm(x)
        kept["pooled"] = model.pool(kept["tokens"])
        kept["outputs"] = model.head(kept["pooled"])
    return {name: kept[name] for name in keep}


def names(model: ViT) -> tuple[str, ...]:
    """Everything that `features` can keep, in the order of the pass."""
    blocks = (f"blocks.{i}{part}" for i in range(model.config.depth) for part in (".attention", ""))
    return ("embedded", *blocks, *_AFTER)


_AFTER = ("tokens", "pooled", "outputs")


def _blocks_needed(model: ViT, keep: Sequence[str]) -> int:
    if any(name in keep for name in _AFTER):
        return model.config.depth
    return max((int(name.split(".")[1]) + 1 for name in keep if name.startswith("blocks.")), default=0)


def _check(model: ViT, keep: Sequence[str], heads: Sequence[int] | None) -> None:
    known = names(model)
    if unknown := [name for name in keep if name not in known]:
        last = model.config.depth - 1
        raise UsageError(
            f"There are no features called {', '.join(map(repr, unknown))}. "
            f"Known: embedded, blocks.0 to blocks.{last}, blocks.0.attention to blocks.{last}.attention, "
            f"{', '.join(_AFTER)}."
        )
    if wrong := [head for head in heads or () if not 0 <= head < model.config.heads]:
        raise UsageError(f"The model has heads 0 to {model.config.heads - 1}. Got {', '.join(map(str, wrong))}.")


def _check_rows(tokens: int, rows: Sequence[int] | None) -> None:
    if wrong := [row for row in rows or () if not 0 <= row < tokens]:
        raise UsageError(f"The pictures make tokens 0 to {tokens - 1}. Got rows={', '.join(map(str, wrong))}.")
