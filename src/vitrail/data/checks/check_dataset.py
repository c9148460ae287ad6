"""The dataset check (`vitrail check`): read every image once before training, and report all problems at once.

Nothing is changed or left out here; the findings name each bad image with its reason, and list what may be excluded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ...formatting import format_count
from ...randomness import permutation
from ...spec import ImageSpec
from ..source import Source
from . import bit_depth, class_balance, image_quality, leakage, mask_checks, shortcuts
from .findings import DataCheckReport, DataIssue, ImageSize
from .image_stats import MIN_SKETCHED_SIDE, ImageStatsTable, ProgressWrapper, measure_images

MAX_SKETCHES = 200_000
"""Images among which near duplicates are searched; the time grows with the square."""
MAX_SKETCHES_WITH_TIMEOUT = 20_000
DECODING_TIME_FRACTION = 0.8
"""Fraction of a time limit that is spent on decoding; the rest is for comparing."""
RANKS = {"stop": 0, "warning": 1, "hint": 2}


def check_dataset(
    source: Source,
    splits: Mapping[str, NDArray[np.int64]],
    spec: ImageSpec,
    patch: tuple[int, int] = (1, 1),
    time_limit: float | None = None,
    progress: ProgressWrapper | None = None,
    strata: str = "",
) -> DataCheckReport:
    """Decode every image of the splits, in one thread per core, and run all checks.

    Args:
        patch: rows and columns of pixels of one patch of the model.
        time_limit: about how many seconds it may take; images are then read in a random order, the same every time,
            and the findings state how many were read.
        progress: wraps the iterator of image statistics, to show progress.
        strata: the column by which the splits are stratified: it may predict the labels and is not a shortcut.
    """
    rows = np.unique(np.concatenate([*splits.values(), np.zeros(0, dtype=np.int64)]))
    if time_limit is None:
        until = None
        stats = measure_images(source, rows, spec, MAX_SKETCHES, progress=progress)
    else:
        began = time.monotonic()
        until, decode_until = began + time_limit, began + DECODING_TIME_FRACTION * time_limit
        order = rows[permutation(0, "check", 0, len(rows))]
        stats = measure_images(source, order, spec, MAX_SKETCHES_WITH_TIMEOUT, decode_until, progress)
    unreadable = np.array([row for row, _ in stats.bad_images], dtype=np.int64)
    counts = class_balance.class_counts(
        source, {split: np.setdiff1d(members, unreadable) for split, members in splits.items()}
    )
    checked = len(stats) + len(stats.bad_images)
    notes = [*([source.reason] if source.reason else []), *source.notes]
    if checked < len(rows) and time_limit is not None:
        seen = f"{checked:,} of {format_count(len(rows), 'picture')}, drawn by chance"
        notes.append(f"The check had {time_limit:.0f} s and looked at {seen}; vitrail check looks at all of them.")
    large = int(np.count_nonzero(np.minimum(stats.heights, stats.widths) >= MIN_SKETCHED_SIDE))
    if len(stats.sketch_rows) < large:
        compared = f"{len(stats.sketch_rows):,} of {format_count(large, 'picture')}, drawn by chance"
        notes.append(f"Near copies were looked for among {compared}.")
    issues: list[DataIssue] = [
        *leakage.find_leakage(source, splits, stats, until),
        *mask_checks.find_mask_issues(source, rows, stats, spec),
        *class_balance.find_class_balance_issues(source, splits, counts),
        *image_quality.find_image_quality_issues(source, stats, spec, patch),
        *bit_depth.find_depth_issues(source, stats, spec, until),
        *shortcuts.find_shortcuts(source, stats, strata),
    ]
    return DataCheckReport(
        name=source.name,
        image_count=len(rows),
        checked_count=checked,
        compared_count=len(stats.sketch_rows),
        bad_images=[(source.ids[row], reason) for row, reason in stats.bad_images],
        bad_indices=unreadable,
        class_counts=counts,
        smallest=_extreme_size(source, stats, largest=False),
        largest=_extreme_size(source, stats, largest=True),
        depths=_count_values(stats.depths),
        kinds=_count_values(stats.kinds),
        remark_counts={remark: len(remarked) for remark, remarked in stats.remarks.items()},
        issues=tuple(sorted(issues, key=lambda issue: RANKS[issue.severity])),
        notes=tuple(notes),
        ids=source.ids,
    )


def _extreme_size(source: Source, stats: ImageStatsTable, largest: bool) -> ImageSize | None:
    if not len(stats):
        return None
    areas = stats.heights.astype(np.int64) * stats.widths
    place = int(areas.argmax() if largest else areas.argmin())
    return ImageSize(
        height=int(stats.heights[place]), width=int(stats.widths[place]), id=source.ids[int(stats.rows[place])]
    )


def _count_values(values: Shaped[np.ndarray, " n"]) -> dict[str, int]:
    """Counts of each text, the most frequent first."""
    names, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(names[place]): int(counts[place]) for place in order.tolist()}
