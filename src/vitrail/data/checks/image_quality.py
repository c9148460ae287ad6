"""Check image quality: size, aspect ratio, flat or dark images, mixed bit depths and formats, grey stored as colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ...formatting import format_count
from ...spec import ImageSpec
from ..decoding.decoded_image import DAMAGE_IN_PIXELS, DAMAGE_OUTSIDE_PIXELS, END_MISSING
from ..source import Source
from .findings import DataIssue, Severity, join_counts
from .image_stats import ImageStatsTable

CONSTANT_STD = 1.5
"""Standard deviation in grey levels below which an image is flat."""
PLAIN_FRACTION = 0.99
"""Fraction of black or white pixels from which an image counts as black or white."""
LONG_ASPECT_RATIO = 4.0
"""Aspect ratio (longer side to shorter) from which a shape is unusual, if most images are not like that."""
USUAL_SIZE_FRACTION = 0.9
"""Fraction of images of one size from which other sizes are unusual."""
MANY_PATCHES = 1024
"""Patches of a picture beyond which a training takes far longer than usual."""
MAX_ENLARGEMENT = 4
"""Factor of enlargement from which it is reported."""
NARROW_STD = 0.02
"""Standard deviation, as a fraction of the value range, below which the range does not fit a dataset."""

Mask = NDArray[np.bool_]


def find_image_quality_issues(
    source: Source, stats: ImageStatsTable, spec: ImageSpec, patch: tuple[int, int]
) -> list[DataIssue]:
    """Run all checks on the statistics of single images."""
    if not len(stats):
        return []
    shown = stats.stds[stats.stds > 0]
    narrow = bool(len(shown) and np.median(shown) < NARROW_STD * 255)  # the range is wrong, or decided by outliers
    flat = stats.stds == 0 if narrow else stats.stds < CONSTANT_STD
    in_flat_class = np.zeros(len(stats), np.bool_)
    if source.task == "classification" and not source.has_soft_labels:
        numbers, classes = source.targets[stats.rows], len(source.classes)
        all_flat = np.bincount(numbers, minlength=classes) == np.bincount(numbers[flat], minlength=classes)
        in_flat_class = all_flat[numbers]
    return [
        *_check_constant_classes(source, stats.rows[in_flat_class]),
        *_check_constant_images(stats, flat & ~in_flat_class),
        *_check_sizes(stats, spec, patch),
        *_check_mixed(stats, stats.depths, "mixed-depths", "warning", "depth", DEPTH_ADVICE),
        *([_narrow_range_issue(float(np.median(shown)) / 255, spec)] if narrow else []),
        *_check_grey_images(stats, spec),
        *_check_mixed(stats, stats.kinds, "mixed-formats", "hint", "formats"),
        *_check_remarks(stats),
    ]


def _check_constant_classes(source: Source, rows: NDArray[np.int64]) -> Iterator[DataIssue]:
    """Report classes all of whose images are flat; `rows` are all images of such classes."""
    targets = source.targets[rows]
    for number in np.unique(targets).tolist() if len(rows) else []:
        members = rows[targets == number].tolist()
        count = format_count(len(members), "picture")
        yield DataIssue(
            code="class-of-constant-pictures",
            severity="warning",
            text=f"Every picture of class {source.classes[number]!r} is constant ({count}).",
            advice="A model recognises them by that alone. Were they exported wrongly?",
            rows=tuple(members),
        )


def _check_mask(
    stats: ImageStatsTable, mask: Mask, code: str, severity: Severity, words: str, advice: str = ""
) -> Iterator[DataIssue]:
    """Report the images of a mask, if any: "2 pictures are" and then the words."""
    count = int(mask.sum())
    if count:
        text = f"{format_count(count, 'picture')} {'is' if count == 1 else 'are'} {words}"
        yield DataIssue(code=code, severity=severity, text=text, advice=advice, rows=tuple(stats.rows[mask].tolist()))


def _check_constant_images(stats: ImageStatsTable, flat: Mask) -> Iterator[DataIssue]:
    black, white = stats.dark >= PLAIN_FRACTION, stats.bright >= PLAIN_FRACTION
    constant = flat & ~black & ~white
    exposure = "Failed exposure, or a range of values that does not fit?"
    for code, mask, words, advice in (
        ("black-pictures", black, "black all over", exposure),
        ("white-pictures", white, "white all over", exposure),
        ("constant-pictures", constant, "constant or nearly so", "Nothing could be learnt there."),
    ):
        everything = " That is every picture that was looked at." if mask.all() else ""
        yield from _check_mask(stats, mask, code, "warning", f"{words}.{everything}", advice)


def _check_sizes(stats: ImageStatsTable, spec: ImageSpec, patch: tuple[int, int]) -> Iterator[DataIssue]:
    heights, widths = stats.heights, stats.widths
    small = (heights < patch[0]) | (widths < patch[1])
    words = f"smaller than one patch of the model ({patch[0]} x {patch[1]} pixels)."
    yield from _check_mask(stats, small, "smaller-than-a-patch", "warning", words)
    tiny = ~small & ((heights * MAX_ENLARGEMENT < spec.height) | (widths * MAX_ENLARGEMENT < spec.width))
    words = (
        f"enlarged more than {MAX_ENLARGEMENT} times to the {spec.height} x {spec.width} pixels that the model reads."
    )
    yield from _check_mask(stats, tiny, "much-enlarged", "hint", words)
    long = np.maximum(heights, widths) >= LONG_ASPECT_RATIO * np.minimum(heights, widths)
    if long.mean() < 0.5:
        words = f"{LONG_ASPECT_RATIO:g} or more times as long as wide, or as wide as long; most are not."
        yield from _check_mask(stats, long, "odd-shapes", "warning", words)
    elif spec.fit == "squash":
        yield from _check_squashing(stats, spec)
    patches = (spec.height // patch[0]) * (spec.width // patch[1])
    if patch != (1, 1) and patches > MANY_PATCHES:
        yield DataIssue(
            code="many-patches",
            severity="warning",
            text=f"The model would read each picture as {format_count(patches, 'patch', 'patches')}; about 64 are "
            "usual.",
            advice=f"A training takes some {patches // 64:,} times as long, and more memory. A smaller --image-size or "
            "larger patches (--model) cost less.",
        )
    sizes, counts = np.unique(np.stack([heights, widths], axis=1), axis=0, return_counts=True)
    if counts.max() >= USUAL_SIZE_FRACTION * len(stats):
        height, width = sizes[counts.argmax()]
        odd = (heights != height) | (widths != width)
        yield from _check_mask(stats, odd, "odd-sizes", "hint", f"not {height} x {width} as the others.")


def _check_squashing(stats: ImageStatsTable, spec: ImageSpec) -> Iterator[DataIssue]:
    """Report long shapes, of a dataset in which most images are long, that are squashed to a much shorter one."""
    shapes = np.log(stats.widths / stats.heights) - np.log(spec.width / spec.height)
    squashed = np.abs(shapes) >= np.log(LONG_ASPECT_RATIO)
    if squashed.any():
        factor = float(np.exp(np.median(np.abs(shapes[squashed]))))
        height, width = (int(np.median(sides[squashed])) for sides in (stats.heights, stats.widths))
        yield from _check_mask(
            stats,
            squashed,
            "much-squashed",
            "warning",
            f"squashed from about {height:,} x {width:,} to the {spec.height} x {spec.width} pixels that the model "
            f"reads, {factor:.3g} times more along one side than along the other.",
            f"Detail along the long side is lost. {_advise_longer_shape(spec, height, width)}--image.fit crop cuts "
            "instead, and pictures cut into squares before the training keep all.",
        )


def _advise_longer_shape(spec: ImageSpec, height: int, width: int) -> str:
    """A size of nearly the pictures' shape whose long side is longer than the model's, in multiples of 16 pixels.

    With half of the model's short side, or with all of it; empty where neither is longer.
    """
    stretch = min(max(width / height, height / width), MAX_SUGGESTED_STRETCH)
    for share in (2, 1):
        short = max(SHAPE_UNIT, min(spec.size) // share // SHAPE_UNIT * SHAPE_UNIT)
        long = round(short * stretch / SHAPE_UNIT) * SHAPE_UNIT
        if long > max(spec.size):
            size = f"{short}x{long}" if width > height else f"{long}x{short}"
            return f"A longer shape, such as --image-size {size}, keeps more and takes longer, "
    return ""


SHAPE_UNIT, MAX_SUGGESTED_STRETCH = 16, 16.0
DEPTH_ADVICE = "The 8-bit ones are taken as scaled already. Were all exported by the same way?"


def _check_mixed(
    stats: ImageStatsTable, values: Shaped[np.ndarray, " n"], code: str, severity: Severity, noun: str, advice: str = ""
) -> Iterator[DataIssue]:
    """Report images whose value is not the most frequent one."""
    names, counts = np.unique(values, return_counts=True)
    if len(names) > 1:
        kinds = join_counts(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        rare = stats.rows[values != names[counts.argmax()]]
        text = f"Pictures of different {noun}: {kinds}."
        yield DataIssue(code=code, severity=severity, text=text, advice=advice, rows=tuple(rare.tolist()))


def _narrow_range_issue(spread: float, spec: ImageSpec) -> DataIssue:
    return DataIssue(
        code="narrow-range",
        severity="warning",
        text=f"Most pictures use little of the range {spec.low:g} to {spec.high:g}: they vary by {spread:.1%} of it.",
        advice="Set the stored values that are black and white with --data.range percentile, or with --image.low and "
        "--image.high.",
    )


def _check_grey_images(stats: ImageStatsTable, spec: ImageSpec) -> Iterator[DataIssue]:
    colour = stats.channels == 3
    grey = colour & stats.is_grey
    if not grey.any():
        return
    if grey.sum() == colour.sum() and spec.channels == 3 and stats.is_grey.all():
        yield DataIssue(
            code="grey-in-colour",
            severity="hint",
            text=f"All {format_count(int(grey.sum()), 'colour picture')} are grey.",
            advice="--channels 1 reads one channel of them.",
        )
    elif grey.sum() < colour.sum():
        count = int(grey.sum())
        yield DataIssue(
            code="grey-in-colour",
            severity="hint",
            text=f"{format_count(count, 'picture')} of {int(colour.sum()):,} in colour {'is' if count == 1 else 'are'} "
            "grey.",
            rows=tuple(stats.rows[grey].tolist()),
        )


def _check_remarks(stats: ImageStatsTable) -> Iterator[DataIssue]:
    for remark, rows in stats.remarks.items():
        yield DataIssue(
            code=remark.lower().replace(" ", "-"),
            severity="warning" if remark in DAMAGE_REMARKS else "hint",
            text=f"{format_count(len(rows), 'picture')}: {remark}.",
            rows=tuple(rows),
        )


DAMAGE_REMARKS = (END_MISSING, DAMAGE_OUTSIDE_PIXELS, DAMAGE_IN_PIXELS)
"""Remarks of the decoder that mean a file lost data."""
