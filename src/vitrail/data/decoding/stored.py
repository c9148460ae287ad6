"""From a picture to the values stored in it: the only place where foreign bytes are parsed.

What a file is called says nothing; its first bytes choose one of eight formats, and no other parser is ever started.
Size in pixels is checked from the header before anything is decoded. Pictures come out upright.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import DataError, NoPictureError
from ...spec import ImageSpec
from ..source import Picture
from .animations import parse_gif, parse_webp
from .dicom import parse_dicom
from .formats import ACCEPTED, ending_fits, looks_like, recognise
from .jpeg_file import parse_jpeg
from .pillow import parse_bmp
from .png import parse_png
from .tiff import parse_tiff
from .values import OTHER_ENDING, Stored, check_array, damaged, depth_remark, parse_array, truncated

__all__ = ["MAX_BYTES", "Stored", "check_array", "parse", "read"]
MAX_BYTES = 512 * 2**20


def read(picture: Picture, spec: ImageSpec) -> Stored:
    """The upright values of one picture, of 8, 16 or 32 bits or float, and what was remarkable about it.

    Palettes, two-level pictures and CMYK come out as 8-bit grey or RGB. Of an animation the first frame is read, of
    a TIFF or DICOM file the page that the spec names. Colour profiles are not applied. Of the spec, only `window`,
    `page` and `max_pixels` matter here.

    Raises:
        DataError: the file is missing, not a plain file, not a picture, truncated, damaged or too large. The message
            names it.
    """
    if isinstance(picture, np.ndarray):
        return _of_array(picture)
    name, data = (str(picture), file_bytes(picture)) if isinstance(picture, Path) else (picture.name, picture.fetch())
    try:
        stored = _of_array(data) if isinstance(data, np.ndarray) else parse(data, spec)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error.__cause__
    if isinstance(picture, Path) and not ending_fits(picture.suffix, stored.kind):
        return stored._replace(remarks=(*stored.remarks, OTHER_ENDING))
    return stored


def _of_array(values: np.ndarray) -> Stored:
    return Stored(check_array(values), remarks=depth_remark(values))


def parse(data: bytes, spec: ImageSpec) -> Stored:
    """As `read`, for the bytes of a picture that has no name."""
    kind = recognise(data)
    if kind is None:
        raise NoPictureError(f"not a picture Vitrail reads ({looks_like(data)}); expected {ACCEPTED}.")
    try:
        stored = PARSERS[kind](data, spec)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # parsers of foreign bytes raise anything: OSError, SyntaxError, struct.error, ...
        raise _reason(kind, data, error) from error
    return stored._replace(kind=kind, remarks=(*stored.remarks, *depth_remark(stored.values)))


# fmt: off
PARSERS: dict[str, Callable[[bytes, ImageSpec], Stored]] = {
    "JPEG": parse_jpeg, "PNG": parse_png, "WebP": parse_webp, "BMP": parse_bmp, "GIF": parse_gif, "TIFF": parse_tiff,
    "DICOM": parse_dicom, "NPY": lambda data, spec: parse_array(data, spec.max_pixels),
}
# fmt: on


def file_bytes(path: Path) -> bytes:
    """All of a plain file of at most `MAX_BYTES`; pipes and devices are not waited for.

    Raises:
        DataError: missing, unreadable, too large, or no plain file.
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


def _reason(kind: str, data: bytes, error: Exception) -> DataError:
    text = str(error).partition("\n")[0] or type(error).__name__
    if any(word in text.lower() for word in ENDED):
        return truncated(kind, len(data))
    return damaged(kind, text)


ENDED = ("truncated", "premature", "eof", "no more images", "cannot reshape", "less than expected")
