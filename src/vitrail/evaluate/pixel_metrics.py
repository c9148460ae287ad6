"""Pixel metrics of an anomaly model: how well its map of distances finds the pixels of given masks.

Maps are compared at the size that the model reads, between the centres of patches bilinear, and counted by `LEVELS`
levels of distance, so that any number of images fits into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Float64, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.decoding.decode import decode_image
from ..data.labels.defects import MASK_COLUMN
from ..data.loader import load_images
from ..data.preprocess import fit_array_to_tensor
from ..data.source import Source
from ..errors import DataError
from ..model.vit import ViT
from ..spec import ImageSpec
from ..stats.intervals import bootstrap_intervals
from .inference import InferenceSettings, run_inference
from .metrics import metric_fields

LEVELS = 2000
"""Levels of distance from 0 to 1; larger ones count as 1."""
AUPRO_LIMIT = 0.3
"""False alarms of pixels up to which AUPRO is measured (Bergmann et al. 2019)."""
PIXEL_SAMPLES = 200
"""Bootstrap samples."""
IMAGE_BYTES = 2**28


class DistanceMaps(nn.Module):
    """A ViT with a bank: images [B, C, H, W] to the distance of every patch [B, rows, columns]."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns"]:
        return self.model.features(images, keep=("distances",))["distances"]


def measure_pixels(
    model: ViT,
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    settings: InferenceSettings,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> dict[str, Any]:
    """The fields of `AnomalyMetrics` about pixels; none without masks.

    Good images count with all their pixels; images of defects without a mask are left out.

    Raises:
        DataError: an image or a mask cannot be read, or a mask has another size than its image.
    """
    cells = source.metadata.get(MASK_COLUMN)
    if cells is None or not any(cells[row] for row in rows.tolist()):
        return {}
    counted = np.array([bool(cells[row]) or source.targets[row] == 0 for row in rows.tolist()])
    rows, groups = rows[counted], None if groups is None else groups[counted]
    images = load_images(source, rows, spec, IMAGE_BYTES)
    maps = run_inference(DistanceMaps(model), images, rows, spec, settings)  # [n, rows, columns]
    parts = []
    for row, distances in zip(rows.tolist(), maps, strict=True):
        mask = read_mask(source, row, spec) if cells[row] else np.zeros(spec.size, bool)
        parts.append(count_levels(spread_map(distances, spec.size), mask))
    values, spans = (
        _compute(np.stack(parts)),
        bootstrap_intervals(np.stack(parts), _compute, 0, PIXEL_SAMPLES, groups=groups),
    )
    fields: dict[str, Any] = {}
    for name, value, span in zip(("pixel_auroc", "aupro"), values.tolist(), spans, strict=True):
        fields |= metric_fields(name, value, span)
    return fields


def read_mask(source: Source, row: int, spec: ImageSpec) -> Bool[np.ndarray, "H W"]:
    """The mask of an image, prepared as the model reads the image: True where it is not black.

    Raises:
        DataError: it cannot be read, or has another size than the image.
    """
    path = Path(str(source.metadata[MASK_COLUMN][row]))
    mask_spec = ImageSpec(
        height=spec.height, width=spec.width, channels=1, fit=spec.fit, crop_fraction=spec.crop_fraction,
        crop_start=spec.crop_start, interpolation="bilinear", max_pixels=spec.max_pixels,
    )  # fmt: skip
    values = decode_image(path, mask_spec)
    size = decode_image(source.images[row], spec).shape[:2]
    if values.shape[:2] != size:
        raise DataError(
            f"The mask {path} has {values.shape[0]}x{values.shape[1]} pixels, and its picture {source.ids[row]} has "
            f"{size[0]}x{size[1]}. A mask needs the size of its picture."
        )
    return fit_array_to_tensor((values > 0).astype(np.uint8) * np.uint8(255), mask_spec)[0].numpy() >= 128


def spread_map(distances: Float32[np.ndarray, "rows columns"], size: tuple[int, int]) -> Float32[np.ndarray, "H W"]:
    """The distances of patches at every pixel, bilinear between their centres."""
    return F.interpolate(torch.from_numpy(distances)[None, None], size=size, mode="bilinear")[0, 0].numpy()


def count_levels(distances: Float32[np.ndarray, "H W"], mask: Bool[np.ndarray, "H W"]) -> Float64[np.ndarray, "3 L"]:
    """Pixels of defects, other pixels, and fractions of every connected region, by level of distance."""
    from scipy.ndimage import label

    levels = np.clip((distances * LEVELS).astype(np.int64), 0, LEVELS - 1)
    regions, count = label(mask, structure=np.ones((3, 3)))
    sizes = np.maximum(np.bincount(regions.ravel(), minlength=count + 1), 1)
    inside = levels[mask]
    return np.stack(
        [
            np.bincount(inside, minlength=LEVELS),
            np.bincount(levels[~mask], minlength=LEVELS),
            np.bincount(inside, 1 / sizes[regions[mask]], minlength=LEVELS),
        ]
    ).astype(np.float64)


def _compute(parts: Float64[np.ndarray, "n 3 L"]) -> Float64[np.ndarray, " 2"]:
    """Pixel AUROC and AUPRO of images; NaN without pixels of either kind."""
    inside, outside, regions = parts.sum(0)[:, ::-1]  # from the largest distance on
    if not (inside.sum() and outside.sum()):
        return np.full(2, np.nan)
    above = np.cumsum(outside) - outside / 2  # of each level, other pixels above it, its own half
    auroc = 1 - float((inside * above).sum() / (inside.sum() * outside.sum()))
    alarms = np.append(0.0, np.cumsum(outside) / outside.sum())
    overlap = np.append(0.0, np.cumsum(regions) / regions.sum())
    at_limit = np.interp(AUPRO_LIMIT, alarms, overlap)
    below = alarms < AUPRO_LIMIT
    curve = np.append(alarms[below], AUPRO_LIMIT), np.append(overlap[below], at_limit)
    return np.array([auroc, float(np.trapezoid(curve[1], curve[0])) / AUPRO_LIMIT])
