"""What images are like: too small, odd, flat, dark, of mixed depth or format, grey in colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...formatting import format_count
from ...spec import ImageSpec
from ..decoding.decoded_image import DAMAGE_IN_PIXELS, DAMAGE_OUTSIDE_PIXELS, END_MISSING
from ..source import Source
from .findings import DataIssue, join_counts
from .image_stats import ImageStatsTable

CONSTANT_STD = 1.5
"""Deviation in grey levels below which an image shows nothing."""
PLAIN_FRACTION = 0.99
"""Fraction of black or white pixels from which an image is called black or white."""
LONG_ASPECT_RATIO = 4.0
"""Ratio of the longer side to the shorter one from which a shape is odd, if most images are not like that."""
USUAL_SIZE_FRACTION = 0.9
"""Fraction of images of one size from which the others are odd."""
MAX_ENLARGEMENT = 4
"""Times by which an image is enlarged before that is mentioned."""
NARROW_STD = 0.02
"""Deviation, as a fraction of the value range, below which the range does not fit a set."""

Mask = NDArray[np.bool_]


def find_image_quality_issues(
    source: Source, looks: ImageStatsTable, spec: ImageSpec, patch: tuple[int, int]
) -> list[DataIssue]:
    """All that the measures of single images tell."""
    if not len(looks):
        return []
    narrow = _has_narrow_range(looks)
    flat = looks.stds == 0 if narrow else looks.stds < CONSTANT_STD
    in_flat_class = _in_constant_class(source, looks, flat)
    return [
        *_check_constant_classes(source, looks, in_flat_class),
        *_check_constant_images(looks, flat, in_flat_class),
        *_check_sizes(looks, spec, patch),
        *_check_dtypes(looks),
        *(_check_narrow_range(looks, spec) if narrow else ()),
        *_check_grey_images(looks, spec),
        *_check_formats(looks),
        *_check_remarks(looks),
    ]


def _masked_rows(looks: ImageStatsTable, mask: Mask) -> tuple[int, ...]:
    return tuple(looks.rows[mask].tolist())


def _in_constant_class(source: Source, looks: ImageStatsTable, flat: Mask) -> Mask:
    """Images of classes that show nothing in any image."""
    if source.task != "classes" or source.has_soft_labels:
        return np.zeros(len(looks), np.bool_)
    numbers, classes = source.targets[looks.rows], len(source.classes)
    whole = np.bincount(numbers, minlength=classes) == np.bincount(numbers[flat], minlength=classes)
    return np.asarray(whole[numbers])


def _check_constant_classes(source: Source, looks: ImageStatsTable, in_flat_class: Mask) -> Iterator[DataIssue]:
    """Classes that are recognised by showing nothing."""
    rows = looks.rows[in_flat_class]
    for number in np.unique(source.targets[rows]).tolist() if len(rows) else []:
        mine = rows[source.targets[rows] == number]
        yield DataIssue(
            code="class-of-constant-pictures",
            severity="warning",
            text=f"Every picture of class {source.classes[number]!r} is constant "
            f"({format_count(len(mine), 'picture')}).",
            advice="A model recognises them by that alone. Were they exported wrongly?",
            rows=tuple(mine.tolist()),
        )


def _check_constant_images(looks: ImageStatsTable, flat: Mask, in_flat_class: Mask) -> Iterator[DataIssue]:
    black, white = looks.dark >= PLAIN_FRACTION, looks.bright >= PLAIN_FRACTION
    kinds = {
        "black-pictures": (black, "black all over", "Failed exposure, or a range of values that does not fit?"),
        "white-pictures": (white, "white all over", "Failed exposure, or a range of values that does not fit?"),
        "constant-pictures": (
            flat & ~black & ~white & ~in_flat_class,
            "constant or nearly so",
            "They show nothing that could be learnt.",
        ),
    }
    for code, (mask, words, advice) in kinds.items():
        if mask.any():
            count = int(mask.sum())
            everything = " That is every picture that was looked at." if count == len(looks) else ""
            yield DataIssue(
                code=code,
                severity="warning",
                text=f"{format_count(count, 'picture')} {_is_or_are(count)} {words}.{everything}",
                advice=advice,
                rows=_masked_rows(looks, mask),
            )


def _check_sizes(looks: ImageStatsTable, spec: ImageSpec, patch: tuple[int, int]) -> Iterator[DataIssue]:
    heights, widths = looks.heights, looks.widths
    small = (heights < patch[0]) | (widths < patch[1])
    if small.any():
        yield DataIssue(
            code="smaller-than-a-patch",
            severity="warning",
            text=f"{format_count(int(small.sum()), 'picture')} {_is_or_are(small.sum())} smaller than one patch of the "
            f"model "
            f"({patch[0]} x {patch[1]} pixels).",
            rows=_masked_rows(looks, small),
        )
    tiny = ~small & ((heights * MAX_ENLARGEMENT < spec.height) | (widths * MAX_ENLARGEMENT < spec.width))
    if tiny.any():
        yield DataIssue(
            code="much-enlarged",
            severity="hint",
            text=f"{format_count(int(tiny.sum()), 'picture')} {_is_or_are(tiny.sum())} enlarged more than "
            f"{MAX_ENLARGEMENT} times to the "
            f"{spec.height} x {spec.width} pixels that the model reads.",
            rows=_masked_rows(looks, tiny),
        )
    long = np.maximum(heights, widths) >= LONG_ASPECT_RATIO * np.minimum(heights, widths)
    if long.any() and long.mean() < 0.5:
        yield DataIssue(
            code="odd-shapes",
            severity="warning",
            text=f"{format_count(int(long.sum()), 'picture')} {_is_or_are(long.sum())} {LONG_ASPECT_RATIO:g} or more "
            f"times as long as wide, or "
            "as wide as long; most are not.",
            rows=_masked_rows(looks, long),
        )
    sizes, counts = np.unique(np.stack([heights, widths], axis=1), axis=0, return_counts=True)
    usual = int(counts.argmax())
    odd = (heights != sizes[usual][0]) | (widths != sizes[usual][1])
    if odd.any() and counts[usual] >= USUAL_SIZE_FRACTION * len(looks):
        yield DataIssue(
            code="odd-sizes",
            severity="hint",
            text=f"{format_count(int(odd.sum()), 'picture')} {_is_or_are(odd.sum())} not {sizes[usual][0]} x "
            f"{sizes[usual][1]} "
            "as the others.",
            rows=_masked_rows(looks, odd),
        )


def _check_dtypes(looks: ImageStatsTable) -> Iterator[DataIssue]:
    names, counts = np.unique(looks.depths, return_counts=True)
    if len(names) < 2:
        return
    rare = looks.depths != names[counts.argmax()]
    kinds = join_counts(dict(zip(names.tolist(), counts.tolist(), strict=True)))
    yield DataIssue(
        code="mixed-depths",
        severity="warning",
        text=f"Pictures of different depth: {kinds}.",
        advice="The 8-bit ones are taken as scaled already. Were all exported by the same way?",
        rows=_masked_rows(looks, rare),
    )


def _has_narrow_range(looks: ImageStatsTable) -> bool:
    """A whole set that uses little of black to white: the range was decided wrongly, or by a few outliers."""
    shows = looks.stds > 0
    return bool(shows.any() and np.median(looks.stds[shows]) < NARROW_STD * 255)


def _check_narrow_range(looks: ImageStatsTable, spec: ImageSpec) -> Iterator[DataIssue]:
    spread = float(np.median(looks.stds[looks.stds > 0])) / 255
    yield DataIssue(
        code="narrow-range",
        severity="warning",
        text=f"Most pictures use little of the range {spec.low:g} to {spec.high:g}: they vary by {spread:.1%} of it.",
        advice="Set the stored values that are black and white with --data.range percentile, or with --image.low and "
        "--image.high.",
    )


def _check_grey_images(looks: ImageStatsTable, spec: ImageSpec) -> Iterator[DataIssue]:
    colour = looks.channels == 3
    grey = colour & looks.is_grey
    if not grey.any():
        return
    if grey.sum() == colour.sum() and spec.channels == 3 and looks.is_grey.all():
        yield DataIssue(
            code="grey-in-colour",
            severity="hint",
            text=f"All {int(grey.sum()):,} colour pictures are grey.",
            advice="--channels 1 reads one channel of them.",
        )
    elif grey.sum() < colour.sum():
        yield DataIssue(
            code="grey-in-colour",
            severity="hint",
            text=f"{format_count(int(grey.sum()), 'picture')} of {int(colour.sum()):,} in colour "
            f"{_is_or_are(grey.sum())} grey.",
            rows=_masked_rows(looks, grey),
        )


def _check_formats(looks: ImageStatsTable) -> Iterator[DataIssue]:
    names, counts = np.unique(looks.kinds, return_counts=True)
    if len(names) > 1:
        kinds = join_counts(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        yield DataIssue(
            code="mixed-formats",
            severity="hint",
            text=f"Pictures of different formats: {kinds}.",
            rows=_masked_rows(looks, looks.kinds != names[counts.argmax()]),
        )


def _check_remarks(looks: ImageStatsTable) -> Iterator[DataIssue]:
    for remark, rows in looks.remarks.items():
        yield DataIssue(
            code=remark.lower().replace(" ", "-"),
            severity="warning" if remark in DAMAGE_REMARKS else "hint",
            text=f"{format_count(len(rows), 'picture')}: {remark}.",
            rows=tuple(rows),
        )


DAMAGE_REMARKS = (END_MISSING, DAMAGE_OUTSIDE_PIXELS, DAMAGE_IN_PIXELS)
"""Remarks of the decoder that mean a file lost something."""


def _is_or_are(count: int | np.integer) -> str:
    return "is" if count == 1 else "are"
