"""What pictures are like: too small, odd, flat, dark, of mixed depth or format, grey in colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...plural import counted
from ...spec import ImageSpec
from ..decoding.values import DAMAGE_AMONG, DAMAGE_BESIDE, END_MISSING
from ..source import Source
from .findings import Concern, listed
from .looks import Looks

CONSTANT = 1.5
"""Deviation in grey levels below which a picture shows nothing."""
ALL = 0.99
"""Share of black or white pixels from which a picture is called black or white."""
LONG = 4.0
"""Ratio of the longer side to the shorter one from which a shape is odd, if most pictures are not like that."""
USUAL = 0.9
"""Share of pictures of one size from which the others are odd."""
ENLARGED = 4
"""Times by which a picture is enlarged before that is mentioned."""
NARROW = 0.02
"""Deviation, as a share of the value range, below which the range does not fit a set."""

Mask = NDArray[np.bool_]


def concerns(source: Source, looks: Looks, spec: ImageSpec, patch: tuple[int, int]) -> list[Concern]:
    """All that the measures of single pictures tell."""
    if not len(looks):
        return []
    narrow = _is_narrow(looks)
    flat = looks.deviations == 0 if narrow else looks.deviations < CONSTANT
    in_flat_class = _in_flat_class(source, looks, flat)
    return [
        *_flat_classes(source, looks, in_flat_class),
        *_flat(looks, flat, in_flat_class),
        *_sizes(looks, spec, patch),
        *_depths(looks),
        *(_narrow_range(looks, spec) if narrow else ()),
        *_grey(looks, spec),
        *_formats(looks),
        *_remarks(looks),
    ]


def _where(looks: Looks, mask: Mask) -> tuple[int, ...]:
    return tuple(looks.rows[mask].tolist())


def _in_flat_class(source: Source, looks: Looks, flat: Mask) -> Mask:
    """Pictures of classes that show nothing in any picture."""
    if source.task != "classes" or source.soft:
        return np.zeros(len(looks), np.bool_)
    numbers, classes = source.targets[looks.rows], len(source.classes)
    whole = np.bincount(numbers, minlength=classes) == np.bincount(numbers[flat], minlength=classes)
    return np.asarray(whole[numbers])


def _flat_classes(source: Source, looks: Looks, in_flat_class: Mask) -> Iterator[Concern]:
    """Classes that are recognised by showing nothing."""
    rows = looks.rows[in_flat_class]
    for number in np.unique(source.targets[rows]).tolist() if len(rows) else []:
        mine = rows[source.targets[rows] == number]
        yield Concern(
            code="class-of-constant-pictures",
            severity="warning",
            text=f"Every picture of class {source.classes[number]!r} is constant ({counted(len(mine), 'picture')}).",
            advice="A model recognises them by that alone. Were they exported wrongly?",
            rows=tuple(mine.tolist()),
        )


def _flat(looks: Looks, flat: Mask, in_flat_class: Mask) -> Iterator[Concern]:
    black, white = looks.dark >= ALL, looks.bright >= ALL
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
            yield Concern(
                code=code,
                severity="warning",
                text=f"{counted(count, 'picture')} {_are(count)} {words}.{everything}",
                advice=advice,
                rows=_where(looks, mask),
            )


def _sizes(looks: Looks, spec: ImageSpec, patch: tuple[int, int]) -> Iterator[Concern]:
    heights, widths = looks.heights, looks.widths
    small = (heights < patch[0]) | (widths < patch[1])
    if small.any():
        yield Concern(
            code="smaller-than-a-patch",
            severity="warning",
            text=f"{counted(int(small.sum()), 'picture')} {_are(small.sum())} smaller than one patch of the model "
            f"({patch[0]} x {patch[1]} pixels).",
            rows=_where(looks, small),
        )
    tiny = ~small & ((heights * ENLARGED < spec.height) | (widths * ENLARGED < spec.width))
    if tiny.any():
        yield Concern(
            code="much-enlarged",
            severity="hint",
            text=f"{counted(int(tiny.sum()), 'picture')} {_are(tiny.sum())} enlarged more than {ENLARGED} times to the "
            f"{spec.height} x {spec.width} pixels that the model reads.",
            rows=_where(looks, tiny),
        )
    long = np.maximum(heights, widths) >= LONG * np.minimum(heights, widths)
    if long.any() and long.mean() < 0.5:
        yield Concern(
            code="odd-shapes",
            severity="warning",
            text=f"{counted(int(long.sum()), 'picture')} {_are(long.sum())} {LONG:g} or more times as long as wide, or "
            "as wide as long; most are not.",
            rows=_where(looks, long),
        )
    sizes, counts = np.unique(np.stack([heights, widths], axis=1), axis=0, return_counts=True)
    usual = int(counts.argmax())
    odd = (heights != sizes[usual][0]) | (widths != sizes[usual][1])
    if odd.any() and counts[usual] >= USUAL * len(looks):
        yield Concern(
            code="odd-sizes",
            severity="hint",
            text=f"{counted(int(odd.sum()), 'picture')} {_are(odd.sum())} not {sizes[usual][0]} x {sizes[usual][1]} "
            "as the others.",
            rows=_where(looks, odd),
        )


def _depths(looks: Looks) -> Iterator[Concern]:
    names, counts = np.unique(looks.depths, return_counts=True)
    if len(names) < 2:
        return
    rare = looks.depths != names[counts.argmax()]
    kinds = listed(dict(zip(names.tolist(), counts.tolist(), strict=True)))
    yield Concern(
        code="mixed-depths",
        severity="warning",
        text=f"Pictures of different depth: {kinds}.",
        advice="The 8-bit ones are taken as scaled already. Were all exported by the same way?",
        rows=_where(looks, rare),
    )


def _is_narrow(looks: Looks) -> bool:
    """A whole set that uses little of black to white: the range was decided wrongly, or by a few outliers."""
    shows = looks.deviations > 0
    return bool(shows.any() and np.median(looks.deviations[shows]) < NARROW * 255)


def _narrow_range(looks: Looks, spec: ImageSpec) -> Iterator[Concern]:
    spread = float(np.median(looks.deviations[looks.deviations > 0])) / 255
    yield Concern(
        code="narrow-range",
        severity="warning",
        text=f"Most pictures use little of the range {spec.low:g} to {spec.high:g}: they vary by {spread:.1%} of it.",
        advice="Set the stored values that are black and white with --data.range percentile, or with --image.low and "
        "--image.high.",
    )


def _grey(looks: Looks, spec: ImageSpec) -> Iterator[Concern]:
    colour = looks.channels == 3
    grey = colour & looks.grey
    if not grey.any():
        return
    if grey.sum() == colour.sum() and spec.channels == 3 and looks.grey.all():
        yield Concern(
            code="grey-in-colour",
            severity="hint",
            text=f"All {int(grey.sum()):,} colour pictures are grey.",
            advice="--channels 1 reads one channel of them.",
        )
    elif grey.sum() < colour.sum():
        yield Concern(
            code="grey-in-colour",
            severity="hint",
            text=f"{counted(int(grey.sum()), 'picture')} of {int(colour.sum()):,} in colour {_are(grey.sum())} grey.",
            rows=_where(looks, grey),
        )


def _formats(looks: Looks) -> Iterator[Concern]:
    names, counts = np.unique(looks.kinds, return_counts=True)
    if len(names) > 1:
        kinds = listed(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        yield Concern(
            code="mixed-formats",
            severity="hint",
            text=f"Pictures of different formats: {kinds}.",
            rows=_where(looks, looks.kinds != names[counts.argmax()]),
        )


def _remarks(looks: Looks) -> Iterator[Concern]:
    for remark, rows in looks.remarks.items():
        yield Concern(
            code=remark.lower().replace(" ", "-"),
            severity="warning" if remark in DAMAGE else "hint",
            text=f"{counted(len(rows), 'picture')}: {remark}.",
            rows=tuple(rows),
        )


DAMAGE = (END_MISSING, DAMAGE_BESIDE, DAMAGE_AMONG)
"""Remarks of the decoder that mean a file lost something."""


def _are(count: int | np.integer) -> str:
    return "is" if count == 1 else "are"
