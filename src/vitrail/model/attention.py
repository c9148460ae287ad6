"""Attention by a fused kernel or in open form, with the measured table that chooses, and relative positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..spec import Grid
from .cache import cache_results
from .config import AttentionChoice, ViTConfig
from .layers import make_norm
from .positions import MixedRotary, RelativeBias, RotaryTables, apply_rotary

AttentionPath = Literal["fused", "open"]


class TokenPositions(NamedTuple):
    """The positions of the tokens of a batch, as attention needs them."""

    grid: Grid
    """Rows and columns of all patches."""
    visible: Tensor | None = None
    """Indices of the patches that are there, for each image [B, n]; None for all."""
    rotary: RotaryTables | None = None
    """Angles of queries and keys."""


class Attention(nn.Module):
    """Every token looks at every token (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        inner = config.attention_width
        self.heads = config.heads
        self.scale = config.head_dim**-0.5 if config.qk_scale is None else config.qk_scale
        self.dropout = config.attention_dropout
        self.choice: AttentionChoice = config.attention
        self.cpu_capability = device_capability("cpu")  # read here: a compiled forward cannot
        self.qkv: nn.Module = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias and config.key_bias)
        self.qv_bias = nn.Parameter(torch.empty(2 * inner)) if config.qkv_bias and not config.key_bias else None
        self.joint = config.qk_norm_joint
        normed = inner if self.joint else config.head_dim
        self.q_norm = make_norm(config, normed) if config.qk_norm else None
        self.k_norm = make_norm(config, normed) if config.qk_norm else None
        self.rotary = MixedRotary(config) if config.rotary == "mixed" else None
        self.relative = RelativePositions(config.relative, config.head_dim, config.prefix) if config.relative else None
        self.relative_bias = RelativeBias(config) if config.relative_bias else None
        self.norm = make_norm(config, inner) if config.attention_norm else None
        self.out = nn.Linear(inner, config.width, bias=config.out_bias)

    def forward(
        self, x: Float[Tensor, "B T D"], token_positions: TokenPositions, num_queries: int | None = None
    ) -> Float[Tensor, "B r D"]:
        """Output of the first `num_queries` tokens (None: all, then r is T), which attend to all tokens."""
        q, k, v = self._project_heads(x, token_positions)  # 3 x [B, A, T, d]
        if self.relative is not None:
            weights = self._relative_weights(q, k, token_positions)
            y = self._apply_relative_weights(weights, v, token_positions)[:, :, :num_queries]
        else:
            dropout = self.dropout if self.training else 0.0
            bias = self._make_bias(q, token_positions, num_queries)
            y = attend(q[:, :, :num_queries], k, v, self.scale, dropout, self._choose_path(k), bias)  # [B, A, r, d]
        return self._project_out(y)

    def forward_with_attention(
        self,
        x: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B a r T"]]:
        """The same output, and the weights of the chosen heads and rows (None: all), through which gradients flow.

        The other heads and rows take the usual path.
        """
        q, k, v = self._project_heads(x, token_positions)
        if self.relative is not None:
            all_weights = self._relative_weights(q, k, token_positions)
            weights = _select_heads_and_rows(all_weights, heads, rows)
            all_weights = _insert_heads_and_rows(all_weights, weights, heads, rows)
            y = self._apply_relative_weights(all_weights, v, token_positions)
        else:
            bias = self._make_bias(q, token_positions)
            weights = attention_weights(
                _select_heads_and_rows(q, heads, rows),
                _select_heads_and_rows(k, heads, None),
                self.scale,
                None if bias is None else _select_heads_and_rows(bias, heads, rows),
            )  # [B, a, r, T]
            y = F.dropout(weights, self.dropout, self.training) @ _select_heads_and_rows(v, heads, None)
            if heads is not None or rows is not None:
                rest = attend(q, k, v, self.scale, self.dropout if self.training else 0.0, self._choose_path(q), bias)
                y = _insert_heads_and_rows(rest, y, heads, rows)
        return self._project_out(y), weights

    def _project_out(self, y: Float[Tensor, "B A r d"]) -> Float[Tensor, "B r D"]:
        y = y.transpose(1, 2).flatten(2)  # [B, r, A d]
        return self.out(y if self.norm is None else self.norm(y))

    def _make_bias(
        self, q: Tensor, token_positions: TokenPositions, num_queries: int | None = None
    ) -> Float[Tensor, "b A r T"] | None:
        """What is added to the products of the first queries with all keys; b is 1 where all images share it."""
        if self.relative_bias is None:
            return None
        return self.relative_bias(token_positions.grid, token_positions.visible)[:, :, :num_queries].to(q.dtype)

    def _project_heads(
        self, x: Float[Tensor, "B T D"], token_positions: TokenPositions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, A, T, d], with QK normalisation and rotary positions where configured."""
        rotary = token_positions.rotary
        if self.rotary is not None:
            rotary = self.rotary(token_positions.grid, x, token_positions.visible)
        qkv = self._project_qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, A, d]
        if rotary is None and self.q_norm is None:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            return q, k, v
        qk, v = qkv.split([2, 1], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            qk = qk.flatten(-2) if self.joint else qk  # [B, T, 2, A d] or [B, T, 2, A, d]
            qk = qk.to(self.q_norm.weight.dtype)  # as autocast does it for LayerNorm, but not for RMSNorm
            qk = torch.stack([self.q_norm(qk[:, :, 0]), self.k_norm(qk[:, :, 1])], dim=2)
            qk = qk.unflatten(-1, (self.heads, -1)) if self.joint else qk
        qk = qk if rotary is None else apply_rotary(qk, rotary)
        q, k = qk.to(v.dtype).permute(2, 0, 3, 1, 4)
        return q, k, v.squeeze(2).transpose(1, 2)

    def _project_qkv(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T E"]:
        if self.qv_bias is None:
            return self.qkv(x)
        q_bias, v_bias = self.qv_bias.chunk(2)
        bias = torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
        if isinstance(self.qkv, nn.Linear):
            return F.linear(x, self.qkv.weight, bias)
        return self.qkv(x) + bias  # a LoRA layer in place of the matrix has more than a weight

    def _choose_path(self, q: Tensor) -> AttentionPath:
        capability = self.cpu_capability if q.device.type == "cpu" else q.device.type
        dtype = str(q.dtype).removeprefix("torch.")
        return choose_path(self.choice, capability, dtype, q.shape[2], torch.is_grad_enabled())

    def _relative_weights(self, q: Tensor, k: Tensor, token_positions: TokenPositions) -> Float[Tensor, "B A T T"]:
        assert self.relative is not None
        scaled = q * self.scale
        added = self.relative.scores(scaled, token_positions.grid, token_positions.visible)
        return (scaled @ k.transpose(-2, -1) + added).softmax(dim=-1)

    def _apply_relative_weights(
        self, weights: Tensor, v: Tensor, token_positions: TokenPositions
    ) -> Float[Tensor, "B A T d"]:
        assert self.relative is not None
        weights = F.dropout(weights, self.dropout, self.training)
        return weights @ v + self.relative.values(weights, token_positions.grid, token_positions.visible)


def _select_heads_and_rows(
    x: Float[Tensor, "B A T n"], heads: Sequence[int] | None, rows: Sequence[int] | None
) -> Tensor:
    """Only the chosen heads and tokens."""
    x = x if heads is None else x[:, list(heads)]
    return x if rows is None else x[:, :, list(rows)]


def _insert_heads_and_rows(
    target: Float[Tensor, "B A T n"], part: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None
) -> Float[Tensor, "B A T n"]:
    """`target` with `part` at the heads and rows that `_select_heads_and_rows` takes."""
    if heads is None and rows is None:
        return part
    h = torch.arange(target.shape[1]) if heads is None else torch.tensor(list(heads))
    r = torch.arange(target.shape[2]) if rows is None else torch.tensor(list(rows))
    at = (torch.arange(len(target))[:, None, None], h[None, :, None], r[None, None, :])
    return target.index_put(tuple(index.to(target.device) for index in at), part.to(target.dtype))


def attend(
    q: Float[Tensor, "B A T d"],
    k: Float[Tensor, "B A S d"],
    v: Float[Tensor, "B A S d"],
    scale: float,
    dropout: float,
    path: AttentionPath,
    bias: Float[Tensor, "b A T S"] | None = None,
) -> Float[Tensor, "B A T d"]:
    """Values averaged by the softmax of scaled products: one function, by a fused kernel or as separate operations.

    Args:
        bias: added to the scaled products; b is 1 or B.
    """
    if path == "fused":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    if bias is not None:
        return F.dropout(attention_weights(q, k, scale, bias), dropout) @ v
    if not torch.is_grad_enabled() and q.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        return _attend_inference(q, k, v, scale)
    if not dropout and torch.is_grad_enabled() and should_recompute_weights(q.shape[1] * q.shape[3], k.shape[2]):
        return _RecomputedAttention.apply(q, k, v, scale)
    weights = attention_weights(q, k, scale)  # [B, A, T, S]
    return F.dropout(weights, dropout) @ v if dropout else weights @ v


INFERENCE_CHUNK_BYTES = 2**22
"""Bytes of attention weights per chunk of the open path at inference: one reused buffer, small enough for the cache."""


def _attend_inference(
    q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"], v: Float[Tensor, "B A S d"], scale: float
) -> Float[Tensor, "B A T d"]:
    """The open path without gradients, chunk by chunk: several images, or some heads of a large one."""
    y = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    head_bytes = q.shape[2] * k.shape[2] * q.element_size()
    heads = min(q.shape[1], max(1, INFERENCE_CHUNK_BYTES // head_bytes))
    images = min(q.shape[0], max(1, INFERENCE_CHUNK_BYTES // (head_bytes * heads)))
    buffer = q.new_empty(images * heads, q.shape[2], k.shape[2])
    tiles = ([tile for part in x.split(images) for tile in part.split(heads, dim=1)] for x in (q, k, v, y))
    for queries, keys, values, output in zip(*tiles, strict=True):
        queries, keys, values = (x.flatten(0, 1) for x in (queries, keys, values))
        weights = buffer[: len(queries)]
        torch.baddbmm(weights, queries, keys.mT, beta=0, alpha=scale, out=weights)
        torch.softmax(weights, -1, out=weights)
        output.copy_((weights @ values).view(output.shape))
    return y


RECOMPUTE_MIN_WIDTH = 512
"""Width from which the open path recomputes its attention weights in the backward pass.

The weights and copies of queries, keys and values are a tenth of the memory of a block at any width. To recompute them
costs 1 % of a step of ViT-B/16, but 8 % of one of ViT-Ti/16 (EXPERIMENTS.md).
"""
RECOMPUTE_MIN_TOKENS = 512
"""Tokens from which it does so at any width: attention weights grow with their square."""


def should_recompute_weights(width: int, tokens: int) -> bool:
    """Whether the open path recomputes its weights in the backward pass; with dropout it does not.

    Args:
        width: of all heads together.
    """
    return width >= RECOMPUTE_MIN_WIDTH or tokens >= RECOMPUTE_MIN_TOKENS


RECOMPUTE_CHUNK_BYTES = 2**20
"""Bytes of attention weights per chunk, small enough for the cache."""


class _RecomputedAttention(torch.autograd.Function):
    """The open path that keeps only queries, keys and values, views of one tensor; output and gradients have the same
    bits."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        y = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)  # [B, A, T, d]
        for part in _split_images(q, k):
            y[part] = attention_weights(q[part], k[part], scale) @ v[part]
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
        *kept, ctx.scale = inputs
        ctx.save_for_backward(*kept)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.empty_like(each) for each in (q, k, v))
        for part in _split_images(q, k):
            scaled = q[part] * ctx.scale
            weights = (scaled @ k[part].transpose(-2, -1)).softmax(dim=-1)
            grad_weights = grad_y[part] @ v[part].transpose(-2, -1)
            grad_products = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_q[part] = (grad_products @ k[part]) * ctx.scale
            grad_k[part] = grad_products.transpose(-2, -1) @ scaled
            grad_v[part] = weights.transpose(-2, -1) @ grad_y[part]
        return grad_q, grad_k, grad_v, None


def _split_images(q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"]) -> Iterator[slice]:
    """Slices of images whose weights are computed together."""
    images = max(1, RECOMPUTE_CHUNK_BYTES // (q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()))
    return (slice(first, first + images) for first in range(0, len(q), images))


def attention_weights(
    q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"], scale: float, bias: Tensor | None = None
) -> Float[Tensor, "B A T S"]:
    """Softmax of the scaled products of queries and keys, with a bias where there is one: rows sum to 1."""
    products = (q * scale) @ k.transpose(-2, -1)
    return (products if bias is None else products + bias).softmax(dim=-1)


def choose_path(choice: AttentionChoice, capability: str, dtype: str, tokens: int, gradients: bool) -> AttentionPath:
    """The path that the settings force, or the faster one by `OPEN_PATH_MAX_TOKENS`; nothing is timed here.

    Args:
        capability: see `device_capability`.
        dtype: float32, bfloat16 or float16.
        gradients: whether a backward pass follows.
    """
    if choice != "auto":
        return choice
    return "open" if tokens <= OPEN_PATH_MAX_TOKENS.get((capability, dtype, gradients), 0) else "fused"


def device_capability(device: str) -> str:
    """A CPU's instruction set as torch names it (AVX2, AVX512), or the type of another device."""
    return torch.backends.cpu.get_cpu_capability() if device == "cpu" else device.partition(":")[0]


# Up to how many tokens the open path beats the fused kernel; combinations that are not listed take the fused kernel.
# benchmarks/results/attention-alone-avx2.json: two Zen 3 cores, at most 257 tokens; attention-alone-avx512.json: two
# Zen 4 cores, at most 1,370, freed memory kept; torch 2.13. In float32 training the fused kernel wins or ties on both.
OPEN_PATH_MAX_TOKENS: dict[tuple[str, str, bool], int] = {
    ("AVX2", "float32", False): 101,
    ("AVX512", "float32", False): 25,
    ("AVX512", "bfloat16", False): 1370,
    ("AVX512", "bfloat16", True): 1370,
}


# Relative positions in attention: learned vectors for row and column offsets, on the keys and on the values.


class RelativePositions(nn.Module):
    """Four tables [2k + 2, d], shared by the heads of one attention: rows and columns for keys, the same for values.

    Table row 0 is for every pair with a prefix token; table row 1 + k + o for the offset o = position of the key's
    patch minus position of the query's, clipped to -k .. k. A pair adds key_rows[r] + key_columns[c] to its key and
    value_rows[r] + value_columns[c] to its value. Designs that keep rows and columns in separate halves of the head
    are this one with zeros in the other half.

    No vector is built for a pair. A query is multiplied with the few vectors of the tables, and the result is spread
    over the rows and columns of the grid, then over their tokens; values take the reverse way. A row or column of the
    grid, and the prefix of either axis, is called a line here: L = (1 + h) + (1 + w) of them.

    Source: Shaw et al. 2018, section 3.3; Wu et al. 2021 for two axes.
    """

    def __init__(self, distance: int, head: int, prefix: int):
        super().__init__()
        self.distance = distance
        self.prefix = prefix
        self.key_rows = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.key_columns = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.value_rows = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.value_columns = nn.Parameter(torch.empty(2 * distance + 2, head))

    def scores(
        self, q: Float[Tensor, "B A T d"], grid: Grid, visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B A T T"]:
        """The terms that the tables add to the products of these queries with all keys."""
        lines, offsets = self._line_and_offset_masks(q, grid, visible)
        products = q @ torch.cat([self.key_rows, self.key_columns]).T  # [B, A, T, 4k + 4]
        by_line = torch.einsum("batn,btln->batl", products, offsets)  # [B, A, T, L]
        return by_line @ lines.mT

    def values(
        self, weights: Float[Tensor, "B A T T"], grid: Grid, visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B A T d"]:
        """The terms that the tables add to the values, averaged by `weights`."""
        lines, offsets = self._line_and_offset_masks(weights, grid, visible)
        by_offset = torch.einsum("batl,btln->batn", weights @ lines, offsets)  # [B, A, T, 4k + 4]
        return by_offset @ torch.cat([self.value_rows, self.value_columns])

    def _line_and_offset_masks(self, like: Tensor, grid: Grid, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Masks: 1 where a token is on a line [b, 1, T, L], and where a line is at an offset from it [b, T, L, 4k + 4].

        b is 1 where all patches are there: then all images share the masks, which are cached.
        """
        if visible is None:
            return _cached_masks(grid, self.prefix, self.distance, like.device, like.dtype)
        return _make_masks(visible, grid, self.prefix, self.distance, like.dtype)


@cache_results
def _cached_masks(
    grid: Grid, prefix: int, distance: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _make_masks(torch.arange(grid.patches, device=device)[None], grid, prefix, distance, dtype)


def _make_masks(
    patch: Int[Tensor, "b n"], grid: Grid, prefix: int, distance: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    row_lines, row_offsets = _make_axis_masks(patch // grid.columns + 1, grid.rows, prefix, distance, dtype)
    column_lines, column_offsets = _make_axis_masks(patch % grid.columns + 1, grid.columns, prefix, distance, dtype)
    lines = torch.cat([row_lines, column_lines], dim=-1)
    offsets = torch.cat(
        [
            torch.cat([row_offsets, torch.zeros_like(row_offsets)], dim=-1),
            torch.cat([torch.zeros_like(column_offsets), column_offsets], dim=-1),
        ],
        dim=-2,
    )
    return lines.unsqueeze(1), offsets


def _make_axis_masks(line: Tensor, side: int, prefix: int, distance: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The masks of one axis, for patches on its lines 1 .. side; line 0 holds the prefix."""
    line = torch.cat([line.new_zeros(len(line), prefix), line], dim=-1)[..., None]  # [b, T, 1]
    lines = torch.arange(1 + side, device=line.device)
    offset = (lines - line).clamp(-distance, distance) + distance + 1  # [b, T, 1 + side]
    offset = torch.where((lines > 0) & (line > 0), offset, torch.zeros_like(offset))
    table_rows = torch.arange(2 * distance + 2, device=line.device)
    return (line == lines).to(dtype), (offset[..., None] == table_rows).to(dtype)
