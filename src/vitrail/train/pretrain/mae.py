"""Masked autoencoder (He et al. 2021): the encoder sees a few patches, a small decoder predicts the others."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Integer, UInt8
from torch import Generator, Tensor, nn

from ...data.decoding.decode import to_8_bits
from ...data.preprocess import normalize, preprocess_image
from ...model.attention import TokenPositions
from ...model.config import ViTConfig
from ...model.init import initialise
from ...model.positions import fixed_table
from ...model.tokens import gather_tokens, pad_to_patches, patchify, unpatchify
from ...model.vit import Encoder, ViT
from ...randomness import derive, permutation, uniform
from ...spec import ImageSpec
from .. import contact_sheet
from ..dataset import Dataset
from ..plan import DECODER_HEAD_WIDTH, Plan, PretrainSettings

EPSILON = 1e-6
"""Added to a patch's variance before it is divided by, as in the paper's code."""


class PatchMasks(NamedTuple):
    """Indices of the visible and the hidden patches of each image, each in row-major order."""

    visible: Int[Tensor, "B n"]
    hidden: Int[Tensor, "B m"]


class MaskedAutoencoder(nn.Module):
    """From images and masks to the pixels of the hidden patches [B, m, C * p * p].

    It shares the modules of `model` up to the encoder; pooling and head are not trained. Prefix tokens go through the
    decoder too, so that they are trained.
    """

    def __init__(self, model: ViT, settings: PretrainSettings, seed: int):
        super().__init__()
        self.tokens = model.tokens
        self.positions = model.positions
        self.rotary = model.rotary
        self.encoder = model.encoder
        self.decoder = MAEDecoder(model.config, settings)
        self.decoder.init_weights(torch.Generator().manual_seed(derive(seed, "decoder")))

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"], hidden: Int[Tensor, "B m"]
    ) -> Float[Tensor, "B m P"]:
        x, grid = self.tokens(images, visible)  # [B, R + n, D]
        x = self.positions(x, grid, visible)
        x = self.encoder(x, TokenPositions(grid, visible, self.rotary(grid, x, visible)))
        return self.decoder(x, visible, hidden)


class MAEDecoder(nn.Module):
    """Encoded tokens, and a mask token for each hidden patch, through a few narrow blocks to pixels.

    Hidden patches follow the visible ones; fixed 2-D sine-cosine positions tell where each belongs.
    """

    table: Tensor

    def __init__(self, config: ViTConfig, settings: PretrainSettings):
        super().__init__()
        self.config = decoder_config(config, settings)
        self.grid = config.grid
        self.embed = nn.Linear(config.width, settings.decoder_width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, settings.decoder_width))
        self.encoder = Encoder(self.config)
        self.predict = nn.Linear(settings.decoder_width, config.patch_dim)
        self.register_buffer("table", fixed_table("sincos2d", config.grid, settings.decoder_width, 0), persistent=False)

    def init_weights(self, generator: Generator) -> None:
        """Initial weights: normal with standard deviation 0.02, biases zero, norms one."""
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
        visible_tokens = x[:, prefix:] + gather_tokens(table, visible)
        hidden_tokens = self.mask_token.to(x.dtype) + gather_tokens(table, hidden)  # [B, m, d]
        x = self.encoder(
            torch.cat([x[:, :prefix], visible_tokens, hidden_tokens], dim=1), TokenPositions(self.grid, None, None)
        )
        return self.predict(x[:, -hidden.shape[1] :])


def decoder_config(config: ViTConfig, settings: PretrainSettings) -> ViTConfig:
    """The config of the decoder's blocks: plain ones, independent of the model's variants."""
    return ViTConfig(
        image_size=config.image_size,
        patch=config.patch,
        channels=config.channels,
        pad=config.pad,
        width=settings.decoder_width,
        depth=settings.decoder_depth,
        heads=settings.decoder_width // DECODER_HEAD_WIDTH,
        mlp_width=4 * settings.decoder_width,
        outputs=0,
        class_token=False,
        positions="none",
        pool="mean",
        grad_checkpointing=config.grad_checkpointing,
    )


def draw_masks(seed: int, epoch: int, keys: Int64[np.ndarray, " B"], patches: int, num_visible: int) -> PatchMasks:
    """Draw the visible and hidden patches of each image by (seed, epoch, image)."""
    order = uniform(seed, "masked patches", epoch, keys, patches).argsort(axis=1)
    parts = (np.sort(order[:, :num_visible], axis=1), np.sort(order[:, num_visible:], axis=1))
    return PatchMasks(*(torch.from_numpy(part) for part in parts))


def reconstruction_loss(
    predicted: Float[Tensor, "B m P"], targets: Float[Tensor, "B m P"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(total, weight): the sum over hidden patches of the mean squared error of their pixels; each patch weighs 1."""
    total = (predicted.float() - targets).square().mean(-1).sum()
    return total, torch.full_like(total, targets.shape[0] * targets.shape[1])


def make_reconstruction_targets(
    images: Float[Tensor, "B C H W"], hidden: Int[Tensor, "B m"], patch: tuple[int, int], norm_pix_loss: bool
) -> Float[Tensor, "B m P"]:
    """The target pixels of the hidden patches, float32, normalized per patch with `norm_pix_loss`."""
    flat = gather_tokens(patchify(pad_to_patches(images, patch), patch).float(), hidden)
    if not norm_pix_loss:
        return flat
    mean, deviation = patch_mean_std(flat)
    return (flat - mean) / deviation


def patch_mean_std(flat: Float[Tensor, "B m P"]) -> tuple[Float[Tensor, "B m 1"], Float[Tensor, "B m 1"]]:
    """Mean and standard deviation of each patch."""
    return flat.mean(-1, keepdim=True), (flat.var(-1, keepdim=True) + EPSILON).sqrt()


# -- Reconstruction sheet: a few images as masked and as the decoder reconstructed them

PRETRAINING_PLOT = "pretraining.png"
SHOWN_IMAGES = 8
GREY = 128


def write_reconstructions(path: Path, autoencoder: MaskedAutoencoder, dataset: Dataset, plan: Plan) -> None:
    """Draw eight validation images (training images without a val split): original, masked, and reconstructed."""
    split = next((name for name in ("val", "train") if len(dataset.splits[name])), "train")
    split_rows = dataset.splits[split]
    rows = split_rows[permutation(plan.seed, "painted", 0, len(split_rows))[:SHOWN_IMAGES]]
    images = torch.stack([preprocess_image(dataset.source.images[row], plan.image) for row in rows.tolist()])
    shown = torch.from_numpy(to_8_bits(images.numpy()))
    masked, painted = reconstruct_images(autoencoder, images, rows, plan)
    captions = [split, "seen", "painted"]
    contact_sheet.draw_image_grid(path, torch.cat([shown, masked, painted]), [text for text in captions for _ in rows])


@torch.no_grad()
def reconstruct_images(
    autoencoder: MaskedAutoencoder, images: Integer[Tensor, "B C H W"], rows: np.ndarray, plan: Plan
) -> tuple[UInt8[Tensor, "B C H W"], UInt8[Tensor, "B C H W"]]:
    """The images in 8 bits with grey hidden patches, and with the decoder's reconstruction in their place.

    With `norm_pix_loss` the decoder predicts normalized patches; their true mean and deviation are restored here.
    """
    model, device = plan.model, plan.compute.device
    visible, hidden = draw_masks(
        plan.seed, 0, rows, model.grid.patches, plan.pretrain.num_visible_patches(model.grid.patches)
    )
    normalized = normalize(images, plan.image)
    was_training = autoencoder.training
    autoencoder.eval()
    predicted = autoencoder(normalized.to(device), visible.to(device), hidden.to(device)).float().cpu()
    autoencoder.train(was_training)
    levels = torch.from_numpy(to_8_bits(images.numpy())).float()
    flat, flat_bytes = (patchify(pad_to_patches(each, model.patch), model.patch) for each in (normalized, levels))
    index = hidden.unsqueeze(-1).expand(-1, -1, flat.shape[-1])  # [B, m, P]
    if plan.pretrain.norm_pix_loss:
        mean, deviation = patch_mean_std(gather_tokens(flat, hidden))
        predicted = predicted * deviation + mean
    masked = _patches_to_images(flat_bytes.scatter(1, index, float(GREY)), plan).byte()
    return masked, denormalise_to_bytes(_patches_to_images(flat.scatter(1, index, predicted), plan), plan.image)


def _patches_to_images(flat: Float[Tensor, "B N P"], plan: Plan) -> Float[Tensor, "B C H W"]:
    """Flat patches as images, without padding."""
    whole = unpatchify(flat, plan.model.patch, plan.model.grid, plan.model.channels)
    return whole[..., : plan.image.height, : plan.image.width]


def denormalise_to_bytes(values: Float[Tensor, "B C H W"], spec: ImageSpec) -> UInt8[Tensor, "B C H W"]:
    """The inverse of `normalize`, rounded and clamped to 0..255."""
    std, mean = (torch.tensor(each).view(1, -1, 1, 1) for each in (spec.std, spec.mean))
    return (values * std + mean).mul(255).round().clamp(0, 255).byte()
