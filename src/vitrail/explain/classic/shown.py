"""What every classic figure is given and what it gives back: pictures in; a figure, its arrays and its facts out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ...data.preprocess import normalize, preprocess_image
from ...data.source import ImageInput
from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ...spec import Grid, ImageSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(NamedTuple):
    """Pictures as a model reads them and as people see them."""

    images: Float[Tensor, "B C H W"]
    """Normalised; sides are whole patches."""
    pictures: UInt8[np.ndarray, "B H W C"]
    """The same before normalisation."""
    names: tuple[str, ...]
    grid: Grid


@dataclass(frozen=True, kw_only=True)
class Choices:
    """All options of all figures; a figure refuses those that it does not have (see `book.draw`)."""

    layer: int | None = None
    """Which block, counted from 0; the last unless said."""
    residual: bool = True
    """rollout: add the identity, for the connections around attention, and let rows sum to 1 again."""
    renormalise: bool = True
    """attention-distance: let what each patch looks at in other patches sum to 1, without class token and registers."""
    share: float = 0.6
    """heads: the share of attention that the masks keep (0.6 in the DINO paper)."""
    threshold: float = 0.0
    """pca: how far the first component of a patch must lie above the middle to belong to the foreground."""
    together: bool = True
    """pca and pca-whitened: find the foreground in all pictures at once, as the papers do with pictures of like things;
    without it picture by picture. The colours are always found together."""
    token: int = 1
    """token-strip: which patch, counted from 1 in reading order."""


class Drawn(NamedTuple):
    """A figure and what it was made of."""

    figure: Figure
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    """Method, source and options in plain values."""


def show(model: ViT, spec: ImageSpec, pictures: Sequence[ImageInput], names: Sequence[str]) -> Shown:
    """Prepare pictures of any size for a model's figures, at the spec's size, padded if the model pads.

    Raises:
        DataError: a picture cannot be read.
        UsageError: the spec's size is not a multiple of the patch.
    """
    stack = torch.stack([preprocess_image(picture, spec) for picture in pictures])  # uint8 [B, C, H, W]
    images, patch = normalize(stack, spec), model.config.patch
    if model.config.pad:
        images, stack = pad_to_patches(images, patch), pad_to_patches(stack.float(), patch).to(torch.uint8)
    grid = Grid(images.shape[2] // patch[0], images.shape[3] // patch[1])
    return Shown(images, np.ascontiguousarray(stack.permute(0, 2, 3, 1).numpy()), tuple(names), grid)


def nothing(model: ViT) -> Shown:
    """No pictures at all, at the model's own size: for figures of the model alone."""
    config = model.config
    size = tuple(side * patch for side, patch in zip(config.grid, config.patch, strict=True))
    empty = np.zeros((0, *size, config.channels), np.uint8)
    return Shown(torch.zeros(0, config.channels, *size), empty, (), config.grid)


def larger(spec: ImageSpec, size: tuple[int, int]) -> ImageSpec:
    """The same spec for pictures of another size: DINO's figures were drawn at 480 pixels, not at 224."""
    return replace(spec, height=size[0], width=size[1])


def hash_of(model: ViT) -> str:
    """SHA-256 over the names and numbers of a model's state: which weights a figure was made of."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def facts_of(model: ViT, shown: Shown) -> dict[str, Any]:
    """Which weights and which pixels."""
    pixels = [hashlib.sha256(np.ascontiguousarray(picture).tobytes()).hexdigest() for picture in shown.pictures]
    return {
        "model_sha256": hash_of(model),
        "pictures": [{"name": name, "sha256": pixel} for name, pixel in zip(shown.names, pixels, strict=True)],
        "image_size": list(shown.images.shape[2:]),
        "grid": list(shown.grid),
    }
