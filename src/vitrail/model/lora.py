"""Low-rank adapters (LoRA): frozen matrices with trainable low-rank updates that can be merged into them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ..errors import UsageError
from .vit import ViT


class LoRALinear(nn.Module):
    """A frozen linear layer, with `up @ down` of rank r added to its matrix (Hu et al. 2021).

    `up` is initialised to zeros, so that the outputs are unchanged at first. Weight and bias keep the names of
    `nn.Linear`.
    """

    def __init__(self, linear: nn.Linear, rank: int, generator: Generator):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        bound = 1 / math.sqrt(linear.in_features)
        drawn = torch.empty(rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        self.down = nn.Parameter(drawn.to(linear.weight.device))  # [r, in]
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank, device=linear.weight.device))  # [out, r]

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch E"]:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.down), self.up)

    def to_linear(self) -> nn.Linear:
        """One plain trainable layer with the same outputs."""
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self.weight.detach() + self.up.detach() @ self.down.detach())
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach())
        return linear


def add_adapters(model: ViT, rank: int, generator: Generator, mlp: bool = False) -> None:
    """Add adapters to the joint query, key and value matrix of every block, and freeze everything else but the head.

    Args:
        mlp: also on both matrices of every MLP.

    Raises:
        UsageError: a rank below 1, or a model without blocks.
    """
    if rank < 1 or not model.config.depth:
        raise UsageError(f"Adapters need a rank of at least 1 and a model with blocks. Got rank {rank}.")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.encoder.blocks:
        _wrap_linear(block.get_submodule("attention"), "qkv", rank, generator)
        for name in ("fc1", "fc2") if mlp else ():
            _wrap_linear(block.get_submodule("mlp"), name, rank, generator)
    for parameter in model.head.parameters():
        parameter.requires_grad_(True)


def merge_adapters(model: ViT) -> None:
    """Merge every adapter into its matrix: a plain model with the same outputs, with all parameters trainable."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                parent.set_submodule(name, child.to_linear())
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _wrap_linear(parent: nn.Module, name: str, rank: int, generator: Generator) -> None:
    linear = parent.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    parent.set_submodule(name, LoRALinear(linear, rank, generator))
