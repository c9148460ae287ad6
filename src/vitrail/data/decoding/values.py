"""`Stored`: the values of one picture, and in short fixed phrases what was remarkable about reading them."""

from __future__ import annotations

import io
import math
from typing import NamedTuple

import numpy as np

from ...errors import DataError, TooLargeError

END_MISSING = "end marker missing"
SEVERAL_FRAMES = "first of several frames"
PROFILE_IGNORED = "colour profile ignored"
TURNED = "turned upright by EXIF"
EXIF_UNREADABLE = "EXIF unreadable"
OTHER_ENDING = "ending does not match contents"
DAMAGE_BESIDE = "damage beside the pixels"
DAMAGE_AMONG = "damage among the pixels"
DEPTHS = (8, 10, 12, 14, 16)


class Stored(NamedTuple):
    """Values as they lie in a file: [H, W] or [H, W, C], and opacity [H, W] where the file has any."""

    values: np.ndarray
    alpha: np.ndarray | None = None
    kind: str = "array"
    """JPEG, PNG, WebP, BMP, GIF, TIFF, DICOM or NPY; array for what never was a file."""
    remarks: tuple[str, ...] = ()
    """What the doctor counts: phrases of this file, and "uses 12 of 16 bits"."""


def check_array(picture: np.ndarray) -> np.ndarray:
    """The array itself if it can be a picture: [H, W] or [H, W, C], integers or floats, at least one pixel."""
    if picture.ndim not in (2, 3) or picture.size == 0:
        raise DataError(
            f"A picture must be an array [height, width] or [height, width, channels]. Got shape {picture.shape}."
        )
    if picture.dtype.kind not in "uif":
        raise DataError(f"A picture must hold integers or floats. Got an array of {picture.dtype}.")
    return picture


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuse a picture by what its header says, before anything is decoded."""
    if min(height, width) < 1:
        raise DataError(f"image has no pixels ({height} x {width}).")
    if height * width > max_pixels:
        size, limit = height * width / 1e6, max_pixels / 1e6
        raise TooLargeError(
            f"image is {size:,.0f} Mpx ({height:,} x {width:,}), limit {limit:,.0f} Mpx (--image.max_pixels)."
        )


def choose(count: int, page: int, noun: str) -> int:
    """Which of a file's pages is read, from 0; `page` counts from 1, and 0 means that there must be one only."""
    if page > count or (page == 0 and count > 1):
        asked = f", not the {page:,} that --image.page asks for" if page else ""
        raise DataError(f"holds {count:,} {noun}{asked}; choose one with --image.page N (1 to {count:,}).")
    return max(0, page - 1)


def first_only(kind: str, page: int) -> None:
    """Refuse a page beyond the first of a file of which only the first frame is ever read."""
    if page > 1:
        raise DataError(
            f"of {kind} files only the first frame is read, not the {page:,} that --image.page asks for; save that "
            "frame as a file of its own, or take --image.page 1."
        )


def truncated(kind: str, length: int, needed: int = 0) -> DataError:
    """The error for a file of `length` bytes that ends too early; `needed` is how many its header promises."""
    if needed > length:
        return DataError(f"truncated ({length:,} of {needed:,} bytes).")
    return DataError(f"truncated ({kind} file, {length:,} bytes).")


def damaged(kind: str, why: str) -> DataError:
    """The error for a file that contradicts itself."""
    return DataError(f"damaged {kind} file ({why}).")


def depth_remark(values: np.ndarray) -> tuple[str, ...]:
    """What is worth saying of 16-bit values that stay far below 65535: a 12-bit film, most likely."""
    if values.dtype != np.uint16:
        return ()
    largest = int(values.max())
    bits = next(bits for bits in DEPTHS if largest < 2**bits)
    return () if bits == 16 else (f"uses {bits} of 16 bits",)


def profile_remark(profile: bytes) -> tuple[str, ...]:
    """Colour profiles are never applied; one that calls itself sRGB asks for nothing, any other is mentioned."""
    return (PROFILE_IGNORED,) if profile and b"sRGB" not in profile.replace(b"\0", b"") else ()


def from_inks(inks: np.ndarray) -> np.ndarray:
    """RGB [H, W, 3] of CMYK [H, W, 4], 0 for no ink to 255 for full; without colour management, rounded."""
    light = 255 - inks.astype(np.uint16)
    return ((light[..., :3] * light[..., 3:] + 127) // 255).astype(np.uint8)


def parse_array(data: bytes, max_pixels: int) -> Stored:
    """The picture of a `.npy` file; its size is checked before room is made for it."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if len(shape) in (2, 3):
        check_size(shape[0], shape[1], max_pixels)
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize > len(data):
        raise truncated("NPY", len(data), file.tell() + math.prod(shape) * dtype.itemsize)
    return Stored(check_array(np.load(io.BytesIO(data), allow_pickle=False)))
