"""Which weights of a model learn after the probe, and how fast each of them: freezing, adapters, decay by depth."""

from __future__ import annotations

import re

import torch

from ...model import lora
from ...model.vit import ViT
from ...randomness import derive
from .settings import StartSettings


def loosen(model: ViT, start: StartSettings, seed: int) -> None:
    """Let learn what the settings say, and nothing else: adapters and head, or the upper blocks and all above them."""
    if not start.from_checkpoint or start.method == "probe":
        return
    if start.method == "lora":
        generator = torch.Generator().manual_seed(derive(seed, "lora"))
        lora.add_adapters(model, start.lora_rank, generator, start.lora_mlp)
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not start.frozen_blocks or layer_of(name, model.config.depth) > start.frozen_blocks)


def tightened(model: ViT) -> None:
    """Make adapters part of their matrices, where there are any, and everything free to learn again."""
    lora.merge_adapters(model)


def layer_of(name: str, depth: int) -> int:
    """How high a parameter lies: 0 for the embeddings, 1 for the first block, depth + 1 for all above the last."""
    if found := re.match(r"encoder\.blocks\.(\d+)\.", name):
        return int(found[1]) + 1
    return 0 if name.startswith(("tokens.", "positions.", "rotary.", "encoder.pre_norm.")) else depth + 1


def scales(model: ViT, layer_decay: float) -> dict[str, float]:
    """The fraction of the rate at which each parameter learns: decay ** (depth + 1 - layer) (Clark et al. 2020)."""
    depth = model.config.depth
    return {name: layer_decay ** (depth + 1 - layer_of(name, depth)) for name, _ in model.named_parameters()}
