"""The two figures of how a picture becomes tokens, with their arrays: the patch grid, and one patch as its strip."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ...model.vit import ViT
from .. import figures
from .shown import Choices, Drawn, Shown

SOURCE = "Dosovitskiy et al. 2020, figure 1 and equation 1"


def patch_grid(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """One picture with its patches numbered in reading order. No options.

    Raises:
        UsageError: more than one picture.
    """
    picture = _only(shown)
    figure = figures.patch_grid(picture, model.config.patch)
    return Drawn(figure, {"picture": picture}, {"source": SOURCE, "patch": list(model.config.patch)})


def token_strip(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """Where one patch lies, the patch, and the flat numbers that the projection reads. Options: token.

    Raises:
        UsageError: more than one picture, or no such patch.
    """
    picture, (height, width) = _only(shown), model.config.patch
    figure = figures.token_strip(picture, model.config.patch, choices.token)
    row, column = divmod(choices.token - 1, shown.grid.columns)
    cut = picture[row * height : (row + 1) * height, column * width : (column + 1) * width]
    facts = {"source": SOURCE, "patch": [height, width]}
    return Drawn(figure, {"strip": cut.transpose(2, 0, 1).reshape(-1)}, facts)


def _only(shown: Shown) -> np.ndarray:
    if len(shown.pictures) != 1:
        raise UsageError(f"This figure shows one picture. Got {len(shown.pictures)}.")
    return np.asarray(shown.pictures[0])
