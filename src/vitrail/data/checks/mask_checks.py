"""Check the masks of segmentation: sizes other than the pictures', empty and shifted masks, and absent classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Shaped, UInt8
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ...errors import DataError
from ...formatting import format_count, format_part
from ...spec import ImageSpec
from ..decoding.decode import read_image
from ..labels.defects import MASK_COLUMN
from ..labels.masks import describe_size_difference, find_borders, read_mask_values, read_source_mask
from ..parallel import map_in_order
from ..source import Source
from .findings import MAX_SHOWN, DataIssue, join_names
from .image_stats import ImageStatsTable

MAX_SHIFT = 8
"""Pixels by which masks may be shifted and found so."""
MIN_SHIFT = 2
"""A shift of one pixel is how some tools draw."""
MAX_SHIFT_IMAGES, MIN_SHIFT_IMAGES = 64, 4
EDGE_BLUR = 1.0
"""Standard deviation in pixels of the blur before edges are measured: grain has none."""
MIN_BORDER_PIXELS = 50
"""Of an image, for its edges to be compared."""
MIN_EDGE_GAIN = 1.2
"""How many times as strong the edges below the shifted borders must be."""
MIN_AGREEING = 0.75
"""Fraction of the images whose edges must lie better below the shifted borders."""


def find_mask_issues(
    source: Source, rows: NDArray[np.int64], stats: ImageStatsTable, spec: ImageSpec
) -> list[DataIssue]:
    """Report the issues of the masks of a source; none for another task.

    Args:
        rows: of all splits.
        stats: of the images that were read, whose masks are read again.
        spec: how images are read.
    """
    if source.legend is None:
        return []
    return [
        *_check_sizes(source, stats),
        *_check_empty_masks(source, rows),
        *_check_absent_classes(source, rows),
        *_check_shift(source, stats, spec),
    ]


def _check_sizes(source: Source, stats: ImageStatsTable) -> Iterator[DataIssue]:
    files = [str(source.metadata[MASK_COLUMN][row]) for row in stats.rows.tolist()]
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
    present = len(source.classes) - len(absent)
    if len(rows) and present < 2:
        yield DataIssue(
            code="one-class-of-pixels",
            severity="stop",
            text=f"The masks have pixels of {'only one class' if present else 'no class'}; telling apart takes two.",
            advice="Draw another class, or name its value in the legend.",
        )
    elif len(rows) and absent:
        yield DataIssue(
            code="classes-without-pixels",
            severity="warning",
            text=f"No mask has a pixel of {join_names(absent)}, which the legend names.",
            advice="They cannot be learnt. Leave them out of the legend, or draw some.",
        )


def _check_shift(source: Source, stats: ImageStatsTable, spec: ImageSpec) -> Iterator[DataIssue]:
    chosen = np.unique(np.linspace(0, max(len(stats) - 1, 0), MAX_SHIFT_IMAGES).astype(np.int64))[: len(stats)]
    measured: list[Float64[np.ndarray, "S S"]] = []
    for row in stats.rows[chosen].tolist():
        try:
            classes = read_source_mask(source, row, spec)
        except DataError:  # of another size, which is an issue of its own
            continue
        if (edges := measure_edges(read_image(source.images[row], spec).values, classes)) is not None:
            measured.append(edges)
    if len(measured) < MIN_SHIFT_IMAGES:
        return
    strengths = np.stack(measured)
    total, centre = strengths.mean(0), strengths[:, MAX_SHIFT, MAX_SHIFT]
    down, right = (int(place) for place in np.unravel_index(total.argmax(), total.shape))
    better = float((strengths[:, down, right] > centre).mean())
    gain = total[down, right] / total[MAX_SHIFT, MAX_SHIFT]
    if max(abs(down - MAX_SHIFT), abs(right - MAX_SHIFT)) < MIN_SHIFT or gain < MIN_EDGE_GAIN or better < MIN_AGREEING:
        return
    where = _describe_shift(down - MAX_SHIFT, right - MAX_SHIFT)
    yield DataIssue(
        code="shifted-masks",
        severity="warning",
        text=f"The masks seem to be shifted: {where} their borders lie on edges of the pictures that are {gain:.1f} "
        f"times as strong, in {round(better * len(measured))} of {format_count(len(measured), 'picture')}.",
        advice="Look at some. Masks that were drawn on a cropped or scaled copy are shifted so.",
    )


def measure_edges(image: Shaped[np.ndarray, "H W *C"], classes: UInt8[np.ndarray, "H W"]) -> np.ndarray | None:
    """The mean strength of an image's edges below the borders of its mask, relative to that of the whole image, for
    every shift of the mask by -MAX_SHIFT..MAX_SHIFT pixels down and to the right.

    None with few border pixels, or in an image without edges.
    """
    grey = image.reshape(*classes.shape, -1).astype(np.float64).mean(-1)
    if min(grey.shape) <= 2 * MAX_SHIFT:
        return None
    strength = np.hypot(*np.gradient(gaussian_filter(grey, EDGE_BLUR)))
    border = find_borders(classes)
    inner = slice(MAX_SHIFT, -MAX_SHIFT)
    rows, columns = np.nonzero(border[inner, inner])  # the same pixels for every shift
    if len(rows) < MIN_BORDER_PIXELS or not strength.any():
        return None
    shifts = range(2 * MAX_SHIFT + 1)
    found = [[strength[rows + down, columns + right].mean() for right in shifts] for down in shifts]
    return np.array(found) / strength.mean()


def _describe_shift(down: int, right: int) -> str:
    """A shift in words, with a comma behind."""
    words = [
        f"{abs(size)} pixels {way}"
        for size, way in ((down, "down" if down > 0 else "up"), (right, "to the right" if right > 0 else "to the left"))
        if size
    ]
    return f"moved {' and '.join(words)},"
