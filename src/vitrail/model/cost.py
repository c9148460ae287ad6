"""What a shape costs: the matrix products of its forward pass, and their operations, two a multiply-add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .config import T2T_PATCHES, ViTConfig
from .soft_split import FEATURES, TOKEN_WIDTH

Part = Literal["patches", "projections", "attention", "mlp", "head"]
PARTS: tuple[Part, ...] = ("patches", "projections", "attention", "mlp", "head")
TRAINED = 3
"""Forward passes that a training step is worth: the backward pass has two products for each of the forward pass."""


class Product(NamedTuple):
    """So many `times`, for each picture, `stack` products of [rows, inner] with [inner, columns]."""

    part: Part
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


def products(config: ViTConfig, kept: int | None = None, whole: bool = False) -> list[Product]:
    """Every matrix product of one picture's forward pass at the configuration's own size.

    Args:
        kept: patches that the encoder sees, where some are dropped; None is all.
        whole: every block for every token, as papers count, also where the last one computes only what the head reads.
    """
    patches = config.grid.patches if kept is None else kept
    tokens = config.prefix + patches
    reads = None if whole or config.pool_blocks > 1 or not config.depth else config.read_tokens
    blocks = [*_of_blocks(config, tokens, config.depth if reads is None else config.depth - 1)]
    last = [] if reads is None else [*_of_blocks(config, tokens, 1, reads)]
    return [*_of_patches(config, patches), *blocks, *last, *_of_answer(config, tokens)]


def flops(config: ViTConfig, kept: int | None = None, whole: bool = False) -> dict[Part, int]:
    """Operations of one picture's forward pass by part of the model; sums of bias, norms and softmax are left out."""
    found = products(config, kept, whole)
    return {part: sum(product.flops for product in found if product.part == part) for part in PARTS}


def forward_flops(config: ViTConfig, kept: int | None = None, whole: bool = False) -> int:
    """Operations of one picture's forward pass."""
    return sum(flops(config, kept, whole).values())


def training_flops(config: ViTConfig, kept: int | None = None) -> int:
    """Operations of one picture's share of a training step.

    Blocks that are computed twice count once more, but for their last product, which only a layer scale asks for again.
    """
    found = flops(config, kept)
    again = 0
    if config.recompute and config.depth:
        mlp = [product.flops for product in products(config, kept) if product.part == "mlp"]
        last = sum(mlp[1::2])  # in, out, in, out
        again = sum(found[part] for part in ("projections", "attention", "mlp"))
        again -= 0 if config.layer_scale is not None else last
    return TRAINED * sum(found.values()) + again


def _of_patches(config: ViTConfig, patches: int) -> Iterator[Product]:
    if config.patches in T2T_PATCHES:
        yield from _of_soft_splits(config, patches)
        return
    seen = config.grid.patches if config.patches == "conv" else patches  # a convolution leaves none out
    yield Product("patches", seen, config.patch_numbers, config.width)


def _of_soft_splits(config: ViTConfig, patches: int) -> Iterator[Product]:
    """Two blocks between three cuts; see model/soft_split.py."""
    height, width = config.image_size
    W = TOKEN_WIDTH
    for step, numbers in ((4, 49 * config.channels), (8, 9 * W)):
        tokens = (height // step) * (width // step)
        yield Product("patches", tokens, numbers, 3 * W)
        if config.patches == "t2t-transformer":
            yield Product("patches", tokens, W, tokens, 2, shared=False)
        else:
            yield Product("patches", tokens, W, FEATURES, 2)
            yield Product("patches", tokens, FEATURES, 1, shared=False)
            yield Product("patches", tokens, FEATURES, W, 2, shared=False)
        yield Product("patches", tokens, W, W, 3)  # the projection out, and the MLP's two
    yield Product("patches", patches, 9 * W, config.width)


def _of_blocks(config: ViTConfig, tokens: int, count: int, reads: int | None = None) -> Iterator[Product]:
    """So many blocks alike, for all tokens, or for the first ones that are read and look at all."""
    D, inner, M = config.width, config.attention_width, config.mlp_width
    rows = tokens if reads is None else reads
    looking = tokens if config.relative else rows  # relative positions are computed for all
    yield Product("projections", tokens, D, 3 * inner, count)
    yield Product("attention", looking, config.head_numbers, tokens, count, config.heads, shared=False)
    yield Product("attention", looking, tokens, config.head_numbers, count, config.heads, shared=False)
    if config.relative:
        yield from _of_relative(config, tokens, count)
    yield Product("projections", rows, inner, D, count)
    yield Product("mlp", rows, D, M, count * (1 if config.mlp == "plain" else 2))
    yield Product("mlp", rows, M, D, count)


def _of_relative(config: ViTConfig, tokens: int, count: int) -> Iterator[Product]:
    """Tables, offsets and lines on the way to the scores, and the same way back from the weights to the values."""
    offsets, lines = 4 * config.relative + 4, config.grid.rows + config.grid.columns + 2
    twice, rows = 2 * count, config.heads * tokens
    yield Product("attention", rows, config.head_numbers, offsets, twice)
    yield Product("attention", config.heads, offsets, lines, twice, stack=tokens, shared=False)
    yield Product("attention", rows, lines, tokens, twice)


def _of_answer(config: ViTConfig, tokens: int) -> Iterator[Product]:
    """Pooling by a probe, and the head or heads."""
    D = config.width
    if config.pool == "attention":
        yield Product("head", 1, D, D, 2)
        yield Product("head", tokens, D, 2 * D)
        yield Product("head", 1, D // config.heads, tokens, 2, config.heads, shared=False)
        yield Product("head", 1, D, config.mlp_width, 2)
    heads = 2 if config.distillation_head else 1
    if config.head == "tanh":
        yield Product("head", 1, config.pooled_width, config.pooled_width, heads)
    if config.outputs:
        yield Product("head", 1, config.pooled_width, config.outputs, heads)
