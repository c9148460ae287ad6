"""From tokens to answers: pooling to one vector per picture, and the head that gives the outputs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .config import ViTConfig


class Pooling(nn.Module):
    """The class token, or the mean of the patch tokens."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.pool
        self.prefix = config.prefix

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return x[:, 0] if self.kind == "class" else x[:, self.prefix :].mean(dim=1)


class Head(nn.Module):
    """One matrix, or (`tanh`) a hidden layer of the same width before it; no outputs means features pass through."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.hidden = nn.Linear(config.width, config.width) if config.head == "tanh" else None
        self.linear = nn.Linear(config.width, config.outputs) if config.outputs else None

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        if self.hidden is not None:
            x = torch.tanh(self.hidden(x))
        return x if self.linear is None else self.linear(x)
