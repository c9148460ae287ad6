"""MLPs of a block (plain, gated, packed), activations, norms, and the dtype of linear layers."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import ViTConfig


def make_mlp(config: ViTConfig) -> nn.Module:
    """The MLP of a configuration."""
    return {"plain": MLP, "gated": GatedMLP, "gated-packed": PackedGatedMLP}[config.mlp](config)


class MLP(nn.Module):
    """Two matrices with an activation between; dropout after the activation and after the second."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.activation]()
        self.norm = _make_hidden_norm(config)
        self.fc2 = nn.Linear(config.mlp_width, config.width, bias=config.mlp_bias)
        self.dropout = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.dropout(self.activation(self.fc1(x)))  # [B, T, M]
        return self.dropout(self.fc2(self.norm(hidden)))


class GatedMLP(nn.Module):
    """fc2(activation(gate(x)) * fc1(x)), the gate and fc1 as two matrices (Shazeer 2020)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.gate = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.fc1 = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.activation]()
        self.norm = _make_hidden_norm(config)
        self.fc2 = nn.Linear(config.mlp_width, config.width, bias=config.mlp_bias)
        self.dropout = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.dropout(self.activation(self.gate(x)) * self.fc1(x))  # [B, T, M]
        return self.dropout(self.fc2(self.norm(hidden)))


class PackedGatedMLP(nn.Module):
    """The same function as `GatedMLP` with one matrix for both: the rows of the gate, then those of fc1."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, 2 * config.mlp_width, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.activation]()
        self.norm = _make_hidden_norm(config)
        self.fc2 = nn.Linear(config.mlp_width, config.width, bias=config.mlp_bias)
        self.dropout = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # 2 x [B, T, M]
        hidden = self.dropout(self.activation(gate) * value)
        return self.dropout(self.fc2(self.norm(hidden)))


def _make_hidden_norm(config: ViTConfig) -> nn.Module:
    """The norm before the last matrix of an MLP; it passes everything through where there is none."""
    return make_norm(config, config.mlp_width) if config.mlp_norm else nn.Identity()


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), the approximation in OpenAI's CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class GELUTanh(nn.Module):
    """GELU by tanh, flax's default and so that of Google's checkpoints."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "GELU": nn.GELU,
    "GELUTanh": GELUTanh,
    "QuickGELU": QuickGELU,
    "ReLU": nn.ReLU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "ELU": nn.ELU,
    "LeakyReLU": nn.LeakyReLU,
    "Mish": nn.Mish,
}


# Precision inside a model: products in float32, and matrices that are cast once for many passes.


def disable_autocast(device: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast is off on a device of this type."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def cast_linear_weights(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its linear layers and convolutions in a dtype, for inference under autocast.

    Autocast would repeat the same cast on every pass; the outputs are equal to the bit. All other parameters and
    buffers are shared with `model`, which is not changed.
    """
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    cast = copy.deepcopy(model, shared)
    for module in cast.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach().to(dtype), requires_grad=False)
    return cast


# Normalisation over the numbers of one token, by its torch name.

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


def make_norm(config: ViTConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """A norm of the configured class over `width` numbers, by default the width of a token."""
    return NORMS[config.norm](config.width if width is None else width, eps=config.norm_eps)
