"""Which file is a picture: decided by its first bytes, never by its name.

An allow-list of seven picture formats and NumPy arrays. Whatever is not on it is never handed to a parser, but gets
named as well as its first bytes allow.
"""

from __future__ import annotations

from collections.abc import Callable

ACCEPTED = "JPEG, PNG, WebP, BMP, GIF, TIFF or DICOM files"
ENOUGH = 132
"""Bytes from which every format is known."""


def recognise(start: bytes) -> str | None:
    """The name of the format that a file begins with, or None; DICOM shows within 132 bytes, all others within 16."""
    return next((name for name, begins in SIGNATURES.items() if begins(start)), None)


def looks_like(data: bytes) -> str:
    """What a file that is no picture seems to be, in words."""
    if not data:
        return "the file is empty"
    if data[4:8] == b"ftyp":
        name = "AVIF" if data[8:12] in (b"avif", b"avis") else "HEIC"
        return f"it looks like {name}; {CONVERT}"
    for start, kind in FOREIGN.items():
        if data.lstrip()[: len(start)].lower() == start:
            return f"it looks like {kind}"
    return "it looks like text" if b"\0" not in data[:1024] and data[:1024].isascii() else "unknown contents"


def ending_fits(ending: str, kind: str) -> bool:
    """Whether a file's ending, such as `.jpg`, belongs to this format; an ending of no picture says nothing."""
    return ENDINGS.get(ending.lower(), kind) == kind


# fmt: off
SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "DICOM": lambda data: data[128:132] == b"DICM",  # first: whatever its 128 free bytes begin with
    "JPEG": lambda data: data.startswith(b"\xff\xd8\xff"),
    "PNG":  lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "WebP": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
    "BMP":  lambda data: data.startswith(b"BM"),
    "GIF":  lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "TIFF": lambda data: data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    "NPY":  lambda data: data.startswith(b"\x93NUMPY"),
}
ENDINGS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WebP",
    ".bmp": "BMP", ".dib": "BMP", ".gif": "GIF", ".tif": "TIFF", ".tiff": "TIFF", ".npy": "NPY",
    ".dcm": "DICOM", ".dicom": "DICOM",
}
# fmt: on
CONVERT = "convert it to JPEG or PNG, which ImageMagick does: magick mogrify -format png FILE"
FOREIGN = {  # in small letters
    b"\xff\x0a": f"JPEG XL; {CONVERT}",
    b"\0\0\0\x0cjxl ": f"JPEG XL; {CONVERT}",
    b"\0\0\0\x0cjp  ": f"JPEG 2000; {CONVERT}",
    b"\xffo\xffq": f"JPEG 2000; {CONVERT}",
    b"<!doctype html": "HTML",
    b"<html": "HTML",
    b"<svg": "SVG",
    b"<?xml": "XML or SVG",
    b"pk\x03\x04": "a ZIP archive",
    b"%pdf": "PDF",
    b"%!ps": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"8bps": "a Photoshop file",
    b"icns": "an icon of macOS",
    b"simple  =": "FITS",
    b"\xd7\xcd\xc6\x9a": "a Windows metafile",
    b"\x89hdf": "HDF5",
    b"\x1f\x8b": "gzip",
}
