"""Patch features as colours, as DINOv2 and DINOv3 show them: three principal components of the foreground."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from ...errors import UsageError
from ...model.vit import ViT
from ..truth.scores import asked
from .components import otsu, principal, towards_the_middle, without_specks
from .drawing import LIKENESS, WIDTH, heat, listed, outline, page, panels, photograph, scale
from .shown import Choices, Drawn, Shown

DINOV2 = "Oquab et al. 2023 (DINOv2), figure 1 and section 7.5"
DINOV3 = "Siméoni et al. 2025 (DINOv3), figures of features as colours, and the authors' notebook"


class Coloured(NamedTuple):
    """Patches of several pictures in one basis of colours."""

    first: Float64[np.ndarray, "B rows columns"]
    """First component of all patches in standard deviations; the foreground is above."""
    foreground: Bool[np.ndarray, "B rows columns"]
    colours: Float64[np.ndarray, "B rows columns 3"]
    """0 to 1; black where the background is."""
    mean: Float64[np.ndarray, " D"]
    axes: Float64[np.ndarray, "3 D"]
    """What the colours are made of: more pictures in the same basis have colours that can be compared."""
    shares: Float64[np.ndarray, " 3"]
    """Of the foreground's variance."""


def pca(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """DINOv2's: foreground where the first component of all patches is above 0; three components of the foreground
    between their smallest and largest value as red, green, blue.

    All pictures share one basis, so that equal colours are equal features. Options: threshold, together.

    Raises:
        UsageError: fewer than four patches are foreground.
    """
    found = as_in_dinov2(patch_features(model, shown.images), choices.threshold, choices.together)
    above = f"above {choices.threshold:g} standard deviations, towards the middle"
    how = f"foreground: first component of {_whose(choices)} {above}; colours between smallest and largest value"
    return _drawn(shown, found, how, DINOV2)


def pca_whitened(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """DINOv3's: foreground, three components of it divided by their deviations, squeezed by a sigmoid of twice that.

    The authors tell foreground by a classifier trained on nine masks; without it the first component of all patches is
    parted by Otsu's threshold, towards the middle, and single patches go with those around them. Options: together.

    Raises:
        UsageError: fewer than four patches are foreground.
    """
    found = as_in_dinov3(patch_features(model, shown.images), choices.together)
    parted = "parted by Otsu's threshold (the authors train a classifier)"
    how = f"foreground: first component of {_whose(choices)}, {parted}"
    return _drawn(shown, found, f"{how}; colours: whitened, then a sigmoid", DINOV3)


def patch_features(model: ViT, images: Float[Tensor, "B C H W"]) -> Float64[np.ndarray, "B rows columns D"]:
    """Patch tokens after the final norm."""
    with asked(model):
        dense = torch.cat([model.dense(image[None]) for image in images])  # [B, D, rows, columns]
    return np.asarray(dense.permute(0, 2, 3, 1).double().cpu().numpy(), np.float64)


def as_in_dinov2(
    features: Float64[np.ndarray, "B rows columns D"], threshold: float = 0.0, together: bool = True
) -> Coloured:
    """See `pca`."""
    first = _first(features, together)
    return _coloured(features, first, first > threshold, _stretched)


def as_in_dinov3(features: Float64[np.ndarray, "B rows columns D"], together: bool = True) -> Coloured:
    """See `pca_whitened`."""
    first = _first(features, together)
    levels = [otsu(first if together else one) for one in first]
    mask = np.stack([without_specks(one > level) for one, level in zip(first, levels, strict=True)])
    return _coloured(features, first, mask, _whitened)


def _first(features: Float64[np.ndarray, "B rows columns D"], together: bool) -> Float64[np.ndarray, "B rows columns"]:
    """The first component over all patches of all pictures, or of each, in standard deviations."""
    if not together:
        return np.concatenate([_first(one[None], True) for one in features])
    found = principal(features.reshape(-1, features.shape[-1]), 1)
    scores = (found.scores / found.deviations).reshape(features.shape[:3])
    return towards_the_middle(scores)


def _coloured(
    features: Float64[np.ndarray, "B rows columns D"],
    first: Float64[np.ndarray, "B rows columns"],
    foreground: Bool[np.ndarray, "B rows columns"],
    to_colours: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Coloured:
    if foreground.sum() < 4:
        raise UsageError(
            f"Colours need at least 4 patches of foreground. Got {int(foreground.sum())} of {foreground.size}. "
            "Lower the threshold, or show other pictures."
        )
    found = principal(features[foreground], min(3, features.shape[-1]))
    colours = np.zeros((*foreground.shape, 3))
    colours[foreground, : len(found.axes)] = to_colours(found.scores, found.deviations)
    return Coloured(first, foreground, colours, found.mean, found.axes, found.shares)


def _stretched(scores: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    reach = np.ptp(scores, axis=0)
    return (scores - scores.min(0)) / np.where(reach > 0, reach, 1)


def _whitened(scores: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-2 * scores / deviations)))


def _whose(choices: Choices) -> str:
    return "all patches" if choices.together else "each picture's own patches"


def _drawn(shown: Shown, found: Coloured, how: str, source: str) -> Drawn:
    count, (height, width) = len(shown.images), shown.images.shape[2:]
    figure = page(
        count * WIDTH / 3 * height / width * 0.94,
        "Patch features as colours",
        f"{listed(shown.names)}. Left to right: the picture; the first principal component, lines "
        "around the foreground; three components of the foreground as red, green and blue, "
        f"{100 * found.shares.sum():.0f} % of its variance. {how[0].upper()}{how[1:]}. One basis for all pictures "
        f"here: equal colours are like features. {source}.",
    )
    rows, limit, drawn = panels(figure, count, 3), float(np.abs(found.first).max()), None
    for i, (one, two, three) in enumerate(rows):
        photograph(one, shown.pictures[i], "picture" if i == 0 else "")
        drawn = heat(two, found.first[i], (-limit, limit), "first component" if i == 0 else "", LIKENESS)
        outline(two, found.foreground[i])
        photograph(three, np.rint(255 * found.colours[i]).astype(np.uint8), "three components" if i == 0 else "")
    assert drawn is not None
    scale(figure, drawn, [axes for row in rows for axes in row], "standard deviations")
    return Drawn(figure, found._asdict(), {"source": source, "foreground": how})


def project(
    features: Float64[np.ndarray, "B rows columns D"], mean: Float64[np.ndarray, " D"], axes: Float64[np.ndarray, "c D"]
) -> Float64[np.ndarray, "B rows columns c"]:
    """Other pictures' patches in a basis that was saved beside a figure."""
    return (features - mean) @ axes.T
