"""What a shape costs: the matrix products of its forward pass, and their operations, two a multiply-add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .config import T2T_PATCHES, ViTConfig
from .soft_split import RANDOM_FEATURES, TOKEN_WIDTH

ModelPart = Literal["patches", "projections", "attention", "mlp", "head"]
MODEL_PARTS: tuple[ModelPart, ...] = ("patches", "projections", "attention", "mlp", "head")
TRAINING_FORWARD_MULTIPLE = 3
"""Forward passes that a training step is worth: the backward pass has two products for each of the forward pass."""


class MatrixProduct(NamedTuple):
    """So many `times`, for each picture, `stack` products of [rows, inner] with [inner, columns]."""

    part: ModelPart
    rows: int
    inner: int
    columns: int
    times: int = 1
    stack: int = 1
    shared: bool = True
    """The second matrix is the same for all pictures, so that the rows of a whole batch make one product."""

    @property
    def flops(self) -> int:
        """Operations for one picture, two a multiply-add."""
        return 2 * self.times * self.stack * self.rows * self.inner * self.columns


def list_matrix_products(
    config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False
) -> list[MatrixProduct]:
    """Every matrix product of one picture's forward pass at the configuration's own size.

    Args:
        visible_patches: patches that the encoder sees, where some are dropped; None is all.
        all_tokens: every block for every token, as papers count, also where the last one computes only what the head
            reads.
    """
    patches = config.grid.patches if visible_patches is None else visible_patches
    tokens = config.prefix + patches
    reads = None if all_tokens or config.pool_blocks > 1 or not config.depth else config.pool_tokens
    blocks = [*_block_products(config, tokens, config.depth if reads is None else config.depth - 1)]
    last = [] if reads is None else [*_block_products(config, tokens, 1, reads)]
    return [*_patch_products(config, patches), *blocks, *last, *_head_products(config, tokens)]


def flops_by_part(
    config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False
) -> dict[ModelPart, int]:
    """Operations of one picture's forward pass by part of the model; sums of bias, norms and softmax are left out."""
    found = list_matrix_products(config, visible_patches, all_tokens)
    return {part: sum(product.flops for product in found if product.part == part) for part in MODEL_PARTS}


def forward_flops(config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False) -> int:
    """Operations of one picture's forward pass."""
    return sum(flops_by_part(config, visible_patches, all_tokens).values())


def training_flops(config: ViTConfig, visible_patches: int | None = None) -> int:
    """Operations of one picture's share of a training step.

    Blocks that are computed twice count once more, but for their last product, which only a layer scale asks for again.
    """
    found = flops_by_part(config, visible_patches)
    again = 0
    if config.grad_checkpointing and config.depth:
        mlp = [product.flops for product in list_matrix_products(config, visible_patches) if product.part == "mlp"]
        last = sum(mlp[1::2])  # in, out, in, out
        again = sum(found[part] for part in ("projections", "attention", "mlp"))
        again -= 0 if config.layer_scale is not None else last
    return TRAINING_FORWARD_MULTIPLE * sum(found.values()) + again


def _patch_products(config: ViTConfig, patches: int) -> Iterator[MatrixProduct]:
    if config.patches in T2T_PATCHES:
        yield from _soft_split_products(config, patches)
        return
    seen = config.grid.patches if config.patches == "conv" else patches  # a convolution leaves none out
    yield MatrixProduct("patches", seen, config.patch_dim, config.width)


def _soft_split_products(config: ViTConfig, patches: int) -> Iterator[MatrixProduct]:
    """Two blocks between three cuts; see model/soft_split.py."""
    height, width = config.image_size
    W = TOKEN_WIDTH
    for step, numbers in ((4, 49 * config.channels), (8, 9 * W)):
        tokens = (height // step) * (width // step)
        yield MatrixProduct("patches", tokens, numbers, 3 * W)
        if config.patches == "t2t-transformer":
            yield MatrixProduct("patches", tokens, W, tokens, 2, shared=False)
        else:
            yield MatrixProduct("patches", tokens, W, RANDOM_FEATURES, 2)
            yield MatrixProduct("patches", tokens, RANDOM_FEATURES, 1, shared=False)
            yield MatrixProduct("patches", tokens, RANDOM_FEATURES, W, 2, shared=False)
        yield MatrixProduct("patches", tokens, W, W, 3)  # the projection out, and the MLP's two
    yield MatrixProduct("patches", patches, 9 * W, config.width)


def _block_products(
    config: ViTConfig, tokens: int, count: int, num_queries: int | None = None
) -> Iterator[MatrixProduct]:
    """So many blocks alike, for all tokens, or for the first ones that are read and look at all."""
    D, inner, M = config.width, config.attention_width, config.mlp_width
    rows = tokens if num_queries is None else num_queries
    looking = tokens if config.relative else rows  # relative positions are computed for all
    yield MatrixProduct("projections", tokens, D, 3 * inner, count)
    yield MatrixProduct("attention", looking, config.head_dim, tokens, count, config.heads, shared=False)
    yield MatrixProduct("attention", looking, tokens, config.head_dim, count, config.heads, shared=False)
    if config.relative:
        yield from _relative_position_products(config, tokens, count)
    yield MatrixProduct("projections", rows, inner, D, count)
    yield MatrixProduct("mlp", rows, D, M, count * (1 if config.mlp == "plain" else 2))
    yield MatrixProduct("mlp", rows, M, D, count)


def _relative_position_products(config: ViTConfig, tokens: int, count: int) -> Iterator[MatrixProduct]:
    """Tables, offsets and lines on the way to the scores, and the same way back from the weights to the values."""
    offsets, lines = 4 * config.relative + 4, config.grid.rows + config.grid.columns + 2
    twice, rows = 2 * count, config.heads * tokens
    yield MatrixProduct("attention", rows, config.head_dim, offsets, twice)
    yield MatrixProduct("attention", config.heads, offsets, lines, twice, stack=tokens, shared=False)
    yield MatrixProduct("attention", rows, lines, tokens, twice)


def _head_products(config: ViTConfig, tokens: int) -> Iterator[MatrixProduct]:
    """Pooling by a probe, and the head or heads."""
    D = config.width
    if config.pool == "attention":
        yield MatrixProduct("head", 1, D, D, 2)
        yield MatrixProduct("head", tokens, D, 2 * D)
        yield MatrixProduct("head", 1, D // config.heads, tokens, 2, config.heads, shared=False)
        yield MatrixProduct("head", 1, D, config.mlp_width, 2)
    heads = 2 if config.distillation_head else 1
    if config.head == "tanh":
        yield MatrixProduct("head", 1, config.pooled_width, config.pooled_width, heads)
    if config.outputs:
        yield MatrixProduct("head", 1, config.pooled_width, config.outputs, heads)
