"""Synthetic dataset with ground truth for explanations: the pixels that determine each class are known.

Each textured background has two glyphs of 16 x 16 pixels, equally bright and equally large: one of four shapes, which
alone determines the class, and a decoy, a disc, the same in every class. An optional "hospital tag", a small bright
code in a corner, correlates with the class in most images, as hospital marks did in published datasets. Explanations,
shortcut detection and metrics can be tested against this ground truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from numpy.typing import NDArray

from ...randomness import uniform
from ..source import Source
from .lazy_sequences import NumberedNames

CLASSES = ("cross", "frame", "plus", "ring")
SIDE = 64
GLYPH = 16
"""Side of a glyph's box."""
STEP = 8
"""Boxes begin at multiples of this, so that patches of 8 pixels can outline one exactly."""
BORDER = 8
"""Least distance of glyphs from the edge: the border shows no class unless there is a tag."""
STROKE = 112
"""Number of pixels of every glyph, so that no class is brighter than another."""
BRIGHT = 90
"""Contrast of a glyph with its background in grey levels."""
TAG_CORRELATION = 0.95
"""Fraction of the images whose tag is that of their class; the other tags are random."""
COUNT = 2_000


@dataclass(frozen=True, eq=False)
class SyntheticImages:
    """Images with their ground truth."""

    images: UInt8[np.ndarray, "n 64 64"]
    targets: Int64[np.ndarray, " n"]
    """Indices into CLASSES."""
    glyph_masks: Bool[np.ndarray, "n 64 64"]
    """Mask of the glyph that determines the class."""
    glyph_boxes: Bool[np.ndarray, "n 64 64"]
    """Mask of the box of 16 x 16 pixels around it, for maps of patches."""
    decoy_masks: Bool[np.ndarray, "n 64 64"]
    """Mask of the decoy, which is independent of the class."""
    tag_masks: Bool[np.ndarray, "n 64 64"]
    """Mask of the tag; empty where there are no tags."""
    tags: Int64[np.ndarray, " n"]
    """The class of each tag; -1 where there are no tags."""


@dataclass(frozen=True, eq=False)
class SyntheticPairs:
    """Images with the glyphs of two classes, to test class-specific explanations."""

    images: UInt8[np.ndarray, "n 64 64"]
    targets: Int64[np.ndarray, "n 2"]
    """Two different indices into CLASSES."""
    glyph_masks: Bool[np.ndarray, "n 2 64 64"]
    """Masks of both glyphs."""
    glyph_boxes: Bool[np.ndarray, "n 2 64 64"]
    """Masks of the boxes of 16 x 16 pixels around them."""


def open_synthetic(tag: bool = False) -> Source:
    """The images of `make_synthetic_images(2000, seed=0, tag=tag)`: 1,400 for training, 200 for val, 400 for test."""
    synthetic = make_synthetic_images(COUNT, seed=0, tag=tag)
    rows = np.arange(COUNT)
    return Source(
        name="planted",
        classes=CLASSES,
        images=synthetic.images,
        targets=synthetic.targets,
        ids=NumberedNames("planted", COUNT),
        splits={"train": rows[:1400], "val": rows[1400:1600], "test": rows[1600:]},
        notes=(f"Generated pictures{' with a tag that betrays the class' if tag else ''}: nothing was photographed.",),
    )


def make_synthetic_images(count: int, seed: int, tag: bool = False) -> SyntheticImages:
    """Draw images; image i depends on the seed and on i alone, and apart from its tag not on `tag`.

    The classes cycle, so that any run of rows holds all of them equally often.
    """
    rows = np.arange(count)
    targets = rows % len(CLASSES)
    draws = uniform(seed, "planted", 0, rows, 5)  # [n, 5]
    glyph_at, decoy_at = _draw_positions(draws[:, 0])  # [n, 2] each
    glyph_masks = _paste_boxes(GLYPHS[targets], glyph_at)
    decoy_masks = _paste_boxes(np.broadcast_to(DECOY, (count, GLYPH, GLYPH)), decoy_at)
    images = _render_glyphs(seed, rows, glyph_masks | decoy_masks, draws[:, 1:3])
    tags = np.full(count, -1)
    tag_masks = np.zeros((count, SIDE, SIDE), dtype=bool)
    if tag:
        tags = np.where(draws[:, 3] < TAG_CORRELATION, targets, (draws[:, 4] * len(CLASSES)).astype(np.int64))
        images[:, TAG_AT[0], TAG_AT[1]] = 30 + 215 * TAGS[tags]
        tag_masks[:, TAG_AT[0], TAG_AT[1]] = True
    return SyntheticImages(
        images=np.rint(images).clip(0, 255).astype(np.uint8),
        targets=targets,
        glyph_masks=glyph_masks,
        glyph_boxes=_paste_boxes(np.ones((count, GLYPH, GLYPH), dtype=bool), glyph_at),
        decoy_masks=decoy_masks,
        tag_masks=tag_masks,
        tags=tags,
    )


def make_synthetic_pairs(count: int, seed: int) -> SyntheticPairs:
    """Draw images as `make_synthetic_images` does, with the glyph of a second class in place of the decoy.

    The twelve ordered pairs of classes cycle.
    """
    rows = np.arange(count)
    first = rows % len(CLASSES)
    second = (first + 1 + rows // len(CLASSES) % (len(CLASSES) - 1)) % len(CLASSES)
    draws = uniform(seed, "planted pairs", 0, rows, 3)
    places = _draw_positions(draws[:, 0])
    masks = np.stack([_paste_boxes(GLYPHS[of], at) for of, at in zip((first, second), places, strict=True)], axis=1)
    full = np.ones((count, GLYPH, GLYPH), dtype=bool)
    images = _render_glyphs(seed, rows, masks[:, 0] | masks[:, 1], draws[:, 1:])
    return SyntheticPairs(
        images=np.rint(images).clip(0, 255).astype(np.uint8),
        targets=np.stack([first, second], axis=1),
        glyph_masks=masks,
        glyph_boxes=np.stack([_paste_boxes(full, at) for at in places], axis=1),
    )


def _render_glyphs(
    seed: int, rows: NDArray[np.int64], glyphs: NDArray[np.bool_], draws: NDArray[np.float64]
) -> NDArray[np.floating]:
    """Textures with glyphs [n, 64, 64]; brightness and contrast of each image by its two random numbers."""
    level, contrast = 60 + 60 * draws[:, 0], BRIGHT * (0.8 + 0.4 * draws[:, 1])
    images = _make_texture(seed, rows) + level[:, None, None].astype(np.float32)
    return images + glyphs * contrast[:, None, None].astype(np.float32)


def _make_glyph(distance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The STROKE pixels nearest to a shape; of equals, those nearer to the centre."""
    order = np.argsort((distance + MIDDLE / 1000).ravel(), kind="stable")
    glyph = np.zeros(GLYPH * GLYPH, dtype=bool)
    glyph[order[:STROKE]] = True
    return glyph.reshape(GLYPH, GLYPH)


_ROWS, _COLUMNS = np.mgrid[0:GLYPH, 0:GLYPH] - (GLYPH - 1) / 2
MIDDLE = np.hypot(_ROWS, _COLUMNS)
"""Distance of each pixel of a glyph's box from its centre."""
GLYPHS = np.stack(
    [
        _make_glyph(np.minimum(np.abs(_ROWS - _COLUMNS), np.abs(_ROWS + _COLUMNS))),  # cross
        _make_glyph(np.abs(np.maximum(np.abs(_ROWS), np.abs(_COLUMNS)) - 7)),  # frame
        _make_glyph(np.minimum(np.abs(_ROWS), np.abs(_COLUMNS))),  # plus
        _make_glyph(np.abs(MIDDLE - 5.5)),  # ring
    ]
)
"""bool [4, 16, 16], in the order of CLASSES."""
DECOY = _make_glyph(MIDDLE)  # a disc
TAG_AT = (slice(1, 7), slice(1, 13))
"""Rows and columns of the tag: inside the border, at the upper left."""
TAGS = np.kron(np.array([[[1, 0, 0, 1]], [[0, 1, 1, 0]], [[1, 1, 0, 0]], [[0, 0, 1, 1]]]), np.ones((6, 3))).astype(bool)
"""bool [4, 6, 12]: bars, with half of the pixels bright in each."""


def _draw_positions(draw: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Upper left corners (row, column) of glyph and decoy, uniform among pairs whose boxes do not overlap."""
    starts = np.arange(BORDER, SIDE - BORDER - GLYPH + 1, STEP)
    corners = np.stack(np.meshgrid(starts, starts, indexing="ij"), -1).reshape(-1, 2)  # [25, 2]
    apart = (np.abs(corners[:, None] - corners[None]) >= GLYPH).any(-1)  # [25, 25]
    pairs = np.argwhere(apart)
    chosen = pairs[(draw * len(pairs)).astype(np.int64)]  # [n, 2]
    return corners[chosen[:, 0]], corners[chosen[:, 1]]


def _paste_boxes(boxes: NDArray[np.bool_], corners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Place boxes [n, 16, 16] in images [n, 64, 64] at their upper left corners."""
    masks = np.zeros((len(boxes), SIDE, SIDE), dtype=bool)
    rows = corners[:, 0, None, None] + np.arange(GLYPH)[None, :, None]
    columns = corners[:, 1, None, None] + np.arange(GLYPH)[None, None, :]
    masks[np.arange(len(boxes))[:, None, None], rows, columns] = boxes
    return masks


def _make_texture(seed: int, rows: NDArray[np.int64]) -> NDArray[np.floating]:
    """Noise of two scales plus pixel noise, around 0: [n, 64, 64]."""
    coarse = _smooth_noise(uniform(seed, "planted clouds", 0, rows, 5 * 5), 5) * 50
    fine = _smooth_noise(uniform(seed, "planted ripples", 0, rows, 17 * 17), 17) * 40
    draws = uniform(seed, "planted grain", 0, rows, SIDE * SIDE // 4)  # each of 53 bits: enough for four of 8
    grain = (draws * 2.0**32).astype(np.uint32).view(np.uint8).reshape(-1, SIDE, SIDE)
    return coarse + fine + (grain.astype(np.float32) / 255 - 0.5) * 24


def _smooth_noise(draws: NDArray[np.float64], side: int) -> NDArray[np.floating]:
    """Random numbers -0.5..0.5 on a grid, linearly interpolated to the image: [n, 64, 64]."""
    grid = (draws.reshape(-1, side, side) - 0.5).astype(np.float32)
    place = np.linspace(0, side - 1, SIDE, dtype=np.float32)
    weights = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(side, dtype=np.float32)))
    return weights @ grid @ weights.T  # [64, side] @ [n, side, side] @ [side, 64]
