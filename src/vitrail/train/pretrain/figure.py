"""The picture of a pre-training: what the encoder was shown of a few pictures, and what the decoder made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ...data.preprocess import normalize, preprocess_image
from ...model.tokens import gather_tokens, pad_to_patches, patchify, unpatchify
from ...randomness import permutation
from ...spec import ImageSpec
from .. import sheet
from ..dataset import Dataset
from ..plan import Plan
from .masked import Autoencoder, masks, scale_of

NAME = "pretraining.png"
SHOWN = 8
GREY = 128


def write(path: Path, autoencoder: Autoencoder, dataset: Dataset, plan: Plan) -> None:
    """Draw eight held-out pictures (of the training, where none is held out): as they are, masked, and repainted."""
    split = next((name for name in ("val", "train") if len(dataset.splits[name])), "train")
    held = dataset.splits[split]
    rows = held[permutation(plan.seed, "painted", 0, len(held))[:SHOWN]]
    images = torch.stack([preprocess_image(dataset.source.pictures[row], plan.image) for row in rows.tolist()])
    masked, painted = repainted(autoencoder, images, rows, plan)
    captions = [split, "seen", "painted"]
    sheet.draw(path, torch.cat([images, masked, painted]), [text for text in captions for _ in rows])


@torch.no_grad()
def repainted(
    autoencoder: Autoencoder, images: UInt8[Tensor, "B C H W"], rows: np.ndarray, plan: Plan
) -> tuple[UInt8[Tensor, "B C H W"], UInt8[Tensor, "B C H W"]]:
    """The pictures with their hidden patches in grey, and with what the decoder paints in their place.

    A decoder that paints normalised patches does not know their mean and deviation; they are given back here.
    """
    model, device = plan.model, plan.compute.device
    visible, hidden = masks(plan.seed, 0, rows, model.grid.patches, plan.pretrain.visible(model.grid.patches))
    given = normalize(images, plan.image)
    was_training = autoencoder.training
    autoencoder.eval()
    painted = autoencoder(given.to(device), visible.to(device), hidden.to(device)).float().cpu()
    autoencoder.train(was_training)
    normal, bytes_ = (patchify(pad_to_patches(each, model.patch), model.patch) for each in (given, images.float()))
    where = hidden.unsqueeze(-1).expand(-1, -1, normal.shape[-1])  # [B, m, P]
    if plan.pretrain.normalise:
        mean, deviation = scale_of(gather_tokens(normal, hidden))
        painted = painted * deviation + mean
    masked = _pictures(bytes_.scatter(1, where, float(GREY)), plan).byte()
    return masked, to_bytes(_pictures(normal.scatter(1, where, painted), plan), plan.image)


def _pictures(flat: Float[Tensor, "B N P"], plan: Plan) -> Float[Tensor, "B C H W"]:
    """Flat patches as pictures, without what was padded."""
    whole = unpatchify(flat, plan.model.patch, plan.model.grid, plan.model.channels)
    return whole[..., : plan.image.height, : plan.image.width]


def to_bytes(values: Float[Tensor, "B C H W"], spec: ImageSpec) -> UInt8[Tensor, "B C H W"]:
    """The inverse of `normalise`, rounded and cut to 0..255."""
    std, mean = (torch.tensor(each).view(1, -1, 1, 1) for each in (spec.std, spec.mean))
    return (values * std + mean).mul(255).round().clamp(0, 255).byte()
