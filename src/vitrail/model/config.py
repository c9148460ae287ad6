"""The shape of a plain Vision Transformer, as one frozen value that `config.json` and `plan.toml` can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError
from ..spec import Grid

Patches = Literal["conv", "linear"]
Positions = Literal["learned", "indexed", "sinusoid", "sincos2d", "none"]
RotaryKind = Literal["none", "axial", "from-one"]
Pool = Literal["class", "mean"]
Head = Literal["linear", "tanh"]
AttentionChoice = Literal["auto", "fused", "open"]
Init = Literal["vitrail", "truncated", "torch"]
Norm = Literal["LayerNorm", "RMSNorm"]
Activation = Literal["GELU", "GELUTanh", "QuickGELU", "ReLU", "SiLU", "Tanh", "ELU", "LeakyReLU", "Mish"]


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Shape of a plain Vision Transformer (Dosovitskiy et al. 2020). Sizes in pixels, height before width."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width that the model was made for."""
    patch: tuple[int, int] = (16, 16)
    """Height and width of one patch."""
    channels: int = 3
    """Channels of a picture."""
    width: int = 768
    """Numbers per token; a multiple of heads."""
    depth: int = 12
    """Blocks."""
    heads: int = 12
    """Attention heads."""
    mlp_width: int = 3072
    """Hidden width of the MLP."""
    outputs: int = 1000
    """Numbers that the head gives per picture; 0 gives the pooled features."""
    patches: Patches = "conv"
    """How the projection of patches is stored: a convolution kernel or a matrix. The function is the same."""
    pad: bool = False
    """Pad pictures with zeros at the right and the bottom to whole patches, instead of refusing them."""
    class_token: bool = True
    """Put a learned class token before the patches."""
    positions: Positions = "learned"
    """What is added to the tokens: a learned table, an indexed (embedding) table, fixed waves over the token's
    number (sinusoid) or over rows and columns (sincos2d), or nothing."""
    class_position: bool = True
    """The position table has a first row for the class token."""
    rotary: RotaryKind = "none"
    """Rotation of queries and keys by row and column: axial is ours, from-one is that of xray_vit_patch16_224."""
    qkv_bias: bool = True
    """Bias of the joint projection to queries, keys and values."""
    qk_scale: float | None = None
    """Factor on the products of queries and keys; (width / heads) ** -0.5 unless given."""
    norm: Norm = "LayerNorm"
    """Class of every normalisation, by its torch name."""
    norm_eps: float = 1e-6
    """Added to the variance inside every normalisation."""
    activation: Activation = "GELU"
    """Class of the MLP's activation, by its torch name."""
    final_norm: bool = True
    """Normalise the tokens after the last block."""
    pool: Pool = "class"
    """What goes to the head: the class token, or the mean of the patch tokens."""
    head: Head = "linear"
    """One matrix, or a hidden layer with tanh before it (the ViT paper's pre-training head)."""
    dropout: float = 0.0
    """Dropout on the embeddings, in training only; as the next four."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights."""
    mlp_dropout: float = 0.0
    """Dropout after the activation and after the second matrix of the MLP."""
    drop_path: float = 0.0
    """Stochastic depth: chance that a picture skips a branch, rising linearly from 0 to this at the last block."""
    init: Init = "truncated"
    """Initial values, see model/init.py."""
    attention: AttentionChoice = "auto"
    """auto asks the measured table of model/attention.py; fused and open force one of the two equal paths."""

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_grid()
        self._check_rates()
        self._check_parts()

    def _check_counts(self) -> None:
        counts = {
            "image height": self.image_size[0],
            "image width": self.image_size[1],
            "patch height": self.patch[0],
            "patch width": self.patch[1],
            "channels": self.channels,
            "width": self.width,
            "heads": self.heads,
            "mlp_width": self.mlp_width,
        }
        for name, count in counts.items():
            if count < 1:
                raise UsageError(f"{name} must be at least 1. Got {count}.")
        if self.depth < 0 or self.outputs < 0:
            raise UsageError(f"depth and outputs must not be negative. Got depth={self.depth}, outputs={self.outputs}.")
        if self.width % self.heads:
            raise UsageError(f"width must be a multiple of heads. Got width={self.width}, heads={self.heads}.")

    def _check_grid(self) -> None:
        if self.pad:
            return
        for side, pixels, patch in zip(("height", "width"), self.image_size, self.patch, strict=True):
            if pixels % patch:
                below, above = pixels // patch * patch, -(-pixels // patch) * patch
                near = f"{below} or {above}" if below else f"{above}"
                raise UsageError(
                    f"The image {side} {pixels} is not a multiple of the patch {side} {patch}. Use {near}, or pad=true."
                )

    def _check_rates(self) -> None:
        rates = {
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "mlp_dropout": self.mlp_dropout,
            "drop_path": self.drop_path,
        }
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise UsageError(f"{name} must lie in 0 <= rate < 1. Got {rate}.")

    def _check_parts(self) -> None:
        if self.pool == "class" and not self.class_token:
            raise UsageError('pool="class" needs class_token=true. Without a class token use pool="mean".')
        head = self.width // self.heads
        if self.rotary != "none" and head % 4:
            raise UsageError(f"Rotary positions need a head width that is a multiple of 4. Got {head} (width / heads).")
        if self.positions == "sincos2d" and self.width % 4:
            raise UsageError(f"sincos2d positions need a width that is a multiple of 4. Got {self.width}.")
        if self.positions == "sinusoid" and self.width % 2:
            raise UsageError(f"sinusoid positions need an even width. Got {self.width}.")

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches of a picture of `image_size`."""
        return Grid(*(math.ceil(pixels / patch) for pixels, patch in zip(self.image_size, self.patch, strict=True)))

    @property
    def prefix(self) -> int:
        """Tokens before the patches (R)."""
        return int(self.class_token)

    @property
    def tokens(self) -> int:
        """Tokens that the encoder sees (T)."""
        return self.prefix + self.grid.patches

    @property
    def table_rows(self) -> int:
        """Rows of the position table."""
        return self.grid.patches + int(self.class_token and self.class_position)

    @property
    def patch_numbers(self) -> int:
        """Numbers in one flattened patch."""
        return self.patch[0] * self.patch[1] * self.channels
