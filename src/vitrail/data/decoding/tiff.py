"""TIFF files: one page, of whatever depth; Pillow reads the common kinds, tifffile what scientists write."""

from __future__ import annotations

import io

import numpy as np
from PIL.TiffImagePlugin import TiffImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .exif import turned
from .pillow import deep_colour, high_and_low, loaded
from .tiff_pages import (
    BITS,
    EXTRA,
    FORMAT,
    HEIGHT,
    KIND,
    ORIENTATION,
    PHOTOMETRIC,
    PLANAR,
    PROFILE,
    ROWS,
    SAMPLES,
    STRIPS,
    TILE_HEIGHT,
    TILE_WIDTH,
    TILES,
    WIDTH,
    Page,
    pages,
)
from .values import Stored, check_array, check_size, choose, damaged, profile_remark

MAX_PIECES = 65_536
SIGNED, FLOAT = 2, 3
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
NAMES = {1: "whole numbers", SIGNED: "signed numbers", FLOAT: "floats"}


def parse_tiff(data: bytes, spec: ImageSpec) -> Stored:
    """The page that the spec names, or the only one; white-is-zero pictures are turned round.

    Grey and colour of 8 and 16 bits, grey of 32 bits and float, palettes, CMYK and Lab need nothing else; further
    kinds (several channels of floats, 16-bit colours in planes) need tifffile, which comes with vitrail[medical].
    """
    found = pages(data)
    page = found[choose(len(found), spec.page, "pages")]
    width, height = page.number(WIDTH), page.number(HEIGHT)
    check_size(height, width, spec.max_pixels)
    _check_pieces(page, height, width, spec.max_pixels)
    stored = _by_tifffile(page) if _is_scientific(page) else _by_pillow(page)
    profile = page.entries.get(PROFILE)
    remarks = profile_remark(page.content(profile)) if profile else ()
    way = page.number(ORIENTATION, 1)
    stored = stored._replace(remarks=remarks)
    return turned(stored, way) if 2 <= way <= 8 else stored


def _check_pieces(page: Page, height: int, width: int, max_pixels: int) -> None:
    """Refuse strips or tiles that do not cover the picture, are very many, or larger than any picture."""
    planes = page.number(SAMPLES, 1) if page.number(PLANAR, 1) == 2 else 1
    high, wide = (page.number(tag) for tag in (TILE_HEIGHT, TILE_WIDTH))
    needed = {STRIPS: -(-height // min(height, page.number(ROWS) or height))}
    if high and wide:
        needed = {TILES: -(-height // high) * -(-width // wide)}
    for tag, pieces in needed.items():
        entry = page.entries.get(tag)
        if entry is None or entry.many < pieces * planes:
            have = entry.many if entry else 0
            raise damaged(KIND, f"it is cut into {pieces * planes:,} strips or tiles and holds {have:,} of them")
        if entry.many > MAX_PIECES:
            raise TooLargeError(
                f"image is cut into {entry.many:,} strips or tiles, limit {MAX_PIECES:,}; "
                "save it with fewer, larger ones."
            )
    if high * wide > max_pixels:
        raise TooLargeError(
            f"image has tiles of {high * wide / 1e6:,.0f} Mpx, limit {max_pixels / 1e6:,.0f} Mpx (--image.max-pixels)."
        )


def _is_scientific(page: Page) -> bool:
    """Whether Pillow would refuse the page, or lose or mix up some of its numbers."""
    bits, samples, form = page.number(BITS, 1), page.number(SAMPLES, 1), page.number(FORMAT, 1)
    if samples == 1:
        return (
            (form, bits) in ((FLOAT, 16), (FLOAT, 64))
            or (form == FLOAT and page.number(PHOTOMETRIC) == WHITE_IS_ZERO)
            or bits == 64
            or (form == 1 and bits == 32 and page.writing.order == ">")
        )
    return form != 1 or bits > 16 or (bits == 16 and (samples == 2 or samples > 4 or page.number(PLANAR, 1) == 2))


def _by_pillow(page: Page) -> Stored:
    alone = page.alone()
    try:
        image = TiffImageFile(io.BytesIO(alone))
    except SyntaxError as problem:
        if "unknown" not in str(problem):
            raise
        return _by_tifffile(page)
    if deep := deep_colour(image):
        return high_and_low(TiffImageFile, alone, deep)
    stored = loaded(image)
    return stored._replace(values=_as_written(stored.values, page))


def _as_written(values: np.ndarray, page: Page) -> np.ndarray:
    """The numbers with their own sign and direction, where Pillow has but one type per width."""
    bits, form = page.number(BITS, 1), page.number(FORMAT, 1)
    if page.number(SAMPLES, 1) > 1:
        return values
    if bits == 8 and form == SIGNED:
        return values.view(np.int8)
    if bits == 32 and form == 1 and values.dtype == np.int32:
        return values.view(np.uint32)
    if bits == 16 and page.number(PHOTOMETRIC) == WHITE_IS_ZERO and values.dtype == np.uint16:
        return 65535 - values
    return values


def _by_tifffile(page: Page) -> Stored:
    bits, samples = page.number(BITS, 1), page.number(SAMPLES, 1)
    kind = f"{samples} channel{'s' if samples > 1 else ''} of {bits}-bit {NAMES.get(page.number(FORMAT, 1), 'numbers')}"
    if page.number(PHOTOMETRIC) not in (BLACK_IS_ZERO, RGB):
        raise DataError(f"is a TIFF file with {kind} in colours that Vitrail does not know; save it as grey or RGB.")
    try:
        import tifffile
    except ImportError as problem:
        raise DataError(f"is a TIFF file with {kind}; such need tifffile: pip install 'vitrail[medical]'.") from problem
    with tifffile.TiffFile(io.BytesIO(page.alone())) as file:
        first = file.pages[0]
        axes = str(first.axes)
        try:
            values = check_array(np.asarray(first.asarray()))
        except ValueError as problem:
            if "imagecodecs" not in str(problem):
                raise
            raise DataError(f"is a TIFF file with {kind}, compressed; save it uncompressed or deflated.") from problem
    if axes.startswith("S"):
        values = np.moveaxis(values, 0, -1)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if page.numbers(EXTRA) == (2,) and values.ndim == 3 and values.dtype.kind == "u":
        colours = values[:, :, 0] if values.shape[2] == 2 else values[:, :, :-1]
        return Stored(colours, values[:, :, -1])
    return Stored(values)
