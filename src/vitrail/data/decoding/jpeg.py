"""Decode JPEG files: the header is parsed here, pixels by libjpeg-turbo, at full size or reduced by DCT scaling.

Where libjpeg-turbo finds damage, Pillow decodes instead; it gets only the segments that pixels need: no EXIF, no
profiles, no comments.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simplejpeg
from jaxtyping import UInt8
from PIL.JpegImagePlugin import JpegImageFile

from ...errors import DataError, TooLargeError
from ...formatting import format_count
from ...spec import ImageSpec
from .decoded_image import (
    CONVERT_HINT,
    DAMAGE_IN_PIXELS,
    END_MISSING,
    ORIENTATION_TRANSFORMS,
    SIGNATURE_BYTES,
    XMP_MARK,
    DecodedImage,
    apply_exif,
    check_image_size,
    cmyk_to_rgb,
    damaged_error,
    find_orientation,
    remark_colour_profile,
    sniff_format,
    truncated_error,
)

JPEG = "JPEG"
JPEG_COLOUR_SPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}
END = b"\xff\xd9"
TRUNCATED_MESSAGE = "premature end of data segment"  # libjpeg-turbo's, for pixels missing before an end marker
SCAN = 0xDA
MARKERS_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA, 0xCB}
RARE_FRAMES = {0xF7: "JPEG-LS", **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical JPEG")}
PROGRESSIVE = {0xC2, 0xCA}
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
MAX_SEGMENTS = 10_000
MAX_SCANS = 200  # real progressive files have about ten; each one costs a pass over all pixels


class JpegHeader(NamedTuple):
    """What the header of a JPEG file states before its pixels."""

    height: int
    width: int
    channels: int
    bits: int
    progressive: bool
    adobe: bool
    """Whether Adobe's marker is there, whose CMYK files count light, not ink."""
    exif: tuple[bytes, ...]
    xmp: tuple[bytes, ...]
    profile: bytes
    scan_offset: int
    """Offset at which the pixels begin."""
    required_segments: tuple[slice, ...]
    """Segments of the header without which the pixels cannot be decoded."""


def parse_jpeg(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Parse a JPEG file to grey [H, W] or RGB [H, W, 3]; CMYK and YCCK become RGB, without colour management.

    A file that lacks only its end marker is complete. Where the decoder finds contradictions and can go on, the image
    is kept and the damage remarked; a flipped bit often changes pixels without any contradiction.
    """
    header = read_jpeg_header(data)
    check_image_size(header.height, header.width, spec.max_pixels)
    if header.bits != 8 or header.channels not in JPEG_COLOUR_SPACES:
        raise DataError(
            f"is a JPEG of {format_count(header.channels, 'channel')} with {header.bits} bits each; Vitrail reads "
            "grey, RGB and CMYK of 8 bits. Save deeper pictures as 16-bit PNG or TIFF."
        )
    if header.progressive and _count_scans(data, header.scan_offset) > MAX_SCANS:
        raise TooLargeError(f"image has more than {MAX_SCANS} passes, which no real picture has; save it again.")
    values, remarks = _decode_pixels(data, header)
    if header.channels == 1:
        values = values.reshape(values.shape[:2])
    if header.channels == 4:
        values = cmyk_to_rgb(255 - values if header.adobe else values)
    stored = DecodedImage(values, remarks=(*remarks, *remark_colour_profile(header.profile)))
    return apply_exif(stored, header.exif, header.xmp)


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Parse everything before the first scan, without decoding anything.

    Raises:
        DataError: it ends too early or contradicts itself.
    """
    frame: tuple[int, int, int, int] | None = None
    progressive = adobe = False
    exif: list[bytes] = []
    xmp: list[bytes] = []
    profile: list[bytes] = []
    needed: list[slice] = []
    for marker, start, end in _iter_segments(data):
        body = data[start + 4 : end]
        if marker == SCAN:
            if frame is None:
                raise damaged_error(JPEG, "pixels begin before the header says how many")
            return JpegHeader(
                *frame, progressive, adobe, tuple(exif), tuple(xmp), b"".join(profile), start, tuple(needed)
            )
        if marker in RARE_FRAMES:
            raise DataError(f"is a {RARE_FRAMES[marker]} file, a kind that Vitrail does not read; {CONVERT_HINT}.")
        if marker in FRAMES:
            if len(body) < 6:
                raise damaged_error(JPEG, "its header is too short")
            bits, channels = body[0], body[5]
            frame = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"), channels, bits
            progressive = marker in PROGRESSIVE
        adobe |= marker == 0xEE and body.startswith(b"Adobe")
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            exif.append(body)
        if marker == 0xE1 and body.startswith(XMP_MARK):
            xmp.append(body)
        if marker == 0xE2 and body.startswith(b"ICC_PROFILE\0"):
            profile.append(body[14:])
        if marker in (0xE0, 0xEE) or not 0xE0 <= marker <= 0xFE:
            needed.append(slice(start, end))
    raise truncated_error(JPEG, len(data))


def _iter_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Iterate over (marker, start, end) of the segments up to the first scan; ends early where the file does."""
    position = 2
    for _ in range(MAX_SEGMENTS):
        position = data.find(b"\xff", position)
        while position >= 0 and data[position + 1 : position + 2] in (b"\xff", b"\0"):
            position = data.find(b"\xff", position + 1)
        if position < 0 or position + 4 > len(data):
            return
        marker = data[position + 1]
        if marker == END[1]:
            raise damaged_error(JPEG, "it ends before its pixels begin")
        length = 0 if marker in MARKERS_WITHOUT_LENGTH else int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if end > len(data):
            return
        yield marker, position, end
        position = end
    raise damaged_error(JPEG, f"more than {MAX_SEGMENTS:,} segments before its pixels")


def _count_scans(data: bytes, position: int) -> int:
    """Number of scans of a progressive file; each costs a pass over the pixels."""
    count = 0
    while (marker := MARKER.search(data, position)) and marker[0] != END and count <= MAX_SCANS:
        count += marker[0][1] == SCAN
        position = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return count


def _decode_pixels(data: bytes, header: JpegHeader) -> tuple[np.ndarray, tuple[str, ...]]:
    """Decode at full size, [H, W, 1, 3 or 4]; files that libjpeg-turbo refuses go to Pillow, which tolerates more."""
    colours = JPEG_COLOUR_SPACES[header.channels]
    try:
        return simplejpeg.decode_jpeg(data, colours), ()
    except ValueError as problem:
        odd = str(problem).lower()
    try:
        return simplejpeg.decode_jpeg(data + END, colours), (END_MISSING,)
    except ValueError as problem:
        if TRUNCATED_MESSAGE in odd or TRUNCATED_MESSAGE in str(problem).lower():
            raise truncated_error(JPEG, len(data)) from problem
    needed = b"".join(data[part] for part in header.required_segments)
    image = JpegImageFile(io.BytesIO(b"\xff\xd8" + needed + data[header.scan_offset :]))
    if header.channels == 4:  # as stored: whether light or ink is decided above
        image.tile = [tile._replace(args=("CMYK", "")) for tile in image.tile]
    image.load()
    return np.array(image), () if "extraneous bytes" in odd else (DAMAGE_IN_PIXELS,)


# -- Reduced decoding (DCT scaling of libjpeg) at 1/2, 1/4 or 1/8 size, for training only: several times faster than a
# full decode, and close to the resized image but not equal to it, so evaluation and prediction never use it.

REDUCTIONS = (8, 4, 2)
"""Divisors of the sides; libjpeg's other fractions take longer than a full decode."""
FIRST_SIDEWAYS_ORIENTATION = 5  # from this EXIF orientation on, height and width are swapped


@dataclass(frozen=True)
class ReducibleJpeg:
    """A grey or colour JPEG of 8 bits, sequential, whose header has been read and whose pixels are still encoded."""

    data: bytes
    height: int
    """Height of the upright image, as is the width."""
    width: int
    channels: int
    """1 or 3."""
    orientation: int
    """EXIF's number, 1 for upright."""

    def decode(self, reduction: int = 1) -> UInt8[np.ndarray, "H W c"]:
        """Decode the upright image with its sides divided by `reduction`, rounded up.

        Raises:
            ValueError: libjpeg reports damage; the full decoder decides whether the image can be used.
        """
        height, width = -(-self.height // reduction), -(-self.width // reduction)
        if self.orientation >= FIRST_SIDEWAYS_ORIENTATION:
            height, width = width, height
        min_height, min_width = (height, width) if reduction > 1 else (0, 0)
        values = simplejpeg.decode_jpeg(
            self.data,
            JPEG_COLOUR_SPACES[self.channels],
            min_height=min_height,
            min_width=min_width,
            min_factor=reduction,
        )
        if values.shape[:2] != (height, width):
            raise ValueError(f"JPEG of {values.shape[:2]} pixels, its header says {(height, width)}")
        turn = ORIENTATION_TRANSFORMS.get(self.orientation)
        return values if turn is None else turn(values)


def open_reducible_jpeg(data: bytes, max_pixels: int) -> ReducibleJpeg | None:
    """The JPEG if it can be decoded at reduced size; None if it needs the full decoder."""
    if sniff_format(data[:SIGNATURE_BYTES]) != JPEG:
        return None
    try:
        header = read_jpeg_header(data)
    except Exception:  # untrusted bytes: the full decoder raises the better error
        return None
    if header.progressive or header.bits != 8 or header.channels not in (1, 3):
        return None
    if not 0 < header.height * header.width <= max_pixels:
        return None
    orientation = find_orientation(header.exif, header.xmp)
    height, width = header.height, header.width
    if orientation >= FIRST_SIDEWAYS_ORIENTATION:
        height, width = width, height
    return ReducibleJpeg(data, height, width, header.channels, orientation)


def choose_reduction(oversampling: float) -> int:
    """The largest reduction that leaves enough pixels; each side has `oversampling` times as many as needed."""
    return next((each for each in REDUCTIONS if each <= oversampling), 1)
