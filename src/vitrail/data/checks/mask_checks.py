"""Check the masks of segmentation: sizes other than the pictures', empty masks, and classes that never occur."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...formatting import format_part
from ..labels.defects import MASK_COLUMN
from ..labels.masks import describe_size_difference, read_mask_values
from ..parallel import map_in_order
from ..source import Source
from .findings import MAX_SHOWN, DataIssue, join_names
from .image_stats import ImageStatsTable


def find_mask_issues(source: Source, rows: NDArray[np.int64], stats: ImageStatsTable) -> list[DataIssue]:
    """Report the issues of the masks of a source; none for another task.

    Args:
        rows: of all splits.
        stats: of the images that were read, whose masks are read again.
    """
    if source.legend is None:
        return []
    return [*_check_sizes(source, stats), *_check_empty_masks(source, rows), *_check_absent_classes(source, rows)]


def _check_sizes(source: Source, stats: ImageStatsTable) -> Iterator[DataIssue]:
    files = [Path(str(source.metadata[MASK_COLUMN][row])) for row in stats.rows.tolist()]
    sizes = map_in_order(lambda file: read_mask_values(file).values.shape, files)
    images = zip(stats.rows.tolist(), sizes, stats.heights.tolist(), stats.widths.tolist(), strict=True)
    found = [(row, text) for row, mask, *size in images if (text := describe_size_difference(source, row, mask, size))]
    if found:
        yield DataIssue(
            code="mask-sizes",
            severity="stop",
            text=f"{format_part(len(found), len(files), 'mask', 'has', 'have')} another size than its "
            f"picture. {found[0][1]}",
            advice="Draw them again, or leave such pictures out.",
            rows=tuple(row for row, _ in found),
        )


def _check_empty_masks(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    shares = source.targets[rows]
    unknown, plain = rows[shares.sum(1) == 0], rows[(shares > 0).sum(1) == 1]
    if len(unknown):
        named = join_names([source.ids[row] for row in unknown[:MAX_SHOWN].tolist()], len(unknown))
        yield DataIssue(
            code="empty-masks",
            severity="warning",
            text=f"{format_part(len(unknown), len(rows), 'mask', 'has', 'have')} no known pixel: {named}.",
            advice="Nothing is learnt of them, and nothing measured.",
            rows=tuple(unknown.tolist()),
        )
    if len(plain):
        named = join_names([source.ids[row] for row in plain[:MAX_SHOWN].tolist()], len(plain))
        yield DataIssue(
            code="masks-of-one-class",
            severity="hint",
            text=f"{format_part(len(plain), len(rows), 'mask', 'is', 'are')} of one class throughout: {named}.",
            advice="Pictures without any object are good to have; a mask that was never drawn is not.",
        )


def _check_absent_classes(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    absent = [repr(name) for name, most in zip(source.classes, source.targets[rows].max(0), strict=True) if most == 0]
    if len(rows) and absent:
        yield DataIssue(
            code="classes-without-pixels",
            severity="warning",
            text=f"No mask has a pixel of {join_names(absent)}, which the legend names.",
            advice="They cannot be learnt. Leave them out of the legend, or draw some.",
        )
