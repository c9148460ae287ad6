"""From tokens to answers: pooling to one vector per picture, and the head that gives the outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .attention import attention_weights
from .config import ViTConfig
from .mlp import ACTIVATIONS
from .norms import make_norm


class Pooling(nn.Module):
    """The class token, the mean of the patch tokens, both side by side, or what a learned probe attends to.

    With a distillation head: the class token and the distillation token side by side. Tokens are those of `pool_blocks`
    blocks side by side, so D is so many times the width.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = "class+distillation" if config.distillation_head else config.pool
        self.prefix = config.prefix
        self.reads = config.read_tokens
        self.attention = ProbePooling(config) if config.pool == "attention" else None
        self.norm = make_norm(config, config.pooled_width) if config.pooled_norm else None

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B P"]:
        return self._normed(self._pool(x))

    def opened(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B A 1 T"]]:
        """The same from a learned probe, and its attention weights, through which gradients flow."""
        assert self.attention is not None
        pooled, weights = self.attention.opened(x)
        return self._normed(pooled), weights

    def _normed(self, x: Float[Tensor, "B P"]) -> Float[Tensor, "B P"]:
        return x if self.norm is None else self.norm(x)

    def _pool(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B P"]:
        if self.attention is not None:
            return self.attention(x)
        if self.kind == "class":
            return x[:, 0]
        if self.kind == "class+distillation":
            return x[:, :2].flatten(1)
        mean = x[:, self.prefix :].mean(dim=1)
        return mean if self.kind == "mean" else torch.cat([x[:, 0], mean], dim=1)


class ProbePooling(nn.Module):
    """One learned query looks at every token; a residual MLP follows (Zhai et al. 2022, section 3.1)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm = make_norm(config)
        self.mlp = PoolMLP(config)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        q, k, v = self._heads(x)
        return self._answer(F.scaled_dot_product_attention(q, k, v))

    def opened(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B A 1 T"]]:
        """The same, and how much the probe looks at each token, head by head."""
        q, k, v = self._heads(x)
        weights = attention_weights(q, k, q.shape[-1] ** -0.5)
        return self._answer(weights @ v), weights

    def _heads(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        probe = self.probe.expand(x.shape[0], -1, -1)
        q = self.q(probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, A, 1, d]
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2 x [B, A, T, d]
        return q, k, v

    def _answer(self, y: Float[Tensor, "B A 1 d"]) -> Float[Tensor, "B D"]:
        y = self.out(y.transpose(1, 2).flatten(2))  # [B, 1, D]
        return (y + self.mlp(self.norm(y)))[:, 0]


class PoolMLP(nn.Module):
    """Two matrices with the model's activation between."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.fc2(self.activation(self.fc1(x)))


class Head(nn.Module):
    """One matrix, or (`tanh`) a hidden layer of the same width before it; no outputs means features pass through.

    With a distillation head the outputs are the mean of two heads, one on each token; without outputs, of both tokens.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        width = config.pooled_width
        self.distilled = config.distillation_head
        self.hidden = nn.Linear(width, width) if config.head == "tanh" else None
        self.linear = nn.Linear(width, config.outputs, bias=config.head_bias) if config.outputs else None
        both = config.distillation_head and config.outputs
        self.distillation = nn.Linear(width, config.outputs, bias=config.head_bias) if both else None

    def forward(self, x: Float[Tensor, "B P"]) -> Float[Tensor, "B K"]:
        if self.distilled:
            of_class, of_distillation = x.chunk(2, dim=-1)
            return (self._answer(of_class, self.linear) + self._answer(of_distillation, self.distillation)) / 2
        return self._answer(x, self.linear)

    def _answer(self, x: Float[Tensor, "B D"], matrix: nn.Module | None) -> Float[Tensor, "B K"]:
        x = x if self.hidden is None else torch.tanh(self.hidden(x))
        return x if matrix is None else matrix(x)
