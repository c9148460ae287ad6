"""The bank: patches of good pictures, the distance of every patch to the nearest of them, and a score for each image.

Source: Roth et al. 2022, "Towards total recall in industrial anomaly detection" (PatchCore), with the distance and the
score of Damm et al. 2025, "AnomalyDINO".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import ViTConfig

LARGEST_FRACTION = 0.01
"""Fraction of an image's patches, those of the largest distances, whose mean is its score."""
ROWS_AT_ONCE = 2048
"""Patches of the bank that are compared in one matrix product; its result is as large as the hidden layer of an MLP."""


class PatchBank(nn.Module):
    """Patch features [B, N, P] to a score [B, 1]: the larger, the less the image looks like those of the bank.

    The distance of two patches is 1 - cosine, in 0..2, and that of several blocks the mean of theirs. It is computed
    in float32 in any number format, because good patches differ by hundredths.
    """

    rows: Tensor

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.blocks = config.pool_blocks
        self.patches = config.grid.patches
        self.register_buffer("rows", torch.empty(config.bank_size, config.pooled_width, dtype=torch.float16))

    def forward(self, x: Float[Tensor, "B N P"]) -> Float[Tensor, "B 1"]:
        return self.score(self.distances(x))

    def score(self, distances: Float[Tensor, "B N"]) -> Float[Tensor, "B 1"]:
        """The score of images by the distances of their patches."""
        return mean_largest(distances, self.patches)[:, None]

    def distances(self, x: Float[Tensor, "B N P"]) -> Float[Tensor, "B N"]:
        """The distance of every patch to the nearest one of the bank."""
        with torch.autocast(x.device.type, enabled=False):
            parts = [normalize_patches(some.float(), self.blocks) for some in x.split(self.patches, dim=1)]
            return torch.cat([nearest_distances(some, self.rows) for some in parts], dim=1)


def normalize_patches(x: Float[Tensor, "*n P"], blocks: int) -> Float[Tensor, "*n P"]:
    """Features of length 1 in which every block has the same part; the products of two are means of cosines."""
    return F.normalize(x.unflatten(-1, (blocks, -1)), dim=-1).flatten(-2) / blocks**0.5


def nearest_distances(x: Float[Tensor, "*n P"], rows: Float[Tensor, "M P"]) -> Float[Tensor, "*n"]:
    """1 - cosine to the nearest of the rows, all normalised; rows of float16 are compared in float32."""
    nearest = [(x @ some.float().T).amax(-1) for some in rows.split(ROWS_AT_ONCE)]
    return 1 - torch.stack(nearest).amax(0)


def mean_largest(distances: Float[Tensor, "*n N"], patches: int | None = None) -> Float[Tensor, "*n"]:
    """The mean of the largest distances, of one at least: of as many as are a hundredth of `patches`.

    Args:
        patches: of one tile, in which a small defect is as large as it can be; None for all of the image.
    """
    count = max(1, round(LARGEST_FRACTION * min(patches or distances.shape[-1], distances.shape[-1])))
    return distances.topk(count, dim=-1).values.mean(-1)
