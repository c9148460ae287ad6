"""Planted pictures under a model and a method: glyph, decoy and tag, and pictures with two classes in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...data.preprocess import normalize, preprocess_stack
from ...data.sources.synthetic import SyntheticImages, SyntheticPairs
from ...errors import UsageError
from ...model.vit import ViT
from ...spec import Grid, ImageSpec
from .localisation import Sensitivity, class_sensitivity, covered, land
from .maps import Method, maps_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """How well maps of planted pictures lie on what was planted; one number a picture."""

    pointing: Float64[np.ndarray, " B"]
    """The most relevant patch touches the glyph's box: 1 or 0, of several equals the share."""
    in_box: Float64[np.ndarray, " B"]
    """Share of the positive relevance in the box of 16 x 16 pixels around the glyph: what a map of patches can show."""
    in_mask: Float64[np.ndarray, " B"]
    """Share on the glyph's own pixels. They fill 44 % of the box, so that a perfect map of patches has about that."""
    overlap: Float64[np.ndarray, " B"]
    """Intersection over union of the patches above the map's mean and the box."""
    on_decoy: Float64[np.ndarray, " B"]
    """Share on the decoy's pixels, which look as strong as the glyph's and say nothing."""
    on_tag: Float64[np.ndarray, " B"] | None
    """Share on the tag's field; None where the tag is switched off."""
    chance_pointing: float
    """Pointing of a random map."""
    chance_box: float
    """Share of the picture that the box covers: `in_box` of a flat map."""
    chance_mask: float
    """The same of the glyph's pixels, and of the decoy's, which are as many."""
    best_box: float
    """`in_box` of the map of whoever knows, see `perfect`."""
    best_mask: float
    """`in_mask` of it."""


def find(maps: Float64[np.ndarray, "B rows columns"], planted: SyntheticImages) -> Found:
    """Lay maps of planted pictures on the truth about them.

    Raises:
        UsageError: as `land`; or the tag is switched off in some pictures only.
    """
    in_box, in_mask, decoy = (
        land(maps, where) for where in (planted.glyph_boxes, planted.glyph_masks, planted.decoy_masks)
    )
    tagged, known = planted.tag_masks.any((1, 2)), perfect(planted, Grid(*maps.shape[1:]))
    if tagged.any() != tagged.all():
        raise UsageError(f"The tag must be on in all pictures or in none. Got {int(tagged.sum())} of {len(maps)}.")
    return Found(
        pointing=in_box.pointing,
        in_box=in_box.mass,
        in_mask=in_mask.mass,
        overlap=in_box.overlap,
        on_decoy=decoy.mass,
        on_tag=land(maps, planted.tag_masks).mass if tagged.any() else None,
        chance_pointing=float(in_box.chance_pointing.mean()),
        chance_box=float(in_box.chance_mass.mean()),
        chance_mask=float(in_mask.chance_mass.mean()),
        best_box=float(land(known, planted.glyph_boxes).mass.mean()),
        best_mask=float(land(known, planted.glyph_masks).mass.mean()),
    )


def perfect(planted: SyntheticImages, grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """The map of whoever knows: how much of each patch the glyph's box covers."""
    return covered(planted.glyph_boxes, grid)


def tell_apart(method: Method, model: ViT, pairs: SyntheticPairs, spec: ImageSpec) -> Sensitivity:
    """Does the method's map move from one glyph to the other when it is asked about the other class?

    Args:
        pairs: pictures with the glyphs of two classes; a model's output k must be class k of `planted.CLASSES`.

    Raises:
        UsageError: as `maps_of` and `land`.
    """
    device = next(model.parameters()).device
    images = images_of(pairs.pictures, spec).to(device)
    first, second = (
        maps_of(method, model, images, torch.from_numpy(classes.copy()).to(device)) for classes in pairs.targets.T
    )
    return class_sensitivity((first, second), (pairs.glyph_boxes[:, 0], pairs.glyph_boxes[:, 1]))


def images_of(pictures: np.ndarray, spec: ImageSpec) -> Float[Tensor, "B C H W"]:
    """Pictures as a model reads them."""
    return normalize(preprocess_stack(pictures, spec), spec)
