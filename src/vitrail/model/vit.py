"""The plain Vision Transformer: its forward is the table of contents of this room."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from . import features
from .attention import Places
from .config import ViTConfig
from .encoder import Encoder
from .heads import Head, Pooling
from .init import initialise
from .positions import Positions
from .rotary import Rotary
from .tokens import Tokens


class ViT(nn.Module):
    """Images [B, C, H, W], normalised float, to outputs [B, K] (Dosovitskiy et al. 2020).

    `visible` names the patches that the encoder looks at, picture by picture, counted in reading order from 0; None
    means all. The others have no influence, so that patch dropout trains faster and deletion tests remove evidence; not
    so with soft splits, where every patch has seen its neighbours before any is dropped. A picture of another size than
    the configuration's is read with its own grid.

    Raises:
        UsageError: a side of the images is not a multiple of the patch and the model does not pad, or they have another
            number of channels.
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

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B K"]:
        x, places = self.embed(images, visible)
        x = self.encoder(x, places, self.config.pool_reach, self.pool.reads)
        return self.head(self.pool(x))

    def embed(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Places]:
        """Tokens with their positions, and where each stands."""
        x, grid = self.tokens(images, visible)  # [B, T, D], (rows, columns)
        x = self.positions(x, grid, visible)
        return x, Places(grid, visible, self.rotary(grid, x, visible))

    def features(
        self,
        images: Float[Tensor, "B C H W"],
        keep: Sequence[str] = ("tokens",),
        heads: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        visible: Int[Tensor, "B n"] | None = None,
    ) -> dict[str, Tensor]:
        """Named intermediates, in the autograd graph: see `features.features`."""
        return features.features(self, images, tuple(keep), heads, rows, visible)

    def dense(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Patch tokens after the final norm, laid out as the grid of patches: [B, D, rows, columns]."""
        x, places = self.embed(images)
        x = self.encoder(x, places)[:, self.config.prefix :]  # [B, N, D]
        return x.transpose(1, 2).unflatten(-1, tuple(places.grid))


def create(config: ViTConfig, seed: int = 0) -> ViT:
    """A model with fresh initial values, the same for the same seed whatever torch's global generator has done."""
    with torch.device("meta"):
        model = ViT(config)
    model.to_empty(device="cpu")
    initialise(model, config, torch.Generator().manual_seed(seed))
    return model


def parameter_count(config: ViTConfig, fixed_tables: bool = False) -> int:
    """Numbers that training moves; with `fixed_tables` also what is computed or drawn once. Nothing is allocated."""
    with torch.device("meta"):
        model = ViT(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    return counted + sum(buffer.numel() for buffer in model.buffers()) if fixed_tables else counted
