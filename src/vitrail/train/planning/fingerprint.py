"""Fingerprint of the training images, which the planner reads: count, size, channels and value range."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
from ...randomness import permutation, uniform
from ...spec import ImageSpec
from .. import losses
from ..dataset import Dataset
from ..plan import Plan
from ..request import DatasetFingerprint

SAMPLE_IMAGES = 256
RANGE_SAMPLE = 1000
VALUES_PER_IMAGE = 10_000  # of one picture, drawn for percentiles
PERCENTILES = (0.5, 99.5)
IMAGE_PERCENTILES = (4.0, 96.0)  # percentiles of those: the decoder refuses a picture with 5 % beyond black or white
MAX_VALUE_OF_BITS = {"8": 255.0, "12": 4095.0, "16": 65535.0}


def measure_fingerprint(
    source: Source,
    train: NDArray[np.int64],
    seed: int,
    spec: ImageSpec | None = None,
    policy: str = "auto",
    choose_window: bool = True,
) -> DatasetFingerprint:
    """Look at up to 256 training pictures; at up to 1,000 for the value range, if any is deeper than 8 bits.

    Pictures that cannot be read are passed over here: the check names them.

    Args:
        spec: the explicit reading settings of files (window, page, max_pixels).
        policy: which stored values are black and white, as in `DataSettings.range`.
        choose_window: apply the window of DICOM films if each sampled one carries one, whatever `spec` says.

    Raises:
        DataError: none of the sampled pictures can be read.
    """
    spec = spec or ImageSpec()
    order = train[permutation(seed, "fingerprint", 0, len(train))]
    chosen = [source.images[row] for row in order[:SAMPLE_IMAGES].tolist()]
    looks = _inspect_images(chosen, spec, source.name)
    reason = ""
    if choose_window and (films := [picture for picture, look in looks if look.kind == "DICOM"]):
        spec, reason = _choose_window(films, spec)
        looks = _inspect_images(chosen, spec, source.name)
    deep = any(look.depth != "uint8" for _, look in looks)
    pictures = [source.images[row] for row in order[: RANGE_SAMPLE if deep or policy == "percentile" else 0].tolist()]
    low, high, why = _choose_value_range(pictures, spec, policy)
    return DatasetFingerprint(
        name=source.name,
        num_images=len(train),
        num_classes=len(source.classes),
        height=int(np.median([look.height for _, look in looks])),
        width=int(np.median([look.width for _, look in looks])),
        channels=max(look.channels for _, look in looks),
        low=low,
        high=high,
        range_reason=why,
        window=spec.window,
        window_reason=reason,
        task=source.task,
        imbalance_ratio=losses.imbalance_ratio(source.task, source.targets[train], len(source.classes)),
    )


@dataclass(frozen=True)
class _ImageFormat:
    """What one picture is."""

    height: int
    width: int
    channels: int
    depth: str
    kind: str


@dataclass(frozen=True)
class _StoredValues:
    """What one picture stores: its extremes, its own tolerated percentiles, and a sample of its values."""

    low: float
    high: float
    is_integer: bool
    """Whether all its values are whole numbers, of whatever type."""
    percentiles: tuple[float, float]
    values: np.ndarray


def _inspect_images(images: list[ImageInput], spec: ImageSpec, name: str) -> list[tuple[ImageInput, _ImageFormat]]:
    """The readable pictures, each with its look."""
    found = list(zip(images, map_in_order(partial(_inspect_image, spec=spec), images), strict=True))
    good = [(picture, look) for picture, look in found if isinstance(look, _ImageFormat)]
    if not good:
        first = next((str(look) for _, look in found), "There is none.")
        raise DataError(f"None of {len(images)} training pictures of {name} can be read. The first: {first}")
    return good


def _inspect_image(image: ImageInput, spec: ImageSpec) -> _ImageFormat | DataError:
    try:
        stored = read_image(image, spec)
    except DataError as error:
        return error
    shape = stored.values.shape
    return _ImageFormat(shape[0], shape[1], 1 if len(shape) == 2 else shape[2], stored.values.dtype.name, stored.kind)


def _choose_window(films: list[ImageInput], spec: ImageSpec) -> tuple[ImageSpec, str]:
    """Apply the films' own windows if there is one in each: a mixture would make like films unlike."""
    carry = sum(map_in_order(partial(_has_window, page=spec.page), films))
    if carry == len(films):
        return dataclasses.replace(spec, window="file"), f"each of {len(films):,} films looked at carries its window"
    reason = f"{carry:,} of {len(films):,} films looked at carry a window; stored values are comparable in all"
    return dataclasses.replace(spec, window="none"), reason


def _has_window(image: ImageInput, page: int) -> bool:
    if isinstance(image, Path):
        return dicom.has_window(read_file_bytes(image), page)
    data = b"" if isinstance(image, np.ndarray) else image.fetch()
    return isinstance(data, bytes) and dicom.has_window(data, page)


def _choose_value_range(images: list[ImageInput], spec: ImageSpec, policy: str) -> tuple[float, float, str]:
    """The stored values that become black and white, and why; the pictures are those to look at, if any need be."""
    if policy in MAX_VALUE_OF_BITS:
        return 0.0, MAX_VALUE_OF_BITS[policy], f"asked for: {policy} bits"
    extents = [extent for extent in map_in_order(partial(_measure_values, spec=spec), images) if extent is not None]
    deep = [extent for extent in extents if extent.values.dtype != np.uint8]
    if policy == "auto" and deep and spec.window == "file":
        return 0.0, float(dicom.WHITE), "each film's own window ends there"
    if policy == "percentile" and extents:
        return _percentile_range(deep or extents, bool(deep))
    if not deep:
        return 0.0, 255.0, "8-bit pictures"
    low, high = min(extent.low for extent in deep), max(extent.high for extent in deep)
    white, why = _guess_white(low, high, all(extent.is_integer for extent in deep))
    seen = f"{low:g} to {high:g} in {len(deep):,} deeper than 8 bits"
    return min(low, 0.0), white, f"{why}: the pictures looked at store {seen}"


def _measure_values(image: ImageInput, spec: ImageSpec) -> _StoredValues | None:
    """None for a picture that cannot be read or holds what no pixel can be; the check says so."""
    try:
        values = read_image(image, spec).values
    except DataError:
        return None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return None
    flat = values.reshape(-1)
    few = flat[(uniform(0, "values", 0, np.arange(VALUES_PER_IMAGE), 1)[:, 0] * len(flat)).astype(np.int64)]
    inner = np.percentile(few, IMAGE_PERCENTILES)
    whole = values.dtype.kind != "f" or bool((flat == np.rint(flat)).all())
    return _StoredValues(float(flat.min()), float(flat.max()), whole, (float(inner[0]), float(inner[1])), few)


def _percentile_range(extents: list[_StoredValues], deep: bool) -> tuple[float, float, str]:
    """Percentiles over all pictures, widened until no picture has more than 5 % beyond."""
    values = np.concatenate([extent.values for extent in extents])
    low, high = (float(value) for value in np.percentile(values, PERCENTILES))
    low = min([low, *(extent.percentiles[0] for extent in extents)])
    high = max([high, *(extent.percentiles[1] for extent in extents)])
    if not low < high:
        raise DataError(
            f"Nearly all values of the {len(extents):,} training pictures looked at are {low:g}, so percentiles "
            "give no range. Leave out --data.range percentile."
        )
    if not deep and high <= 1:
        raise DataError(
            f"The {len(extents):,} training pictures looked at hold hardly more than the values 0 and 1 in 8 bits, and "
            "a model of that range takes 8-bit pictures as 0 to 255 already, where 1 is black. Multiply the values by "
            "255; --data.range percentile cannot stretch them."
        )
    reason = f"asked for: 0.5th and 99.5th percentile of {len(extents):,} pictures, none with more than 5 % beyond"
    return low, high, reason


def _guess_white(low: float, high: float, is_integer: bool) -> tuple[float, str]:
    """What white is for values low..high, and what they are taken for.

    A number of bits is a guess that only whole numbers allow; fractions of any other scale end at the largest seen.
    """
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
"""With one of these or data.range set, stored values are meant: the DICOM window of a film is not applied first."""


def fingerprint_dataset(
    dataset: Dataset, settings: DataSettings, overrides: Mapping[str, str], seed: int
) -> DatasetFingerprint:
    """What the training pictures are like.

    Args:
        overrides: the plan's fields that were asked for, by their dotted names.

    Raises:
        DataError: none of the sampled pictures can be read.
    """
    said = {name: text for name, text in overrides.items() if name in READ_SETTINGS}
    spec: ImageSpec = config.override(Plan(), said).image
    choose = settings.range == "auto" and not any(name in overrides for name in RANGE_SETTINGS)
    return measure_fingerprint(
        dataset.source, dataset.splits["train"], seed, spec, settings.range, choose_window=choose
    )
