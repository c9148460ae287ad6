"""The ImageNet-Segmentation protocol: attribution maps scored as segmentations by pixel accuracy, mIoU and mAP.

A map is upsampled to the image, scaled to 0..1, and thresholded at its mean. It is a crude measure, because a model may
recognise a dog by its head, but its values are published for many methods.

Source: Guillaumin et al. 2014 for the images and masks; Chefer et al. 2021, section 4.2, for the protocol.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64

from vitrail.errors import UsageError


class SegmentationScores(NamedTuple):
    """Pixel counts and the average precision of each image, so that parts of a data set can be merged."""

    correct: int
    """Pixels that are classified correctly."""
    pixels: int
    intersection: tuple[int, int]
    """Pixels in prediction and truth, of background and of object."""
    union: tuple[int, int]
    """Pixels in prediction or truth, of background and of object."""
    precisions: Float64[np.ndarray, " B"]
    """Average precision of each image, over the pixels of object and background together."""

    @property
    def accuracy(self) -> float:
        """Fraction of pixels that are classified correctly."""
        return self.correct / self.pixels

    @property
    def mean_iou(self) -> float:
        """Intersection over union over all images, the mean of object and background (mIoU)."""
        return float(
            np.mean([both / max(1, either) for both, either in zip(self.intersection, self.union, strict=True)])
        )

    @property
    def mean_average_precision(self) -> float:
        """Mean over images (mAP)."""
        return float(self.precisions.mean())


def score_segmentation(
    maps: Float[np.ndarray, "B rows columns"], masks: Bool[np.ndarray, "n H W"]
) -> SegmentationScores:
    """Score maps against masks of the objects.

    Raises:
        UsageError: not one mask a map, a mask without object or without background, or a flat map.
    """
    if len(maps) != len(masks) or not len(maps):
        raise UsageError(f"Every map needs its mask. Got {len(maps)} maps and {len(masks)} masks.")
    if (same := masks.all((1, 2)) | ~masks.any((1, 2))).any():
        raise UsageError(
            f"A mask must hold object and background. That of picture {int(same.argmax())} (from 0) does not."
        )
    heat = _upsample_and_rescale(maps, (masks.shape[1], masks.shape[2]))
    called = heat > heat.mean((1, 2), keepdims=True)
    return SegmentationScores(
        correct=int((called == masks).sum()),
        pixels=masks.size,
        intersection=(int((~called & ~masks).sum()), int((called & masks).sum())),
        union=(int((~called | ~masks).sum()), int((called | masks).sum())),
        precisions=np.array([_average_precision(*pair) for pair in zip(heat, masks, strict=True)]),
    )


def merge_segmentation_scores(parts: list[SegmentationScores]) -> SegmentationScores:
    """Merge the scores of several parts of a data set."""
    return SegmentationScores(
        correct=sum(part.correct for part in parts),
        pixels=sum(part.pixels for part in parts),
        intersection=(sum(part.intersection[0] for part in parts), sum(part.intersection[1] for part in parts)),
        union=(sum(part.union[0] for part in parts), sum(part.union[1] for part in parts)),
        precisions=np.concatenate([part.precisions for part in parts]),
    )


def _upsample_and_rescale(
    maps: Float[np.ndarray, "B rows columns"], size: tuple[int, int]
) -> Float64[np.ndarray, "B H W"]:
    """Bilinear upsampling between patch centres, then each map scaled to 0..1."""
    large = F.interpolate(torch.from_numpy(maps).double()[:, None], size=size, mode="bilinear", align_corners=False)
    found = large[:, 0].numpy()
    low, high = found.min((1, 2), keepdims=True), found.max((1, 2), keepdims=True)
    if (flat := (high == low)[:, 0, 0]).any():
        raise UsageError(f"A map must not be the same everywhere. That of picture {int(flat.argmax())} (from 0) is.")
    return (found - low) / (high - low)


def _average_precision(heat: Float64[np.ndarray, "H W"], mask: Bool[np.ndarray, "H W"]) -> float:
    from sklearn.metrics import average_precision_score

    truth = np.concatenate([~mask.ravel(), mask.ravel()])
    return float(average_precision_score(truth, np.concatenate([1 - heat.ravel(), heat.ravel()])))
