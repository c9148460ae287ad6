"""GIF and WebP files, of which the first frame is read: where it ends is found here, and nothing after it is parsed."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL.GifImagePlugin import GifImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .exif import upright
from .pillow import loaded
from .values import END_MISSING, SEVERAL_FRAMES, Stored, check_size, damaged, first_only, profile_remark, truncated

FRAME, EXTENSION, TRAILER = 0x2C, 0x21, 0x3B
MAX_FRAMES = 4096


class Frame(NamedTuple):
    """Where a frame of a GIF file lies on the canvas, and the place in the file behind it."""

    bottom: int
    right: int
    after: int


def parse_gif(data: bytes, spec: ImageSpec) -> Stored:
    """The first frame on its canvas, with its transparency; of later frames only the sizes are looked at."""
    first_only("GIF", spec.page)
    if len(data) < 13:
        raise truncated("GIF", len(data))
    width, height = struct.unpack_from("<HH", data, 6)
    check_size(height, width, spec.max_pixels)
    frames = _frames(data, 13 + _palette(data[10]))
    first = next(frames, None)
    if first is None:
        raise damaged("GIF", "it ends before its first frame")
    check_size(max(height, first.bottom), max(width, first.right), spec.max_pixels)
    remarks = _later(frames, spec.max_pixels)
    image = GifImageFile(io.BytesIO(data[: first.after] + bytes([TRAILER])))
    return loaded(image)._replace(remarks=remarks)


def _later(frames: Iterator[Frame], max_pixels: int) -> tuple[str, ...]:
    """What is remarkable behind the first frame.

    Raises:
        DataError: a later frame larger than the limit, or thousands of them.
    """
    count = 1
    while True:
        try:
            frame = next(frames, None)
        except DataError:
            return (SEVERAL_FRAMES, END_MISSING) if count > 1 else (END_MISSING,)
        if frame is None:
            return (SEVERAL_FRAMES,) if count > 1 else ()
        check_size(max(1, frame.bottom), max(1, frame.right), max_pixels)
        count += 1
        if count > MAX_FRAMES:
            raise TooLargeError(f"image has more than {MAX_FRAMES:,} frames, as files made to exhaust a reader do.")


def _frames(data: bytes, position: int) -> Iterator[Frame]:
    """Frame after frame up to the file's trailer, without decoding any."""
    while position < len(data) and data[position] != TRAILER:
        if data[position] == EXTENSION:
            position = _skip_blocks(data, position + 2)
            continue
        if data[position] != FRAME:
            raise damaged("GIF", f"no block begins with {data[position]}")
        if position + 11 > len(data):
            break
        left, top, width, height = struct.unpack_from("<HHHH", data, position + 1)
        position = _skip_blocks(data, position + 11 + _palette(data[position + 9]))
        yield Frame(top + height, left + width, position)
    if position >= len(data) or data[position] != TRAILER:
        raise truncated("GIF", len(data))


def _skip_blocks(data: bytes, position: int) -> int:
    """The place behind a row of blocks, each with its length before it; one of length 0 ends the row."""
    while position < len(data):
        length = data[position]
        position += 1 + length
        if length == 0:
            return position
    raise truncated("GIF", len(data))


def _palette(flags: int) -> int:
    """Bytes of the palette that follows a header with these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def parse_webp(data: bytes, spec: ImageSpec) -> Stored:
    """The first frame on its canvas, with its opacity."""
    first_only("WebP", spec.page)
    needed = 8 + int.from_bytes(data[4:8], "little")
    if needed > len(data) or len(data) < 30:
        raise truncated("WebP", len(data), max(needed, 30))
    check_size(*_canvas(data), spec.max_pixels)
    image = WebPImageFile(io.BytesIO(data))
    check_size(image.height, image.width, spec.max_pixels)
    stored = loaded(image)
    frames = (SEVERAL_FRAMES,) if image.n_frames > 1 else ()
    remarks = (*frames, *profile_remark(image.info.get("icc_profile") or b""))
    return upright(stored._replace(remarks=remarks), [block for block in [image.info.get("exif")] if block])


def _canvas(data: bytes) -> tuple[int, int]:
    """Height and width from the first chunk, before any room is made for them."""
    name = data[12:16]
    if name == b"VP8X":
        width, height = (int.from_bytes(data[place : place + 3], "little") + 1 for place in (24, 27))
    elif name == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif name == b"VP8 ":
        width, height = (side & 0x3FFF for side in np.frombuffer(data, "<u2", 2, 26).tolist())
    else:
        raise damaged("WebP", f"no picture begins with {name!r}")
    return height, width
