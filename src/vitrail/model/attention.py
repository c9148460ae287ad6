"""One attention with two equal paths, and the measured table that chooses between them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import AttentionChoice, ViTConfig
from .rotary import RotaryTables, rotate

Path = Literal["fused", "open"]


class Attention(nn.Module):
    """Every token looks at every token (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.scale = (config.width // config.heads) ** -0.5 if config.qk_scale is None else config.qk_scale
        self.dropout = config.attention_dropout
        self.choice: AttentionChoice = config.attention
        self.processor = place("cpu")  # asked here: a compiled forward cannot
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Float[Tensor, "B T D"], rotary: RotaryTables | None = None) -> Float[Tensor, "B T D"]:
        B, T, D = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.heads, -1)  # [B, T, 3, A, d]
        if rotary is None:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # 3 x [B, A, T, d]
        else:
            qk, v = qkv.split([2, 1], dim=2)
            q, k = rotate(qk, rotary).permute(2, 0, 3, 1, 4)
            v = v.squeeze(2).transpose(1, 2)
        here = self.processor if x.device.type == "cpu" else x.device.type
        path = choose_path(self.choice, here, str(q.dtype).removeprefix("torch."), T, torch.is_grad_enabled())
        y = attend(q, k, v, self.scale, self.dropout if self.training else 0.0, path)  # [B, A, T, d]
        return self.out(y.transpose(1, 2).reshape(B, T, D))


def attend(
    q: Float[Tensor, "B A T d"],
    k: Float[Tensor, "B A T d"],
    v: Float[Tensor, "B A T d"],
    scale: float,
    dropout: float,
    path: Path,
) -> Float[Tensor, "B A T d"]:
    """Values averaged by the softmax of scaled products; one function, by a fused kernel or in the open."""
    if path == "fused":
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    weights = attention_weights(q, k, scale)  # [B, A, T, T]
    return F.dropout(weights, dropout) @ v if dropout else weights @ v


def attention_weights(
    q: Float[Tensor, "B A T d"], k: Float[Tensor, "B A S d"], scale: float
) -> Float[Tensor, "B A T S"]:
    """How much each token looks at each other one: rows sum to 1."""
    return ((q * scale) @ k.transpose(-2, -1)).softmax(dim=-1)


def choose_path(choice: AttentionChoice, place: str, number_format: str, tokens: int, gradients: bool) -> Path:
    """The path that the settings force, or the faster one by `MEASURED`; the same at every step of a run.

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
# benchmarks/results/attention-alone-avx2.json: two Zen 3 cores; attention-alone-avx512.json: two Zen 4 cores, torch 2.13,
# longest sequence measured 257. In float32 training the fused kernel wins or ties on both.
MEASURED: dict[tuple[str, str, bool], int] = {
    ("AVX2", "float32", False): 101,
    ("AVX512", "float32", False): 257,
    ("AVX512", "bfloat16", False): 257,
    ("AVX512", "bfloat16", True): 257,
}
