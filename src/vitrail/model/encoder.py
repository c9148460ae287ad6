"""The encoder: blocks of attention and MLP around a residual stream, and the norms before and after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Attention, Places
from .config import ViTConfig
from .mlp import make_mlp
from .norms import make_norm


class Encoder(nn.Module):
    """Dropout on the embeddings, every block in turn, and norms before and after them where the design has them."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.recompute = config.recompute
        self.every = config.pool_every
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = make_norm(config) if config.pre_norm else nn.Identity()
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()

    def forward(
        self, x: Float[Tensor, "B T D"], places: Places, reach: int = 1, reads: int | None = None
    ) -> Float[Tensor, "B r P"]:
        """The tokens after each `pool_every`-th of the last `reach` blocks, through the final norm and side by side.

        Args:
            reads: only so many of the first tokens are asked for; with `reach` 1 the last block computes no others.
        """
        x = self.enter(x)
        last = [x]
        for i, block in enumerate(self.blocks):
            alone = reach == 1 and i == len(self.blocks) - 1
            x = self.through(block, x, places, reads if alone else None)
            last = [*last, x][-reach:]
        return self.normed([x[:, :reads] for x in last])

    def normed(self, last: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T P"]:
        """The tokens after the last blocks, of which each `pool_every`-th is read, normalised and side by side."""
        tokens = [self.norm(x) for x in last[:: self.every]]
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens, dim=-1)

    def enter(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What the first block reads."""
        return self.pre_norm(self.dropout(x))

    def through(
        self, block: nn.Module, x: Float[Tensor, "B T D"], places: Places, reads: int | None = None
    ) -> Float[Tensor, "B r D"]:
        """One block, its inner numbers kept for the backward pass or computed again there."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(block, x, places, reads, use_reentrant=False)
        return block(x, places, reads)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)); or both at once, from one norm (`parallel`).

    With `reads` only so many of the first tokens come out, r of them; all are looked at. The last block before a class
    token is read saves three quarters of its work by that.
    """

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.norm1 = make_norm(config)
        self.attention = Attention(config)
        self.scale1 = _layer_scale(config)
        self.norm2 = None if config.parallel else make_norm(config)
        self.mlp = make_mlp(config)
        self.scale2 = _layer_scale(config)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B T D"], places: Places, reads: int | None = None) -> Float[Tensor, "B r D"]:
        normal = self.norm1(x)
        return self._add(x[:, :reads], normal[:, :reads], self.attention(normal, places, reads))

    def from_normal(
        self, x: Float[Tensor, "B T D"], normal: Float[Tensor, "B T D"], places: Places
    ) -> Float[Tensor, "B T D"]:
        """The same, from tokens that have been normalised already."""
        return self._add(x, normal, self.attention(normal, places))

    def opened(
        self, x: Float[Tensor, "B T D"], places: Places, heads: Sequence[int] | None, rows: Sequence[int] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B a r T"]]:
        """The same numbers, and the attention weights of the chosen heads and rows that went into them."""
        normal = self.norm1(x)
        attended, weights = self.attention.opened(normal, places, heads, rows)
        return self._add(x, normal, attended), weights

    def _add(
        self, x: Float[Tensor, "B r D"], normal: Float[Tensor, "B r D"], attended: Float[Tensor, "B r D"]
    ) -> Float[Tensor, "B r D"]:
        x = x + self.drop_path(_scaled(attended, self.scale1))
        normal = normal if self.norm2 is None else self.norm2(x)
        return x + self.drop_path(_scaled(self.mlp(normal), self.scale2))


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


def _layer_scale(config: ViTConfig) -> nn.Parameter | None:
    return None if config.layer_scale is None else nn.Parameter(torch.empty(config.width))


def _scaled(x: Float[Tensor, "B T D"], scale: Float[Tensor, " D"] | None) -> Float[Tensor, "B T D"]:
    return x if scale is None else x * scale
