"""What the numbers of a grey DICOM film mean: its units, its window, and its padding, frame by frame.

A film of several frames may give each its own slope and window, in lists that its functional groups hold (enhanced CT
and MR); one without such lists gives them once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...errors import DataError
from .values import damaged

WHITE = 65535
STEEPEST = 80.0  # of the sigmoid's exponent; beyond it float32 shows plain black or white
LIMITS = {"u": "PixelPadding", "i": "PixelPadding", "f4": "FloatPixelPadding", "f8": "DoubleFloatPixelPadding"}


class Window(NamedTuple):
    """Which values are shown: a centre, a width, and LINEAR, LINEAR_EXACT or SIGMOID."""

    centre: float
    width: float
    function: str


def grey(values: np.ndarray, dataset: Any, frame: int, windowed: bool) -> np.ndarray:
    """One frame's stored values [H, W] in its units, dark where little light came through; windowed as 0..65535.

    Raises:
        DataError: a window is asked for and there is none, white is nowhere defined, or there is nothing but padding.
    """
    inverted = str(dataset.PhotometricInterpretation) == "MONOCHROME1"
    padding = _padding(values, dataset)
    if windowed:
        shown = _windowed(_in_units(values, dataset, frame), dataset, frame)
        found = np.rint((1 - shown if inverted else shown) * WHITE).astype(np.uint16)
    else:
        found = _in_units(_turned_round(values, dataset) if inverted else values, dataset, frame)
    return found if padding is None else _darkened(found, padding)


def shows_itself(dataset: Any, frame: int) -> bool:
    """Whether a frame brings a VOI table or a window that something can be seen through."""
    return bool(_place(dataset, frame, "FrameVOILUTSequence").get("VOILUTSequence") or _window(dataset, frame))


def _padding(values: np.ndarray, dataset: Any) -> np.ndarray | None:
    """Which pixels only fill the frame up: one stored value, or all from it to its limit (DICOM PS3.3, C.7.5.1.1.2)."""
    kind = values.dtype.kind
    name = LIMITS[kind if kind in "ui" else values.dtype.str[1:]]
    first, last = (_fitting(dataset.get(name + end), values.dtype) for end in ("Value", "RangeLimit"))
    if first is None:
        return None
    low, high = sorted((first, first if last is None else last))
    padding = (values >= low) & (values <= high)
    return padding if padding.any() else None


def _fitting(value: Any, dtype: np.dtype[Any]) -> float | None:
    """A stored value as the pixels would hold it: files write -2000 as 63536 too; None if pixels cannot hold it."""
    if value is None or value == "":
        return None
    if dtype.kind == "f":
        return float(dtype.type(value))
    info = np.iinfo(dtype)
    ways = (int(value), int(value) - 2**16, int(value) + 2**16)
    return next((way for way in ways if info.min <= way <= info.max), None)


def _darkened(values: np.ndarray, padding: np.ndarray) -> np.ndarray:
    if padding.all():
        raise DataError("is a DICOM film of nothing but padding; leave it out.")
    return np.where(padding, values[~padding].min(), values)


def _turned_round(values: np.ndarray, dataset: Any) -> np.ndarray:
    """White as the largest number of the stored bits; a second time gives back the first."""
    if values.dtype.kind == "f":
        raise DataError("is a MONOCHROME1 film of floats, whose white nobody knows; save it as MONOCHROME2.")
    top = -1 if int(dataset.PixelRepresentation) else 2 ** int(dataset.BitsStored) - 1
    return (top - values.astype(np.int64)).astype(values.dtype)


def _in_units(values: np.ndarray, dataset: Any, frame: int) -> np.ndarray:
    """Modality units, such as Hounsfield's, in float32; the stored whole numbers where the file names no others."""
    place = _place(dataset, frame, "PixelValueTransformationSequence")
    if place.get("ModalityLUTSequence"):
        return _looked_up(values, place.ModalityLUTSequence[0], dataset)
    slope, intercept = place.get("RescaleSlope"), place.get("RescaleIntercept")
    slope, intercept = 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)
    if (slope, intercept) == (1, 0):
        return values
    return (values.astype(np.float64) * slope + intercept).astype(np.float32)


def _place(dataset: Any, frame: int, group: str) -> Any:
    """Where the elements of a functional group stand: with the frame, with what all frames share, or in the file."""
    frames = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    if 0 < len(frames) <= frame:
        raise damaged("DICOM", f"it describes {len(frames):,} frames and holds more")
    for item in (*frames[frame : frame + 1], *(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]):
        if found := item.get(group):
            return found[0]
    return dataset


def _looked_up(values: np.ndarray, item: Any, dataset: Any) -> np.ndarray:
    """uint16 by a table: what lies before its first number gets the first entry, what lies behind it the last.

    Done here because pydicom 3.0 takes only the first 256 entries of a table whose entries have 8 bits.
    """
    entries, first, _ = (int(number) for number in item.LUTDescriptor)
    table = item.LUTData
    if isinstance(table, bytes):
        order = "<" if dataset.file_meta.TransferSyntaxUID.is_little_endian else ">"
        table = np.frombuffer(table, np.uint8 if len(table) in (entries, entries + 1) else f"{order}u2")
    table = np.asarray(table).astype(np.uint16)[: entries or 2**16]
    return table[(np.rint(values).astype(np.int64) - first).clip(0, len(table) - 1)]


def _windowed(values: np.ndarray, dataset: Any, frame: int) -> np.ndarray:
    """0 (black) to 1 (white), by the film's VOI table or its window (DICOM PS3.3, C.11.2.1)."""
    place = _place(dataset, frame, "FrameVOILUTSequence")
    if place.get("VOILUTSequence"):
        item = place.VOILUTSequence[0]
        bits = int(item.LUTDescriptor[2])
        if bits < 1:
            raise damaged("DICOM", f"its VOI table has entries of {bits} bits")
        return (_looked_up(values, item, dataset).astype(np.float32) / (2**bits - 1)).clip(0, 1)
    window = _window(dataset, frame)
    if window is None:
        raise DataError(
            "carries no window, which --image.window file asks of every film; take --image.window none, and say with "
            "--data.range what is black and white."
        )
    exact = values.astype(np.float32)
    if window.function == "SIGMOID":
        steps = (-4 * (exact - window.centre) / window.width).clip(-STEEPEST, STEEPEST)
        return 1 / (1 + np.exp(steps))
    centre, width = window.centre, window.width
    if window.function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return (exact > centre).astype(np.float32)
    return ((exact - centre) / width + 0.5).clip(0, 1)


def _window(dataset: Any, frame: int) -> Window | None:
    """The first window, if there is one that the standard allows: a width of 1 or more, above 0 if it is exact."""
    place = _place(dataset, frame, "FrameVOILUTSequence")
    centre, width = _first(place.get("WindowCenter")), _first(place.get("WindowWidth"))
    function = str(place.get("VOILUTFunction") or "LINEAR")
    if centre is None or width is None or not (math.isfinite(centre) and math.isfinite(width)):
        return None
    narrow = width < 1 if function == "LINEAR" else width <= 0
    return None if narrow else Window(centre, width, function)


def _first(value: Any) -> float | None:
    """A number, or the first of several; None where there is none."""
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else next(iter(value)))
