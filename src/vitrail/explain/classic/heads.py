"""The attention of every head of one block, as DINO's paper shows it: what the class token looks at."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from ...errors import UsageError
from ...model.vit import ViT
from ...spec import Grid
from ..truth.scores import asked
from .drawing import WIDTH, heat, listed, outline, page, panels, photograph, scale
from .looking import block_of, reader_words, readers
from .shown import Choices, Drawn, Shown

SOURCE = "Caron et al. 2021 (DINO), figures 1 and 3"
COLUMNS = 4


def attention_heads(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """One panel a head for one picture; lines go around the fewest patches that hold a share of its attention.

    Options: layer, share. The paper's figures are of pictures enlarged to 480 pixels and more.

    Raises:
        UsageError: more than one picture, no such block, or a share outside 0..1.
    """
    if len(shown.images) != 1:
        raise UsageError(f"The figure of heads shows one picture. Got {len(shown.images)}.")
    block = block_of(model, choices.layer)
    maps = looked_at(model, shown.images, block)[0]  # [A, rows, columns]
    masks = np.stack([fewest(one, choices.share) for one in maps])
    relative = maps * shown.grid.patches
    lines = -(-(len(maps) + 2) // COLUMNS)
    figure = page(
        lines * (WIDTH / COLUMNS * 0.9 * shown.images.shape[2] / shown.images.shape[3] + 0.25),
        f"What each head of block {block} looks at",
        f"{listed(shown.names)}. Softmax weights of {reader_words(model)} on the {shown.grid.patches} patches, made to "
        f"sum to 1; 1 is an even share, colours end at the largest 1 %. Lines hold {100 * choices.share:.0f} % of each "
        f"head's attention. Attention says where a head looks, not what the answer is due to. {SOURCE}.",
    )
    cells = [axes for row in panels(figure, lines, COLUMNS) for axes in row]
    photograph(cells[0], shown.pictures[0], "picture")
    limits = (0.0, float(np.quantile(relative, 0.99)))
    drawn = heat(cells[1], relative.mean(0), limits, "mean of the heads")
    for head, axes in enumerate(cells[2 : len(maps) + 2]):
        heat(axes, relative[head], limits, f"head {head}")
        outline(axes, masks[head])
    scale(figure, drawn, cells, "times an even share")
    facts = {"source": SOURCE, "layer": block, "reader": reader_words(model)}
    return Drawn(figure, {"attention": maps, "masks": masks}, facts)


def looked_at(model: ViT, images: Float[Tensor, "B C H W"], block: int) -> Float64[np.ndarray, "B heads rows columns"]:
    """How much each head's weights fall on each patch, as the answer's readers see it; sums to 1 over the patches."""
    patch, prefix = model.config.patch, model.config.prefix
    grid = Grid(images.shape[2] // patch[0], images.shape[3] // patch[1])
    name, found = f"blocks.{block}.attention", []
    with asked(model):
        for image in images:
            weights = model.features(image[None], keep=(name,))[name][0]  # [A, T, T]
            rows = torch.einsum("t,ats->as", readers(model, image[None])[0], weights)[:, prefix:].double()
            found.append((rows / rows.sum(1, keepdim=True)).view(-1, *grid).cpu().numpy())
    return np.stack(found)


def fewest(one: Float64[np.ndarray, "rows columns"], share: float) -> Bool[np.ndarray, "rows columns"]:
    """The fewest patches that together hold a share of a map.

    Raises:
        UsageError: the share lies outside 0..1.
    """
    if not 0 < share < 1:
        raise UsageError(f"share must lie between 0 and 1, for example 0.6. Got {share}.")
    order = np.argsort(-one, axis=None, kind="stable")
    held = np.cumsum(one.ravel()[order])
    mask = np.zeros(one.size, bool)
    mask[order[: int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1]] = True
    return mask.reshape(one.shape)
