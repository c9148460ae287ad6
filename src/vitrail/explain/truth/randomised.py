"""Does a map depend on what the model has learnt? Weights are shuffled part by part, from the head down.

A method that draws the same picture of a model that knows nothing has drawn the picture, not the model. After each part
the maps are compared with those of the trained model, by rank.

Source: Adebayo et al. 2018, "Sanity checks for saliency maps", section 4.1. They draw new weights; here each tensor's
own numbers change places, so that their sizes stay and a layer scale that starts near zero cannot switch a block off.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ...errors import UsageError
from ...model.vit import ViT
from ...randomness import derive
from .localisation import correlation
from .maps import Method, maps_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Cascade:
    """What was shuffled, and how alike the maps still were."""

    parts: tuple[str, ...]
    """From the head down to the embedding; with each part those before it stay shuffled."""
    correlations: Float64[np.ndarray, "parts B"]
    """Spearman's correlation of each picture's map with that of the trained model; 0 for a map that went flat."""

    @property
    def last(self) -> Float64[np.ndarray, " B"]:
        """When nothing that was learnt is in its place: near 0 for a method that shows the model."""
        return self.correlations[-1]


def cascade(
    method: Method, model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"], seed: int = 0
) -> Cascade:
    """Shuffle the head, then the last block as well, and so on to the patches; compare the maps each time.

    The model itself stays as it is.

    Raises:
        UsageError: as `maps_of`; or a map of the trained model is flat, so that nothing can be like it.
    """
    trained = _ranks(maps_of(method, model, images, classes))
    if (flat := trained.std(1) == 0).any():
        raise UsageError(
            f"The map of picture {int(flat.argmax())} (from 0) is the same everywhere, so nothing can be like it."
        )
    shuffled, alike = copy.deepcopy(model), []
    stages = parts_of(model)
    for part in stages:
        shuffle(shuffled, part, seed)
        alike.append(correlation(trained, _ranks(maps_of(method, shuffled, images, classes))))
    return Cascade(parts=stages, correlations=np.stack(alike))


def parts_of(model: ViT) -> tuple[str, ...]:
    """What is shuffled in turn; each name is the beginning of the names of its parameters."""
    blocks = (f"encoder.blocks.{i}." for i in reversed(range(model.config.depth)))
    order = ("head.", "pool.", "encoder.norm.", *blocks, "encoder.pre_norm.", "positions.", "tokens.")
    names = [name for name, parameter in model.named_parameters() if parameter.numel() > 1]
    return tuple(part for part in order if any(name.startswith(part) for name in names))


def shuffle(model: ViT, part: str, seed: int) -> None:
    """Let the numbers of every parameter of a part change places, each parameter within itself."""
    for name, parameter in model.named_parameters():
        if name.startswith(part):
            generator = torch.Generator().manual_seed(derive(seed, f"shuffled {name}"))
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            with torch.no_grad():
                parameter.copy_(parameter.flatten()[order].view_as(parameter))


def _ranks(maps: Float64[np.ndarray, "B rows columns"]) -> Float64[np.ndarray, "B N"]:
    from scipy.stats import rankdata

    return np.asarray(rankdata(maps.reshape(len(maps), -1), axis=1), np.float64)
