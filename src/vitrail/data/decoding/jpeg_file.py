"""JPEG files at full size: the header is read here, pixels by libjpeg-turbo.

Only what pixels need is handed on where Pillow must help: no EXIF, no profiles, no comments.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL.JpegImagePlugin import JpegImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .exif import upright
from .values import DAMAGE_AMONG, END_MISSING, Stored, check_size, damaged, from_inks, profile_remark, truncated

KIND = "JPEG"
COLOURS = {1: "GRAY", 3: "RGB", 4: "CMYK"}
END = b"\xff\xd9"
CUT = "premature end of data segment"  # the decoder's words for pixels that are missing before an end marker
SCAN = 0xDA
ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
MAX_SEGMENTS = 10_000
MAX_SCANS = 200  # real progressive files have about ten; each one costs a pass over all pixels


class Header(NamedTuple):
    """What a JPEG file says before its pixels."""

    height: int
    width: int
    channels: int
    bits: int
    progressive: bool
    adobe: bool
    """Whether Adobe's marker is there, whose CMYK files count light, not ink."""
    exif: tuple[bytes, ...]
    profile: bytes
    scan: int
    """Where the pixels begin."""
    needed: tuple[slice, ...]
    """The segments before them without which they cannot be decoded."""


def parse_jpeg(data: bytes, spec: ImageSpec) -> Stored:
    """Grey [H, W] or RGB [H, W, 3]; CMYK and YCCK become RGB, without colour management.

    A file that lacks only its end marker is whole. Where the decoder finds contradictions and can go on, the picture
    is kept and the damage remarked; a flipped bit often gives other pixels and no contradiction at all.
    """
    header = read_header(data)
    check_size(header.height, header.width, spec.max_pixels)
    if header.bits != 8 or header.channels not in COLOURS:
        raise DataError(
            f"is a JPEG of {header.channels} channels with {header.bits} bits each; Vitrail reads grey, RGB and CMYK "
            "of 8 bits. Save deeper pictures as 16-bit PNG or TIFF."
        )
    if header.progressive and _scans(data, header.scan) > MAX_SCANS:
        raise TooLargeError(f"image has more than {MAX_SCANS} passes, which no real picture has; save it again.")
    values, remarks = _pixels(data, header)
    if header.channels == 1:
        values = values.reshape(values.shape[:2])
    if header.channels == 4:
        values = from_inks(255 - values if header.adobe else values)
    stored = Stored(values, remarks=(*remarks, *profile_remark(header.profile)))
    return upright(stored, header.exif)


def read_header(data: bytes) -> Header:
    """All that stands before the first scan, without decoding anything.

    Raises:
        DataError: it ends too early or contradicts itself.
    """
    frame: tuple[int, int, int, int] | None = None
    progressive = adobe = False
    exif: list[bytes] = []
    profile: list[bytes] = []
    needed: list[slice] = []
    for marker, start, end in _segments(data):
        body = data[start + 4 : end]
        if marker == SCAN:
            if frame is None:
                raise damaged(KIND, "pixels begin before the header says how many")
            return Header(*frame, progressive, adobe, tuple(exif), b"".join(profile), start, tuple(needed))
        if marker in FRAMES:
            if len(body) < 6:
                raise damaged(KIND, "its header is too short")
            bits, channels = body[0], body[5]
            frame = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"), channels, bits
            progressive = marker in PROGRESSIVE
        adobe |= marker == 0xEE and body.startswith(b"Adobe")
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            exif.append(body)
        if marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"):
            profile.append(body[14:])
        if marker in (0xE0, 0xEE) or not 0xE0 <= marker <= 0xFE:
            needed.append(slice(start, end))
    raise truncated(KIND, len(data))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of every segment up to the first scan; ends early where the file does."""
    position = 2
    for _ in range(MAX_SEGMENTS):
        position = data.find(b"\xff", position)
        while position >= 0 and data[position + 1 : position + 2] in (b"\xff", b"\0"):
            position = data.find(b"\xff", position + 1)
        if position < 0 or position + 4 > len(data):
            return
        marker = data[position + 1]
        if marker == END[1]:
            raise damaged(KIND, "it ends before its pixels begin")
        length = 0 if marker in ALONE else int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if end > len(data):
            return
        yield marker, position, end
        position = end
    raise damaged(KIND, f"more than {MAX_SEGMENTS:,} segments before its pixels")


def _scans(data: bytes, position: int) -> int:
    """How many passes over the pixels a progressive file makes."""
    count = 0
    while (found := MARKER.search(data, position)) and found[0] != END and count <= MAX_SCANS:
        count += found[0][1] == SCAN
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    return count


def _pixels(data: bytes, header: Header) -> tuple[np.ndarray, tuple[str, ...]]:
    """Full size and full precision, [H, W, 1, 3 or 4]; what libjpeg-turbo finds odd, Pillow tries more patiently."""
    colours = COLOURS[header.channels]
    try:
        return simplejpeg.decode_jpeg(data, colours), ()
    except ValueError as problem:
        odd = str(problem).lower()
    try:
        return simplejpeg.decode_jpeg(data + END, colours), (END_MISSING,)
    except ValueError as problem:
        if CUT in odd or CUT in str(problem).lower():
            raise truncated(KIND, len(data)) from problem
    needed = b"".join(data[part] for part in header.needed)
    image = JpegImageFile(io.BytesIO(b"\xff\xd8" + needed + data[header.scan :]))
    if header.channels == 4:  # as stored: whether light or ink is decided above
        image.tile = [tile._replace(args=("CMYK", "")) for tile in image.tile]
    image.load()
    return np.array(image), () if "extraneous bytes" in odd else (DAMAGE_AMONG,)
