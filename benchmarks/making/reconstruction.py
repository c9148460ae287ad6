"""Anomaly detection by reconstruction: a masked autoencoder that saw good images only paints defects badly.

A patch's score is the squared error of its pixels where it was hidden, a mean over three of four masks.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.train.plan import PretrainSettings
from vitrail.train.pretrain.mae import MaskedAutoencoder, make_reconstruction_targets, reconstruction_loss

BATCH, LR, WARMUP, WEIGHT_DECAY = 32, 1e-3, 0.05, 0.05
SETTINGS = PretrainSettings(decoder_depth=2, decoder_width=128, norm_pix_loss=False)
SHOWN = 4
"""Masks that score an image; each shows another quarter of its patches."""


def normalize_levels(images: Tensor) -> Tensor:
    """Grey images uint8 [n, 1, H, W] to float32 around 0."""
    return images.float() / 127.5 - 1


def fit_autoencoder(images: Tensor, seconds: float) -> tuple[MaskedAutoencoder, int]:
    """An autoencoder of good images uint8 [n, 1, H, W] after so many seconds, and its steps.

    Images are turned over by chance, the learning rate falls with the time that is left as a cosine.
    """
    side, generator = images.shape[-1], torch.Generator().manual_seed(0)
    patch = side // 16
    config = ViTConfig(
        image_size=(side, side), patch=(patch, patch), channels=1, width=192, depth=6, heads=3, mlp_width=768,
        outputs=0, pool="mean",
    )  # fmt: skip
    autoencoder = MaskedAutoencoder(create_model(config), SETTINGS, 0)
    optimizer = torch.optim.AdamW(autoencoder.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    begun, steps, done = time.perf_counter(), 0, 0.0
    with torch.enable_grad():
        while done < 1:
            batch = normalize_levels(images[torch.randint(len(images), (BATCH,), generator=generator)])
            for axis in (-1, -2):
                batch = torch.where(torch.rand(BATCH, 1, 1, 1, generator=generator) < 0.5, batch.flip(axis), batch)
            order = torch.rand(BATCH, config.grid.patches, generator=generator).argsort(1)
            count = SETTINGS.num_visible_patches(config.grid.patches)
            visible, hidden = order[:, :count].sort(1).values, order[:, count:].sort(1).values
            for group in optimizer.param_groups:
                group["lr"] = LR * min(done / WARMUP, 0.5 + 0.5 * math.cos(math.pi * done))
            with torch.autocast("cpu", torch.bfloat16):
                predicted = autoencoder(batch, visible, hidden)
            targets = make_reconstruction_targets(batch, hidden, config.patch, SETTINGS.norm_pix_loss)
            total, weight = reconstruction_loss(predicted, targets)
            (total / weight).backward()
            clip_grad_norm_(autoencoder.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps, done = steps + 1, (time.perf_counter() - begun) / seconds
    return autoencoder.eval(), steps


def score_reconstruction(autoencoder: MaskedAutoencoder, images: Tensor) -> Tensor:
    """The error of every patch, [n, N], of images uint8 [n, 1, H, W]."""
    config, generator = autoencoder.decoder.config, torch.Generator().manual_seed(1)
    N = config.grid.patches
    quarters = torch.randperm(N, generator=generator).view(SHOWN, -1).sort(1).values
    errors = torch.zeros(len(images), N)
    for at in range(0, len(images), BATCH):
        batch = normalize_levels(images[at : at + BATCH])
        for quarter in range(SHOWN):
            hidden = quarters[torch.arange(SHOWN) != quarter].flatten().sort().values
            places = hidden.expand(len(batch), -1)
            predicted = autoencoder(batch, quarters[quarter].expand(len(batch), -1), places)
            targets = make_reconstruction_targets(batch, places, config.patch, SETTINGS.norm_pix_loss)
            errors[at : at + len(batch), hidden] += (predicted - targets).square().mean(-1) / (SHOWN - 1)
    return errors
