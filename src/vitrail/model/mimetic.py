"""Mimetic initial values: attention that starts as in trained vision transformers, without training one.

There the product of the query and key matrices of a head has a strong positive diagonal, so that tokens look at tokens
like themselves, and the product of the value and output matrices a negative one. With x as a row, a fresh head looks by
x W_Q W_K^T x^T, and the factors of

    W_Q W_K^T = 0.7 Z + 0.7 I     for every head,        W_V W_out = 0.4 Z - 0.4 I     for all heads together,

Z normal with variance 1/D, are taken from the singular values: the roots go to both sides, the largest to a head's few
numbers. Learned positions start as waves over rows and columns, so that near patches are alike.

Source: Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers", section 4.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ..errors import UsageError
from .config import ViTConfig
from .positions import fixed_table

LOOKING = 0.7
"""Weight of identity and noise in the product of queries and keys."""
GIVING = 0.4
"""Weight of the negative identity and of noise in the product of values and outputs."""


@torch.no_grad()
def mimic(model: nn.Module, config: ViTConfig, generator: Generator) -> None:
    """Overwrite the attention matrices of every block, and a learned position table.

    Raises:
        UsageError: the heads together are wider than a token, or waves do not fit the width of a learned table.
    """
    if config.attention_width > config.width:
        raise UsageError(
            'init="mimetic" factors matrices of width x width and needs heads * head_width <= width. '
            f"Got heads={config.heads}, head_width={config.head_numbers}, width={config.width}."
        )
    state = dict(model.named_parameters())
    for i in range(config.depth):
        attention = f"encoder.blocks.{i}.attention"
        _fill(state[f"{attention}.qkv.weight"], state[f"{attention}.out.weight"], config, generator)
    if "positions.table" in state:
        if config.width % 4 or config.width < 8:
            raise UsageError(f'init="mimetic" needs a width of 8 or more, a multiple of 4. Got {config.width}.')
        state["positions.table"].copy_(
            fixed_table("sincos2d-moco", config.grid, config.width, prefix_rows=config.table_prefix)
        )


def _fill(qkv: Tensor, out: Tensor, config: ViTConfig, generator: Generator) -> None:
    queries, keys, values = qkv.view(3, config.heads, config.head_numbers, config.width)  # 3 x [A, d, D]
    for query, key in zip(queries, keys, strict=True):
        left, right = _factors(config.width, config.head_numbers, LOOKING, LOOKING, generator)
        query.copy_(left.T)
        key.copy_(right)
    left, right = _factors(config.width, config.attention_width, GIVING, -GIVING, generator)
    values.copy_(left.T.reshape(values.shape))
    out.copy_(right.T)


def _factors(
    width: int, rank: int, noise: float, diagonal: float, generator: Generator
) -> tuple[Float[Tensor, "D r"], Float[Tensor, "r D"]]:
    """The best factors of that rank of noise * Z + diagonal * I."""
    product = noise * width**-0.5 * torch.randn(width, width, generator=generator) + diagonal * torch.eye(width)
    left, singular, right = torch.linalg.svd(product)
    roots = singular[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
