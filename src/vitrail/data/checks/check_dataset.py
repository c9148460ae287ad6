"""The dataset check: look at every image once before anything is trained, and say all that is wrong at once.

Nothing is changed and nothing is left out here; the findings name each bad image with its reason, and list what a
person may want to leave out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ...randomness import permutation
from ...spec import ImageSpec
from ..source import Source
from . import class_balance, image_quality, leakage, shortcuts
from .findings import DataCheckReport, DataIssue, ImageSize
from .image_stats import MIN_SKETCHED_SIDE, ImageStatsTable, ProgressWrapper, measure_images

MAX_SKETCHES = 200_000
"""Near copies are looked for among so many images; their search takes time that grows with the square."""
MAX_SKETCHES_WITH_TIMEOUT = 20_000
DECODING_TIME_FRACTION = 0.8
"""Fraction of a given time that is spent on decoding; the rest is for comparing."""
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
    """Decode every image of the splits, by as many threads as there are cores, and weigh what was seen.

    Args:
        patch: rows and columns of pixels of one patch of the model.
        time_limit: about how long it may take; images are then looked at in a random order, the same every time, and
            the findings say how many there was time for.
        progress: sees each look pass, for whoever shows progress.
        strata: a column that the splits show in proportion: it may tell the labels, and is no shortcut.
    """
    rows = np.unique(np.concatenate([*splits.values(), np.zeros(0, dtype=np.int64)]))
    began, until = time.monotonic(), None
    if time_limit is None:
        looks = measure_images(source, rows, spec, MAX_SKETCHES, progress=progress)
    else:
        until = began + time_limit
        order = rows[permutation(0, "check", 0, len(rows))]
        looks = measure_images(
            source, order, spec, MAX_SKETCHES_WITH_TIMEOUT, began + DECODING_TIME_FRACTION * time_limit, progress
        )
    counts = class_balance.class_counts(source, splits)
    concerns: list[DataIssue] = [
        *leakage.find_leakage(source, splits, looks, until),
        *class_balance.find_class_balance_issues(source, splits, counts),
        *image_quality.find_image_quality_issues(source, looks, spec, patch),
        *shortcuts.find_shortcuts(source, looks, strata),
    ]
    looked = len(looks) + len(looks.bad_images)
    return DataCheckReport(
        name=source.name,
        image_count=len(rows),
        checked_count=looked,
        bad_images=[(source.ids[row], reason) for row, reason in looks.bad_images],
        bad_indices=np.array([row for row, _ in looks.bad_images], dtype=np.int64),
        class_counts=counts,
        smallest=_extreme_size(source, looks, largest=False),
        largest=_extreme_size(source, looks, largest=True),
        depths=_count_values(looks.depths),
        kinds=_count_values(looks.kinds),
        remark_counts={remark: len(found) for remark, found in looks.remarks.items()},
        issues=tuple(sorted(concerns, key=lambda concern: RANKS[concern.severity])),
        notes=(
            *([source.reason] if source.reason else []),
            *source.notes,
            *_note_unchecked_images(looked, len(rows), time_limit),
            *_note_unsketched_images(looks),
        ),
        ids=source.ids,
    )


def _extreme_size(source: Source, looks: ImageStatsTable, largest: bool) -> ImageSize | None:
    if not len(looks):
        return None
    areas = looks.heights.astype(np.int64) * looks.widths
    place = int(areas.argmax() if largest else areas.argmin())
    return ImageSize(
        height=int(looks.heights[place]), width=int(looks.widths[place]), id=source.ids[int(looks.rows[place])]
    )


def _count_values(values: Shaped[np.ndarray, " n"]) -> dict[str, int]:
    """How often each text stands, the most frequent first."""
    names, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(names[place]): int(counts[place]) for place in order.tolist()}


def _note_unchecked_images(looked: int, images: int, seconds: float | None) -> list[str]:
    if looked == images or seconds is None:
        return []
    seen = f"{looked:,} of {images:,} pictures, drawn by chance"
    return [f"The check had {seconds:.0f} s and looked at {seen}; vitrail check looks at all of them."]


def _note_unsketched_images(looks: ImageStatsTable) -> list[str]:
    large = int(np.count_nonzero(np.minimum(looks.heights, looks.widths) >= MIN_SKETCHED_SIDE))
    if len(looks.sketch_rows) == large:
        return []
    return [f"Near copies were looked for among {len(looks.sketch_rows):,} of {large:,} pictures, drawn by chance."]
