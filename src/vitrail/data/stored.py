"""From a file's bytes to the values stored in it: the only place where foreign bytes are parsed.

What a file is called says nothing; its first bytes choose one of six formats, and no other parser is ever started.
Size in pixels is checked from the header before anything is decoded. Pictures come out upright.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ..errors import DataError
from .formats import ACCEPTED, looks_like, recognise

MAX_PIXELS = 50_000_000
MAX_BYTES = 512 * 2**20
ORIENTATION = 0x0112  # EXIF tag


class Stored(NamedTuple):
    """Values as they lie in a file: [H, W] or [H, W, C], and opacity [H, W] where the file has any."""

    values: np.ndarray
    alpha: np.ndarray | None = None


def read(path: Path, max_pixels: int = MAX_PIXELS) -> Stored:
    """The upright values of one picture file, of 8, 16 or 32 bits or float.

    Palettes, two-level pictures and CMYK come out as 8-bit grey or RGB. Of an animation the first frame is read.
    Colour profiles are ignored.

    Raises:
        DataError: the file is missing, not a plain file, not a picture, truncated, damaged or too large. The message
            names the file.
    """
    data = _bytes(path)
    try:
        return parse(data, max_pixels)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error.__cause__


def parse(data: bytes, max_pixels: int = MAX_PIXELS) -> Stored:
    """As `read`, for the bytes of a picture that has no file."""
    name = recognise(data)
    if name is None:
        raise DataError(f"not a picture Vitrail reads ({looks_like(data)}); expected {ACCEPTED}.")
    try:
        if name == "NPY":
            return _parse_array(data, max_pixels)
        return _parse_picture(name, data, max_pixels)
    except DataError:
        raise
    except Exception as error:  # parsers of foreign bytes raise anything: OSError, SyntaxError, struct.error, ...
        raise DataError(_reason(name, data, error)) from error


def _bytes(path: Path) -> bytes:
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise DataError(f"{path}: is a folder, expected a picture file.")
        if not stat.S_ISREG(info.st_mode):
            raise DataError(f"{path}: is a pipe, socket or device, expected a picture file.")
        if info.st_size > MAX_BYTES:
            raise DataError(f"{path}: file is {info.st_size / 2**20:,.0f} MiB, limit {MAX_BYTES // 2**20} MiB.")
        return Path(path).read_bytes()
    except OSError as error:
        if os.path.islink(path) and isinstance(error, FileNotFoundError):
            raise DataError(f"{path}: is a link to {os.readlink(path)}, which does not exist.") from error
        raise DataError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from error


# fmt: off
PARSERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile, "PNG": PngImageFile, "WebP": WebPImageFile,
    "BMP": BmpImageFile, "GIF": GifImageFile, "TIFF": TiffImageFile,
}
# fmt: on


def _parse_picture(name: str, data: bytes, max_pixels: int) -> Stored:
    image = PARSERS[name](io.BytesIO(data))  # reads the header only
    _check_size(image.width, image.height, max_pixels)
    if isinstance(image, TiffImageFile) and image.n_frames > 1:
        raise DataError(f"holds {image.n_frames:,} pages, expected one; save the page you mean as a file of its own.")
    if name == "JPEG" and image.mode in ("L", "RGB"):
        return _upright(Stored(_jpeg(image, data)), image)
    deep = _deep_colour(image, name)
    if deep:
        return _upright(_high_and_low(PARSERS[name], data, deep), image)
    image.load()
    return _upright(_values(image), image)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if min(width, height) < 1:
        raise DataError(f"image has no pixels ({height} x {width}).")
    if width * height > max_pixels:
        raise DataError(f"image is {width * height / 1e6:.0f} Mpx, limit {max_pixels / 1e6:.0f} Mpx.")


def _jpeg(image: ImageFile, data: bytes) -> np.ndarray:
    """libjpeg-turbo at full size and full precision; what it finds odd, Pillow decides (both give equal pixels)."""
    grey = image.mode == "L"
    colours = "GRAY" if grey else "RGB"
    try:
        values = simplejpeg.decode_jpeg(data, colours)
    except ValueError:
        try:
            image.load()
            return np.array(image)
        except OSError as error:
            values = _without_end_marker(data, colours, error)
    return values[:, :, 0] if grey else values


def _without_end_marker(data: bytes, colours: str, error: OSError) -> np.ndarray:
    """A file that lacks only its two last bytes has all its pixels."""
    try:
        return simplejpeg.decode_jpeg(data + b"\xff\xd9", colours)
    except ValueError:
        raise error from None


def _values(image: Image) -> Stored:
    """Values of a loaded Pillow picture: deep ones as they are, all others as 8-bit grey or RGB."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Stored(np.array(image))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        values = np.array(image.convert("RGBA"))
        return Stored(values[:, :, :3], values[:, :, 3])
    return Stored(np.array(image.convert("L" if image.mode in ("1", "L") else "RGB")))


def _deep_colour(image: ImageFile, name: str) -> str:
    """The raw mode of a colour picture with 16 bits per channel, of which Pillow keeps the upper 8; else nothing."""
    if name not in ("PNG", "TIFF") or image.mode not in ("RGB", "RGBA") or not image.tile:
        return ""
    raw = _raw_mode(image)
    return raw if ";16" in raw else ""


def _raw_mode(image: ImageFile) -> str:
    args = image.tile[0].args or ("",)
    return str(args if isinstance(args, str) else args[0])


def _high_and_low(parser: type[ImageFile], data: bytes, raw: str) -> Stored:
    """16-bit colour from two readings: the upper bytes, then, with the byte order exchanged, the lower ones."""
    if not raw.startswith(("RGB;16", "RGBA;16", "RGBX;16")):
        raise DataError(
            "is a 16-bit picture of a kind that would lose its lower 8 bits (grey with alpha, or premultiplied); "
            "save it as 16-bit grey or RGB."
        )
    layout, order = raw.split(";")
    big = order == "16B"
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


def _upright(stored: Stored, image: Image) -> Stored:
    turn = TURNS.get(_orientation(image))
    if turn is None:
        return stored
    return Stored(turn(stored.values), None if stored.alpha is None else turn(stored.alpha))


def _orientation(image: Image) -> int:
    """The EXIF orientation; 1 (upright) where it is absent or nonsense. Loaded TIFFs are upright already."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # an unreadable EXIF block is no reason to lose the picture
        return 1


TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


def _parse_array(data: bytes, max_pixels: int) -> Stored:
    values = check_array(np.load(io.BytesIO(data), allow_pickle=False))
    _check_size(values.shape[1], values.shape[0], max_pixels)
    return Stored(values)


def check_array(picture: np.ndarray) -> np.ndarray:
    """The array itself if it can be a picture: [H, W] or [H, W, C], integers or floats, at least one pixel."""
    if picture.ndim not in (2, 3) or picture.size == 0:
        raise DataError(
            f"A picture must be an array [height, width] or [height, width, channels]. Got shape {picture.shape}."
        )
    if picture.dtype.kind not in "uif":
        raise DataError(f"A picture must hold integers or floats. Got an array of {picture.dtype}.")
    return picture


def _reason(name: str, data: bytes, error: Exception) -> str:
    text = str(error) or type(error).__name__
    declared = 8 + int.from_bytes(data[4:8], "little") if name == "WebP" else 0
    if declared > len(data):
        return f"truncated ({len(data):,} of {declared:,} bytes)."
    if any(word in text.lower() for word in ("truncated", "premature", "eof", "no more images", "cannot reshape")):
        return f"truncated ({name} file, {len(data):,} bytes)."
    return f"damaged {name} file ({text})."
