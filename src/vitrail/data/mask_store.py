"""Masks of the rows of a source at the size that a model reads, as the targets of segmentation."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from ..spec import ImageSpec
from .labels.masks import read_source_mask
from .parallel import map_in_order
from .preprocess import fit_mask
from .source import UNKNOWN_PIXEL, Source


def load_mask(source: Source, row: int, spec: ImageSpec) -> UInt8[np.ndarray, "H W"]:
    """The mask of an image as the model reads the image: nearest, unknown where it is padded.

    Raises:
        DataError: it cannot be read, or has another size than the image.
    """
    return fit_mask(read_source_mask(source, row, spec), spec, UNKNOWN_PIXEL)


def measure_map_areas(source: Source, rows: Int64[np.ndarray, " n"], spec: ImageSpec) -> Float64[np.ndarray, " n"]:
    """`ImageSpec.map_area` of images with masks, which have their size.

    Raises:
        DataError: as `load_mask`.
    """
    sizes = map_in_order(lambda row: read_source_mask(source, row, spec).shape, rows.tolist())
    return np.array([spec.map_area(height, width) for height, width in sizes])


class MaskStore:
    """The masks of some rows; those that are asked for are an array uint8 [n, H, W].

    All are read once if they take at most `limit_bytes`, else again for every batch.

    Raises:
        DataError: as `load_mask`.
    """

    def __init__(self, source: Source, rows: Int64[np.ndarray, " n"], spec: ImageSpec, limit_bytes: int):
        self._source, self._rows, self._spec = source, rows, spec
        fits = len(rows) * spec.height * spec.width <= limit_bytes
        self._kept = self._read(rows) if fits else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: Int64[np.ndarray, " b"]) -> UInt8[np.ndarray, "b H W"]:
        return self._read(self._rows[places]) if self._kept is None else self._kept[places]

    def _read(self, rows: Int64[np.ndarray, " b"]) -> UInt8[np.ndarray, "b H W"]:
        masks = list(map_in_order(lambda row: load_mask(self._source, row, self._spec), rows.tolist()))
        return np.stack(masks) if masks else np.zeros((0, *self._spec.size), np.uint8)
