"""Artefact tokens: a few patches whose tokens are far longer than the others, which hold no picture but notes.

Large models put notes about the whole picture into patches with little to see (Darcet et al. 2023, "Vision Transformers
need registers", section 2). Attention goes there, and a map lights up where nothing is.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..model.vit import ViT
from .opening import block_number, looking
from .reading import grid_of, laid_out

DEVIATIONS = 6.0
"""Median absolute deviations above the median from which on a token is one."""
TIMES = 2.0
"""It must also be so many times as long as the median one: pictures with a plain background deviate by little."""
FROM_THE_START = 1.5
"""A token that is so many times as long as the median one before the first block shows an odd patch, and no note."""
OF_ATTENTION = ("attention", "rollout", "relevance", "legrad")
"""Methods whose heat gathers on artefact tokens."""


def norms(
    model: ViT, images: Float[Tensor, "B C H W"], layer: int | None = None
) -> Float[np.ndarray, "B rows columns"]:
    """The length of each patch's token after a block; None is the last block, before the final norm.

    Raises:
        UsageError: a block that the model does not have.
    """
    name = f"blocks.{block_number(model, layer, -1)}"
    with looking(model), torch.no_grad():
        lengths = model.features(images, (name,))[name].norm(dim=-1)  # [B, T]
    return laid_out(lengths, model, grid_of(model, images)).numpy(force=True)


def artefact_patches(model: ViT, images: Float[Tensor, "B C H W"]) -> Bool[np.ndarray, "B rows columns"]:
    """Patches whose tokens the model has made far longer than the others, to write notes on.

    What is long before the first block is a patch that looks unlike the others, such as the dark part of a solar cell:
    it may be the very thing that the answer comes from.
    """
    last = f"blocks.{model.config.depth - 1}"
    with looking(model), torch.no_grad():
        kept = model.features(images, ("embedded", last))
        lengths = [laid_out(kept[name].norm(dim=-1), model, grid_of(model, images)) for name in ("embedded", last)]
    before, after = (each.numpy(force=True) for each in lengths)
    return outliers(after) & (before < FROM_THE_START * np.median(before, axis=(1, 2), keepdims=True))


def outliers(lengths: Float[np.ndarray, "B rows columns"]) -> Bool[np.ndarray, "B rows columns"]:
    """Which lengths are far beyond the others, picture by picture."""
    limits = np.array([limit(one) for one in lengths])
    return lengths > limits[:, None, None]


def limit(lengths: Float[np.ndarray, "*shape"]) -> float:
    """The length beyond which a token is an artefact, from all that are given."""
    median = float(np.median(lengths))
    return max(median + DEVIATIONS * float(np.median(np.abs(lengths - median))), TIMES * median)
