"""Random moves of a whole batch of pictures at once, on the device where the pictures lie.

The random numbers come from outside, three a picture, so that a picture's move depends on the seed, the epoch and
the picture alone, never on its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor


def crop_and_flip(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B 3"], padding: int, flip: bool
) -> UInt8[Tensor, "B C H W"]:
    """Shift every picture by up to `padding` pixels each way and mirror half of them.

    Equals padding by the nearest edge pixel, cutting out a random window of the old size, and mirroring it. Keys lie
    in [0, 1): mirror if the first is below 0.5 and `flip` is set; the second chooses the row, the third the column.

    Source: He et al. 2016, section 4.2 (with black in place of edge pixels).
    """
    if padding == 0 and not flip:
        return images
    B, C, H, W = images.shape
    shifts = torch.from_numpy((keys[:, 1:] * (2 * padding + 1)).astype(np.int64) - padding).to(images.device)
    rows = _along(H, images.device) + shifts[:, :1]  # [B, H]
    columns = _along(W, images.device) + shifts[:, 1:]  # [B, W]
    if flip:
        mirrored = torch.from_numpy(keys[:, 0] < 0.5).to(images.device)
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    places = rows.clamp_(0, H - 1)[:, :, None] * W + columns.clamp_(0, W - 1)[:, None, :]  # [B, H, W]
    places = places.view(B, 1, H * W).expand(B, C, H * W)
    return images.reshape(B, C, H * W).gather(2, places).view(B, C, H, W)


def _along(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device)[None]
