"""Decode one page of a TIFF file of any depth and number of bands.

The directories are parsed here. The strips or tiles of the page alone are written into a new file, which holds nothing
else: no EXIF, no profiles, no texts. Pillow's libtiff unpacks it as grey of 8 bits, so that bands and depth do not
matter to it; samples, predictors and colours are put together from these bytes here. Only JPEG and CCITT, whose
codecs know about colours, are unpacked as pictures.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped, UInt8
from PIL.TiffImagePlugin import TiffImageFile

from ...errors import DataError, TooLargeError
from ...formatting import format_count
from ...spec import ImageSpec
from .decoded_image import (
    UPRIGHT,
    DecodedImage,
    apply_orientation,
    check_image_size,
    choose_page,
    cmyk_to_rgb,
    damaged_error,
    fill_padding,
    find_orientation,
    lab_to_srgb,
    palette_to_bytes,
    remark_colour_profile,
    truncated_error,
)
from .jpeg import parse_jpeg

MAX_PIECES = 65_536
MAX_BYTES_PER_PIXEL = 16
"""Times the pixel limit: how many bytes a page may unpack to."""
UNSIGNED, SIGNED, FLOAT = 1, 2, 3
SAMPLE_FORMAT_NAMES = {UNSIGNED: "whole numbers", SIGNED: "signed numbers", FLOAT: "floats"}
READ_BITS = {UNSIGNED: {*range(1, 17), 24, 32, 64}, SIGNED: {8, 16, 32, 64}, FLOAT: {16, 32, 64}}
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, INKS, YCBCR, CIE_LAB, ICC_LAB = 0, 1, 2, 3, 5, 6, 8, 9
COLOUR_SAMPLES = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, INKS: 4, YCBCR: 3, CIE_LAB: 3, ICC_LAB: 3}
UNCOMPRESSED = "save it uncompressed or deflated"
OTHER_INKS = "with inks other than cyan, magenta, yellow and black"
IMAGEJ_SLICES = re.compile(rb"ImageJ=[^\0]*?\nimages=(\d{1,9})")
PREMULTIPLIED = 1
OPACITY = (PREMULTIPLIED, 2, 999)
"""Kinds of extra samples that are opacity; Corel Draw writes 999."""
NO_COMPRESSION, OLD_JPEG, JPEG_COMPRESSION, DEFLATE = 1, 6, 7, 8
CCITT_COMPRESSIONS = (2, 3, 4, 32771)
BYTE_COMPRESSIONS = (NO_COMPRESSION, 5, DEFLATE, 32773, 32946, 34925, 50000)
"""None, LZW, deflate, PackBits, deflate's older number, LZMA, Zstandard: they know only bytes."""
# fmt: off
OTHER_COMPRESSIONS = {
    OLD_JPEG: "JPEG of before 1995", 9: "JBIG", 10: "JBIG", 22610: "JPEG XR", 32766: "NeXT's run lengths",
    32809: "ThunderScan", 33003: "JPEG 2000", 33005: "JPEG 2000", 34661: "JBIG",
    34676: "SGI's logarithms", 34677: "SGI's logarithms", 34712: "JPEG 2000", 34887: "LERC", 34892: "lossy JPEG of DNG",
    34933: "PNG", 34934: "JPEG XR", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL",
}
OTHER_COLOURS = {
    4: "that is a mask", 10: "in ITU's L*a*b*", 32803: "with the raw mosaic of a camera's sensor",
    32844: "in logarithms of light", 32845: "in logarithms of light", 34892: "with raw values of a camera's sensor",
    51177: "that is a map of depths", 52527: "that is a mask",
}
# fmt: on


class TiffLayout(NamedTuple):
    """How the samples of a page are stored."""

    height: int
    width: int
    samples: int
    bits: int
    form: int
    photometric: int
    compression: int
    predictor: int
    planes: int
    """Pictures of one sample each that the page is stored as; 1 where samples stand side by side."""
    piece_height: int
    """Rows of a tile, or of a strip."""
    piece_width: int
    """Columns of a tile; a strip has those of the picture."""
    is_tiled: bool

    @property
    def across(self) -> int:
        """Tiles beside each other."""
        return -(-self.width // self.piece_width)

    @property
    def down(self) -> int:
        """Tiles or strips below each other."""
        return -(-self.height // self.piece_height)

    @property
    def row_samples(self) -> int:
        """Samples in one row of a piece."""
        return self.piece_width * (1 if self.planes > 1 else self.samples)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a piece, unpacked."""
        return -(-self.row_samples * self.bits // 8)


def parse_tiff(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Parse the page that the spec names, or the only one, to grey [H, W], RGB [H, W, 3] or all its bands [H, W, C].

    White-is-zero is inverted; palettes, CMYK, YCbCr and Lab become RGB. Extra samples are bands, unless the file says
    that they are opacity. Grey and colours of fewer than 8 bits are stretched to 0..255; deeper values are kept. Pixels
    of GDAL's no-data value become the darkest value of the rest.

    Raises:
        DataError: a kind of TIFF that is not read, by its name; several pages; truncated, damaged or too large.
    """
    pages = read_tiff_pages(data)
    page = pages[choose_page(len(pages), spec.page, "pages")]
    layout = _read_layout(page, spec.max_pixels)
    slices = IMAGEJ_SLICES.match(page.tag_bytes(DESCRIPTION))
    if slices and int(slices[1]) > len(pages) == 1:
        raise _unread_error(f"of ImageJ with {int(slices[1]):,} slices behind one directory", "save each as a page")
    if layout.compression == OLD_JPEG:
        samples = _decode_old_jpeg(page, layout, spec)
    else:
        pieces = _read_pieces(page, layout, MAX_BYTES_PER_PIXEL * spec.max_pixels)
        samples = (_decode_as_picture if _is_picture(layout) else _decode_samples)(page, layout, pieces)
    stored = _samples_to_image(samples, page, layout)
    stored = stored._replace(remarks=remark_colour_profile(page.tag_bytes(PROFILE)))
    orientation = page.tag_value(ORIENTATION) or find_orientation((), [page.tag_bytes(XMP)])
    return apply_orientation(stored, orientation) if UPRIGHT < orientation <= 8 else stored


def _read_layout(page: TiffPage, max_pixels: int) -> TiffLayout:
    """Read and check what is needed to unpack a page; sizes are checked before anything is allocated.

    Raises:
        DataError: too large, contradictory, or of a kind that is not read.
    """
    width, height = page.single_value(WIDTH), page.single_value(HEIGHT)
    check_image_size(height, width, max_pixels)
    samples, compression = max(1, page.single_value(SAMPLES, 1)), page.single_value(COMPRESSION, NO_COMPRESSION)
    tile_width, tile_height = page.single_value(TILE_WIDTH), page.single_value(TILE_HEIGHT)
    is_tiled = bool(tile_width and tile_height)
    bits, forms = page.tag_values(BITS, (), samples) or (1,), page.tag_values(FORMAT, (), samples) or (UNSIGNED,)
    layout = TiffLayout(
        height=height,
        width=width,
        samples=samples,
        bits=bits[0],
        form=UNSIGNED if forms[0] == 4 else forms[0],  # "undefined"
        photometric=page.single_value(PHOTOMETRIC, _usual_photometric(samples, compression)),
        compression=compression,
        predictor=page.single_value(PREDICTOR, 1),
        planes=samples if page.single_value(PLANAR, 1) == 2 else 1,
        piece_height=tile_height if is_tiled else min(height, page.single_value(ROWS) or height),
        piece_width=tile_width if is_tiled else width,
        is_tiled=is_tiled,
    )
    _check_pieces(page, layout, max_pixels)
    if len(set(bits)) > 1 or len(set(forms)) > 1:
        raise _unread_error(f"whose bands differ in depth or kind ({', '.join(map(str, bits))} bits)")
    _check_kind(page, layout)
    return layout


def _usual_photometric(samples: int, compression: int) -> int:
    """What libtiff takes a page for that does not say what its samples are."""
    if samples >= COLOUR_SAMPLES[RGB]:
        return RGB
    return WHITE_IS_ZERO if compression in CCITT_COMPRESSIONS else BLACK_IS_ZERO


def _check_pieces(page: TiffPage, layout: TiffLayout, max_pixels: int) -> None:
    """Refuse strips or tiles that do not cover the image, are too many, or unpack to more than the limit."""
    tag = TILES if layout.is_tiled else STRIPS
    have = page.entries[tag].num_values if tag in page.entries else 0
    pieces = layout.planes * layout.down * layout.across
    if have < pieces:
        raise damaged_error(TIFF, f"it is cut into {pieces:,} strips or tiles and holds {have:,} of them")
    if have > MAX_PIECES:
        raise TooLargeError(
            f"image is cut into {have:,} strips or tiles, limit {MAX_PIECES:,}; save it with fewer, larger ones."
        )
    tile = layout.piece_height * layout.piece_width
    if layout.is_tiled and tile > max_pixels:
        raise TooLargeError(
            f"image has tiles of {tile / 1e6:,.0f} Mpx, limit {max_pixels / 1e6:,.0f} Mpx (--image.max-pixels)."
        )
    size = layout.planes * layout.down * layout.piece_height * layout.across * layout.row_bytes
    if size > MAX_BYTES_PER_PIXEL * max_pixels:
        raise TooLargeError(
            f"image of {layout.samples:,} bands of {layout.bits} bits unpacks to {size / 1e6:,.0f} MB, limit "
            f"{MAX_BYTES_PER_PIXEL * max_pixels / 1e6:,.0f} MB (--image.max-pixels)."
        )


def _check_kind(page: TiffPage, layout: TiffLayout) -> None:
    """Refuse by its name what is not read: compressions, colours, depths, predictors, volumes."""
    bits, form, photometric, compression = layout.bits, layout.form, layout.photometric, layout.compression
    if photometric not in COLOUR_SAMPLES:
        raise _unread_error(OTHER_COLOURS.get(photometric, f"in colours of an unknown kind ({photometric})"))
    if compression not in (*BYTE_COMPRESSIONS, OLD_JPEG, JPEG_COMPRESSION, *CCITT_COMPRESSIONS):
        raise _compression_error(compression)
    if form not in SAMPLE_FORMAT_NAMES:
        raise _unread_error("of complex numbers", "save their magnitude as floats")
    kind = f"{layout.samples} band{'s' if layout.samples > 1 else ''} of {bits}-bit {SAMPLE_FORMAT_NAMES[form]}"
    if bits not in READ_BITS[form] or (compression == JPEG_COMPRESSION and bits != 8):
        raise _unread_error(f"with {kind}{' in JPEG' if compression == JPEG_COMPRESSION else ''}")
    if compression in CCITT_COMPRESSIONS and (bits, layout.samples) != (1, 1):
        raise damaged_error(TIFF, f"{kind} as a fax of two levels")
    depths = {PALETTE: range(1, 17), INKS: (8, 16), YCBCR: (8,), CIE_LAB: (8,), ICC_LAB: (8,)}
    if photometric in depths and (form != UNSIGNED or bits not in depths[photometric]):
        raise _unread_error(f"with {kind} in colours other than RGB")
    if photometric == WHITE_IS_ZERO and form != UNSIGNED:
        raise _unread_error(f"with {kind} whose white is zero, so black is undefined", "save it with black as zero")
    if layout.samples < COLOUR_SAMPLES[photometric] or (photometric == YCBCR and layout.samples > 3):
        raise _unread_error(f"with {kind} where its colours need {COLOUR_SAMPLES[photometric]}")
    if photometric == INKS and page.tag_value(INK_SET, 1) != 1:
        raise _unread_error(OTHER_INKS)
    if compression == JPEG_COMPRESSION and layout.planes == 1 and layout.samples > 4:
        raise _unread_error(f"with {kind} in JPEG", UNCOMPRESSED)
    if photometric == YCBCR and layout.planes > 1:
        raise _unread_error("in YCbCr of separate planes")
    predictors = {1: True, 2: bits in (8, 16, 32, 64), 3: form == FLOAT}
    if compression in BYTE_COMPRESSIONS[1:] and not predictors.get(layout.predictor):
        raise _unread_error(f"with {kind} and predictor {layout.predictor}", "save it without one")
    if page.tag_value(DEPTH, 1) > 1:
        raise _unread_error("of a volume", "save each slice as a page")


def _unread_error(what: str, remedy: str = "save it as grey or RGB") -> DataError:
    """The error for a valid file of a kind that is not read."""
    return DataError(f"is a TIFF file {what}, which Vitrail does not read; {remedy}.")


def _compression_error(compression: int) -> DataError:
    name = OTHER_COMPRESSIONS.get(compression, "an unknown kind")
    return _unread_error(f"compressed as {name} ({compression})", UNCOMPRESSED)


# -- Unpacking: strips or tiles to samples.

REVERSED_BITS = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1], axis=1)[:, 0]


def _is_picture(layout: TiffLayout) -> bool:
    """Whether the codec must know about colours, so that the bands cannot be unpacked as bytes."""
    if layout.compression == JPEG_COMPRESSION:
        return layout.samples > 1 and layout.planes == 1
    return layout.photometric == YCBCR or layout.compression in CCITT_COMPRESSIONS


def _read_pieces(page: TiffPage, layout: TiffLayout, max_bytes: int) -> list[bytes]:
    """The strips or tiles of a page as stored, plane after plane."""
    need = layout.planes * layout.down * layout.across
    offsets = page.tag_values(TILES if layout.is_tiled else STRIPS, limit=need)
    counts = page.tag_values(TILE_COUNTS if layout.is_tiled else STRIP_COUNTS, limit=need)
    if layout.compression == NO_COMPRESSION and not _is_picture(layout):  # some writers give wrong counts
        last = layout.height - (layout.down - 1) * layout.piece_height
        rows = [layout.piece_height] * (layout.down - 1) + [layout.piece_height if layout.is_tiled else last]
        counts = tuple(each * layout.row_bytes for each in rows for _ in range(layout.across)) * layout.planes
    elif len(counts) < need:  # old writers give none
        places = sorted({*offsets, len(page.data)})
        counts = tuple(places[min(places.index(each) + 1, len(places) - 1)] - each for each in offsets)
    if 0 in offsets:
        raise _unread_error("with strips or tiles left out (sparse)", "save it whole, as gdal_translate does")
    if sum(counts) > max_bytes + len(page.data):
        raise TooLargeError(f"image has strips or tiles of {sum(counts) / 1e6:,.0f} MB in all; save it again.")
    end = max(map(sum, zip(offsets, counts, strict=True)))
    if end > len(page.data):
        raise truncated_error(TIFF, len(page.data), end)
    return [page.data[start : start + size] for start, size in zip(offsets, counts, strict=True)]


def _decode_as_picture(page: TiffPage, layout: TiffLayout, pieces: list[bytes]) -> np.ndarray:
    """Decode all samples with libtiff's own codecs of pictures, [H, W, S]; YCbCr becomes RGB."""
    compression, photometric = layout.compression, layout.photometric
    if compression == NO_COMPRESSION:  # Pillow would read it without libtiff, which alone knows subsampled colours
        compression, pieces = DEFLATE, [zlib.compress(piece, 1) for piece in pieces]
    if photometric not in (YCBCR, INKS):
        photometric = RGB if layout.samples > 2 else BLACK_IS_ZERO
    tags = _piece_tags(page, layout, layout.width, layout.piece_width) | {
        BITS: (3, (layout.bits,) * layout.samples),
        COMPRESSION: (3, (compression,)),
        PHOTOMETRIC: (3, (photometric,)),
        SAMPLES: (3, (layout.samples,)),
        PREDICTOR: (3, (layout.predictor,)),
    }
    if layout.samples in (2, 4) and photometric != INKS:
        tags[EXTRA] = (3, (2,))  # whatever the fourth band is: so Pillow keeps it
    return np.atleast_3d(_unpack_with_pillow(tags, pieces)).astype(np.uint8)


def _decode_old_jpeg(page: TiffPage, layout: TiffLayout, spec: ImageSpec) -> np.ndarray:
    """Decode JPEG of TIFF 6.0's first kind where the whole stream is kept in one place, [H, W, S]."""
    start, size = page.single_value(JPEG_STREAM), page.single_value(JPEG_STREAM_SIZE)
    if not start or layout.photometric not in (BLACK_IS_ZERO, YCBCR):
        raise _compression_error(OLD_JPEG)
    values = np.atleast_3d(parse_jpeg(page.data[start : start + size], spec).values)
    if values.shape != (layout.height, layout.width, layout.samples):
        raise damaged_error(TIFF, f"its JPEG has the shape {values.shape}")
    return values


def _decode_samples(page: TiffPage, layout: TiffLayout, pieces: list[bytes]) -> np.ndarray:
    """Decode all samples in their own type, [H, W, S]."""
    step = layout.down * layout.across
    planes = [pieces[first : first + step] for first in range(0, layout.planes * step, step)]
    samples = [_rows_to_samples(_unpack_bytes(page, layout, plane), page, layout) for plane in planes]
    return samples[0] if len(samples) == 1 else np.concatenate(samples, axis=2)


def _unpack_bytes(page: TiffPage, layout: TiffLayout, pieces: list[bytes]) -> UInt8[np.ndarray, "H across bytes"]:
    """Unpack the strips or tiles of one plane to rows of bytes."""
    shape = (layout.height, layout.across, layout.row_bytes)
    if layout.compression == NO_COMPRESSION:
        rows = np.frombuffer(b"".join(pieces), np.uint8)
        if layout.is_tiled:
            rows = rows.reshape(layout.down, layout.across, layout.piece_height, -1).swapaxes(1, 2)
            rows = rows.reshape(-1, *shape[1:])[: layout.height]
        return REVERSED_BITS[rows].reshape(shape) if page.tag_value(FILL_ORDER, 1) == 2 else rows.reshape(shape)
    tags = _piece_tags(page, layout, layout.across * layout.row_bytes, layout.row_bytes) | {
        BITS: (3, (8,)),
        COMPRESSION: (3, (layout.compression,)),
        PHOTOMETRIC: (3, (BLACK_IS_ZERO,)),
    }
    return _unpack_with_pillow(tags, pieces).reshape(shape)


def _piece_tags(page: TiffPage, layout: TiffLayout, width: int, piece_width: int) -> TiffTags:
    """The tags of a new file that say how it is cut, and what its codec needs to know."""
    tags: TiffTags = {WIDTH: (4, (width,)), HEIGHT: (4, (layout.height,))}
    if layout.is_tiled:
        tags |= {TILE_WIDTH: (4, (piece_width,)), TILE_HEIGHT: (4, (layout.piece_height,))}
    else:
        tags[ROWS] = (4, (layout.piece_height,))
    for tag, kind in CODEC_TAGS.items():
        if tag in page.entries:
            tags[tag] = (kind, page.tag_values(tag, limit=MAX_PIECES))
    return tags


def _unpack_with_pillow(tags: TiffTags, pieces: list[bytes]) -> np.ndarray:
    """Build a little-endian TIFF file of these tags and pieces, and decode it."""
    offsets = np.cumsum([8, *map(len, pieces)]).tolist()
    places, counts = (TILES, TILE_COUNTS) if TILE_WIDTH in tags else (STRIPS, STRIP_COUNTS)
    tags = tags | {places: (4, tuple(offsets[:-1])), counts: (4, tuple(map(len, pieces)))}
    start = offsets[-1] + offsets[-1] % 2
    beyond = start + 2 + 12 * len(tags) + 4
    directory, long = [struct.pack("<H", len(tags))], b""
    for tag, (kind, numbers) in sorted(tags.items()):
        content = struct.pack(f"<{len(numbers)}{NUMBER_TYPES[kind]}", *numbers)
        field = content.ljust(4, b"\0") if len(content) <= 4 else struct.pack("<I", beyond + len(long))
        directory.append(struct.pack("<HHI4s", tag, kind, len(numbers) // (2 if kind == RATIONAL else 1), field))
        long += content + bytes(len(content) % 2) if len(content) > 4 else b""
    parts = [b"II*\0", struct.pack("<I", start), *pieces, bytes(offsets[-1] % 2), *directory, bytes(4), long]
    image = TiffImageFile(io.BytesIO(b"".join(parts)))
    image.load()
    return np.array(image)


def _rows_to_samples(
    rows: UInt8[np.ndarray, "H across bytes"], page: TiffPage, layout: TiffLayout
) -> Shaped[np.ndarray, "H W c"]:
    """Turn unpacked bytes into numbers in native byte order, without predictor and without what tiles overhang."""
    order, beside = page.encoding.order, layout.row_samples // layout.piece_width
    compressed = layout.compression != NO_COMPRESSION
    if compressed and layout.predictor == 3:  # bytes of a row are differences, the highest bytes of all numbers first
        sums = np.cumsum(rows.reshape(*rows.shape[:2], -1, beside), axis=2, dtype=np.uint8)
        rows = sums.reshape(*rows.shape[:2], -1, layout.row_samples).swapaxes(2, 3).reshape(rows.shape)
        order = ">"
    numbers = _bytes_to_numbers(rows, layout.row_samples, layout.bits, order)
    numbers = numbers.reshape(*rows.shape[:2], layout.piece_width, beside)
    if compressed and layout.predictor == 2:
        numbers = np.cumsum(numbers, axis=2, dtype=numbers.dtype)
    numbers = numbers.reshape(layout.height, -1, beside)[:, : layout.width]
    return numbers if layout.form == UNSIGNED else numbers.view("fi"[layout.form == SIGNED] + str(layout.bits // 8))


def _bytes_to_numbers(rows: UInt8[np.ndarray, "H across bytes"], count: int, bits: int, order: str) -> np.ndarray:
    """Read `count` unsigned numbers from each row; fewer or other bits than those of a type lie close together."""
    if bits == 24:
        rows = rows.reshape(*rows.shape[:2], -1, 3)
        filler = np.zeros((*rows.shape[:3], 1), np.uint8)
        rows = np.concatenate([filler, rows] if order == ">" else [rows, filler], axis=3)
        return rows.reshape(*rows.shape[:2], -1).view(f"{order}u4").astype(np.uint32, copy=False)
    if bits in (8, 16, 32, 64):
        numbers = np.ascontiguousarray(rows).view(f"{order}u{bits // 8}")
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)
    if bits == 1:
        return np.unpackbits(rows, axis=2, count=count)
    numbers = np.zeros((*rows.shape[:2], count), np.uint8 if bits < 8 else np.uint16)
    for bit in range(bits):  # from the highest
        place = np.arange(count) * bits + bit
        numbers = numbers << 1 | (rows[:, :, place >> 3] >> (7 - (place & 7)).astype(np.uint8) & 1)
    return numbers


# -- Samples to pictures.


def _samples_to_image(samples: Shaped[np.ndarray, "H W S"], page: TiffPage, layout: TiffLayout) -> DecodedImage:
    """Colours and bands from samples [H, W, S], with the opacity apart if the file says that one of them is that."""
    photometric = RGB if layout.photometric == YCBCR else layout.photometric
    count, top = COLOUR_SAMPLES[photometric], 2**layout.bits - 1
    kinds = page.tag_values(EXTRA, limit=layout.samples - count)
    place, kind = next(((count + i, kind) for i, kind in enumerate(kinds) if kind in OPACITY), (0, 0))
    alpha = None
    if place:
        alpha, samples = samples[..., place], np.delete(samples, place, axis=2)
        if kind == PREMULTIPLIED:
            samples = _divide_by_opacity(samples, alpha, layout)
        alpha = _to_opacity(alpha, layout)
    padding = _no_data_mask(page, samples)
    if photometric == WHITE_IS_ZERO:
        samples = np.concatenate([samples[..., :1] ^ samples.dtype.type(top), samples[..., 1:]], axis=2)
    if photometric in (PALETTE, INKS):
        if samples.shape[2] > count:
            raise _unread_error(OTHER_INKS if photometric == INKS else "of a palette with further bands")
        samples = cmyk_to_rgb(samples) if photometric == INKS else _palette(page, layout).take(samples[..., 0], axis=0)
    elif photometric in (CIE_LAB, ICC_LAB):
        signs = np.array([0, 128, 128] if photometric == ICC_LAB else [0, 0, 0], np.uint8)
        samples = np.concatenate([lab_to_srgb(samples[..., :3] ^ signs), samples[..., 3:]], axis=2)
    elif layout.bits < 8:
        samples = np.rint(np.arange(top + 1) * (255 / top)).astype(np.uint8).take(samples)
    values = samples[..., 0] if samples.shape[2] == 1 else samples
    return DecodedImage(values if padding is None else fill_padding(values, padding), alpha)


def _palette(page: TiffPage, layout: TiffLayout) -> UInt8[np.ndarray, "n 3"]:
    numbers = page.tag_values(COLOUR_MAP, limit=3 * 2**layout.bits)
    if len(numbers) < 3 * 2**layout.bits:
        raise damaged_error(TIFF, f"its palette holds {len(numbers) // 3:,} colours instead of {2**layout.bits:,}")
    return palette_to_bytes(np.array(numbers, np.uint16).reshape(3, -1).T)


def _divide_by_opacity(samples: np.ndarray, alpha: np.ndarray, layout: TiffLayout) -> np.ndarray:
    """Undo the multiplication of colours by their opacity, rounded to the nearest level; black where clear."""
    divisor = np.where(alpha == 0, 1, alpha)[..., None]
    if layout.form == FLOAT:
        return samples / divisor
    if layout.bits > 32:
        raise _unread_error(f"with premultiplied opacity of {layout.bits} bits", "save it without")
    top = 2**layout.bits - 1
    exact = (samples.astype(np.uint64) * top + divisor // 2) // divisor
    return exact.clip(0, top).astype(samples.dtype)


def _to_opacity(alpha: np.ndarray, layout: TiffLayout) -> np.ndarray:
    """Opacity whose full value is the largest of its type."""
    if layout.form == UNSIGNED and layout.bits in (8, 16, 32, 64):
        return alpha
    if layout.form == SIGNED or (layout.form == FLOAT and not ((alpha >= 0) & (alpha <= 1)).all()):
        raise _unread_error("whose opacity is signed or beyond 0 to 1", "save it without")
    top = 1 if layout.form == FLOAT else 2**layout.bits - 1
    return np.rint(alpha.astype(np.float64) * (65535 / top)).astype(np.uint16)


def _no_data_mask(page: TiffPage, samples: np.ndarray) -> Bool[np.ndarray, "H W"] | None:
    """Pixels whose bands all hold the number that GDAL's tag gives for missing ones."""
    try:
        number = float(page.tag_bytes(NO_DATA).strip(b"\0 ") or b"none")
    except ValueError:
        return None
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):
            number = float(samples.dtype.type(number))
        missing = np.isnan(samples) if math.isnan(number) else samples == number
    elif number.is_integer():
        missing = samples == int(number)
    else:
        return None
    mask: np.ndarray = missing.all(axis=2)
    return mask if mask.any() else None


# -- TIFF directories.

TIFF = "TIFF"
MAX_PAGES = 10_000
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, DESCRIPTION = 254, 256, 257, 258, 259, 262, 266, 270
STRIPS, ORIENTATION, SAMPLES, ROWS, STRIP_COUNTS, PLANAR, PREDICTOR, COLOUR_MAP = 273, 274, 277, 278, 279, 284, 317, 320
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_COUNTS, SUB_PAGES, INK_SET, EXTRA, FORMAT = 322, 323, 324, 325, 330, 332, 338, 339
XMP, DEPTH, PROFILE, NO_DATA = 700, 32997, 34675, 42113
JPEG_STREAM, JPEG_STREAM_SIZE = 513, 514
RATIONAL = 5
CODEC_TAGS = {FILL_ORDER: 3, 292: 4, 293: 4, 347: 7, 529: RATIONAL, 530: 3, 531: 3, 532: RATIONAL}
"""With their types: how bits are filled, options of fax, tables of JPEG, and what YCbCr means."""
TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
NUMBER_TYPES = {1: "B", 3: "H", 4: "I", RATIONAL: "I", 7: "B", 13: "I", 16: "Q"}
TiffTags = dict[int, tuple[int, tuple[int, ...]]]
"""Type and numbers of each tag of a file to write; a rational is two numbers."""


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
        """The first integers of a tag, at most those of `limit` values; a rational gives two."""
        entry = self.entries.get(tag)
        if entry is None:
            return default
        if entry.kind not in NUMBER_TYPES:
            raise damaged_error(TIFF, f"its tag {tag} holds no whole numbers")
        count = min(entry.num_values, limit) * (2 if entry.kind == RATIONAL else 1)
        form = f"{self.encoding.order}{count}{NUMBER_TYPES[entry.kind]}"
        return struct.unpack_from(form, self.entry_bytes(entry))

    def tag_value(self, tag: int, default: int = 0) -> int:
        """The first integer of a tag."""
        return next(iter(self.tag_values(tag, (default,))), default)

    def single_value(self, tag: int, default: int = 0) -> int:
        """The integer of a tag that must not have several."""
        if tag in self.entries and self.entries[tag].num_values != 1:
            raise damaged_error(
                TIFF, f"its tag {tag} holds {format_count(self.entries[tag].num_values, 'number')} instead of one"
            )
        return self.tag_value(tag, default)

    def tag_bytes(self, tag: int) -> bytes:
        """The bytes of a tag, empty if the page has none."""
        return self.entry_bytes(self.entries[tag]) if tag in self.entries else b""

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


def read_tiff_pages(data: bytes) -> list[TiffPage]:
    """Read all full-size pages in their order, without thumbnails and masks.

    Raises:
        DataError: the file ends too early, has more than 10,000 pages, or holds its picture elsewhere.
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
        pages.append(page)
    if not pages:
        raise damaged_error(TIFF, "it has no page")
    full = [page for page in pages if not page.tag_value(SUBFILE) & 0b101]  # no thumbnail and no mask
    if not full and any(SUB_PAGES in page.entries for page in pages):
        raise _unread_error("with a preview only, as raw files of cameras (DNG, NEF) are", "save the developed picture")
    return full or [page for page in pages if not page.tag_value(SUBFILE) & 0b100] or pages


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
