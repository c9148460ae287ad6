"""Operations of a model's forward pass and training step, counted from its matrix products, two per multiply-add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .config import T2T_PATCHES, ViTConfig
from .mask_queries import MASK_WIDTH
from .soft_split import RANDOM_FEATURES, TOKEN_WIDTH

ModelPart = Literal["patches", "projections", "attention", "mlp", "head"]
MODEL_PARTS: tuple[ModelPart, ...] = ("patches", "projections", "attention", "mlp", "head")
TRAINING_FORWARD_MULTIPLE = 3
"""Forward passes that a training step equals: the backward pass has two products for each of the forward pass."""


class MatrixProduct(NamedTuple):
    """`times` * `stack` products of [rows, inner] with [inner, columns] for each image."""

    part: ModelPart
    rows: int
    inner: int
    columns: int
    times: int = 1
    stack: int = 1
    shared: bool = True
    """The second matrix is the same for all images, so that the rows of a whole batch make one product."""

    @property
    def flops(self) -> int:
        """Operations for one image, two per multiply-add."""
        return 2 * self.times * self.stack * self.rows * self.inner * self.columns


def list_matrix_products(
    config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False
) -> list[MatrixProduct]:
    """Every matrix product of one image's forward pass at the configuration's own size.

    Args:
        visible_patches: patches that the encoder sees, where some are dropped; None is all.
        all_tokens: every block for every token, as papers count, also where the last one computes only what the head
            reads.
    """
    patches = config.grid.patches if visible_patches is None else visible_patches
    tokens = config.prefix + patches
    if all_tokens or config.pool_blocks > 1 or not config.depth or config.pool_tokens is None:
        blocks = [*_block_products(config, tokens, tokens, config.depth)]
    else:
        blocks = [*_block_products(config, tokens, tokens, config.depth - 1)]
        blocks += _block_products(config, tokens, config.pool_tokens, 1)
    products = [*_patch_products(config, patches), *blocks, *_head_products(config, tokens)]
    tiles = config.tiles[0] * config.tiles[1]
    return [product._replace(times=product.times * tiles) for product in products] if config.is_tiled else products


def flops_by_part(
    config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False
) -> dict[ModelPart, int]:
    """Operations of one image's forward pass by part of the model; sums of bias, norms and softmax are left out."""
    products = list_matrix_products(config, visible_patches, all_tokens)
    return {part: sum(product.flops for product in products if product.part == part) for part in MODEL_PARTS}


def forward_flops(config: ViTConfig, visible_patches: int | None = None, all_tokens: bool = False) -> int:
    """Operations of one image's forward pass."""
    return sum(flops_by_part(config, visible_patches, all_tokens).values())


def training_flops(config: ViTConfig, visible_patches: int | None = None) -> int:
    """Operations of one image's share of a training step.

    With checkpointing, blocks count once more, but for their last product, which only a layer scale needs again.
    """
    parts = flops_by_part(config, visible_patches)
    again = 0
    if config.grad_checkpointing and config.depth:
        again = sum(parts[part] for part in ("projections", "attention", "mlp"))
        if config.layer_scale is None:
            mlp = [product.flops for product in list_matrix_products(config, visible_patches) if product.part == "mlp"]
            again -= sum(mlp[1::2])  # in, out, in, out
    return TRAINING_FORWARD_MULTIPLE * sum(parts.values()) + again


def _patch_products(config: ViTConfig, patches: int) -> Iterator[MatrixProduct]:
    """The projection of patches, or a soft split: two blocks between three cuts."""
    if config.patches not in T2T_PATCHES:
        rows = config.grid.patches if config.patches == "conv" else patches  # a convolution leaves none out
        yield MatrixProduct("patches", rows, config.patch_dim, config.width)
        return
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


def _block_products(config: ViTConfig, tokens: int, rows: int, count: int) -> Iterator[MatrixProduct]:
    """`count` equal blocks, in which the first `rows` tokens attend to all."""
    D, inner, M = config.width, config.attention_width, config.mlp_width
    queries = tokens if config.relative else rows  # relative positions are computed for all
    yield MatrixProduct("projections", tokens, D, 3 * inner, count)
    yield MatrixProduct("attention", queries, config.head_dim, tokens, count, config.heads, shared=False)
    yield MatrixProduct("attention", queries, tokens, config.head_dim, count, config.heads, shared=False)
    if config.relative:  # tables, offsets and lines for the scores, and the same back from the weights to the values
        offsets, lines = 4 * config.relative + 4, config.grid.rows + config.grid.columns + 2
        yield MatrixProduct("attention", config.heads * tokens, config.head_dim, offsets, 2 * count)
        yield MatrixProduct("attention", config.heads, offsets, lines, 2 * count, stack=tokens, shared=False)
        yield MatrixProduct("attention", config.heads * tokens, lines, tokens, 2 * count)
    yield MatrixProduct("projections", rows, inner, D, count)
    yield MatrixProduct("mlp", rows, D, M, count * (1 if config.mlp == "plain" else 2))
    yield MatrixProduct("mlp", rows, M, D, count)


def _head_products(config: ViTConfig, tokens: int) -> Iterator[MatrixProduct]:
    """Pooling by a probe, and the head or heads."""
    D = config.width
    if config.pool == "attention":
        yield MatrixProduct("head", 1, D, D, 2)
        yield MatrixProduct("head", tokens, D, 2 * D)
        heads = config.probe_heads
        yield MatrixProduct("head", 1, D // heads, tokens, 2, heads, shared=False)
        yield MatrixProduct("head", 1, D, config.probe_mlp_width, 2)
    heads = 2 if config.distillation_head else 1
    if config.head == "tanh":
        yield MatrixProduct("head", 1, config.pooled_width, config.pooled_width, heads)
    if config.head == "bank":
        yield MatrixProduct("head", tokens - config.prefix, config.pooled_width, config.bank_size)
    elif config.outputs:
        rows = tokens - config.prefix if config.is_dense else 1
        yield MatrixProduct("head", rows, config.pooled_width, config.linear_outputs, heads)
    if config.queries:
        yield from _query_products(config, tokens)


def _query_products(config: ViTConfig, tokens: int) -> Iterator[MatrixProduct]:
    """Queries in the last blocks, then their classes and masks and those of the parts of patches."""
    Q, D, s = config.queries, config.width, config.upsample**2
    rows, inner, count = Q + tokens, config.attention_width, config.query_blocks
    yield MatrixProduct("head", rows, D, 3 * inner, count)
    yield MatrixProduct("head", Q, config.head_dim, rows, count, config.heads, shared=False)
    yield MatrixProduct("head", Q, rows, config.head_dim, count, config.heads, shared=False)
    yield MatrixProduct("head", Q, inner, D, count)
    yield MatrixProduct("head", Q, D, config.mlp_width, count * (1 if config.mlp == "plain" else 2))
    yield MatrixProduct("head", Q, config.mlp_width, D, count)
    yield MatrixProduct("head", Q, D, config.outputs + 1)
    yield MatrixProduct("head", Q, D, D)
    yield MatrixProduct("head", Q, D, MASK_WIDTH)
    patches = tokens - config.prefix
    yield MatrixProduct("head", patches, D, s * MASK_WIDTH)
    yield MatrixProduct("head", patches * s, MASK_WIDTH, Q, shared=False)
    yield MatrixProduct("head", patches * s, Q, config.outputs, shared=False)
