"""Tokens-to-Token: three overlapping cuts with a small attention block between them, instead of one cut into patches.

The image is cut into 7x7 windows every 4 pixels, the tokens are laid out as an image again and cut into 3x3 windows
every 2, and once more: a token in the end has 16x16 pixels and overlaps its neighbours. Between the cuts a block with
one head of 64 numbers attends to all tokens of the image, by usual attention (t2t-transformer) or in linear time by
random features (t2t-performer).

Source: Yuan et al. 2021, "Tokens-to-Token ViT", sections 3.1 and 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ..errors import UsageError
from .config import ViTConfig
from .layers import disable_autocast

TOKEN_WIDTH = 64
"""Numbers per token between the cuts."""
RANDOM_FEATURES = 32
"""Random features of a performer block."""


class SoftSplit(nn.Module):
    """Images [B, C, H, W] to one token [D] per 16x16 pixels."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        block = TransformerBlock if config.patches == "t2t-transformer" else PerformerBlock
        self.attention1 = block(config, config.channels * 7 * 7)
        self.attention2 = block(config, TOKEN_WIDTH * 3 * 3)
        self.project = nn.Linear(TOKEN_WIDTH * 3 * 3, config.width)

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B n D"]:
        """The tokens of all patches, or of the visible ones, which are selected after all were computed.

        Raises:
            UsageError: a side of the images is not a multiple of 16.
        """
        height, width = images.shape[-2:]
        if height % 16 or width % 16:
            raise UsageError(f"Soft splits need a height and width that are multiples of 16. Got {height}x{width}.")
        x = self.attention1(_unfold_windows(images, side=7, step=4))  # [B, H/4 * W/4, 64]
        x = _unfold_windows(_tokens_to_image(x, height // 4, width // 4), side=3, step=2)  # [B, H/8 * W/8, 576]
        x = self.attention2(x)  # [B, H/8 * W/8, 64]
        x = _unfold_windows(_tokens_to_image(x, height // 8, width // 8), side=3, step=2)  # [B, N, 576]
        if visible is not None:
            x = x.gather(1, visible.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.project(x)


def _unfold_windows(image: Float[Tensor, "B C H W"], side: int, step: int) -> Float[Tensor, "B n c"]:
    """Overlapping square windows as tokens, zeros around the image; channel, row, column inside a window."""
    return F.unfold(image, kernel_size=side, stride=step, padding=(side - step + 1) // 2).transpose(1, 2)


def _tokens_to_image(x: Float[Tensor, "B T D"], rows: int, columns: int) -> Float[Tensor, "B D h w"]:
    """Tokens laid out again in rows and columns."""
    return x.transpose(1, 2).unflatten(-1, (rows, columns))


class TransformerBlock(nn.Module):
    """One-headed attention from any width to 64 numbers, then an MLP.

    The tokens become narrower, so the values replace the residual stream. As in the published weights, products are
    scaled by the input width, not by that of the head.
    """

    def __init__(self, config: ViTConfig, width: int):
        super().__init__()
        self.scale = width**-0.5
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv = nn.Linear(width, 3 * TOKEN_WIDTH, bias=False)
        self.out = nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH)
        self.norm2 = nn.LayerNorm(TOKEN_WIDTH, eps=config.norm_eps)
        self.mlp = T2TMLP(dropout=0.0)

    def forward(self, x: Float[Tensor, "B T c"]) -> Float[Tensor, "B T 64"]:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, dim=-1)  # 3 x [B, 1, T, 64]
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        x = (v + self.out(y)).squeeze(1)  # [B, T, 64]
        return x + self.mlp(self.norm2(x))


class PerformerBlock(nn.Module):
    """The same with attention in linear time: exp(q . k) is estimated by frozen random features.

    The features are part of the trained function, and therefore of the state dict. The embedding's dropout is applied
    here too.

    Source: Choromanski et al. 2020, "Rethinking Attention with Performers", positive orthogonal random features.
    """

    features: Tensor

    def __init__(self, config: ViTConfig, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv = nn.Linear(width, 3 * TOKEN_WIDTH)
        self.register_buffer("features", torch.empty(RANDOM_FEATURES, TOKEN_WIDTH))
        self.out = nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(TOKEN_WIDTH, eps=config.norm_eps)
        self.mlp = T2TMLP(config.dropout)

    def forward(self, x: Float[Tensor, "B T c"]) -> Float[Tensor, "B T 64"]:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)  # 3 x [B, T, 64]
        with disable_autocast(x.device.type):  # bfloat16 is too coarse for exponents of some tens
            y = linear_attention(positive_features(q, self.features), positive_features(k, self.features), v)
        x = v + self.dropout(self.out(y.to(v.dtype)))
        return x + self.mlp(self.norm2(x))


def positive_features(x: Float[Tensor, "B T c"], features: Float[Tensor, "m c"]) -> Float[Tensor, "B T m"]:
    """exp(w . x - |x|^2 / 2) / sqrt(m) of every random direction w, in float32; products of two estimate exp(x . y)."""
    x, features = x.float(), features.float()
    exponent = torch.einsum("btc,mc->btm", x, features) - x.square().sum(-1, keepdim=True) / 2
    return exponent.exp() / len(features) ** 0.5


def linear_attention(
    q: Float[Tensor, "B T m"], k: Float[Tensor, "B T m"], v: Float[Tensor, "B T c"]
) -> Float[Tensor, "B T c"]:
    """Values averaged with weights q . k, without the table of all pairs; 1e-8 keeps the division safe."""
    sums = torch.einsum("btm,bm->bt", q, k.sum(1)).unsqueeze(-1)  # [B, T, 1]
    values = torch.einsum("btc,btm->bcm", v.float(), k)
    return torch.einsum("btm,bcm->btc", q, values) / (sums + 1e-8)


class T2TMLP(nn.Module):
    """An MLP as wide inside as outside; dropout after its second matrix."""

    def __init__(self, dropout: float):
        super().__init__()
        self.fc1 = nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH)
        self.fc2 = nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T 64"]) -> Float[Tensor, "B T 64"]:
        return self.dropout(self.fc2(F.gelu(self.fc1(x))))


@torch.no_grad()
def fill_random_features(features: Float[Tensor, "m c"], generator: Generator) -> None:
    """Initial values of a performer's frozen features, in place: orthogonal rows, each sqrt(m) long."""
    nn.init.orthogonal_(features, gain=len(features) ** 0.5, generator=generator)
