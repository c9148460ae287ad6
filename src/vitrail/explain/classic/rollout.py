"""Figure 6 of the ViT paper: how much of every patch reaches the answer, if all that attention does is mix tokens."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...model.vit import ViT
from ..attention import rollout
from .drawing import WIDTH, heat, listed, page, panels, photograph, scale, smooth
from .looking import reader_words
from .shown import Choices, Drawn, Shown

SOURCE = "Dosovitskiy et al. 2020, figure 6 and appendix D; Abnar and Zuidema 2020"


def attention_rollout(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """Each picture, the picture darkened where little attention comes from, and the map itself.

    Options: residual.
    """
    maps = np.stack([rolled(model, image[None], choices.residual) for image in shown.images])  # [B, rows, columns]
    how = "half of each block passes around attention" if choices.residual else "without the connections around it"
    figure = page(
        len(maps) * WIDTH / 3 * shown.images.shape[2] / shown.images.shape[3] * 0.94,
        "Attention rolled out from the answer to the picture",
        f"{listed(shown.names)}. The mean over heads, multiplied through all {model.config.depth} blocks ({how}), as "
        f"{reader_words(model)} reads it; 1 is an even share; light and colours end at the largest 1 %. It is blind to "
        f"classes: it draws the same for every answer, and shows where information may flow from, not why. {SOURCE}.",
    )
    rows = panels(figure, len(maps), 3)
    relative, drawn = maps * shown.grid.patches, None
    for i, (one, two, three) in enumerate(rows):
        photograph(one, shown.pictures[i], "input" if i == 0 else "")
        photograph(two, _darkened(shown.pictures[i], maps[i]), "times attention" if i == 0 else "")
        drawn = heat(three, relative[i], (0.0, float(np.quantile(relative, 0.99))), "attention" if i == 0 else "")
    assert drawn is not None
    scale(figure, drawn, [axes for row in rows for axes in row], "times an even share")
    return Drawn(figure, {"rollout": maps}, {"source": SOURCE, "heads": "mean", "reader": reader_words(model)})


def rolled(model: ViT, image: Float[Tensor, "1 C H W"], residual: bool) -> Float64[np.ndarray, "rows columns"]:
    """Shares of what is read at the end, by patch; with the prefix tokens' shares they sum to 1.

    Args:
        residual: each block's matrix is half attention and half identity; otherwise attention alone.
    """
    return np.asarray(rollout(model, image, residual=residual).values[0], np.float64)


def _darkened(picture: np.ndarray, one: np.ndarray) -> np.ndarray:
    """The paper's way: the picture times the map. Its largest 1 % leave the picture as it is, so that a few artefact
    tokens, to which attention goes for no reason of theirs, do not darken all the rest."""
    loud = np.quantile(one, 0.99)
    light = smooth(np.minimum(one / loud, 1) if loud > 0 else one, picture.shape[:2])
    return torch.from_numpy(picture * light[..., None]).round().clamp(0, 255).to(torch.uint8).numpy()
