"""Check pictures deeper than 8 bits: how many levels 8 bits would keep, and whether labels hang on the others."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from ...errors import DataError
from ...formatting import format_count
from ...randomness import permutation
from ...spec import ImageSpec
from ..decoding.decode import read_image
from ..decoding.decoded_image import BIT_DEPTHS
from ..parallel import map_in_order
from ..source import Source
from .findings import DataIssue
from .image_stats import ImageStatsTable

SAMPLE_IMAGES = 200
MIN_IMAGES = 40
"""Least number of images for the test of the labels."""
CROP_SIDE = 512
"""Longest side of the middle of an image that is looked at."""
MIN_ERROR_REDUCTION = 0.5
"""Fraction of the errors of the majority class that the dropped part must avoid, and the kept part must not."""
LAGS = (1, 2, 4)


def find_depth_issues(
    source: Source, stats: ImageStatsTable, spec: ImageSpec, until: float | None = None
) -> list[DataIssue]:
    """A hint on images deeper than 8 bits, and a finding if their labels hang on what 8 bits would drop.

    What 8 bits drop is measured by a linear classifier, leave-one-out, on mean, deviation and differences of neighbours
    of the rest below one of 256 levels; what they keep by the same measures of the level.

    Args:
        until: a value of `time.monotonic` after which no further image is read.
    """
    deep = stats.rows[stats.depths != "uint8"]
    rows = deep[permutation(0, "depth", 0, len(deep))[:SAMPLE_IMAGES]]
    in_time = takewhile(lambda _: until is None or time.monotonic() <= until, rows.tolist())
    read = list(map_in_order(lambda row: _read_middle(source, row, spec), in_time))
    known = [(row, values) for row, values in zip(rows.tolist(), read, strict=False) if values is not None]
    if not known:
        return []
    low, high = _natural_range([values for _, values in known], spec)
    parts = [_split_levels(values, low, high) for _, values in known]
    stored = len(np.unique(np.concatenate([part.stored for part in parts])))
    kept = len(np.unique(np.concatenate([part.kept_levels for part in parts])))
    if kept == stored:
        return []
    usual = f"8 bits for {low:g} to {high:g}"
    text = (
        f"{format_count(len(deep), 'picture')} deeper than 8 bits: of the {format_count(stored, 'different value')} "
        f"of {len(known):,}"
    )
    way = "16 bits are kept." if spec.bit_depth == 16 else "Keep 16 bits: --image.bit_depth 16."
    issues = [
        DataIssue(code="deeper-than-8-bits", severity="hint", text=f"{text}, {usual} would keep {kept:,}.", advice=way)
    ]
    if source.task != "classification" or len(known) < MIN_IMAGES:
        return issues
    targets = source.targets[[row for row, _ in known]]
    labels = targets.argmax(1) if source.has_soft_labels else targets
    majority = float(np.bincount(labels).max()) / len(labels)
    dropped, remaining = (
        _leave_one_out_accuracy(np.array(features), labels)
        for features in zip(*((part.dropped_measures, part.kept_measures) for part in parts), strict=True)
    )
    needed = majority + MIN_ERROR_REDUCTION * (1 - majority)
    if majority < 1 and dropped >= needed > remaining:
        issues.append(
            DataIssue(
                code="labels-below-8-bits",
                severity="hint" if spec.bit_depth == 16 else "warning",
                text=f"The labels hang on what {usual} would drop: simple measures of it tell the class of "
                f"{dropped:.0%} of {format_count(len(known), 'picture')}, the same of what they keep {remaining:.0%}; "
                f"always saying the most frequent class is right for {majority:.0%}.",
                advice=f"{way} Pictures converted to 8 bits would not show it.",
            )
        )
    return issues


class _LevelParts(NamedTuple):
    """An image's levels, as 8 bits would keep them and what they would drop."""

    stored: np.ndarray
    """The different values."""
    kept_levels: np.ndarray
    kept_measures: Float64[np.ndarray, " m"]
    dropped_measures: Float64[np.ndarray, " m"]


def _read_middle(source: Source, row: int, spec: ImageSpec) -> np.ndarray | None:
    """The middle of the first channel; None for an image that cannot be read."""
    try:
        values = read_image(source.images[row], spec).values
    except DataError:
        return None
    values = values if values.ndim == 2 else values[..., 0]
    top, left = (max(0, side - CROP_SIDE) // 2 for side in values.shape)
    return values[top : top + CROP_SIDE, left : left + CROP_SIDE]


def _natural_range(images: list[np.ndarray], spec: ImageSpec) -> tuple[float, float]:
    """0 to the largest value of their bits; the model's range for fractions and negative values."""
    largest = max(float(values.max()) for values in images)
    if any(values.dtype.kind == "f" or values.min() < 0 for values in images):
        return spec.low, spec.high
    return 0.0, next((2.0**bits - 1 for bits in BIT_DEPTHS if largest < 2**bits), largest)


def _split_levels(values: np.ndarray, low: float, high: float) -> _LevelParts:
    levels = (values.astype(np.float64) - low) * (255 / (high - low))
    kept = np.rint(levels).clip(0, 255)
    return _LevelParts(np.unique(values), np.unique(kept), _measure(kept), _measure(levels - kept))


def _measure(values: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, " m"]:
    """Mean, deviation, and mean absolute differences along columns and rows."""
    pairs = [(values[lag:], values[:-lag]) for lag in LAGS if lag < values.shape[0]]
    pairs += [(values[:, lag:], values[:, :-lag]) for lag in LAGS if lag < values.shape[1]]
    differences = [float(np.abs(one - other).mean()) for one, other in pairs]
    differences += [0.0] * (2 * len(LAGS) - len(differences))
    return np.array([values.mean(), values.std(), *differences])


def _leave_one_out_accuracy(features: Float64[np.ndarray, "n m"], labels: Int64[np.ndarray, " n"]) -> float:
    """Accuracy of least squares on one-hot labels, each image predicted by the others."""
    deviation = features.std(0)
    standard: NDArray[np.float64] = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1)
    design = np.concatenate([standard, np.ones((len(labels), 1))], axis=1)
    one_hot = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
    hat = design @ np.linalg.solve(design.T @ design + 1e-3 * np.eye(design.shape[1]), design.T)
    leverage = np.diag(hat)[:, None]
    predicted = (hat @ one_hot - leverage * one_hot) / np.maximum(1 - leverage, 1e-6)
    return float((predicted.argmax(1) == labels).mean())
