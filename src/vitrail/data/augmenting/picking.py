"""Pictures made of their own pixels at other places: what shifts, mirrors and paddings all come down to."""

from __future__ import annotations

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor


def picked(
    images: UInt8[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> UInt8[Tensor, "B C H W"]:
    """Each picture made of the pixels at its own rows and columns, all of which must be its own."""
    B, C, H, W = images.shape
    places = rows[:, :, None] * W + columns[:, None, :]  # [B, H, W]
    places = places.view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, places).view(B, C, H, W)


def picked_or_black(
    images: UInt8[Tensor, "B C H W"], rows: Int64[Tensor, "B H"], columns: Int64[Tensor, "B W"]
) -> UInt8[Tensor, "B C H W"]:
    """As `picked`, but black where a row or a column lies outside the picture."""
    H, W = images.shape[-2:]
    inside = ((rows >= 0) & (rows < H))[:, None, :, None] & ((columns >= 0) & (columns < W))[:, None, None]
    return picked(images, rows.clamp(0, H - 1), columns.clamp(0, W - 1)) * inside


def along(length: int, device: torch.device) -> Int64[Tensor, "1 length"]:
    """0, 1, 2 ... length - 1, for pictures of one batch."""
    return torch.arange(length, device=device)[None]
