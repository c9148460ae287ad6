"""The masked autoencoder: a ViT's encoder sees a few patches, a small decoder paints the others (He et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Generator, Tensor, nn

from ...model.attention import TokenPositions
from ...model.config import ViTConfig
from ...model.init import initialise
from ...model.positions import fixed_table
from ...model.tokens import gather_tokens, pad_to_patches, patchify
from ...model.vit import Encoder, ViT
from ...randomness import derive, uniform
from .settings import HEAD, Pretrain

EPSILON = 1e-6
"""Added to a patch's variance before it is divided by, as in the paper's code."""


class Masks(NamedTuple):
    """The patches of each picture in two parts, each in reading order."""

    visible: Int[Tensor, "B n"]
    hidden: Int[Tensor, "B m"]


class Autoencoder(nn.Module):
    """From pictures and masks to the numbers of the hidden patches [B, m, C * p * p].

    The parts of `model` that see a picture are trained here themselves, under the names they have there; its pooling
    and its head are left alone. The class token and its like go through the decoder too, so that they learn.
    """

    def __init__(self, model: ViT, settings: Pretrain, seed: int):
        super().__init__()
        self.tokens = model.tokens
        self.positions = model.positions
        self.rotary = model.rotary
        self.encoder = model.encoder
        self.decoder = Decoder(model.config, settings)
        self.decoder.fill(torch.Generator().manual_seed(derive(seed, "decoder")))

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"], hidden: Int[Tensor, "B m"]
    ) -> Float[Tensor, "B m P"]:
        x, grid = self.tokens(images, visible)  # [B, R + n, D]
        x = self.positions(x, grid, visible)
        x = self.encoder(x, TokenPositions(grid, visible, self.rotary(grid, x, visible)))
        return self.decoder(x, visible, hidden)


class Decoder(nn.Module):
    """Encoded tokens, and a mask token for each hidden patch, through a few narrow blocks to pixels.

    Attention does not care for order, so hidden patches stand behind the visible ones; fixed 2-D waves say where each
    of them belongs.
    """

    table: Tensor

    def __init__(self, config: ViTConfig, settings: Pretrain):
        super().__init__()
        self.config = decoder_config(config, settings)
        self.grid = config.grid
        self.embed = nn.Linear(config.width, settings.decoder_width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, settings.decoder_width))
        self.encoder = Encoder(self.config)
        self.predict = nn.Linear(settings.decoder_width, config.patch_numbers)
        self.register_buffer("table", fixed_table("sincos2d", config.grid, settings.decoder_width, 0), persistent=False)

    def fill(self, generator: Generator) -> None:
        """Give every parameter its initial value: normal of deviation 0.02, biases zeros, norms ones."""
        initialise(self.encoder, self.config, generator)
        for layer in (self.embed, self.predict):
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)
        nn.init.trunc_normal_(self.mask_token, std=0.02, generator=generator)

    def forward(
        self, x: Float[Tensor, "B T D"], visible: Int[Tensor, "B n"], hidden: Int[Tensor, "B m"]
    ) -> Float[Tensor, "B m P"]:
        x = self.embed(x)  # [B, R + n, d]
        prefix = x.shape[1] - visible.shape[1]
        table = self.table.to(x.dtype).expand(len(x), -1, -1)  # [B, N, d]
        seen = x[:, prefix:] + gather_tokens(table, visible)
        asked = self.mask_token.to(x.dtype) + gather_tokens(table, hidden)  # [B, m, d]
        x = self.encoder(torch.cat([x[:, :prefix], seen, asked], dim=1), TokenPositions(self.grid, None, None))
        return self.predict(x[:, -hidden.shape[1] :])


def decoder_config(config: ViTConfig, settings: Pretrain) -> ViTConfig:
    """The shape of the decoder's blocks: plain ones, whatever the model's are."""
    return ViTConfig(
        image_size=config.image_size,
        patch=config.patch,
        channels=config.channels,
        pad=config.pad,
        width=settings.decoder_width,
        depth=settings.decoder_depth,
        heads=settings.decoder_width // HEAD,
        mlp_width=4 * settings.decoder_width,
        outputs=0,
        class_token=False,
        positions="none",
        pool="mean",
        recompute=config.recompute,
    )


def masks(seed: int, epoch: int, keys: Int64[np.ndarray, " B"], patches: int, visible: int) -> Masks:
    """Which patches of each picture are seen and which are hidden, as (seed, epoch, picture) say."""
    order = uniform(seed, "masked patches", epoch, keys, patches).argsort(axis=1)
    parts = (np.sort(order[:, :visible], axis=1), np.sort(order[:, visible:], axis=1))
    return Masks(*(torch.from_numpy(part) for part in parts))


def painted_loss(
    painted: Float[Tensor, "B m P"], aims: Float[Tensor, "B m P"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(total, weight): the sum over hidden patches of the mean squared error of their numbers; each patch weighs 1."""
    total = (painted.float() - aims).square().mean(-1).sum()
    return total, torch.full_like(total, aims.shape[0] * aims.shape[1])


def aims_of(
    images: Float[Tensor, "B C H W"], hidden: Int[Tensor, "B m"], patch: tuple[int, int], normalise: bool
) -> Float[Tensor, "B m P"]:
    """The numbers of the hidden patches as they are to be painted, float32."""
    flat = gather_tokens(patchify(pad_to_patches(images, patch), patch).float(), hidden)
    if not normalise:
        return flat
    mean, deviation = scale_of(flat)
    return (flat - mean) / deviation


def scale_of(flat: Float[Tensor, "B m P"]) -> tuple[Float[Tensor, "B m 1"], Float[Tensor, "B m 1"]]:
    """Mean and deviation of each patch."""
    return flat.mean(-1, keepdim=True), (flat.var(-1, keepdim=True) + EPSILON).sqrt()
