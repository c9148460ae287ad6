"""Fingerprint of the training images, which the planner reads: count, size, channels, value range and bit depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ... import config
from ...data.decoding import dicom
from ...data.decoding.decode import read_file_bytes, read_image
from ...data.decoding.decoded_image import BIT_DEPTHS
from ...data.parallel import map_in_order
from ...data.settings import DataSettings
from ...data.source import ImageInput, Source
from ...errors import DataError
from ...formatting import format_count
from ...randomness import permutation, uniform
from ...spec import BitDepth, ImageSpec
from ..class_weights import imbalance_ratio
from ..dataset import Dataset
from ..plan import Plan
from ..request import DatasetFingerprint

SAMPLE_IMAGES = 256
RANGE_SAMPLE = 1000
VALUES_PER_IMAGE = 10_000
"""Sampled values of an image, for percentiles."""
PERCENTILES = (0.5, 99.5)
ASPECT_PERCENTILES = (5.0, 95.0)
"""Percentiles of width over height that tell whether all pictures are strips, but for a few."""
IMAGE_PERCENTILES = (4.0, 96.0)
"""Percentiles of each image within the range: the decoder refuses an image with 5 % beyond black or white."""
NARROW_FRACTION = 1 / 16
"""Deep images that use less of their range than this get a range of their own, 1 / ROOM_FRACTION times as wide."""
ROOM_FRACTION = 1 / 4
DEPTH_SAMPLE = 100
"""Images whose levels are counted to choose the bit depth."""
KEPT_FRACTION = 0.99
"""Fraction of the levels from which 8 bits are enough."""
MAX_VALUE_OF_BITS = {"8": 255.0, "12": 4095.0, "16": 65535.0}


def measure_fingerprint(
    source: Source,
    train: NDArray[np.int64],
    seed: int,
    spec: ImageSpec | None = None,
    policy: str = "auto",
    choose_window: bool = True,
    explicit_ends: Mapping[str, float] | None = None,
) -> DatasetFingerprint:
    """Statistics of up to 256 training images; range and depth of up to 1,000, if any is deeper than 8 bits.

    Images that cannot be read are skipped: the data check reports them.

    Args:
        spec: the explicit reading settings of files (window, page, max_pixels).
        policy: which stored values are black and white, as in `DataSettings.range`.
        choose_window: apply the window of DICOM films if each sampled one has one, whatever `spec` says.
        explicit_ends: "low" and "high" where the plan has its own instead of those measured.

    Raises:
        DataError: none of the sampled images can be read.
    """
    spec = spec or ImageSpec()
    order = train[permutation(seed, "fingerprint", 0, len(train))]
    sample = [source.images[row] for row in order[:SAMPLE_IMAGES].tolist()]
    readable = _inspect_images(sample, spec, source.name)
    reason = ""
    if choose_window and (films := [image for image, known in readable if known.kind == "DICOM"]):
        spec, reason = _choose_window(films, spec)
        readable = _inspect_images(sample, spec, source.name)
    formats = [known for _, known in readable]
    deep = any(known.depth != "uint8" for known in formats)
    images = [source.images[row] for row in order[: RANGE_SAMPLE if deep or policy == "percentile" else 0].tolist()]
    extents = [extent for extent in map_in_order(partial(_measure_values, spec=spec), images) if extent is not None]
    low, high, why = _choose_value_range(extents, spec, policy)
    bit_depth, why_depth = _choose_bit_depth(extents, **({"low": low, "high": high} | dict(explicit_ends or {})))
    return DatasetFingerprint(
        name=source.name,
        num_images=len(train),
        num_classes=len(source.classes),
        height=int(np.median([known.height for known in formats])),
        width=int(np.median([known.width for known in formats])),
        channels=max(known.channels for known in formats),
        low=low,
        high=high,
        range_reason=why,
        bit_depth=bit_depth,
        depth_reason=why_depth,
        window=spec.window,
        window_reason=reason,
        task=source.task,
        imbalance_ratio=imbalance_ratio(source.task, source.targets[train], len(source.classes)),
        has_weights=source.weights is not None,
        aspects=_measure_aspects(formats),
    )


@dataclass(frozen=True)
class _ImageFormat:
    """The format of one image file."""

    height: int
    width: int
    channels: int
    depth: str
    kind: str


@dataclass(frozen=True)
class _StoredValues:
    """Stored values of one image."""

    low: float
    high: float
    is_integer: bool
    """Whether all values are whole numbers, of any type."""
    percentiles: tuple[float, float]
    """`IMAGE_PERCENTILES` of the values."""
    values: np.ndarray
    """A sample."""


def _measure_aspects(formats: list[_ImageFormat]) -> tuple[float, float]:
    low, high = np.percentile([known.width / known.height for known in formats], ASPECT_PERCENTILES)
    return float(low), float(high)


def _inspect_images(images: list[ImageInput], spec: ImageSpec, name: str) -> list[tuple[ImageInput, _ImageFormat]]:
    """The readable images, each with its format."""
    inspected = list(zip(images, map_in_order(partial(_inspect_image, spec=spec), images), strict=True))
    readable = [(image, known) for image, known in inspected if isinstance(known, _ImageFormat)]
    if not readable:
        first = next((str(error) for _, error in inspected), "There is none.")
        raise DataError(
            f"None of {format_count(len(images), 'training picture')} of {name} can be read. The first: {first}"
        )
    return readable


def _inspect_image(image: ImageInput, spec: ImageSpec) -> _ImageFormat | DataError:
    try:
        stored = read_image(image, spec)
    except DataError as error:
        return error
    shape = stored.values.shape
    return _ImageFormat(shape[0], shape[1], 1 if len(shape) == 2 else shape[2], stored.values.dtype.name, stored.kind)


def _choose_window(films: list[ImageInput], spec: ImageSpec) -> tuple[ImageSpec, str]:
    """Apply the films' own windows if every film has one: otherwise films would no longer be comparable."""
    carry = sum(map_in_order(partial(_has_window, page=spec.page), films))
    if carry == len(films):
        return dataclasses.replace(spec, window="file"), (
            f"each of {format_count(len(films), 'film')} looked at carries its window"
        )
    reason = (
        f"{carry:,} of {format_count(len(films), 'film')} looked at carry a window; stored values are comparable in all"
    )
    return dataclasses.replace(spec, window="none"), reason


def _has_window(image: ImageInput, page: int) -> bool:
    if isinstance(image, Path):
        return dicom.has_window(read_file_bytes(image), page)
    data = b"" if isinstance(image, np.ndarray) else image.fetch()
    return isinstance(data, bytes) and dicom.has_window(data, page)


def _choose_value_range(extents: list[_StoredValues], spec: ImageSpec, policy: str) -> tuple[float, float, str]:
    """The stored values of black and white, and the reason."""
    if policy in MAX_VALUE_OF_BITS:
        return 0.0, MAX_VALUE_OF_BITS[policy], f"asked for: {policy} bits"
    deep = [extent for extent in extents if extent.values.dtype != np.uint8]
    if policy == "auto" and deep and spec.window == "file":
        return 0.0, float(dicom.WHITE), "each film's own window ends there"
    if policy == "percentile" and extents:
        return _percentile_range(deep or extents, bool(deep))
    if not deep:
        return 0.0, 255.0, "8-bit pictures"
    low, high = min(extent.low for extent in deep), max(extent.high for extent in deep)
    white, why = _guess_white(low, high, all(extent.is_integer for extent in deep))
    seen = f"the pictures looked at store {low:g} to {high:g} in {len(deep):,} deeper than 8 bits"
    black, used = min(low, 0.0), high - low
    if len(deep) == len(extents) and 0 < used < NARROW_FRACTION * (white - black):
        room = used * (1 / ROOM_FRACTION - 1) / 2
        low, high = max(low - room, black), min(high + room, white)
        return low, high, f"{seen}, a small part of {black:g} to {white:g}: that part, with room on both sides"
    return black, white, f"{why}: {seen}"


def _choose_bit_depth(extents: list[_StoredValues], low: float, high: float) -> tuple[BitDepth, str]:
    """16 if 8 bits would merge levels of the images, and the reason; an empty one for 8-bit images."""
    deep = [extent.values for extent in extents if extent.values.dtype != np.uint8][:DEPTH_SAMPLE]
    if not deep or not low < high:
        return 8, ""
    values = np.unique(np.concatenate([np.unique(values).astype(np.float64) for values in deep]))
    levels, kept = (np.unique(np.rint((values - low) / (high - low) * white).clip(0, white)) for white in (65535, 255))
    seen = f"{len(levels):,} levels of {format_count(len(deep), 'picture')} deeper than 8 bits"
    if len(kept) >= KEPT_FRACTION * len(levels):
        return 8, f"8 bits keep {len(kept):,} of the {seen}"
    return 16, f"16 bits are kept: of the {seen}, 8 bits would tell {len(kept):,} apart"


def _measure_values(image: ImageInput, spec: ImageSpec) -> _StoredValues | None:
    """None for an image that cannot be read or has values that are not finite; the data check reports it."""
    try:
        values = read_image(image, spec).values
    except DataError:
        return None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return None
    flat = values.reshape(-1)
    sample = flat[(uniform(0, "values", 0, np.arange(VALUES_PER_IMAGE), 1)[:, 0] * len(flat)).astype(np.int64)]
    low, high = np.percentile(sample, IMAGE_PERCENTILES).tolist()
    is_integer = values.dtype.kind != "f" or bool((flat == np.rint(flat)).all())
    return _StoredValues(float(flat.min()), float(flat.max()), is_integer, (low, high), sample)


def _percentile_range(extents: list[_StoredValues], deep: bool) -> tuple[float, float, str]:
    """Percentiles over all images, widened until no image has more than 5 % beyond."""
    values = np.concatenate([extent.values for extent in extents])
    low, high = (float(value) for value in np.percentile(values, PERCENTILES))
    low = min([low, *(extent.percentiles[0] for extent in extents)])
    high = max([high, *(extent.percentiles[1] for extent in extents)])
    if not low < high:
        raise DataError(
            f"Nearly all values of the {format_count(len(extents), 'training picture')} looked at are {low:g}, so "
            "percentiles give no range. Leave out --data.range percentile."
        )
    if not deep and high <= 1:
        raise DataError(
            f"The {format_count(len(extents), 'training picture')} looked at hold hardly more than the values 0 and 1 "
            "in 8 bits, and a model of that range takes 8-bit pictures as 0 to 255 already, where 1 is black. Multiply "
            "the values by 255; --data.range percentile cannot stretch them."
        )
    reason = (
        f"asked for: 0.5th and 99.5th percentile of {format_count(len(extents), 'picture')}, none with more "
        "than 5 % beyond"
    )
    return low, high, reason


def _guess_white(low: float, high: float, is_integer: bool) -> tuple[float, str]:
    """The value of white for values low..high, and the reason; only whole numbers allow to guess a number of bits."""
    if low >= 0 and high <= 1:
        return 1.0, "fractions"
    if not is_integer:
        return max(high, 0.0) if high <= low else high, "fractions, of which the largest is white"
    if high <= 1:
        return 1.0, "no value is above 1"
    bits = next((bits for bits in BIT_DEPTHS if high <= 2**bits - 1), 0)
    return (2.0**bits - 1, f"{bits} bits") if bits else (high, "the largest value")


# -- Fingerprint of the training images, read with the explicit reading settings

READ_SETTINGS = ("image.window", "image.page", "image.max_pixels")
RANGE_SETTINGS = ("image.window", "image.low", "image.high")
"""With one of these or data.range set, the window of DICOM films is not applied."""


def fingerprint_dataset(
    dataset: Dataset, settings: DataSettings, overrides: Mapping[str, str], seed: int
) -> DatasetFingerprint:
    """The fingerprint of a dataset's training images.

    Args:
        overrides: explicit plan fields by their dotted names, as text.

    Raises:
        DataError: none of the sampled images can be read.
    """
    explicit = {name: text for name, text in overrides.items() if name in READ_SETTINGS}
    spec: ImageSpec = config.override(Plan(), explicit).image
    choose = settings.range == "auto" and not any(name in overrides for name in RANGE_SETTINGS)
    ends = {}
    for name in ("low", "high"):
        with suppress(KeyError, ValueError):  # the plan refuses a text that is no number
            ends[name] = float(overrides[f"image.{name}"])
    return measure_fingerprint(
        dataset.source, dataset.splits["train"], seed, spec, settings.range, choose_window=choose, explicit_ends=ends
    )
