"""How alike the patches of a picture are to one of them, as the model sees them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from .map import Map
from .opening import block_number, looking
from .reading import grid_of, laid_out


def similarity(model: ViT, images: Float[Tensor, "B C H W"], patch: int, layer: int | None = None) -> Map:
    """The cosine between every patch's token and that of patch number `patch`, from -1 to 1.

    Args:
        patch: counted from 1 in reading order, as `vitrail inspect --token` does.
        layer: the block after which tokens are compared, counted from 0; None takes them after the final norm.

    Raises:
        UsageError: a patch or block that is not there.
    """
    grid = grid_of(model, images)
    if not 1 <= patch <= grid.patches:
        raise UsageError(f"patch must lie in 1..{grid.patches} for {grid.rows} x {grid.columns} patches. Got {patch}.")
    name = "tokens" if layer is None else f"blocks.{block_number(model, layer, -1)}"
    with looking(model), torch.no_grad():
        tokens = model.features(images, (name,))[name]
        one = tokens[:, model.config.prefix + patch - 1, None]  # [B, 1, D]
        found = F.cosine_similarity(tokens, one, dim=-1)  # [B, T]
    row, column = divmod(patch - 1, grid.columns)
    return Map(
        values=laid_out(found, model, grid).numpy(force=True),
        method="similarity",
        layer="after the final norm" if layer is None else f"after block {layer}",
        unit="cosine of the angle",
        line=f"How alike each patch is to patch {patch} (row {row + 1}, column {column + 1}), whatever the class.",
        scale="cosine",
    )
