"""The encoder: blocks of attention and MLP around a residual stream, and the norm after the last one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Attention
from .config import ViTConfig
from .rotary import RotaryTables


class Encoder(nn.Module):
    """Dropout on the embeddings, then every block in turn, then the final norm where the design has one."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()

    def forward(self, x: Float[Tensor, "B T D"], rotary: RotaryTables | None = None) -> Float[Tensor, "B T D"]:
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, rotary)
        return self.norm(x)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.norm1 = make_norm(config)
        self.attention = Attention(config)
        self.norm2 = make_norm(config)
        self.mlp = MLP(config)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B T D"], rotary: RotaryTables | None = None) -> Float[Tensor, "B T D"]:
        x = x + self.drop_path(self.attention(self.norm1(x), rotary))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class MLP(nn.Module):
    """Two matrices with an activation between; dropout after the activation and after the second."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.fc2 = nn.Linear(config.mlp_width, config.width)
        self.dropout = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.dropout(self.activation(self.fc1(x)))  # [B, T, M]
        return self.dropout(self.fc2(hidden))


class DropPath(nn.Module):
    """Stochastic depth: in training a picture skips the branch with chance `rate`, the others are scaled up.

    Source: Huang et al. 2016; per picture as in Touvron et al. 2021.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * (x.new_empty(len(x), 1, 1).bernoulli_(keep) / keep)


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
NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


def make_norm(config: ViTConfig) -> nn.Module:
    """A norm over the width of a token, of the configured class."""
    return NORMS[config.norm](config.width, eps=config.norm_eps)
