"""Compare class maps with masks: areas of classes, and pixels that both have."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt8
from numpy.typing import NDArray

from ..data.labels.masks import read_source_mask
from ..data.loader import ImageStore
from ..data.preprocess import fit_mask
from ..data.source import UNKNOWN_PIXEL, Source
from ..model.class_maps import to_class_maps
from ..model.vit import ViT
from ..spec import ImageSpec
from .inference import InferenceSettings, forward_batch, inference_mode
from .predictions import class_areas

MAP_BATCH = 16
"""Images whose class maps are held at once."""


def count_overlaps(
    answer: UInt8[np.ndarray, "H W"], truth: UInt8[np.ndarray, "H W"], num_classes: int
) -> Float64[np.ndarray, "K 3"]:
    """For each class the fractions of the pixels that are of it by answer and mask, by answer where the mask is known,
    and by mask.
    """
    known = truth != UNKNOWN_PIXEL
    given, true = answer[known], truth[known]
    parts = (given[given == true], given, true)
    return np.stack([np.bincount(part, minlength=num_classes) / answer.size for part in parts], axis=1)


def load_mask(source: Source, row: int, spec: ImageSpec) -> UInt8[np.ndarray, "H W"]:
    """The mask of an image as the model reads the image: nearest, unknown where it is padded.

    Raises:
        DataError: it cannot be read, or has another size than the image.
    """
    return fit_mask(read_source_mask(source, row, spec), spec, UNKNOWN_PIXEL)


def measure_overlaps(
    maps: UInt8[np.ndarray, "n H W"],
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    num_classes: int,
    output_indices: Int64[np.ndarray, " k"] | None = None,
) -> Float64[np.ndarray, "n K 3"]:
    """`count_overlaps` of images with their masks.

    Args:
        output_indices: the model's output of each class of the source; None where they are the same.

    Raises:
        DataError: as `load_mask`.
    """
    known = len(source.classes)
    table = np.full(256, UNKNOWN_PIXEL, np.uint8)
    table[:known] = np.arange(known) if output_indices is None else output_indices
    parts = [
        count_overlaps(answer, table[load_mask(source, row, spec)], num_classes)
        for row, answer in zip(rows.tolist(), maps, strict=True)
    ]
    return np.array(parts, np.float64).reshape(len(rows), num_classes, 3)


def predict_areas(
    model: ViT,
    images: ImageStore,
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    settings: InferenceSettings,
) -> tuple[Float32[np.ndarray, "n K"], Float64[np.ndarray, "n K 3"]]:
    """Areas of classes, and overlaps with the masks, of images of a source, batch by batch.

    Raises:
        DataError: an image or mask cannot be read, or they differ in size.
    """
    K = model.config.outputs
    areas, overlaps = [np.zeros((0, K), np.float32)], [np.zeros((0, K, 3))]
    with inference_mode(model):
        for start in range(0, len(rows), MAP_BATCH):
            some = rows[start : start + MAP_BATCH]
            logits = forward_batch(model, images.take(some), spec, settings, "segmentation")[0]
            maps = to_class_maps(logits, model.config).cpu().numpy()
            areas.append(class_areas(maps, K))
            overlaps.append(measure_overlaps(maps, source, some, spec, K))
    return np.concatenate(areas), np.concatenate(overlaps)
