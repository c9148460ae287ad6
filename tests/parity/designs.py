"""Small and true-size models of the teaching designs with random weights, for the comparisons of this folder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.model.registry import PRESETS
from vitrail.model.vit import ViT, create_model

BLOG = replace(
    PRESETS["blog_vit_base_patch16_224"],
    image_size=(24, 24), patch=(8, 8), width=24, depth=2, heads=3, mlp_width=40, outputs=5,
)  # fmt: skip
CIFAR = PRESETS["cifar_vit_small_patch8_32"]
EXPLAINED = replace(
    PRESETS["explained_vit_patch20_60x100"],
    image_size=(12, 20), patch=(4, 4), width=24, depth=2, heads=4, mlp_width=36,
)  # fmt: skip
XRAY = replace(
    PRESETS["xray_vit_patch16_224"],
    image_size=(16, 16), patch=(4, 4), width=48, depth=2, heads=3, mlp_width=40, outputs=4,
)  # fmt: skip


def random_model(config: ViTConfig, seed: int = 0) -> ViT:
    """A model whose every parameter is random, norms and biases too, so that no mix-up can hide behind a 0 or a 1."""
    model = create_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator) / (parameter.shape[-1] ** 0.5)
            if "norm" in name or name.endswith("bias"):
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def random_images(config: ViTConfig, seed: int = 1) -> Tensor:
    """A batch of three pictures of the model's size."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, config.channels, *config.image_size, generator=generator)


def furthest(a: Tensor, b: Tensor) -> float:
    """The largest difference between two outputs, which must be of one shape and not all alike."""
    assert a.shape == b.shape and a.std() > 1e-3
    return (a - b).abs().max().item()
