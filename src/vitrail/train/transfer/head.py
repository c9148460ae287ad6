"""A linear probe as a model's head: the same numbers, from then on free to learn with the rest."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from ...evaluate.probe import Linear
from ...model.vit import ViT


class Pooled(nn.Module):
    """What the head of a model reads: pictures [B, C, H, W] to pooled features [B, P]."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        x, places = self.model.embed(images)
        pooled: Tensor = self.model.pool(self.model.encoder(x, places))
        return pooled


@torch.no_grad()
def put(model: ViT, probe: Linear, columns: slice) -> None:
    """Give the head the numbers of a probe; features that the probe does not read get weight 0.

    Args:
        columns: which of the pooled features the probe was fitted to.
    """
    linear = model.head.linear
    assert isinstance(linear, nn.Linear) and linear.bias is not None
    weight: Float32[Tensor, "K P"] = torch.zeros_like(linear.weight)
    weight[:, columns] = torch.from_numpy(probe.weight).to(weight)
    linear.weight.copy_(weight)
    linear.bias.copy_(torch.from_numpy(probe.bias))


def parts(model: ViT) -> dict[str, slice]:
    """Which pooled features a probe may read, by name: each kind of pooling by itself, and all of them together."""
    width, pool = model.config.width, model.config.pool
    if pool != "class+mean":
        return {pool: slice(0, model.config.pooled_width)}
    return {"class": slice(0, width), "mean": slice(width, 2 * width), "class+mean": slice(0, 2 * width)}
