"""A linear probe as a model's head: the same numbers, from then on free to learn with the rest."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from ...evaluate.probe import Linear
from ...model.vit import ViT


@torch.no_grad()
def put(model: ViT, probe: Linear, columns: Int64[np.ndarray, " p"]) -> None:
    """Give the head the numbers of a probe; features that the probe does not read get weight 0.

    Args:
        columns: which of the pooled features the probe was fitted to.
    """
    linear = model.head.linear
    assert isinstance(linear, nn.Linear) and linear.bias is not None
    weight: Float32[Tensor, "K P"] = torch.zeros_like(linear.weight)
    weight[:, torch.from_numpy(columns)] = torch.from_numpy(probe.weight).to(weight)
    linear.weight.copy_(weight)
    linear.bias.copy_(torch.from_numpy(probe.bias))


def parts(model: ViT) -> dict[str, Int64[np.ndarray, " _"]]:
    """Which pooled features a probe may read, by name: those of the last block, each kind of pooling by itself and all
    together; then, where the model pools several blocks, those of all these blocks."""
    config = model.config
    kinds = ("class", "mean") if config.pool == "class+mean" else (config.pool,)
    layout = np.arange(config.pooled_width).reshape(len(kinds), config.pool_blocks, config.width)
    last = layout[:, -1]
    found = dict(zip(kinds, last, strict=True)) if len(kinds) > 1 else {}
    found["+".join(kinds)] = last.ravel()
    if config.pool_blocks > 1:
        blocks = f"of {config.pool_blocks} blocks"
        found |= {f"{kinds[0]} {blocks}": layout[0].ravel()}
        found |= {f"{'+'.join(kinds)} {blocks}": layout.ravel()}
    return found
