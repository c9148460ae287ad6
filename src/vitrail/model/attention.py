"""One attention with two equal paths, and the measured table that chooses between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..spec import Grid
from .config import AttentionChoice, ViTConfig
from .norms import make_norm
from .relative import RelativePositions
from .rotary import RotaryTables, rotate

Path = Literal["fused", "open"]


class Places(NamedTuple):
    """Where the tokens of a batch stand: what attention needs to know of it."""

    grid: Grid
    """Rows and columns of all patches."""
    visible: Tensor | None = None
    """Which patches are there, picture by picture [B, n]; None for all."""
    rotary: RotaryTables | None = None
    """Angles of queries and keys."""


class Attention(nn.Module):
    """Every token looks at every token (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        inner = config.attention_width
        self.heads = config.heads
        self.scale = config.head_numbers**-0.5 if config.qk_scale is None else config.qk_scale
        self.dropout = config.attention_dropout
        self.choice: AttentionChoice = config.attention
        self.processor = place("cpu")  # asked here: a compiled forward cannot
        self.qkv: nn.Module = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias and config.key_bias)
        self.qv_bias = nn.Parameter(torch.empty(2 * inner)) if config.qkv_bias and not config.key_bias else None
        self.q_norm = make_norm(config, config.head_numbers) if config.qk_norm else None
        self.k_norm = make_norm(config, config.head_numbers) if config.qk_norm else None
        self.relative = (
            RelativePositions(config.relative, config.head_numbers, config.prefix) if config.relative else None
        )
        self.out = nn.Linear(inner, config.width, bias=config.out_bias)

    def forward(self, x: Float[Tensor, "B T D"], places: Places, reads: int | None = None) -> Float[Tensor, "B r D"]:
        """What the first `reads` tokens (None: all, then r is T) gather from all."""
        q, k, v = self._heads(x, places.rotary)  # 3 x [B, A, T, d]
        if self.relative is not None:
            y = self._from_weights(self._weights(q, k, places), v, places)[:, :, :reads]
        else:
            dropout = self.dropout if self.training else 0.0
            y = attend(q[:, :, :reads], k, v, self.scale, dropout, self._path(k))  # [B, A, r, d]
        return self.out(y.transpose(1, 2).flatten(2))

    def opened(
        self, x: Float[Tensor, "B T D"], places: Places, heads: Sequence[int] | None, rows: Sequence[int] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B a r T"]]:
        """The same numbers, and the weights of the chosen heads and rows (None: all), through which gradients flow.

        What is not chosen takes the usual path.
        """
        q, k, v = self._heads(x, places.rotary)
        if self.relative is not None:
            all_weights = self._weights(q, k, places)
            weights = _cut(all_weights, heads, rows)
            y = self._from_weights(_pasted(all_weights, weights, heads, rows), v, places)
        else:
            weights = attention_weights(_cut(q, heads, rows), _cut(k, heads, None), self.scale)  # [B, a, r, T]
            y = F.dropout(weights, self.dropout, self.training) @ _cut(v, heads, None)
            if heads is not None or rows is not None:
                rest = attend(q, k, v, self.scale, self.dropout if self.training else 0.0, self._path(q))
                y = _pasted(rest, y, heads, rows)
        return self.out(y.transpose(1, 2).flatten(2)), weights

    def _heads(self, x: Float[Tensor, "B T D"], rotary: RotaryTables | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, A, T, d], normalised and turned where the design says so."""
        qkv = self._joint(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, A, d]
        if rotary is None and self.q_norm is None:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            return q, k, v
        qk, v = qkv.split([2, 1], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.stack([self.q_norm(qk[:, :, 0]), self.k_norm(qk[:, :, 1])], dim=2)
        qk = qk if rotary is None else rotate(qk, rotary)
        q, k = qk.to(v.dtype).permute(2, 0, 3, 1, 4)
        return q, k, v.squeeze(2).transpose(1, 2)

    def _joint(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T E"]:
        if self.qv_bias is None:
            return self.qkv(x)
        of_q, of_v = self.qv_bias.chunk(2)
        bias = torch.cat([of_q, torch.zeros_like(of_q), of_v])
        if isinstance(self.qkv, nn.Linear):
            return F.linear(x, self.qkv.weight, bias)
        return self.qkv(x) + bias  # what stands in for the matrix, as model/lora.py does, has more than a weight

    def _path(self, q: Tensor) -> Path:
        here = self.processor if q.device.type == "cpu" else q.device.type
        number_format = str(q.dtype).removeprefix("torch.")
        return choose_path(self.choice, here, number_format, q.shape[2], torch.is_grad_enabled())

    def _weights(self, q: Tensor, k: Tensor, places: Places) -> Float[Tensor, "B A T T"]:
        """Attention weights with relative positions in their products."""
        assert self.relative is not None
        scaled = q * self.scale
        products = scaled @ k.transpose(-2, -1) + self.relative.scores(scaled, places.grid, places.visible)
        return products.softmax(dim=-1)

    def _from_weights(self, weights: Tensor, v: Tensor, places: Places) -> Float[Tensor, "B A T d"]:
        assert self.relative is not None
        weights = F.dropout(weights, self.dropout, self.training)
        return weights @ v + self.relative.values(weights, places.grid, places.visible)


def _cut(x: Float[Tensor, "B A T n"], heads: Sequence[int] | None, rows: Sequence[int] | None) -> Tensor:
    """Only the chosen heads and tokens."""
    x = x if heads is None else x[:, list(heads)]
    return x if rows is None else x[:, :, list(rows)]


def _pasted(
    whole: Float[Tensor, "B A T n"], part: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None
) -> Float[Tensor, "B A T n"]:
    """The whole with the part in the place that `_cut` takes it from."""
    if heads is None and rows is None:
        return part
    h = torch.arange(whole.shape[1]) if heads is None else torch.tensor(list(heads))
    r = torch.arange(whole.shape[2]) if rows is None else torch.tensor(list(rows))
    at = (torch.arange(len(whole))[:, None, None], h[None, :, None], r[None, None, :])
    return whole.index_put(tuple(index.to(whole.device) for index in at), part.to(whole.dtype))


def attend(
    q: Float[Tensor, "B A T d"],
    k: Float[Tensor, "B A S d"],
    v: Float[Tensor, "B A S d"],
    scale: float,
    dropout: float,
    path: Path,
) -> Float[Tensor, "B A T d"]:
    """Values averaged by the softmax of scaled products; one function, by a fused kernel or in the open."""
    if path == "fused":
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    if not torch.is_grad_enabled() and q.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        return _answered(q, k, v, scale)
    if not dropout and torch.is_grad_enabled() and makes_again(q.shape[1] * q.shape[3], k.shape[2]):
        return _Remade.apply(q, k, v, scale)
    weights = attention_weights(q, k, scale)  # [B, A, T, S]
    return F.dropout(weights, dropout) @ v if dropout else weights @ v


ANSWERED_AT_ONCE = 2**22
"""Bytes of weights that an answer's open path makes at a time, in one buffer: they are read again out of the cache."""


def _answered(
    q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"], v: Float[Tensor, "B A S d"], scale: float
) -> Float[Tensor, "B A T d"]:
    """The open path where nothing waits for a way back: whole pictures at a time, or heads of a large one."""
    y = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    of_head = q.shape[2] * k.shape[2] * q.element_size()
    heads = min(q.shape[1], max(1, ANSWERED_AT_ONCE // of_head))
    pictures = min(q.shape[0], max(1, ANSWERED_AT_ONCE // (of_head * heads)))
    buffer = q.new_empty(pictures * heads, q.shape[2], k.shape[2])
    for queries, keys, values, found in zip(*(_tiles(x, pictures, heads) for x in (q, k, v, y)), strict=True):
        queries, keys, values = (x.flatten(0, 1) for x in (queries, keys, values))
        weights = buffer[: len(queries)]
        torch.baddbmm(weights, queries, keys.mT, beta=0, alpha=scale, out=weights)
        torch.softmax(weights, -1, out=weights)
        found.copy_((weights @ values).view(found.shape))
    return y


def _tiles(x: Float[Tensor, "B A n d"], pictures: int, heads: int) -> Iterator[Tensor]:
    """So many pictures and heads at a time."""
    return (tile for rows in x.split(pictures) for tile in rows.split(heads, dim=1))


WIDE = 512
"""Width from which the open path of a training makes its weights twice, the second time on the way back.

Kept, they and copies of queries, keys and values are a tenth of what a block keeps, at any width; made again, they cost
a hundredth of a step of ViT-B/16, but a twelfth of one of ViT-Ti/16 (EXPERIMENTS.md).
"""
LONG = 512
"""Tokens from which it does so at any width: weights grow with their square, all else that is kept does not."""


def makes_again(width: int, tokens: int) -> bool:
    """Whether the open path of a training makes its weights twice instead of keeping them; with dropout it never does.

    Args:
        width: of all heads together.
    """
    return width >= WIDE or tokens >= LONG


AT_ONCE = 2**20
"""Bytes of weights that are made at a time: they are read again while they are still near."""


class _Remade(torch.autograd.Function):
    """The open path, of which only queries, keys and values are kept: views of one tensor. The same bits, both ways."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        y = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)  # [B, A, T, d]
        for part in _parts(q, k):
            y[part] = attention_weights(q[part], k[part], scale) @ v[part]
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
        *kept, ctx.scale = inputs
        ctx.save_for_backward(*kept)

    @staticmethod
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        of_q, of_k, of_v = (torch.empty_like(each) for each in (q, k, v))
        for part in _parts(q, k):
            scaled = q[part] * ctx.scale
            weights = (scaled @ k[part].transpose(-2, -1)).softmax(dim=-1)
            of_weights = of_y[part] @ v[part].transpose(-2, -1)
            of_products = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_q[part] = (of_products @ k[part]) * ctx.scale
            of_k[part] = of_products.transpose(-2, -1) @ scaled
            of_v[part] = weights.transpose(-2, -1) @ of_y[part]
        return of_q, of_k, of_v, None


def _parts(q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"]) -> Iterator[slice]:
    """Pictures whose weights are made together."""
    pictures = max(1, AT_ONCE // (q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()))
    return (slice(first, first + pictures) for first in range(0, len(q), pictures))


def attention_weights(
    q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"], scale: float
) -> Float[Tensor, "B A T S"]:
    """How much each token looks at each other one: rows sum to 1."""
    return ((q * scale) @ k.transpose(-2, -1)).softmax(dim=-1)


def choose_path(choice: AttentionChoice, place: str, number_format: str, tokens: int, gradients: bool) -> Path:
    """The path that the settings force, or the faster one by `MEASURED`: a matter of settings, never of timing.

    Args:
        place: see `place`.
        number_format: float32, bfloat16 or float16.
        gradients: whether a backward pass follows.
    """
    if choice != "auto":
        return choice
    return "open" if tokens <= MEASURED.get((place, number_format, gradients), 0) else "fused"


def place(device: str) -> str:
    """Where products are computed: a CPU's instruction set as torch names it (AVX2, AVX512), or the device's type."""
    return torch.backends.cpu.get_cpu_capability() if device == "cpu" else device.partition(":")[0]


# Up to how many tokens two products and a softmax beat the fused kernel; what is not listed takes the fused kernel.
# benchmarks/results/attention-alone-avx2.json: two Zen 3 cores, at most 257 tokens; attention-alone-avx512.json: two
# Zen 4 cores, at most 1,370, freed memory kept; torch 2.13. In float32 training the fused kernel wins or ties on both.
MEASURED: dict[tuple[str, str, bool], int] = {
    ("AVX2", "float32", False): 101,
    ("AVX512", "float32", False): 25,
    ("AVX512", "bfloat16", False): 1370,
    ("AVX512", "bfloat16", True): 1370,
}
