"""Localization of known evidence: how well maps cover the pixels that determine the class, and baseline maps.

A map has one number per patch, so a pixel mask is first converted to the fraction of each patch that it covers. Only
positive relevance counts, because it is what a map claims to support the class.

Source: Zhang et al. 2018, "Top-down neural attention by excitation backprop", section 4.1, for the pointing game;
Arras, Osman and Samek 2022, "CLEVR-XAI", section 3, for relevance mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ...data.preprocess import normalize, preprocess_stack
from ...data.sources.synthetic import SyntheticImages, SyntheticPairs
from ...errors import UsageError
from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ...randomness import uniform
from ...spec import Grid, ImageSpec
from ..attribution import patch_grid_of
from .curves import MapFunction, compute_maps


class TargetLocalization(NamedTuple):
    """Localization of each map on its target, with chance levels; one number per image."""

    pointing: Float64[np.ndarray, " B"]
    """Pointing game: 1 if the most relevant patch touches the target, else 0; averaged over ties."""
    mass: Float64[np.ndarray, " B"]
    """Relevance mass: fraction of the positive relevance on the target, uniform within each patch; 0 without any."""
    overlap: Float64[np.ndarray, " B"]
    """Intersection over union of the patches above the map's mean and the patches that the target covers by half."""
    chance_pointing: Float64[np.ndarray, " B"]
    """Fraction of the patches that touch the target: the pointing of a random map."""
    chance_mass: Float64[np.ndarray, " B"]
    """Fraction of the image that the target covers: the mass of a constant map."""


def localize_on_targets(
    maps: Float64[np.ndarray, "B rows columns"], targets: Bool[np.ndarray, "n H W"]
) -> TargetLocalization:
    """Score maps against target masks.

    Args:
        targets: masks over the whole image, at any resolution.

    Raises:
        UsageError: not one target for each map, or an empty target.
    """
    if len(maps) != len(targets):
        raise UsageError(f"Every map needs its target. Got {len(maps)} maps and {len(targets)} targets.")
    if (empty := ~targets.any((1, 2))).any():
        raise UsageError(f"A target must hold a pixel. That of picture {int(empty.argmax())} (from 0) is empty.")
    positive = np.maximum(maps, 0)
    sums = positive.sum((1, 2), keepdims=True)
    relevance = np.divide(positive, sums, out=np.zeros_like(positive), where=sums > 0)  # zeros where there is none
    shares = patch_coverage(targets, Grid(*maps.shape[1:]))  # [B, rows, columns]
    touched = shares > 1e-9  # less is rounding
    most_relevant = maps == maps.max((1, 2), keepdims=True)
    above_mean, covered = maps > maps.mean((1, 2), keepdims=True), shares >= 0.5
    union = (above_mean | covered).sum((1, 2))
    return TargetLocalization(
        pointing=(touched & most_relevant).sum((1, 2)) / most_relevant.sum((1, 2)),
        mass=(relevance * shares).sum((1, 2)),
        overlap=(above_mean & covered).sum((1, 2)) / np.maximum(union, 1),  # 0 where both are empty
        chance_pointing=touched.mean((1, 2)),
        chance_mass=shares.mean((1, 2)),
    )


class ClassSensitivity(NamedTuple):
    """Class sensitivity on images with two classes, each with its own map; one number per image."""

    own_mass: Float64[np.ndarray, " B"]
    """Fraction of the positive relevance on both glyphs that lies on the map's own, averaged over both maps."""
    correlation: Float64[np.ndarray, " B"]
    """Pearson correlation of the two maps; 1 for a class-agnostic map."""


def compute_class_sensitivity(
    maps: tuple[Float64[np.ndarray, "B rows columns"], Float64[np.ndarray, "B rows columns"]],
    targets: tuple[Bool[np.ndarray, "B H W"], Bool[np.ndarray, "B H W"]],
) -> ClassSensitivity:
    """Measure whether the map of each class lies on the evidence of that class.

    `own_mass` is 0 where a map has no relevance on either glyph.

    Args:
        maps: of the first class of each image, and of the second.
        targets: evidence of the first class, and of the second.

    Raises:
        UsageError: as `localize_on_targets`.
    """
    on = np.stack([[localize_on_targets(one, target).mass for target in targets] for one in maps])  # [map, target, B]
    either = on.sum(1)  # [map, B]
    mine = np.stack([on[0, 0], on[1, 1]])
    own = np.divide(mine, either, out=np.zeros_like(mine), where=either > 0)
    flat = [one.reshape(len(one), -1) for one in maps]
    return ClassSensitivity(own.mean(0), row_correlation(*flat))


def patch_coverage(targets: Bool[np.ndarray, "B H W"], grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """Fraction of each patch that the target covers, for any number of pixels per patch, whole or not."""
    down, across = (_overlap_matrix(side, pixels) for side, pixels in zip(grid, targets.shape[1:], strict=True))
    return np.asarray(down @ targets.astype(np.float64) @ across.T)


def row_correlation(first: Float64[np.ndarray, "B N"], second: Float64[np.ndarray, "B N"]) -> Float64[np.ndarray, " B"]:
    """Pearson correlation row by row; 0 where either row is constant."""
    one, other = (row - row.mean(1, keepdims=True) for row in (first, second))
    product, lengths = (one * other).sum(1), np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.divide(product, lengths, out=np.zeros_like(product), where=lengths > 0)


def _overlap_matrix(cells: int, pixels: int) -> Float64[np.ndarray, "cells pixels"]:
    """Fraction of each cell that every pixel covers, along one axis; rows sum to 1."""
    step = pixels / cells
    start = np.arange(cells)[:, None] * step
    pixel = np.arange(pixels)
    return np.clip(np.minimum(start + step, pixel + 1) - np.maximum(start, pixel), 0, 1) / step


# -- Synthetic images with known evidence: glyph, decoy and tag, and images with two classes


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalizationScores:
    """Localization of maps on the parts of synthetic images; one number per image."""

    pointing: Float64[np.ndarray, " B"]
    """The most relevant patch touches the glyph's box: 1 or 0, averaged over ties."""
    in_box: Float64[np.ndarray, " B"]
    """Fraction of the positive relevance in the box of 16 x 16 pixels around the glyph."""
    in_mask: Float64[np.ndarray, " B"]
    """Fraction on the glyph's own pixels. They fill 44 % of the box, so a perfect map of patches has about that."""
    overlap: Float64[np.ndarray, " B"]
    """Intersection over union of the patches above the map's mean and the box."""
    on_decoy: Float64[np.ndarray, " B"]
    """Fraction on the decoy's pixels, which are as salient as the glyph's and carry no information."""
    on_tag: Float64[np.ndarray, " B"] | None
    """Fraction on the tag; None where the tag is switched off."""
    chance_pointing: float
    """Pointing of a random map."""
    chance_box: float
    """Fraction of the image that the box covers: `in_box` of a constant map."""
    chance_mask: float
    """The same for the pixels of the glyph, and of the decoy, which has as many."""
    best_box: float
    """`in_box` of `perfect_map`."""
    best_mask: float
    """`in_mask` of `perfect_map`."""


def score_localization(maps: Float64[np.ndarray, "B rows columns"], synthetic: SyntheticImages) -> LocalizationScores:
    """Score maps of synthetic images against their ground truth.

    Raises:
        UsageError: as `localize_on_targets`; or the tag is switched off in some images only.
    """
    in_box, in_mask, decoy = (
        localize_on_targets(maps, where)
        for where in (synthetic.glyph_boxes, synthetic.glyph_masks, synthetic.decoy_masks)
    )
    tagged, perfect = synthetic.tag_masks.any((1, 2)), perfect_map(synthetic, Grid(*maps.shape[1:]))
    if tagged.any() != tagged.all():
        raise UsageError(f"The tag must be on in all pictures or in none. Got {int(tagged.sum())} of {len(maps)}.")
    return LocalizationScores(
        pointing=in_box.pointing,
        in_box=in_box.mass,
        in_mask=in_mask.mass,
        overlap=in_box.overlap,
        on_decoy=decoy.mass,
        on_tag=localize_on_targets(maps, synthetic.tag_masks).mass if tagged.any() else None,
        chance_pointing=float(in_box.chance_pointing.mean()),
        chance_box=float(in_box.chance_mass.mean()),
        chance_mask=float(in_mask.chance_mass.mean()),
        best_box=float(localize_on_targets(perfect, synthetic.glyph_boxes).mass.mean()),
        best_mask=float(localize_on_targets(perfect, synthetic.glyph_masks).mass.mean()),
    )


def perfect_map(synthetic: SyntheticImages, grid: Grid) -> Float64[np.ndarray, "B rows columns"]:
    """The best possible map: fraction of each patch that the glyph's box covers."""
    return patch_coverage(synthetic.glyph_boxes, grid)


def measure_class_sensitivity(
    method: MapFunction, model: ViT, pairs: SyntheticPairs, spec: ImageSpec
) -> ClassSensitivity:
    """Measure whether a method's map moves from one glyph to the other with the target class.

    Args:
        pairs: images with the glyphs of two classes; output k of the model must be class k of `synthetic.CLASSES`.

    Raises:
        UsageError: as `compute_maps` and `localize_on_targets`.
    """
    device = next(model.parameters()).device
    images = normalize(preprocess_stack(pairs.images, spec), spec).to(device)
    first, second = (
        compute_maps(method, model, images, torch.from_numpy(classes.copy()).to(device)) for classes in pairs.targets.T
    )
    return compute_class_sensitivity((first, second), (pairs.glyph_boxes[:, 0], pairs.glyph_boxes[:, 1]))


# -- Baseline maps that do not depend on the model, which a method must beat
#
# Source: Adebayo et al. 2018, "Sanity checks for saliency maps", section 5, for edges; the centre prior as in Judd,
# Durand and Torralba 2012.

EDGES = "edges"
BASELINES = ("random", "centre", EDGES)


def baseline_methods(seed: int = 0) -> dict[str, MapFunction]:
    """The three baselines by name; `random` draws a number for each patch by the seed and the image's row."""

    def noise(
        model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
    ) -> Float64[np.ndarray, "B rows columns"]:
        grid = patch_grid_of(model, images)
        return uniform(seed, "random maps", 0, np.arange(len(images)), grid.patches).reshape(-1, *grid)

    return {"random": noise, "centre": center_baseline, "edges": edge_baseline}


def center_baseline(
    model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float64[np.ndarray, "B rows columns"]:
    """Centre prior: a Gaussian around the centre with a standard deviation of a quarter of each side."""
    grid = patch_grid_of(model, images)
    down, across = (np.exp(-0.5 * (((np.arange(side) + 0.5) / side - 0.5) / 0.25) ** 2) for side in grid)
    return np.broadcast_to(down[:, None] * across, (len(images), *grid)).copy()


def edge_baseline(
    model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float[Tensor, "B rows columns"]:
    """Edge strength: mean magnitude of the Sobel gradient in each patch, of the mean over channels."""
    whole = pad_to_patches(images, model.config.patch) if model.config.pad else images
    grey = F.pad(whole.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")  # [B, 1, H + 2, W + 2]
    slope, smooth = torch.tensor([-1.0, 0.0, 1.0]).to(grey), torch.tensor([1.0, 2.0, 1.0]).to(grey)
    kernels = torch.stack([smooth[:, None] * slope, slope[:, None] * smooth])[:, None]  # [2, 1, 3, 3]
    steep = F.conv2d(grey, kernels).norm(dim=1, keepdim=True)  # [B, 1, H, W]
    return F.avg_pool2d(steep, model.config.patch)[:, 0]
