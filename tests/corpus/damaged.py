"""Kinds 1 to 16: what is no picture, what ends too early, what has flipped bits."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np

from .case import Case
from .writing import PNG, chunk, encoded, grey, inserted, photo, three

NOT = r"^not a picture Vitrail reads \({}"


def jpeg() -> bytes:
    """The photo with little loss."""
    return encoded(np.tile(photo(), (3, 3, 1)), "JPEG", quality=90)


def archive() -> bytes:
    """A ZIP file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("readme.txt", "pictures")
    return out.getvalue()


def cut(share: float) -> bytes:
    """The first part of a JPEG file."""
    return jpeg()[: int(len(jpeg()) * share)]


def scan_flip() -> bytes:
    """A JPEG with one bit changed amid its pixels."""
    data = bytearray(jpeg())
    data[len(data) // 2] ^= 0x04
    return bytes(data)


def pixel_flip() -> bytes:
    """A PNG with one bit changed amid its pixels."""
    data = bytearray(encoded(photo(), "PNG"))
    data[data.index(b"IDAT") + 40] ^= 0x10
    return bytes(data)


def text_flip() -> bytes:
    """A PNG with one bit changed in a comment."""
    data = bytearray(inserted(encoded(photo(), "PNG"), chunk(b"tEXt", b"Comment\0taken in May")))
    data[data.index(b"taken")] ^= 0x01
    return bytes(data)


def lzw_flip() -> bytes:
    """A GIF with one bit changed amid its pixels, which are written so that every bit string is a picture."""
    values = grey()
    codes = [code for i, value in enumerate(values.flat) for code in ([256] if i % 250 == 0 else []) + [int(value)]]
    packed = sum(code << 9 * i for i, code in enumerate([*codes, 257])) ^ 1 << 9 * FLIPPED
    data = packed.to_bytes(9 * len(codes) // 8 + 3, "little")
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    size = struct.pack("<HH", *values.shape[::-1])
    palette = bytes(level for level in range(256) for _ in range(3))
    return b"GIF89a" + size + b"\xf7\0\0" + palette + b",\0\0\0\0" + size + b"\0\x08" + blocks + b"\0;"


def other_pixel() -> np.ndarray:
    """The grey picture with the level that the flipped bit makes."""
    values = grey()
    values.flat[FLIPPED - 1] ^= 1  # the first code of a run clears the table
    return three(values)


FLIPPED = 100
# fmt: off
CASES = (
    Case(number=1, name="empty.jpg", what="empty file", make=lambda: b"", status=415,
         says=NOT.format("the file is empty")),
    Case(number=2, name="one.png", what="one byte", make=lambda: b"\x89", status=415,
         says=NOT.format("unknown contents")),
    Case(number=3, name="magic.jpg", what="first bytes of a JPEG only", make=lambda: b"\xff\xd8\xff", status=422,
         says=r"^truncated \(JPEG file, 3 bytes\)"),
    Case(number=3, name="magic.png", what="first bytes of a PNG only", make=lambda: PNG, status=422,
         says=r"^truncated \(PNG file, 8 bytes\)"),
    Case(number=4, name="text.jpg", what="text named .jpg", make=lambda: b"to be scanned\n", status=415,
         says=NOT.format("it looks like text")),
    Case(number=5, name="page.png", what="HTML error page named .png", status=415,
         says=NOT.format("it looks like HTML"), make=lambda: b"<!DOCTYPE html><html><h1>404 Not Found</h1></html>"),
    Case(number=6, name="zip.jpg", what="ZIP archive named .jpg", make=archive, status=415,
         says=NOT.format("it looks like a ZIP archive")),
    Case(number=7, name="cut10.jpg", what="JPEG cut at 10 %", make=lambda: cut(0.1), status=422,
         says=r"^truncated \(JPEG"),
    Case(number=8, name="cut50.jpg", what="JPEG cut at 50 %", make=lambda: cut(0.5), status=422,
         says=r"^truncated \(JPEG"),
    Case(number=9, name="cut90.jpg", what="JPEG cut at 90 %", make=lambda: cut(0.9), status=422,
         says=r"^truncated \(JPEG"),
    Case(number=10, name="cut99.jpg", what="JPEG cut at 99 %", make=lambda: cut(0.99), status=422,
         says=r"^truncated \(JPEG"),
    Case(number=11, name="no-eoi.jpg", what="JPEG without its end marker", make=lambda: jpeg()[:-2], status=200,
         remarks=("end marker missing",)),
    Case(number=12, name="no-iend.png", what="PNG without its end marker", status=200, remarks=("end marker missing",),
         make=lambda: encoded(photo(), "PNG")[:-12], golden=photo),
    Case(number=13, name="flip.jpg", what="one flipped bit in the pixels of a JPEG", make=scan_flip, status=200),
    Case(number=14, name="flip.png", what="one flipped bit in the pixels of a PNG", make=pixel_flip, status=422,
         says=r"^damaged PNG file \(the checksum of its chunk IDAT is wrong\)"),
    Case(number=15, name="flip-text.png", what="one flipped bit in a comment of a PNG", make=text_flip, status=200,
         remarks=("damage beside the pixels",), golden=photo),
    Case(number=16, name="flip.gif", what="one flipped bit in the pixels of a GIF", make=lzw_flip, status=200,
         golden=other_pixel),
)
# fmt: on
