"""From a picture that Pillow has opened to `Stored`: what its modes mean, and how to get at bits that it drops."""

from __future__ import annotations

import io
import sys

import numpy as np
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Image import Image
from PIL.ImageFile import ImageFile

from ...errors import DataError
from ...spec import ImageSpec
from .values import Stored, check_size, from_inks

DEEP = ("I", "F")  # and I;16 in both byte orders
CLEAR = ("LA", "La", "PA", "RGBA", "RGBa")


def parse_bmp(data: bytes, spec: ImageSpec) -> Stored:
    """Windows bitmaps of any depth up to 32 bits per pixel."""
    image = BmpImageFile(io.BytesIO(data))  # reads the header only
    check_size(image.height, image.width, spec.max_pixels)
    return loaded(image)


def loaded(image: Image) -> Stored:
    """The values of a Pillow picture: deep ones as they are, all others as 8-bit grey or RGB."""
    image.load()
    if is_deep(image):
        values = np.array(image)
        return Stored(values.astype(values.dtype.newbyteorder("="), copy=False))
    if image.mode in CLEAR or "transparency" in image.info:
        values = np.array((image.convert("LA") if image.mode == "La" else image).convert("RGBA"))
        if image.mode in ("LA", "La", "1", "L"):
            return Stored(values[:, :, 0], values[:, :, 3])
        return Stored(values[:, :, :3], values[:, :, 3])
    if image.mode == "CMYK":
        return Stored(from_inks(np.array(image)))
    if image.mode == "LAB":
        return Stored(_from_lab(np.array(image)))
    return Stored(np.array(image.convert("L" if image.mode in ("1", "L") else "RGB")))


def is_deep(image: Image) -> bool:
    """Whether a picture is grey with more than 8 bits, which Pillow converts to nothing without cutting them off."""
    return image.mode in DEEP or image.mode.startswith("I;16")


def _from_lab(numbers: np.ndarray) -> np.ndarray:
    """sRGB [H, W, 3] of CIE Lab with 8 bits each: L of 0..255, then a and b with their signs; its white is D50.

    Source: CIE 15:2004 and IEC 61966-2-1. (The colour engine in Pillow is up to 11 levels off in saturated colours.)
    """
    middle = (numbers[:, :, 0] * np.float32(100 / 255) + 16) / 116
    red, yellow = (np.ascontiguousarray(numbers[:, :, i]).view(np.int8).astype(np.float32) for i in (1, 2))
    roots = np.stack([middle + red / 500, middle, middle - yellow / 200], axis=-1)
    xyz = np.where(roots > 6 / 29, roots**3, 3 * (6 / 29) ** 2 * (roots - 4 / 29)) * D50
    linear = (xyz @ XYZ_TO_SRGB.T).clip(0, 1)
    return np.rint(255 * np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)).astype(
        np.uint8
    )


D50 = np.array((0.9642, 1, 0.8249), np.float32)
XYZ_TO_SRGB = np.array(
    ((3.1338561, -1.6168667, -0.4906146), (-0.9787684, 1.9161415, 0.0334540), (0.0719453, -0.2289914, 1.4052427)),
    np.float32,
)


def deep_colour(image: ImageFile) -> str:
    """The raw mode of a colour picture with 16 bits per channel, of which Pillow keeps the upper 8; else nothing."""
    if image.mode not in ("RGB", "RGBA") or not image.tile:
        return ""
    args = image.tile[0].args or ("",)
    raw = str(args if isinstance(args, str) else args[0])
    return raw if ";16" in raw else ""


def high_and_low(parser: type[ImageFile], data: bytes, raw: str) -> Stored:
    """16-bit colour from two readings: the upper bytes, then, with the byte order exchanged, the lower ones."""
    if not raw.startswith(("RGB;16", "RGBA;16", "RGBX;16")):
        raise DataError(
            "is a 16-bit picture with premultiplied opacity, which would lose its lower 8 bits; save it as 16-bit RGB."
        )
    layout, order = raw.split(";")
    big = order == "16B" or (order == "16N" and sys.byteorder == "big")
    high = _read_as(parser, data, f"{layout};16{'B' if big else 'L'}")
    low = _read_as(parser, data, f"{layout};16{'L' if big else 'B'}")
    values = high.astype(np.uint16) << 8 | low
    return Stored(values[:, :, :3], values[:, :, 3] if layout == "RGBA" else None)


def _read_as(parser: type[ImageFile], data: bytes, raw: str) -> np.ndarray:
    image = parser(io.BytesIO(data))
    image.tile = [
        tile._replace(args=(raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw) for tile in image.tile
    ]
    image.load()
    return np.array(image)
