"""Fill the bank of an anomaly model from good images: choose its patches, and score each image without its own.

The scores of the good images are what the promise rests on, see `evaluate.conformal.conformal_p_values`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float16, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError
from ...model.config import ViTConfig
from ...model.patch_bank import mean_largest, normalize_patches
from ...randomness import derive, permutation

MAX_NUMBERS = 2**29
"""Numbers of all patches that are held at once, 1 GiB in 16 bits; of more images a sample is taken."""
MAX_CANDIDATES = 50_000
"""Patches of which the bank is chosen; of more a sample is taken first."""
PROJECTED_WIDTH = 64
"""Numbers per patch after the random projection by which the bank is chosen."""


def sample_images(rows: NDArray[np.int64], shape: ViTConfig, seed: int, fraction: float = 1.0) -> NDArray[np.int64]:
    """The images whose patches are held at once: this fraction, or as many as `MAX_NUMBERS` allows, in their order."""
    most = MAX_NUMBERS // (shape.input_grid.patches * shape.pooled_width)
    most = max(2, min(most, math.ceil(fraction * len(rows))))
    return rows if len(rows) <= most else np.sort(rows[permutation(seed, "bank", 0, len(rows))[:most]])


def pack_patches(features: Float[Tensor, "n N P"], shape: ViTConfig) -> Float16[Tensor, "n N P"]:
    """Features of patches as a bank compares and keeps them: normalised, in 16 bits; each image by itself."""
    packed = torch.empty(features.shape, dtype=torch.float16)
    for image, values in enumerate(features):
        packed[image] = normalize_patches(values, shape.pool_blocks)
    return packed


def fill_bank(
    features: Float[Tensor, "n N P"], groups: Int64[np.ndarray, " n"], shape: ViTConfig, seed: int, device: torch.device
) -> tuple[Float16[Tensor, "M P"], Float64[np.ndarray, " n"]]:
    """The bank, and the score of each image from the bank without the patches of its group.

    Args:
        features: of the patches of good images, as they are or by `pack_patches`.
        groups: a number for each image; those of one group are left out together.
        shape: its `bank_size` is the most patches of the bank.

    Raises:
        DataError: fewer than two groups, so that nothing is left to compare with.
    """
    n, N, _ = features.shape
    if len(np.unique(groups)) < 2:
        what = "picture" if n == 1 else "group of pictures"
        raise DataError(
            f"There is only one good {what} to learn from. A promise takes at least two, of which each is judged by "
            "the others; ten are a start. Add good pictures."
        )
    packed = features if features.dtype == torch.float16 else pack_patches(features, shape)
    patches = packed.flatten(0, 1)  # [n * N, P]
    chosen = choose_patches(patches, shape.bank_size, seed, device)
    bank = patches[chosen]
    owners = torch.from_numpy(groups)[chosen // N].to(device)
    rows = bank.to(device).float()
    scores = np.empty(n)
    for i in range(n):
        nearest = _nearest_of_others(packed[i].to(device).float(), rows, owners != int(groups[i]))
        scores[i] = float(mean_largest(1 - nearest, shape.grid.patches))
    return bank, scores


def list_owners(
    features: Float16[Tensor, "n N P"], groups: Int64[np.ndarray, " n"], shape: ViTConfig, seed: int
) -> Int64[np.ndarray, " M"]:
    """The group of the image that each row of the bank of these images comes from; see `fill_bank`."""
    chosen = choose_patches(features.flatten(0, 1), shape.bank_size, seed, torch.device("cpu"))
    return groups[(chosen // features.shape[1]).numpy()]


def _nearest_of_others(x: Float[Tensor, "N P"], rows: Float[Tensor, "M P"], is_other: Tensor) -> Float[Tensor, " N"]:
    """The largest product of each patch with a row of another group."""
    nearest = torch.full((len(x),), -1.0, device=x.device)
    for some, others in zip(rows.split(8192), is_other.split(8192), strict=True):
        parts = [(part @ some.T).masked_fill_(~others, -1.0).amax(-1) for part in x.split(2048)]
        nearest = torch.maximum(nearest, torch.cat(parts))
    return nearest


def choose_patches(patches: Float[Tensor, "m P"], most: int, seed: int, device: torch.device) -> Int64[Tensor, " k"]:
    """Rows of the bank, ascending: all patches, or so many that every patch has a near one among them.

    Greedy k-centre: always the patch that is farthest from those chosen so far, by a random projection, which keeps
    distances to a few per cent.

    Source: Gonzalez 1985, "Clustering to minimize the maximum intercluster distance"; Sener and Savarese 2018; the
    projection as in Roth et al. 2022.
    """
    m, P = patches.shape
    if m <= most:
        return torch.arange(m)
    candidates = np.arange(m)
    if m > max(MAX_CANDIDATES, most):
        candidates = np.sort(permutation(seed, "candidates", 0, m)[: max(MAX_CANDIDATES, most)])
    generator = torch.Generator().manual_seed(derive(seed, "projection", 0))
    projection = torch.randn(P, min(P, PROJECTED_WIDTH), generator=generator) / PROJECTED_WIDTH**0.5
    places = torch.from_numpy(candidates)
    x = (patches[places].float() @ projection).to(device)  # [c, 64]
    halves = x.square().sum(1) / 2
    farthest = torch.zeros(most, dtype=torch.int64, device=device)
    nearest = torch.full((len(x),), torch.inf, device=device)  # half the squared distance
    for k in range(1, most):
        one = farthest[k - 1]
        nearest = torch.minimum(nearest, halves - x @ x[one] + halves[one])
        farthest[k] = nearest.argmax()
    return places[farthest.cpu().sort().values]
