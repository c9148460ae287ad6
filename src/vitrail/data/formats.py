"""Which file is a picture: decided by its first bytes, never by its name.

An allow-list of six picture formats and NumPy arrays. Whatever is not on it is never handed to a parser, but gets
named as well as its first bytes allow.
"""

from __future__ import annotations

from collections.abc import Callable

ACCEPTED = "JPEG, PNG, WebP, BMP, GIF or TIFF files"


def recognise(start: bytes) -> str | None:
    """The name of the format that a file begins with, or None; 16 bytes are enough."""
    return next((name for name, begins in SIGNATURES.items() if begins(start)), None)


def looks_like(data: bytes) -> str:
    """What a file that is no picture seems to be, in words."""
    if not data:
        return "the file is empty"
    if data[4:8] == b"ftyp":
        return "it looks like HEIC or AVIF; convert it to JPEG or PNG"
    for start, kind in FOREIGN.items():
        if data.lstrip()[: len(start)].lower() == start:
            return f"it looks like {kind}"
    return "it looks like text" if b"\0" not in data[:1024] and data[:1024].isascii() else "unknown contents"


# fmt: off
SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "JPEG": lambda data: data.startswith(b"\xff\xd8\xff"),
    "PNG":  lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "WebP": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
    "BMP":  lambda data: data.startswith(b"BM"),
    "GIF":  lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "TIFF": lambda data: data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    "NPY":  lambda data: data.startswith(b"\x93NUMPY"),
}
# fmt: on

FOREIGN = {
    b"<!doctype html": "HTML",
    b"<html": "HTML",
    b"<svg": "SVG",
    b"<?xml": "XML or SVG",
    b"pk\x03\x04": "a ZIP archive",
    b"%pdf": "PDF",
    b"%!ps": "PostScript",
    b"8bps": "a Photoshop file",
    b"\x1f\x8b": "gzip",
}
