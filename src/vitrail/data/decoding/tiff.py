"""Decode one page of a TIFF file of any depth: common kinds by Pillow, scientific ones by tifffile.

The directories are parsed here. A decoder gets a file with one directory of the tags that make up the pixels: no EXIF,
no profiles, no texts.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

import numpy as np
from PIL.TiffImagePlugin import TiffImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .decoded_image import (
    DecodedImage,
    apply_orientation,
    check_image_array,
    check_image_size,
    choose_page,
    damaged_error,
    remark_colour_profile,
    truncated_error,
)
from .raster import decode_16bit_colour, decode_pillow, raw_mode_16bit

MAX_PIECES = 65_536
SIGNED, FLOAT = 2, 3
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
SAMPLE_FORMAT_NAMES = {1: "whole numbers", SIGNED: "signed numbers", FLOAT: "floats"}


def parse_tiff(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Parse the page that the spec names, or the only one; white-is-zero images are inverted.

    Grey and colour of 8 and 16 bits, grey of 32 bits and float, palettes, CMYK and Lab need nothing else; further
    kinds (several channels of floats, 16-bit colours in planes) need tifffile, which comes with vitrail[medical].
    """
    pages = read_tiff_pages(data)
    page = pages[choose_page(len(pages), spec.page, "pages")]
    width, height = page.tag_value(WIDTH), page.tag_value(HEIGHT)
    check_image_size(height, width, spec.max_pixels)
    _check_strips(page, height, width, spec.max_pixels)
    stored = _decode_with_tifffile(page) if _needs_tifffile(page) else _decode_with_pillow(page)
    profile = page.entries.get(PROFILE)
    remarks = remark_colour_profile(page.entry_bytes(profile)) if profile else ()
    orientation = page.tag_value(ORIENTATION, 1)
    stored = stored._replace(remarks=remarks)
    return apply_orientation(stored, orientation) if 2 <= orientation <= 8 else stored


def _check_strips(page: TiffPage, height: int, width: int, max_pixels: int) -> None:
    """Refuse strips or tiles that do not cover the image, are too many, or exceed the pixel limit."""
    planes = page.tag_value(SAMPLES, 1) if page.tag_value(PLANAR, 1) == 2 else 1
    high, wide = (page.tag_value(tag) for tag in (TILE_HEIGHT, TILE_WIDTH))
    tag, pieces = STRIPS, planes * -(-height // min(height, page.tag_value(ROWS) or height))
    if high and wide:
        tag, pieces = TILES, planes * -(-height // high) * -(-width // wide)
    have = page.entries[tag].num_values if tag in page.entries else 0
    if have < pieces:
        raise damaged_error(TIFF, f"it is cut into {pieces:,} strips or tiles and holds {have:,} of them")
    if have > MAX_PIECES:
        raise TooLargeError(
            f"image is cut into {have:,} strips or tiles, limit {MAX_PIECES:,}; save it with fewer, larger ones."
        )
    if high * wide > max_pixels:
        raise TooLargeError(
            f"image has tiles of {high * wide / 1e6:,.0f} Mpx, limit {max_pixels / 1e6:,.0f} Mpx (--image.max-pixels)."
        )


def _needs_tifffile(page: TiffPage) -> bool:
    """Whether Pillow would refuse the page, or decode some of its values wrongly."""
    bits, samples, form = page.tag_value(BITS, 1), page.tag_value(SAMPLES, 1), page.tag_value(FORMAT, 1)
    if samples == 1:
        return (
            (form, bits) in ((FLOAT, 16), (FLOAT, 64))
            or (form == FLOAT and page.tag_value(PHOTOMETRIC) == WHITE_IS_ZERO)
            or bits == 64
            or (form == 1 and bits == 32 and page.encoding.order == ">")
        )
    return form != 1 or bits > 16 or (bits == 16 and (samples == 2 or samples > 4 or page.tag_value(PLANAR, 1) == 2))


def _decode_with_pillow(page: TiffPage) -> DecodedImage:
    alone = page.to_single_page_file()
    try:
        image = TiffImageFile(io.BytesIO(alone))
    except SyntaxError as problem:
        if "unknown" not in str(problem):
            raise
        return _decode_with_tifffile(page)
    if deep := raw_mode_16bit(image):
        return decode_16bit_colour(TiffImageFile, alone, deep)
    stored = decode_pillow(image)
    return stored._replace(values=_restore_dtype(stored.values, page))


def _restore_dtype(values: np.ndarray, page: TiffPage) -> np.ndarray:
    """Restore sign and direction of the values, where Pillow has one type per bit depth."""
    bits, form = page.tag_value(BITS, 1), page.tag_value(FORMAT, 1)
    if page.tag_value(SAMPLES, 1) > 1:
        return values
    if bits == 8 and form == SIGNED:
        return values.view(np.int8)
    if bits == 32 and form == 1 and values.dtype == np.int32:
        return values.view(np.uint32)
    if bits == 16 and page.tag_value(PHOTOMETRIC) == WHITE_IS_ZERO and values.dtype == np.uint16:
        return 65535 - values
    return values


def _decode_with_tifffile(page: TiffPage) -> DecodedImage:
    bits, samples = page.tag_value(BITS, 1), page.tag_value(SAMPLES, 1)
    kind = (
        f"{samples} channel{'s' if samples > 1 else ''} of {bits}-bit "
        f"{SAMPLE_FORMAT_NAMES.get(page.tag_value(FORMAT, 1), 'numbers')}"
    )
    if page.tag_value(PHOTOMETRIC) not in (BLACK_IS_ZERO, RGB):
        raise DataError(f"is a TIFF file with {kind} in colours that Vitrail does not know; save it as grey or RGB.")
    try:
        import tifffile
    except ImportError as problem:
        raise DataError(f"is a TIFF file with {kind}; such need tifffile: pip install 'vitrail[medical]'.") from problem
    with tifffile.TiffFile(io.BytesIO(page.to_single_page_file())) as file:
        first = file.pages[0]
        axes = str(first.axes)
        try:
            values = check_image_array(np.asarray(first.asarray()))
        except ValueError as problem:
            if "imagecodecs" not in str(problem):
                raise
            raise DataError(f"is a TIFF file with {kind}, compressed; save it uncompressed or deflated.") from problem
    if axes.startswith("S"):
        values = np.moveaxis(values, 0, -1)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if page.tag_values(EXTRA) == (2,) and values.ndim == 3 and values.dtype.kind == "u":
        colours = values[:, :, 0] if values.shape[2] == 2 else values[:, :, :-1]
        return DecodedImage(colours, values[:, :, -1])
    return DecodedImage(values)


# -- TIFF directories.

TIFF = "TIFF"
MAX_PAGES = 10_000
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION = 254, 256, 257, 258, 259, 262, 274
STRIPS, SAMPLES, ROWS, PLANAR, TILE_WIDTH, TILE_HEIGHT, TILES = 273, 277, 278, 284, 322, 323, 324
EXTRA, FORMAT, PROFILE = 338, 339, 34675
# fmt: off
PIXEL_TAGS = {
    WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, 266, STRIPS, SAMPLES, ROWS, 279, PLANAR, 292, 293, 317, 320,
    TILE_WIDTH, TILE_HEIGHT, TILES, 325, 332, EXTRA, FORMAT, 347, *range(512, 522), 529, 530, 531, 532,
}
TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}
SINGLE_VALUE_TAGS = {WIDTH, HEIGHT, COMPRESSION, PHOTOMETRIC, 266, SAMPLES, ROWS, PLANAR, 317, TILE_WIDTH, TILE_HEIGHT}
# fmt: on


class TiffEntry(NamedTuple):
    """One directory entry: the type of its values, how many, and the field with the values or their offset."""

    kind: int
    num_values: int
    field: bytes


class TiffEncoding(NamedTuple):
    """Byte order of a file, and the struct formats of an offset, a directory entry, and the number of entries."""

    order: str
    offset_format: str
    entry_format: str
    count_format: str


class TiffPage(NamedTuple):
    """The directory of one page, and the file that it is in."""

    encoding: TiffEncoding
    entries: dict[int, TiffEntry]
    data: bytes

    def tag_values(self, tag: int, default: tuple[int, ...] = (), limit: int = 16) -> tuple[int, ...]:
        """The first integers of a tag, at most `limit`."""
        entry = self.entries.get(tag)
        if entry is None:
            return default
        if entry.kind not in INTEGER_TYPES:
            raise damaged_error(TIFF, f"its tag {tag} holds no whole numbers")
        count = min(entry.num_values, limit)
        form = f"{self.encoding.order}{count}{INTEGER_TYPES[entry.kind]}"
        return struct.unpack_from(form, self.entry_bytes(entry))

    def tag_value(self, tag: int, default: int = 0) -> int:
        """The first integer of a tag."""
        return next(iter(self.tag_values(tag, (default,))), default)

    def entry_bytes(self, entry: TiffEntry) -> bytes:
        """The bytes of an entry, from its field or from its offset.

        Raises:
            DataError: they lie beyond the end of the file.
        """
        size = entry.num_values * TYPE_SIZES.get(entry.kind, 1)
        if size <= len(entry.field):
            return entry.field[:size]
        (start,) = struct.unpack(self.encoding.offset_format, entry.field)
        if start + size > len(self.data):
            raise truncated_error(TIFF, len(self.data), start + size)
        return self.data[start : start + size]

    def to_single_page_file(self) -> bytes:
        """Build a file with this directory alone, and only the tags that make up the pixels."""
        kept = {tag: entry for tag, entry in sorted(self.entries.items()) if tag in PIXEL_TAGS}
        for tag, entry in kept.items():
            self.entry_bytes(entry)
            if tag in SINGLE_VALUE_TAGS and entry.num_values != 1:
                raise damaged_error(TIFF, f"its tag {tag} holds {entry.num_values:,} numbers instead of one")
        _, offset_format, entry_format, count_format = self.encoding
        odd = len(self.data) % 2
        half = struct.calcsize(offset_format)  # the second half of a header is the offset of the first directory
        parts = [self.data[:half], struct.pack(offset_format, len(self.data) + odd), self.data[2 * half :], b"\0" * odd]
        parts.append(struct.pack(count_format, len(kept)))
        parts += [struct.pack(entry_format, tag, *entry) for tag, entry in kept.items()]
        return b"".join([*parts, struct.pack(offset_format, 0)])


def read_tiff_pages(data: bytes) -> list[TiffPage]:
    """Read all full-size pages in their order, without thumbnails and masks.

    Raises:
        DataError: the file ends too early, or has more than 10,000 pages.
    """
    order = "<" if data[:2] == b"II" else ">"
    offset, entry, count = ("Q", "HHQ8s", "Q") if b"+" in data[2:4] else ("I", "HHI4s", "H")  # BigTIFF, or TIFF
    encoding = TiffEncoding(order, order + offset, order + entry, order + count)
    pages: list[TiffPage] = []
    seen: set[int] = set()
    (start,) = _unpack_at(encoding.offset_format, data, struct.calcsize(encoding.offset_format))
    while start and start not in seen:
        seen.add(start)
        if len(seen) > MAX_PAGES:
            raise damaged_error(TIFF, f"more than {MAX_PAGES:,} pages")
        page, start = _read_directory(encoding, data, start)
        if not page.tag_value(SUBFILE) & 0b101:  # a thumbnail or a mask
            pages.append(page)
    if not pages:
        raise damaged_error(TIFF, "it has no page")
    return pages


def _read_directory(encoding: TiffEncoding, data: bytes, start: int) -> tuple[TiffPage, int]:
    """The page at an offset, and the offset of the next one."""
    (count,) = _unpack_at(encoding.count_format, data, start)
    first, step = start + struct.calcsize(encoding.count_format), struct.calcsize(encoding.entry_format)
    if first + step * count > len(data):
        raise truncated_error(TIFF, len(data), first + step * count)
    records = struct.iter_unpack(encoding.entry_format, data[first : first + step * count])
    entries = {tag: TiffEntry(kind, num_values, field) for tag, kind, num_values, field in records}
    (following,) = _unpack_at(encoding.offset_format, data, first + step * count)
    return TiffPage(encoding, entries, data), following


def _unpack_at(form: str, data: bytes, place: int) -> tuple[int, ...]:
    if place + struct.calcsize(form) > len(data):
        raise truncated_error(TIFF, len(data), place + struct.calcsize(form))
    return struct.unpack_from(form, data, place)
