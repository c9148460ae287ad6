"""Tiny models of transformers with random numbers in every parameter, and what they make of pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.model.vit import ViT

SIZES = {"native grid": (24, 24), "32x32": (32, 32), "16x40": (16, 40)}
"""Pictures of the model's size, of another square, and of a rectangle; patches are 4x4."""
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4}
MLP, PICTURE = {"intermediate_size": 48}, {"image_size": 24}
VIT: dict[str, Any] = {**SHAPE, **MLP, **PICTURE}
TEXT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20,
    "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A class of transformers beside ours."""

    build: Callable[[], torch.nn.Module]
    run: Callable[[torch.nn.Module, Tensor], dict[str, Tensor]]
    """The reference's numbers by our names: blocks.{i} and some of embedded, tokens, pooled, outputs."""
    sizes: Sequence[str] = tuple(SIZES)
    memory: str = ""
    """Our layout of its names in memory; empty if its tensors are not ours one by one, so that gradients differ."""


def randomised(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random numbers in every parameter, about 1 in norms and factors, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))
            if ("norm" in name and name.endswith("weight")) or "lambda" in name:
                parameter.add_(1.0)
    return model.eval()


def images(size: tuple[int, int], channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(7))


def blocks(hidden: Sequence[Tensor]) -> dict[str, Tensor]:
    """transformers' hidden states by our names: the first goes into block 0, the others come out of the blocks."""
    return {"embedded": hidden[0], **{f"blocks.{i}": tensor for i, tensor in enumerate(hidden[1:])}}


def saved(model: torch.nn.Module, folder: Path, memory: bool, bare: bool = False) -> Path:
    """The folder or, without its config.json, the file that a user of transformers has."""
    model.save_pretrained(folder, save_original_format=not memory)
    return (folder / "model.safetensors").rename(folder.with_suffix(".safetensors")) if bare else folder


def largest_difference(ours: ViT, theirs: dict[str, Tensor], pictures: Tensor) -> float:
    """Over every block and whatever else the reference gave."""
    assert {f"blocks.{i}" for i in range(ours.config.depth)} <= set(theirs)
    with torch.no_grad():
        found = ours.features(pictures, keep=tuple(theirs))
    for name, tensor in theirs.items():
        assert found[name].shape == tensor.shape and tensor.std() > 0.01, name
    return max((found[name] - tensor).abs().max().item() for name, tensor in theirs.items())
