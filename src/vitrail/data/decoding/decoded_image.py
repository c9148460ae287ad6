"""`DecodedImage`, and what all decoders share: limits, errors, remarks, file signatures and EXIF orientation.

Imports neither Pillow nor torch, so that readers of folders and tables can ask for signatures and extensions cheaply.
The remarks are fixed phrases: the dataset check counts them.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import DataError, TooLargeError

END_MISSING = "end marker missing"
SEVERAL_FRAMES = "first of several frames"
PROFILE_IGNORED = "colour profile ignored"
ROTATED_BY_EXIF = "turned upright by EXIF"
EXIF_UNREADABLE = "EXIF unreadable"
EXTENSION_MISMATCH = "ending does not match contents"
DAMAGE_OUTSIDE_PIXELS = "damage beside the pixels"
DAMAGE_IN_PIXELS = "damage among the pixels"
BIT_DEPTHS = (8, 10, 12, 14, 16)
UPRIGHT = 1
"""EXIF orientation of an image that needs no turning."""


class DecodedImage(NamedTuple):
    """Values as stored in a file: [H, W] or [H, W, C], and opacity [H, W] where the file has any."""

    values: np.ndarray
    alpha: np.ndarray | None = None
    kind: str = "array"
    """JPEG, PNG, WebP, BMP, GIF, TIFF, DICOM, AVIF, HEIC or NPY; "array" for values that were never a file."""
    remarks: tuple[str, ...] = ()
    """What the dataset check counts: phrases of this file, and "uses 12 of 16 bits"."""


def check_image_array(image: np.ndarray) -> np.ndarray:
    """Return an array that can be an image: [H, W] or [H, W, C], integers or floats, at least one pixel."""
    if image.ndim not in (2, 3) or image.size == 0:
        raise DataError(
            f"A picture must be an array [height, width] or [height, width, channels]. Got shape {image.shape}."
        )
    if image.dtype.kind not in "uif":
        raise DataError(f"A picture must hold integers or floats. Got an array of {image.dtype}.")
    return image


def check_image_size(height: int, width: int, max_pixels: int) -> None:
    """Refuse an image by the size in its header, before anything is decoded."""
    if min(height, width) < 1:
        raise DataError(f"image has no pixels ({height} x {width}).")
    if height * width > max_pixels:
        size, limit = height * width / 1e6, max_pixels / 1e6
        raise TooLargeError(
            f"image is {size:,.0f} Mpx ({height:,} x {width:,}), limit {limit:,.0f} Mpx (--image.max_pixels)."
        )


def choose_page(count: int, page: int, noun: str) -> int:
    """Index of the page to read, from 0; `page` counts from 1, and 0 means that the file must have a single page."""
    if page > count or (page == 0 and count > 1):
        requested = f", not the {page:,} that --image.page asks for" if page else ""
        raise DataError(f"holds {count:,} {noun}{requested}; choose one with --image.page N (1 to {count:,}).")
    return max(0, page - 1)


def check_first_page(kind: str, page: int) -> None:
    """Refuse a page beyond the first of a format whose first frame alone is read."""
    if page > 1:
        raise DataError(
            f"of {kind} files only the first frame is read, not the {page:,} that --image.page asks for; save that "
            "frame as a file of its own, or take --image.page 1."
        )


def truncated_error(kind: str, length: int, needed: int = 0) -> DataError:
    """The error for a file of `length` bytes that ends too early; its header promises `needed` bytes."""
    if needed > length:
        return DataError(f"truncated ({length:,} of {needed:,} bytes).")
    return DataError(f"truncated ({kind} file, {length:,} bytes).")


def damaged_error(kind: str, why: str) -> DataError:
    """The error for a file that contradicts itself."""
    return DataError(f"damaged {kind} file ({why}).")


def remark_bit_depth(values: np.ndarray) -> tuple[str, ...]:
    """The remark on 16-bit values that stay far below 65535 (most likely a 12-bit film); empty for others."""
    if values.dtype != np.uint16:
        return ()
    largest = int(values.max())
    bits = next(bits for bits in BIT_DEPTHS if largest < 2**bits)
    return () if bits == 16 else (f"uses {bits} of 16 bits",)


def remark_colour_profile(profile: bytes) -> tuple[str, ...]:
    """The remark that a colour profile was not applied; none is needed for a profile that names itself sRGB."""
    return (PROFILE_IGNORED,) if profile and b"sRGB" not in profile.replace(b"\0", b"") else ()


def cmyk_to_rgb(inks: np.ndarray) -> np.ndarray:
    """Convert CMYK [H, W, 4] of uint8 or uint16, 0 for no ink, to RGB [H, W, 3]; no colour management, rounded."""
    top = np.iinfo(inks.dtype).max
    light: np.ndarray = np.subtract(top, inks, dtype=np.uint16 if top == 255 else np.uint64)
    return ((light[..., :3] * light[..., 3:] + top // 2) // top).astype(inks.dtype)


def lab_to_srgb(numbers: np.ndarray) -> np.ndarray:
    """Convert CIE Lab with 8 bits each (L in 0..255, a and b signed, white point D50) to sRGB [H, W, 3].

    Source: CIE 15:2004 and IEC 61966-2-1. (The colour engine in Pillow is up to 11 levels off in saturated colours.)
    """
    middle = (numbers[:, :, 0] * np.float32(100 / 255) + 16) / 116
    red, yellow = (np.ascontiguousarray(numbers[:, :, i]).view(np.int8).astype(np.float32) for i in (1, 2))
    roots = np.stack([middle + red / 500, middle, middle - yellow / 200], axis=-1)
    xyz = np.where(roots > 6 / 29, roots**3, 3 * (6 / 29) ** 2 * (roots - 4 / 29)) * D50
    linear = (xyz @ XYZ_TO_SRGB.T).clip(0, 1)
    encoded = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    return np.rint(255 * encoded).astype(np.uint8)


D50 = np.array((0.9642, 1, 0.8249), np.float32)
XYZ_TO_SRGB = np.array(
    ((3.1338561, -1.6168667, -0.4906146), (-0.9787684, 1.9161415, 0.0334540), (0.0719453, -0.2289914, 1.4052427)),
    np.float32,
)


def palette_to_bytes(colours: np.ndarray) -> np.ndarray:
    """The upper 8 bits of a palette's 16-bit colours; colours that all stay below 256 are taken for 8-bit ones."""
    return (colours if colours.max(initial=0) < 256 else colours >> 8).astype(np.uint8)


def fill_padding(values: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """Replace the pixels of a mask [H, W] by the darkest value of the others, in each channel.

    Raises:
        DataError: the mask covers the whole image.
    """
    if padding.all():
        raise DataError("holds nothing but padding, pixels that are marked as missing; leave it out.")
    filled = values.copy()
    filled[padding] = values[~padding].min(axis=0)
    return filled


def parse_npy(data: bytes, max_pixels: int) -> DecodedImage:
    """Parse a `.npy` file; its size is checked before memory is allocated."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if len(shape) in (2, 3):
        check_image_size(shape[0], shape[1], max_pixels)
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize > len(data):
        raise truncated_error("NPY", len(data), file.tell() + math.prod(shape) * dtype.itemsize)
    return DecodedImage(check_image_array(np.load(io.BytesIO(data), allow_pickle=False)))


# -- File signatures: the first bytes decide the format, never the name. Only formats listed here reach a parser.

HEIC_READERS, AVIF_READERS = ("pi_heif", "pillow_heif"), ("PIL._avif",)
"""Modules that read a format, the first that is there; of AVIF a part that some builds of Pillow lack."""


def find_reader(modules: Sequence[str]) -> str | None:
    """The first of these modules that is installed, without importing it."""
    return next((name for name in modules if importlib.util.find_spec(name)), None)


ACCEPTED_FORMATS = "JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or DICOM files"
MAX_FIRST_ELEMENT = 0x20
"""Of the elements that a film may begin with, the highest number."""
SIGNATURE_BYTES = 132
"""Bytes from the start of a file that identify every format."""
AVIF_BRANDS = frozenset((b"avif", b"avis"))
HEIC_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))


def media_brands(start: bytes) -> list[bytes]:
    """The brands of a file of the ISO family, pictures and videos alike, its own first; empty for other files."""
    if start[4:8] != b"ftyp":
        return []
    end = max(16, min(int.from_bytes(start[:4], "big"), SIGNATURE_BYTES))
    return [start[8:12], *(start[place : place + 4] for place in range(16, end, 4))]


def sniff_format(start: bytes) -> str | None:
    """The format of a file by its first bytes, or None; DICOM needs 132 bytes, all others at most 16."""
    found = next((name for name, begins in SIGNATURES.items() if begins(start)), None)
    return found or ("DICOM" if _begins_with_dicom_element(start) else None)


def _begins_with_dicom_element(start: bytes) -> bool:
    """Whether a file begins as a film without its 128 free bytes: an element of group 2 or 8 with a short value."""
    if len(start) < 16:
        return False
    group, element, length = struct.unpack_from("<HHI", start)
    kind_is_written = start[4:6].isalpha() and start[4:6].isupper()  # else it follows from the element
    return group in (2, 8) and element <= MAX_FIRST_ELEMENT and (kind_is_written or (length <= 128 and length % 2 == 0))


def describe_unknown_file(data: bytes) -> str:
    """What a file of no accepted format seems to be, in words."""
    if not data:
        return "the file is empty"
    if brands := media_brands(data):  # one container for pictures and videos: its brands say what is in it
        known = next((MEDIA_BRANDS[brand] for brand in brands if brand in MEDIA_BRANDS), None)
        if known is None and HEIF_BRANDS.intersection(brands):
            known = f"HEIF; {CONVERT_HINT}"
        return f"it looks like {known or f'an MP4 video; {FRAMES_HINT}'}"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return f"it looks like an AVI video; {FRAMES_HINT}"
    if re.match(rb"P[1-7]\s+[#\dW]", data):
        return f"it looks like PPM, PGM or PBM; {CONVERT_HINT}"
    for start, kind in UNSUPPORTED_SIGNATURES.items():
        if data.lstrip()[: len(start)].lower() == start:
            return f"it looks like {kind}"
    return "it looks like text" if b"\0" not in data[:1024] and data[:1024].isascii() else "unknown contents"


def extension_matches(extension: str, file_format: str) -> bool:
    """Whether a file extension such as `.jpg` belongs to this format; an unknown extension matches every format."""
    return FORMAT_EXTENSIONS.get(extension.lower(), file_format) == file_format


def describe_unread_pictures(extensions: Mapping[str, int]) -> str:
    """What to do about unread pictures, videos and workbooks, from the counts of their endings; empty without such."""
    sentences = []
    for endings, what in (
        (UNREAD_EXTENSIONS, f"pictures that Vitrail does not read; {CONVERT_HINT}"),
        (VIDEO_EXTENSIONS, f"videos; {FRAMES_HINT}"),
        (WORKBOOK_EXTENSIONS, f"workbooks; if the labels stand there, {CSV_HINT}"),
    ):
        if kinds := ", ".join(f"{count:,} x {ending}" for ending, count in extensions.items() if ending in endings):
            heic = (
                f" ({HEIC_HINT.removesuffix(' it, or')} .heic)"
                if endings is UNREAD_EXTENSIONS and ".heic" in kinds
                else ""
            )
            sentences.append(f"{kinds}: {what}{heic}.")
    return " ".join(sentences)


def has_image_extension(text: object) -> bool:
    """Whether a value is a text that ends like the name of an image file."""
    return isinstance(text, str) and os.path.splitext(text.strip().lower())[1] in IMAGE_EXTENSIONS


# fmt: off
SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "DICOM": lambda data: data[128:132] == b"DICM",  # first, because its 128 free bytes may look like another format
    "JPEG": lambda data: data.startswith(b"\xff\xd8\xff"),
    "PNG":  lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "WebP": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
    "BMP":  lambda data: data.startswith(b"BM"),
    "GIF":  lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "TIFF": lambda data: data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    "NPY":  lambda data: data.startswith(b"\x93NUMPY"),
}
if find_reader(AVIF_READERS):
    SIGNATURES["AVIF"] = lambda data: not AVIF_BRANDS.isdisjoint(media_brands(data))
if find_reader(HEIC_READERS):
    SIGNATURES["HEIC"] = lambda data: not HEIC_BRANDS.isdisjoint(media_brands(data))
FORMAT_EXTENSIONS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WebP",
    ".bmp": "BMP", ".dib": "BMP", ".gif": "GIF", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY",
    ".dcm": "DICOM", ".dicom": "DICOM",
    **({".avif": "AVIF"} if "AVIF" in SIGNATURES else {}),
    **(dict.fromkeys((".heic", ".heif", ".hif"), "HEIC") if "HEIC" in SIGNATURES else {}),
}
# fmt: on
IMAGE_EXTENSIONS = frozenset(FORMAT_EXTENSIONS)
CONVERT_HINT = "convert it to JPEG or PNG, which ImageMagick does: magick mogrify -format png FILE"
FRAMES_HINT = "take pictures out of it, which ffmpeg does: ffmpeg -i FILE picture-%04d.png"
HEIC_HINT = "pip install pi-heif reads it, or"
MEDIA_BRANDS = {
    **dict.fromkeys(AVIF_BRANDS, f"AVIF; {CONVERT_HINT}"),
    **dict.fromkeys(HEIC_BRANDS, f"HEIC; {HEIC_HINT} {CONVERT_HINT}"),
    b"qt  ": f"a QuickTime video; {FRAMES_HINT}",
    b"crx ": f"the raw file of a camera; {CONVERT_HINT}",
}
HEIF_BRANDS = frozenset((b"mif1", b"msf1", b"miaf"))
"""Brands of the container of HEIC and AVIF, which also bring a brand of their own."""
MISNAMED_EXTENSIONS = frozenset((".heic", ".heif", ".hif", ".avif")) - IMAGE_EXTENSIONS
"""Endings without a reader here that phones and mail programs also give to JPEG files."""
# fmt: off
UNREAD_EXTENSIONS = frozenset((
    *MISNAMED_EXTENSIONS, ".jxl", ".jp2", ".j2k", ".jpf", ".jls", ".ppm", ".pgm", ".pbm", ".pnm", ".tga",
    ".pcx", ".ico", ".exr", ".hdr", ".psd", ".svg", ".fits", ".dng", ".nef", ".cr2", ".cr3", ".arw", ".orf", ".raf",
    ".rw2",
))
"""Endings of pictures that are not read."""
VIDEO_EXTENSIONS = frozenset((
    ".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp", ".mts", ".m2ts",
))
# fmt: on
WORKBOOK_EXTENSIONS = frozenset((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers"))
CSV_HINT = "save the sheet as CSV (in Excel: Save as, CSV UTF-8) beside the pictures and give that file"
UNSUPPORTED_SIGNATURES = {  # in lower case
    b"ii\xbc": f"JPEG XR; {CONVERT_HINT}",
    **dict.fromkeys((b"iiro", b"iiu\0", b"fujifilmccd-raw"), f"the raw file of a camera; {CONVERT_HINT}"),
    b"v/1\x01": f"OpenEXR; {CONVERT_HINT}",
    b"\0\0\x01\0": f"an icon of Windows; {CONVERT_HINT}",
    b"\xff\x0a": f"JPEG XL; {CONVERT_HINT}",
    b"\0\0\0\x0cjxl ": f"JPEG XL; {CONVERT_HINT}",
    b"\0\0\0\x0cjp  ": f"JPEG 2000; {CONVERT_HINT}",
    b"\xffo\xffq": f"JPEG 2000; {CONVERT_HINT}",
    b"<!doctype html": "HTML",
    b"<html": "HTML",
    b"<svg": "SVG",
    b"<?xml": "XML or SVG",
    b"pk\x03\x04": "a ZIP archive",
    b"%pdf": "PDF",
    b"%!ps": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"8bps": "a Photoshop file",
    b"\x1ae\xdf\xa3": f"a Matroska or WebM video; {FRAMES_HINT}",
    b"\0\0\x01\xba": f"an MPEG video; {FRAMES_HINT}",
    b"icns": "an icon of macOS",
    b"simple  =": "FITS",
    b"\xd7\xcd\xc6\x9a": "a Windows metafile",
    b"\x89hdf": "HDF5",
    b"\x1f\x8b": "gzip",
}


# -- EXIF orientation. Pillow's `Image.Exif` is not used: it reports damage only as a process-wide warning, returns
# values of any type, and parses every tag.

ORIENTATION = 0x0112
XMP_MARK = b"http://ns.adobe.com/xap/1.0/\0"
"""What an XMP packet begins with in a JPEG file."""
XMP_ORIENTATION = re.compile(rb"""tiff:Orientation\s*(?:=\s*["']|>)\s*([1-8])\s*["'<]""")
EXIF_INTEGER_FORMATS = {1: "B", 3: "H", 4: "I"}  # type codes BYTE, SHORT and LONG
# fmt: off
ORIENTATION_TRANSFORMS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
# fmt: on


def apply_exif(stored: DecodedImage, exif: Sequence[bytes], xmp: Sequence[bytes] = ()) -> DecodedImage:
    """Turn an image upright by its EXIF blocks or XMP packets; unreadable EXIF blocks are remarked."""
    unreadable = any(read_orientation(block) is None for block in exif)
    stored = stored._replace(remarks=stored.remarks + ((EXIF_UNREADABLE,) if unreadable else ()))
    orientation = find_orientation(exif, xmp)
    return stored if orientation == UPRIGHT else apply_orientation(stored, orientation)


def find_orientation(exif: Sequence[bytes], xmp: Sequence[bytes] = ()) -> int:
    """The orientation that the first EXIF block gives, or where none does the first XMP packet; else upright."""
    packets = (XMP_ORIENTATION.search(packet.replace(b"\0", b"")) for packet in xmp)  # UTF-16 as well
    said = (*map(read_orientation, exif), *(int(found[1]) for found in packets if found))
    return next((orientation for orientation in said if orientation), UPRIGHT)


def apply_orientation(stored: DecodedImage, orientation: int) -> DecodedImage:
    """Turn and mirror an image by its EXIF orientation, 2..8."""
    turn = ORIENTATION_TRANSFORMS[orientation]
    alpha = None if stored.alpha is None else turn(stored.alpha)
    return stored._replace(values=turn(stored.values), alpha=alpha, remarks=(*stored.remarks, ROTATED_BY_EXIF))


def read_orientation(block: bytes) -> int | None:
    """The EXIF orientation, 1 to 8; 0 if the block has none, None if it is damaged or its value is invalid."""
    tiff = block.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _ = struct.unpack_from(f"{order}HHI", tiff, place)
            if tag == ORIENTATION:
                (value,) = struct.unpack_from(order + EXIF_INTEGER_FORMATS[kind], tiff, place + 8)
                return value if 1 <= value <= 8 else None
    except (struct.error, KeyError):
        return None
    return 0
