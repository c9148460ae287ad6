"""Metrics of a segmentation model from stored predictions, with 95 % intervals: IoU, Dice and boundary F of each class,
and means.

Pixels of all pictures are counted together, those of unknown class left out, at the size that the model reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from .. import config
from ..formatting import format_count
from ..stats.intervals import Interval, bootstrap_samples, student_intervals
from .metrics import describe_images, metric_fields, no_targets_error, require_finite
from .predictions import OVERLAP_PARTS, RegressionPredictions

Span = tuple[float, float]
WORST_IMAGES = 5
"""Images that are named."""


@dataclass(frozen=True, kw_only=True)
class MaskClassMetrics:
    """Metrics of one class; None where neither masks nor answers have a pixel of it."""

    name: str
    n: int
    """Images whose mask has the class."""
    iou: float | None = None
    """Pixels that are of the class by answer and mask, over those by either (intersection over union, Jaccard)."""
    iou_interval: Span | None = None
    dice: float | None = None
    """Twice the pixels by both, over the sum of those by answer and those by mask (F1 of pixels)."""
    dice_interval: Span | None = None
    boundary_f: float | None = None
    """Harmonic mean of the fraction of its border by answer that lies at most 2 pixels from its border by mask, and of
    the opposite; None where it has no border."""
    boundary_f_interval: Span | None = None
    area: float
    """Fraction of the known pixels that are of the class by mask."""
    predicted_area: float
    """The same by answer."""
    overconfidence: float | None = None
    """Mean probability of the pixels that are answered as the class, less the fraction of them that are of it: above 0
    the model is surer than it is right. None where no known pixel is answered so."""
    overconfidence_interval: Span | None = None


@dataclass(frozen=True, kw_only=True)
class WorstImage:
    """An image with a low IoU."""

    id: str
    iou: float
    """As `image_ious`."""


@dataclass(frozen=True, kw_only=True)
class SegmentationMetrics:
    """All metrics of one split; intervals are 95 %, by a bootstrap over images or whole groups."""

    split: str
    n: int
    """Images with a known pixel."""
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    mean_iou: float | None = None
    """Mean over the classes that have an IoU."""
    mean_iou_interval: Span | None = None
    mean_dice: float | None = None
    mean_dice_interval: Span | None = None
    mean_boundary_f: float | None = None
    """Mean over the classes that have a border."""
    mean_boundary_f_interval: Span | None = None
    pixel_accuracy: float | None = None
    """Fraction of the known pixels with the right class."""
    pixel_accuracy_interval: Span | None = None
    overconfidence: float | None = None
    """Mean probability of the answers to known pixels, less the fraction that is right."""
    overconfidence_interval: Span | None = None
    calibration_error: float | None = None
    """Mean size of the overconfidence of the classes, by the pixels that are answered as each. It has no interval:
    sizes are never below zero, so that those of resampled pictures are larger than that of all."""
    per_class: tuple[MaskClassMetrics, ...]
    worst: tuple[WorstImage, ...] = ()
    """Images with the lowest IoU, the lowest first."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        where = f"on {describe_images(self.n, self.split)}"
        span = _format_span(self.mean_iou_interval)
        worst = min((one for one in self.per_class if one.iou is not None), key=lambda one: one.iou or 0.0)
        return f"Mean IoU {where}: {self.mean_iou:.3f}{span}; lowest {worst.name} {worst.iou:.3f}"

    def describe_missing_intervals(self) -> str:
        """A sentence on what has no interval, or one that counts a class as known exactly; empty where all have one."""
        units = "pictures" if self.groups is None else "groups"
        if (self.n if self.groups is None else self.groups) < 2:
            return f"No intervals: they take two {units}."
        names = [one.name for one in self.per_class if one.iou is not None and one.iou_interval is None]
        if not names:
            return ""
        return (
            f"No interval for {', '.join(names)}: masks of fewer than two {units} have it. Those of the means count "
            "its figures as exact."
        )

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The means, and one line per class, for the terminal."""
        lines = [f"n = {self.n:,}" + ("" if self.groups is None else f", in {format_count(self.groups, 'group')}")]
        for name, title in MEAN_TITLES.items():
            value, span = vars(self)[name], vars(self)[f"{name}_interval"]
            if value is not None:
                lines.append(f"{title:<12} {value:6.4f}{_format_span(span)}")
        width = max(5, *(len(one.name) for one in self.per_class))
        lines += ["", f"{'class':<{width}}  pictures     IoU    Dice  border    area  answered"]
        for one in self.per_class:
            figures = (one.iou, one.dice, one.boundary_f)
            shown = "  ".join(f"{'-':>6}" if value is None else f"{value:6.4f}" for value in figures)
            areas = f"{one.area:6.2%}  {one.predicted_area:8.2%}"
            lines.append(f"{one.name:<{width}}  {one.n:>8}  {shown}  {areas}")
        if missing := self.describe_missing_intervals():
            lines += ["", missing]
        if self.worst:
            lines += ["", f"lowest IoU: {', '.join(f'{each.id} {each.iou:.3f}' for each in self.worst)}"]
        return "\n".join(lines)


MEAN_TITLES = {
    "mean_iou": "mean IoU", "mean_dice": "mean Dice", "mean_boundary_f": "boundary F", "pixel_accuracy": "pixels right",
    "overconfidence": "too sure by",
}  # fmt: skip
SURE = OVERLAP_PARTS.index("sure")


def compute_segmentation_metrics(
    predictions: RegressionPredictions, groups: np.ndarray | None = None, seed: int = 0, samples: int = 1000
) -> SegmentationMetrics:
    """Compute every metric of one table; images without a known pixel are left out.

    Args:
        groups: of each image, such as its patient.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no pixel of any image is known.
    """
    overlaps = predictions.overlaps
    known = np.zeros(len(predictions), bool) if overlaps is None else overlaps[..., 2].sum(1) > 0
    if overlaps is None or not known.any():
        raise no_targets_error(len(predictions), "mask")
    require_finite(overlaps)
    counts, own = overlaps[known], None if groups is None else groups[known]
    K = len(predictions.columns)
    values, spans = _compute(counts.sum(0)), _find_intervals(counts, own, seed, samples)
    totals = counts.sum(0)  # [K, 3]
    per_class = []
    for k, name in enumerate(predictions.columns):
        fields: dict[str, Any] = {}
        for place, kind in enumerate(("iou", "dice", "boundary_f", "overconfidence")):
            fields |= metric_fields(kind, values[place * K + k], spans[place * K + k])
        per_class.append(
            MaskClassMetrics(
                name=name,
                n=int((counts[:, k, 2] > 0).sum()),
                area=float(totals[k, 2] / totals[:, 2].sum()),
                predicted_area=float(totals[k, 1] / totals[:, 1].sum()),
                **fields,
            )
        )
    fields = {}
    for place, name in enumerate(MEAN_TITLES, 4 * K):
        fields |= metric_fields(name, values[place], spans[place])
    answered = totals[:, 1] > 0
    fields["calibration_error"] = float(
        np.abs(totals[answered, SURE] - totals[answered, 0]).sum() / totals[answered, 1].sum()
    )
    ious = image_ious(counts)
    ids = [name for name, is_known in zip(predictions.ids, known.tolist(), strict=True) if is_known]
    lowest = np.argsort(ious, kind="stable")[:WORST_IMAGES].tolist()
    return SegmentationMetrics(
        split=predictions.split,
        n=len(counts),
        groups=None if own is None else len(np.unique(own)),
        per_class=tuple(per_class),
        worst=tuple(WorstImage(id=ids[place], iou=float(ious[place])) for place in lowest if ious[place] < 1),
        **fields,
    )


def mean_iou(areas: Float64[np.ndarray, "K 3"]) -> float:
    """Mean IoU over the classes that masks or answers have, of the pixels of all images.

    Args:
        areas: sums of `mask_overlap.count_areas`.
    """
    both, answered, true = areas.T
    union = answered + true - both
    return float((both[union > 0] / union[union > 0]).mean())


def known_areas(
    overlaps: Float64[np.ndarray, "n K 8"],
) -> tuple[Float64[np.ndarray, "n K"], Float64[np.ndarray, "n K"]]:
    """The fraction of the known pixels of each image that are of each class, by answer and by mask; NaN without any."""
    known = overlaps[..., 2].sum(1)
    total = np.where(known > 0, known, np.nan)[:, None]
    return overlaps[..., 1] / total, overlaps[..., 2] / total


def image_ious(overlaps: Float64[np.ndarray, "n K 8"]) -> Float64[np.ndarray, " n"]:
    """Mean IoU of each image over the classes that its mask or answer has; NaN without a known pixel."""
    both, answered, true = np.moveaxis(overlaps[..., :3], -1, 0)
    union = answered + true - both
    ious = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    present = (union > 0).sum(1)
    return np.where(present > 0, ious.sum(1) / np.maximum(present, 1), np.nan)


def _compute(totals: Float64[np.ndarray, "*n K 8"]) -> Float64[np.ndarray, "*n M"]:
    """IoU of each class, Dice, boundary F and overconfidence of each, means of the first three, the accuracy of pixels
    and their overconfidence; NaN for a class without a pixel, or without a border.
    """
    both, answered, true, border, hit, true_border, true_hit, sure = np.moveaxis(totals, -1, 0)  # [*n, K] each
    with np.errstate(invalid="ignore", divide="ignore"):
        iou, dice = both / (answered + true - both), 2 * both / (answered + true)
        precision, recall = hit / border, true_hit / true_border
        boundary = np.where(hit > 0, 2 * precision * recall / (precision + recall), 0.0)
        excess = (sure - both) / answered
        boundary = np.where(border + true_border == 0, np.nan, boundary)
        means = [np.nansum(each, -1) / (~np.isnan(each)).sum(-1) for each in (iou, dice, boundary)]
        right = both.sum(-1) / true.sum(-1)
        all_excess = (sure.sum(-1) - both.sum(-1)) / answered.sum(-1)
    return np.concatenate([iou, dice, boundary, excess, np.stack([*means, right, all_excess], -1)], -1)


def _find_intervals(
    counts: Float64[np.ndarray, "n K 8"], groups: np.ndarray | None, seed: int, n: int
) -> list[Interval | None]:
    """The interval of each value of `_compute`.

    Of a class only the images, or groups, whose masks have it tell. A mean over classes has the degrees of freedom of a
    sum of their variances (Satterthwaite 1946), without classes of a single one.
    """
    values = _compute(counts.sum(0))
    drawn = _compute(bootstrap_samples(counts, lambda rows: rows.sum(0), seed, n, groups))
    K = counts.shape[1]
    has_class = counts[..., 2] > 0
    units = np.arange(len(counts)) if groups is None else np.unique(groups, return_inverse=True)[1]
    freedom = np.array([len(np.unique(units[has_class[:, k]])) for k in range(K)]) - 1.0
    most, known = len(np.unique(units)) - 1.0, freedom >= 1
    means = []
    for place in range(3):
        columns = drawn[:, place * K : (place + 1) * K][:, known].T
        variances = np.array([each[np.isfinite(each)].var() if np.isfinite(each).any() else 0.0 for each in columns])
        spread = (variances**2 / freedom[known]).sum()
        means.append(np.clip(variances.sum() ** 2 / spread, 1, most) if spread else most * known.any())
    degrees = np.concatenate([np.tile(freedom, 4), means, [most, most]])
    is_share = np.ones(len(values), bool)
    is_share[[*range(3 * K, 4 * K), -1]] = False
    return student_intervals(values, drawn, degrees, is_share)


def _format_span(span: Span | None) -> str:
    return "" if span is None else f" (95 % interval {span[0]:.3f} to {span[1]:.3f})"
