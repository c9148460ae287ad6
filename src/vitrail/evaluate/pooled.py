"""A ViT as far as its head: the features that a probe reads, as a model of their own."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ..model.vit import ViT


class Pooled(nn.Module):
    """What the head of a model reads: pictures [B, C, H, W], or their mirror images, to pooled features [B, P]."""

    def __init__(self, model: ViT, mirrored: bool = False):
        super().__init__()
        self.model, self.mirrored = model, mirrored

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        x, places = self.model.embed(images.flip(-1) if self.mirrored else images)
        pooled: Tensor = self.model.pool(self.model.encoder(x, places, self.model.config.pool_reach))
        return pooled
