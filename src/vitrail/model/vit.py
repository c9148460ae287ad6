"""The plain Vision Transformer: its forward is the table of contents of this room."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import ViTConfig
from .encoder import Encoder
from .heads import Head, Pooling
from .init import initialise
from .positions import Positions
from .rotary import Rotary
from .tokens import Tokens


class ViT(nn.Module):
    """Images [B, C, H, W], normalised float, to outputs [B, K] (Dosovitskiy et al. 2020).

    `rows` names the patches to look at, picture by picture, counted in reading order from 0; the others are dropped
    before the projection, which is how patch dropout trains faster and how deletion tests remove evidence. None
    means all. A picture of another size than the configuration's is read with its own grid.

    Raises:
        UsageError: a side of the images is not a multiple of the patch and the model does not pad.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        self.tokens = Tokens(config)
        self.positions = Positions(config)
        self.rotary = Rotary(config)
        self.encoder = Encoder(config)
        self.pool = Pooling(config)
        self.head = Head(config)

    def forward(self, images: Float[Tensor, "B C H W"], rows: Int[Tensor, "B n"] | None = None) -> Float[Tensor, "B K"]:
        x, grid = self.tokens(images, rows)  # [B, T, D], (rows, columns)
        x = self.positions(x, grid, rows)
        x = self.encoder(x, self.rotary(grid, x, rows))
        return self.head(self.pool(x))


def create(config: ViTConfig, seed: int = 0) -> ViT:
    """A model with fresh initial values, the same for the same seed whatever torch's global generator has done."""
    with torch.device("meta"):
        model = ViT(config)
    model.to_empty(device="cpu")
    initialise(model, config, torch.Generator().manual_seed(seed))
    return model


def parameter_count(config: ViTConfig, fixed_tables: bool = False) -> int:
    """Numbers that training moves; with `fixed_tables` also those of a fixed position table. Nothing is allocated."""
    with torch.device("meta"):
        model = ViT(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    return counted + sum(buffer.numel() for buffer in model.buffers()) if fixed_tables else counted
