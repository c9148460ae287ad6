"""Compare class maps with masks: areas of classes, pixels that both have, and borders that lie close together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Float64, Int64, Integer, UInt8
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation
from torch import Tensor

from ..data.labels.masks import find_borders
from ..data.loader import ImageStore
from ..data.mask_store import load_mask
from ..data.source import UNKNOWN_PIXEL, Source
from ..model.class_maps import spread_logits, to_confidences
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
    answer: UInt8[np.ndarray, "H W"],
    confidences: UInt8[np.ndarray, "H W"],
    truth: UInt8[np.ndarray, "H W"],
    num_classes: int,
) -> Float64[np.ndarray, "K 8"]:
    """`count_areas`; the fractions of the pixels on the border of each class, see `count_borders`; and the sum of the
    confidences, in 255ths, of the known pixels that are answered as it, as a fraction of all pixels.
    """
    known = truth != UNKNOWN_PIXEL
    borders = count_borders(answer, truth, num_classes)
    sure = np.bincount(answer[known], confidences[known] / 255, num_classes)
    return np.concatenate(
        [count_areas(answer, truth, num_classes), borders / answer.size, sure[:, None] / answer.size], axis=1
    )


def count_areas(
    answer: UInt8[np.ndarray, "H W"], truth: UInt8[np.ndarray, "H W"], num_classes: int
) -> Float64[np.ndarray, "K 3"]:
    """For each class the fractions of the pixels that are of it by answer and mask, by answer where the mask is known,
    and by mask.
    """
    known = truth != UNKNOWN_PIXEL
    given, true = answer[known], truth[known]
    parts = (given[given == true], given, true)
    return np.stack([np.bincount(part, minlength=num_classes) / answer.size for part in parts], axis=1)


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
    confidences: UInt8[np.ndarray, "n H W"],
    source: Source,
    rows: NDArray[np.int64],
    spec: ImageSpec,
    num_classes: int,
    output_indices: Int64[np.ndarray, " k"] | None = None,
) -> Float64[np.ndarray, "n K 8"]:
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
        count_overlaps(answer, sure, table[load_mask(source, row, spec)], num_classes)
        for row, answer, sure in zip(rows.tolist(), maps, confidences, strict=True)
    ]
    return np.array(parts, np.float64).reshape(len(rows), num_classes, len(OVERLAP_PARTS))


class ComparedBatch(NamedTuple):
    """Some images, what a model answers, and what is true."""

    images: Integer[Tensor, "b C H W"]
    outputs: Float[Tensor, "b K H W"]
    """Logits at every pixel."""
    masks: UInt8[np.ndarray, "b H W"]

    @property
    def answers(self) -> UInt8[np.ndarray, "b H W"]:
        """The likeliest class of every pixel."""
        return self.outputs.argmax(1).to(torch.uint8).cpu().numpy()


@dataclass(frozen=True)
class MaskComparison:
    """A dense model beside the masks of some rows of a source, batch by batch.

    Raises:
        DataError: in iteration; an image or mask cannot be read, or they differ in size.
    """

    model: ViT
    images: ImageStore
    source: Source
    rows: NDArray[np.int64]
    spec: ImageSpec
    settings: InferenceSettings

    def __iter__(self) -> Iterator[ComparedBatch]:
        with inference_mode(self.model):
            for start in range(0, len(self.rows), MAP_BATCH):
                some = self.rows[start : start + MAP_BATCH]
                images = self.images.take(some)
                logits = forward_batch(self.model, images, self.spec, self.settings, "segmentation")[0]
                masks = np.stack([load_mask(self.source, row, self.spec) for row in some.tolist()])
                yield ComparedBatch(images, spread_logits(logits, self.model.config), masks)


def predict_areas(comparison: MaskComparison) -> tuple[Float32[np.ndarray, "n K"], Float64[np.ndarray, "n K 8"]]:
    """Areas of classes, and overlaps with the masks."""
    K = comparison.model.config.outputs
    areas, overlaps = [np.zeros((0, K), np.float32)], [np.zeros((0, K, len(OVERLAP_PARTS)))]
    for batch in comparison:
        answers, confidences = batch.answers, to_confidences(batch.outputs).cpu().numpy()
        areas.append(class_areas(answers, K))
        compared = zip(answers, confidences, batch.masks, strict=True)
        overlaps += [count_overlaps(*each, K)[None] for each in compared]
    return np.concatenate(areas), np.concatenate(overlaps)


def measure_quickly(comparison: MaskComparison) -> QuickMetrics | None:
    """Mean IoU, and the mean over images of the cross-entropy of their known pixels; None where no pixel is known."""
    K = comparison.model.config.outputs
    counts, losses = np.zeros((K, 3)), []
    for batch in comparison:
        for logits, answer, mask in zip(batch.outputs, batch.answers, batch.masks, strict=True):
            counts += count_areas(answer, mask, K)
            aims = torch.from_numpy(mask.astype(np.int64)).to(logits.device)
            if (mask != UNKNOWN_PIXEL).any():
                losses.append(float(F.cross_entropy(logits[None], aims[None], ignore_index=UNKNOWN_PIXEL)))
    return QuickMetrics("IoU", mean_iou(counts), float(np.mean(losses))) if losses else None
