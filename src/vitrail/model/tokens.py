"""Image to tokens: cut an image into patches, project each, and put the prefix tokens before them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import UsageError
from ..formatting import format_count
from ..spec import Grid
from .config import ViTConfig
from .layers import make_norm
from .soft_split import SoftSplit


class TokenEmbedding(nn.Module):
    """Patches -> linear projection -> [class, distillation, registers, patch 1 .. N] (Dosovitskiy et al. 2020, eq. 1).

    Some designs add registers after the positions, which is the same function: registers get no position.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.pad = config.pad
        self.channels = config.channels
        self.patch = config.patch
        kinds: dict[str, type[nn.Module]] = {"conv": ConvPatches, "linear": LinearPatches}
        self.patches = kinds.get(config.patches, SoftSplit)(config)
        self.cls = nn.Parameter(torch.empty(1, 1, config.width)) if config.class_token else None
        self.distillation = nn.Parameter(torch.empty(1, 1, config.width)) if config.distillation_token else None
        self.registers = nn.Parameter(torch.empty(1, config.registers, config.width)) if config.registers else None

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Grid]:
        if not (hasattr(images, "is_floating_point") and images.is_floating_point()):
            raise UsageError(
                "The model reads a tensor of normalised images, float [B, C, H, W]; model.preprocess(images) makes one "
                f"of files, arrays and Pillow images. Got {getattr(images, 'dtype', type(images).__name__)}."
            )
        if images.shape[1] != self.channels:
            raise UsageError(
                f"The model reads {format_count(self.channels, 'channel')}. Got {images.shape[1]}: images are [B, C, "
                "H, W]."
            )
        images = pad_to_patches(images, self.patch) if self.pad else images
        grid = patch_grid(images.shape[-2:], self.patch)
        x = self.patches(images, visible)  # [B, n, D]
        prefix = [token for token in (self.cls, self.distillation, self.registers) if token is not None]
        if prefix:
            x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in prefix), x], dim=1)  # [B, R + n, D]
        return x.contiguous(), grid  # a convolution leaves channels first in memory, and every block would keep it so


class ConvPatches(nn.Module):
    """The projection as a convolution whose stride is its kernel, with a norm after it where the design has one.

    Weight [D, C, p, p].
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.patch = config.patch
        self.weight = nn.Parameter(torch.empty(config.width, config.channels, *config.patch))
        self.bias = nn.Parameter(torch.empty(config.width)) if config.patch_bias else None
        self.norm_out = make_norm(config) if config.token_norm else None

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B n D"]:
        x = F.conv2d(images, self.weight, self.bias, stride=self.patch)  # [B, D, h, w]
        x = x.flatten(2).transpose(1, 2)  # [B, N, D]
        x = x if visible is None else gather_tokens(x, visible)
        return x if self.norm_out is None else self.norm_out(x)


class LinearPatches(nn.Module):
    """The projection as a matrix on flattened patches, with norms before and after it where the design has them.

    Weight [D, C * p * p], the convolution's kernel flattened.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.patch = config.patch
        self.norm_in = make_norm(config, config.patch_dim) if config.patch_norms else None
        self.weight = nn.Parameter(torch.empty(config.width, config.patch_dim))
        self.bias = nn.Parameter(torch.empty(config.width)) if config.patch_bias else None
        self.norm_out = make_norm(config) if config.patch_norms or config.token_norm else None

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B n D"]:
        flat = patchify(images, self.patch)  # [B, N, C * p * p]
        flat = flat if visible is None else gather_tokens(flat, visible)
        flat = flat if self.norm_in is None else self.norm_in(flat)
        x = F.linear(flat, self.weight, self.bias)
        return x if self.norm_out is None else self.norm_out(x)


def patchify(images: Float[Tensor, "B C H W"], patch: tuple[int, int]) -> Float[Tensor, "B N P"]:
    """Cut images into flat patches: rows of patches first, and channel, row, column inside a patch (torch's Unfold).

    Raises:
        UsageError: a side of the images is not a multiple of the patch.
    """
    B, C, _, _ = images.shape
    h, w = patch_grid(images.shape[-2:], patch)
    x = images.reshape(B, C, h, patch[0], w, patch[1])
    return x.permute(0, 2, 4, 1, 3, 5).reshape(B, h * w, C * patch[0] * patch[1])


def unpatchify(
    flat: Float[Tensor, "B N P"], patch: tuple[int, int], grid: Grid, channels: int
) -> Float[Tensor, "B C H W"]:
    """The inverse of `patchify`: flat patches back to images."""
    x = flat.reshape(len(flat), grid.rows, grid.columns, channels, *patch)
    x = x.permute(0, 3, 1, 4, 2, 5)  # [B, C, h, p, w, p]
    return x.reshape(len(flat), channels, grid.rows * patch[0], grid.columns * patch[1])


def patch_grid(size: torch.Size | tuple[int, int], patch: tuple[int, int]) -> Grid:
    """Rows and columns of whole patches in an image of `size` (height, width).

    Raises:
        UsageError: a side is not a multiple of the patch.
    """
    for side, pixels, step in zip(("height", "width"), size, patch, strict=True):
        if pixels % step:
            raise UsageError(
                f"The image {side} {pixels} is not a multiple of the patch {side} {step}. "
                "Resize the pictures, or build the model with pad=true."
            )
    return Grid(size[0] // patch[0], size[1] // patch[1])


def pad_to_patches(images: Float[Tensor, "B C H W"], patch: tuple[int, int]) -> Float[Tensor, "B C h w"]:
    """Add zeros at the bottom and the right until both sides are whole patches."""
    height, width = images.shape[-2:]
    down, right = (math.ceil(side / step) * step - side for side, step in zip((height, width), patch, strict=True))
    return F.pad(images, (0, right, 0, down)) if down or right else images


def gather_tokens(x: Float[Tensor, "B N D"], rows: Int[Tensor, "B n"]) -> Float[Tensor, "B n D"]:
    """The tokens of the given rows, which may differ from image to image."""
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
