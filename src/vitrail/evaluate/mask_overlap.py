"""Compare class maps with masks: areas of classes, pixels that both have, and borders that lie close together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation
from torch import Tensor

from ..data.labels.masks import find_borders
from ..data.loader import ImageStore
from ..data.mask_store import load_mask
from ..data.source import UNKNOWN_PIXEL, Source
from ..model.class_maps import spread_logits
from ..model.vit import ViT
from ..spec import ImageSpec
from .inference import InferenceSettings, forward_batch, inference_mode
from .predictions import OVERLAP_PARTS, class_areas
from .quick_metrics import QuickMetrics
from .segmentation_metrics import mean_iou

MAP_BATCH = 16
"""Images whose class maps are held at once."""
BORDER_TOLERANCE = 2
"""Pixels by which a border may be off."""


def count_overlaps(
    answer: UInt8[np.ndarray, "H W"], truth: UInt8[np.ndarray, "H W"], num_classes: int
) -> Float64[np.ndarray, "K 7"]:
    """For each class the fractions of the pixels that are of it by answer and mask, by answer where the mask is known,
    and by mask; then those on its border, see `count_borders`.
    """
    known = truth != UNKNOWN_PIXEL
    given, true = answer[known], truth[known]
    parts = (given[given == true], given, true)
    areas = np.stack([np.bincount(part, minlength=num_classes) / answer.size for part in parts], axis=1)
    return np.concatenate([areas, count_borders(answer, truth, num_classes) / answer.size], axis=1)


def count_borders(
    answer: UInt8[np.ndarray, "H W"], truth: UInt8[np.ndarray, "H W"], num_classes: int
) -> Float64[np.ndarray, "K 4"]:
    """For each class the pixels on its border by answer, those of them that lie at most `BORDER_TOLERANCE` pixels from
    its border by mask, those on its border by mask, and those of them as close to its border by answer.

    A pixel is on the border of its class where one of its four neighbours has another; the edge of the picture is none.
    Pixels of unknown class, and the answer there, have no border and make none.

    Source: boundary F of Perazzi et al. 2016, "A Benchmark Dataset and Evaluation Methodology for Video Object
    Segmentation"; the surface Dice of Nikolov et al. 2018 is made of the same counts.
    """
    known = truth != UNKNOWN_PIXEL
    counts = np.zeros((num_classes, 4))
    maps = [np.where(known, each, UNKNOWN_PIXEL) for each in (answer, truth)]
    borders = [find_borders(each) for each in maps]
    offsets = np.arange(-BORDER_TOLERANCE, BORDER_TOLERANCE + 1)
    near = offsets[:, None] ** 2 + offsets**2 <= BORDER_TOLERANCE**2
    for k in np.unique(np.concatenate([each[border] for each, border in zip(maps, borders, strict=True)])).tolist():
        given, true = (border & (each == k) for each, border in zip(maps, borders, strict=True))
        for place, (one, other) in enumerate(((given, true), (true, given))):
            close = binary_dilation(other, near)
            counts[k, 2 * place : 2 * place + 2] = one.sum(), (one & close).sum()
    return counts


def measure_overlaps(
    maps: UInt8[np.ndarray, "n H W"],
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    num_classes: int,
    output_indices: Int64[np.ndarray, " k"] | None = None,
) -> Float64[np.ndarray, "n K 7"]:
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
    return np.array(parts, np.float64).reshape(len(rows), num_classes, len(OVERLAP_PARTS))


def predict_areas(
    model: ViT,
    images: ImageStore,
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    settings: InferenceSettings,
) -> tuple[Float32[np.ndarray, "n K"], Float64[np.ndarray, "n K 7"]]:
    """Areas of classes, and overlaps with the masks, of images of a source, batch by batch.

    Raises:
        DataError: an image or mask cannot be read, or they differ in size.
    """
    K = model.config.outputs
    areas, overlaps = [np.zeros((0, K), np.float32)], [np.zeros((0, K, len(OVERLAP_PARTS)))]
    for some, spread in _spread_batches(model, images, rows, spec, settings):
        maps = spread.argmax(1).to(torch.uint8).cpu().numpy()
        areas.append(class_areas(maps, K))
        overlaps.append(measure_overlaps(maps, source, some, spec, K))
    return np.concatenate(areas), np.concatenate(overlaps)


def measure_quickly(
    model: ViT,
    images: ImageStore,
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    settings: InferenceSettings,
) -> QuickMetrics | None:
    """Mean IoU, and the mean over images of the cross-entropy of their known pixels; None where no pixel is known.

    Raises:
        DataError: as `predict_areas`.
    """
    K = model.config.outputs
    counts, losses = np.zeros((K, len(OVERLAP_PARTS))), []
    for some, spread in _spread_batches(model, images, rows, spec, settings):
        masks = np.stack([load_mask(source, row, spec) for row in some.tolist()])
        for logits, answer, mask in zip(spread, spread.argmax(1).to(torch.uint8).cpu().numpy(), masks, strict=True):
            counts += count_overlaps(answer, mask, K)
            aims = torch.from_numpy(mask.astype(np.int64)).to(logits.device)
            if (mask != UNKNOWN_PIXEL).any():
                losses.append(float(F.cross_entropy(logits[None], aims[None], ignore_index=UNKNOWN_PIXEL)))
    return QuickMetrics("IoU", mean_iou(counts[None]), float(np.mean(losses))) if losses else None


def _spread_batches(
    model: ViT, images: ImageStore, rows: NDArray[np.int64], spec: ImageSpec, settings: InferenceSettings
) -> Iterator[tuple[NDArray[np.int64], Float[Tensor, "b K H W"]]]:
    """Some rows, and the outputs at every pixel of their images."""
    with inference_mode(model):
        for start in range(0, len(rows), MAP_BATCH):
            some = rows[start : start + MAP_BATCH]
            logits = forward_batch(model, images.take(some), spec, settings, "segmentation")[0]
            yield some, spread_logits(logits, model.config)
