"""Decode an image to uint8 or uint16 [H, W, C]: the same for training, prediction, server and export.

The value range low..high of the ImageSpec maps stored values to model input: `low` becomes 0, `high` becomes white, 255
or, at a bit depth of 16, 65535.
Transparent images are composited on white. `parse_image` is the only place where untrusted bytes are parsed: the first
bytes choose one of eight formats, and the size in pixels is checked from the header before anything is decoded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Integer, Shaped, UInt, UInt8
from numpy.typing import NDArray

from ...errors import DataError, NotAnImageError
from ...formatting import format_count, format_part
from ...spec import BitDepth, ImageSpec
from ..source import ImageInput
from .decoded_image import (
    ACCEPTED_FORMATS,
    EXTENSION_MISMATCH,
    DecodedImage,
    check_image_array,
    damaged_error,
    describe_unknown_file,
    extension_matches,
    parse_npy,
    remark_bit_depth,
    sniff_format,
    truncated_error,
)
from .dicom import parse_dicom
from .heif import parse_avif, parse_heic
from .jpeg import parse_jpeg
from .raster import parse_bmp, parse_gif, parse_png, parse_webp
from .tiff import parse_tiff

__all__ = ["MAX_BYTES", "DecodedImage", "check_image_array", "decode_image", "parse_image", "read_image"]
MAX_BYTES = 512 * 2**20
MAX_CLIPPED_FRACTION = 0.05  # fraction of values beyond low..high that may be clipped to black or white
TRUNCATION_WORDS = ("truncated", "premature", "eof", "no more images", "cannot reshape", "less than expected")


def decode_image(image: ImageInput | bytes, spec: ImageSpec) -> UInt[np.ndarray, "H W C"]:
    """Decode an image upright, with the spec's channels, scaled from low..high to 0..255 or 0..65535.

    Grey becomes RGB by repetition, RGB becomes grey by the luma weights of ITU-R BT.601; other channel counts must
    match. Values beyond low..high are clipped, but an image with more than 5 % of them has another value range and is
    refused. 8-bit images count as 0..255 where low..high belongs to deeper or fractional ones (high above 255, or at
    most 1). Fractions 0..1 are refused where 255 or more is white: they would all be black.

    Raises:
        DataError: not readable, too large, of another value range or channel count; the message names the image.
    """
    if isinstance(image, bytes):
        return convert_image(parse_image(image, spec), spec)
    stored = read_image(image, spec)
    try:
        return convert_image(stored, spec)
    except DataError as error:
        if isinstance(image, np.ndarray):
            raise
        name = image if isinstance(image, Path) else image.name
        raise DataError(f"{name}: {error}") from None


def convert_image(stored: DecodedImage, spec: ImageSpec) -> UInt[np.ndarray, "H W C"]:
    """Scale and convert one image that has been read: the second half of `decode_image`."""
    values = stored.values if stored.values.ndim == 3 else stored.values[..., None]
    return to_levels(values, stored.alpha, spec.channels, spec.low, spec.high, spec.bit_depth)


def to_levels(
    values: Shaped[np.ndarray, "*B H W c"],
    alpha: Shaped[np.ndarray, "*B H W"] | None,
    channels: int,
    low: float,
    high: float,
    bit_depth: BitDepth = 8,
) -> UInt[np.ndarray, "*B H W C"]:
    """Scale, composite on white, convert channels: for one image or a stack of them.

    Raises:
        DataError: for the first image of the stack that `decode_image` would refuse.
    """
    white = 2**bit_depth - 1
    scaled = _scale(values, low, high, white)
    if alpha is not None:  # in integers, rounded to the nearest level: exact where alpha is 0 or 255
        opacity = alpha if alpha.dtype == scaled.dtype else _rescale_linear(alpha, 0, np.iinfo(alpha.dtype).max, white)
        weight = opacity[..., None].astype(np.uint16 if bit_depth == 8 else np.uint32)  # white * white fits
        scaled = ((scaled * weight + white * (white - weight) + white // 2) // white).astype(scaled.dtype)
    return _convert_channels(scaled, channels)


def _scale(values: np.ndarray, low: float, high: float, white: int) -> np.ndarray:
    if values.dtype == np.uint8 and ((low, high) == (0, 255) or high > 255 or high <= 1):
        return values if white == 255 else values * np.uint16(257)
    if values.dtype == np.uint16 and (low, high, white) == (0, 65535, 65535):
        return values
    _check_values(values.reshape(-1, *values.shape[-3:]), low, high)
    if values.dtype == np.uint8:
        return _rescale_linear(np.arange(256), low, high, white)[values]
    return _rescale_linear(values, low, high, white)


def _check_values(images: Shaped[np.ndarray, "B H W c"], low: float, high: float) -> None:
    """Refuse the first image with values that are not finite, that are fractions of 0..255, or of another range."""
    one = (1, 2, 3)  # axes of one image: each rule judges every image by itself
    beyond = np.count_nonzero((images < low) | (images > high), axis=one) / max(1, images[:1].size)
    wrong = beyond > MAX_CLIPPED_FRACTION
    if images.dtype.kind == "f":
        wrong |= ~np.isfinite(images).all(axis=one)
        if high >= 255:
            largest = images.max(axis=one)
            wrong |= (images.min(axis=one) >= 0) & (largest > 0) & (largest <= 1)
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    values = images[first]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        not_finite = values.size - int(np.count_nonzero(np.isfinite(values)))
        part = format_part(not_finite, values.size, "value", "is not a finite number", "are not finite numbers")
        raise DataError(f"{part} (NaN or infinity).")
    if beyond[first] <= MAX_CLIPPED_FRACTION:
        way = f"multiply by {high:g}" if low == 0 else "bring them to that range"
        raise DataError(f"holds fractions 0 to 1, the model reads {low:g} to {high:g}; {way}.")
    raise DataError(
        f"Values {low:g} to {high:g} become black to white. This picture holds {values.min():g} to "
        f"{values.max():g}, with {beyond[first]:.0%} of its values beyond. Set the value range (low and high) to fit."
    )


def _rescale_linear(values: np.ndarray, low: float, high: float, white: int) -> np.ndarray:
    is_short = white == 255 and values.dtype.itemsize <= 2
    exact: NDArray[np.floating] = values.astype(np.float32 if is_short else np.float64)
    levels = np.rint((exact - low) * (white / (high - low))).clip(0, white)
    return levels.astype(np.uint8 if white == 255 else np.uint16)


def _convert_channels(values: np.ndarray, channels: int) -> np.ndarray:
    have = values.shape[-1]
    if have == channels:
        return values
    if have == 1 and channels == 3:
        return np.repeat(values, 3, axis=-1)
    if have == 3 and channels == 1:
        red, green, blue = np.moveaxis(values.astype(np.uint32), -1, 0)
        grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16  # BT.601 in 16-bit fractions, as Pillow does
        return grey.astype(values.dtype)[..., None]
    hint = " Are its channels first? They must come last." if values.shape[-3] == channels else ""
    raise DataError(f"The model reads {format_count(channels, 'channel')}, the picture has {have}.{hint}")


def to_8_bits(levels: Integer[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Levels for display: the upper 8 bits, rounded; 8-bit ones are returned unchanged."""
    return levels if levels.dtype == np.uint8 else ((levels.astype(np.uint32) + 128) // 257).astype(np.uint8)


# -- Reading: from a path or bytes to stored values.


def read_image(image: ImageInput, spec: ImageSpec) -> DecodedImage:
    """Read the stored values of one image, upright, of 8, 16 or 32 bits or float, with remarks.

    Palettes, two-level images and CMYK become 8-bit grey or RGB. Of an animation the first frame is read, of a TIFF
    or DICOM file the page that the spec names. Colour profiles are not applied. Of the spec, only `window`, `page`
    and `max_pixels` matter here.

    Raises:
        DataError: the file is missing, not a regular file, not an image, truncated, damaged or too large. The message
            names it.
    """
    if isinstance(image, np.ndarray):
        return _image_from_array(image)
    name, data = (str(image), read_file_bytes(image)) if isinstance(image, Path) else (image.name, image.fetch())
    try:
        stored = _image_from_array(data) if isinstance(data, np.ndarray) else parse_image(data, spec)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error.__cause__
    if isinstance(image, Path) and not extension_matches(image.suffix, stored.kind):
        return stored._replace(remarks=(*stored.remarks, EXTENSION_MISMATCH))
    return stored


def _image_from_array(values: np.ndarray) -> DecodedImage:
    return DecodedImage(check_image_array(values), remarks=remark_bit_depth(values))


def parse_image(data: bytes, spec: ImageSpec) -> DecodedImage:
    """As `read_image`, for the bytes of an image without a name."""
    kind = sniff_format(data)
    if kind is None:
        raise NotAnImageError(
            f"not a picture Vitrail reads ({describe_unknown_file(data)}); expected {ACCEPTED_FORMATS}."
        )
    try:
        stored = PARSERS[kind](data, spec)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # parsers of untrusted bytes raise anything: OSError, SyntaxError, struct.error, ...
        text = str(error).partition("\n")[0] or type(error).__name__
        is_truncated = any(word in text.lower() for word in TRUNCATION_WORDS)
        raise (truncated_error(kind, len(data)) if is_truncated else damaged_error(kind, text)) from error
    return stored._replace(kind=kind, remarks=(*stored.remarks, *remark_bit_depth(stored.values)))


# fmt: off
PARSERS: dict[str, Callable[[bytes, ImageSpec], DecodedImage]] = {
    "JPEG": parse_jpeg, "PNG": parse_png, "WebP": parse_webp, "BMP": parse_bmp, "GIF": parse_gif, "TIFF": parse_tiff,
    "DICOM": parse_dicom, "AVIF": parse_avif, "HEIC": parse_heic,
    "NPY": lambda data, spec: parse_npy(data, spec.max_pixels),
}
# fmt: on


def read_file_bytes(path: Path) -> bytes:
    """Read a regular file of at most `MAX_BYTES`; pipes and devices are refused, because they could block.

    Raises:
        DataError: missing, unreadable, too large, or not a regular file.
    """
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise DataError(f"{path}: is a folder, expected a picture file.")
        if not stat.S_ISREG(info.st_mode):
            raise DataError(f"{path}: is a pipe, socket or device, expected a picture file.")
        if info.st_size > MAX_BYTES:
            raise DataError(f"{path}: file is {info.st_size / 2**20:,.0f} MiB, limit {MAX_BYTES // 2**20} MiB.")
        return path.read_bytes()
    except DataError:
        raise
    except ValueError as error:  # a NUL in its name
        raise DataError(f"{path}: cannot be read ({error}).") from error
    except OSError as error:
        if os.path.islink(path) and isinstance(error, FileNotFoundError):
            raise DataError(f"{path}: is a link to {os.readlink(path)}, which does not exist.") from error
        raise DataError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from error
