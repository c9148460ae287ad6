"""Kinds 47 to 55: pictures that lie on their side, and EXIF blocks that make no sense."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from .case import Case
from .writing import chunk, encoded, exif, inserted, orientation, photo, segment

UNDO = {1: "", 2: "f", 3: "rr", 4: "rrf", 5: "rrrf", 6: "rrr", 7: "rf", 8: "r"}
"""What each orientation asks for: r a quarter turn against the clock, f a mirror left and right."""


def lying(way: int) -> np.ndarray:
    """The photo as the sensor of a camera held that way sees it: turned back by it, it is the photo again."""
    values = photo()
    for step in reversed(UNDO[way]):
        values = np.rot90(values, -1) if step == "r" else values[:, ::-1]
    return np.ascontiguousarray(values)


def held(way: int) -> bytes:
    """A PNG with an EXIF block."""
    return inserted(encoded(lying(way), "PNG"), chunk(b"eXIf", orientation(way)[6:]))


def held_jpeg(way: int, *blocks: bytes) -> bytes:
    """A JPEG with EXIF blocks, that of the orientation last."""
    data = encoded(lying(way), "JPEG", quality=100, subsampling=0)
    return data[:2] + b"".join(segment(0xE1, block) for block in (*blocks, orientation(way))) + data[2:]


def held_by_text() -> bytes:
    """A PNG with an EXIF block as hexadecimal digits in a packed text, as programs wrote before there was a chunk."""
    block = orientation(6)
    profile = zlib.compress(f"\nexif\n{len(block):8}\n{block.hex()}\n".encode())
    return inserted(encoded(lying(6), "PNG"), chunk(b"zTXt", b"Raw profile type exif\0\0" + profile))


def odd_type() -> bytes:
    """An orientation that is text."""
    return exif((0x0112, 2, 4, b"left"))


def large() -> bytes:
    """An EXIF block of 65,000 bytes, its orientation first."""
    return orientation(6) + zlib.crc32(b"x").to_bytes(4, "big") * 16_000


def endless() -> bytes:
    """An EXIF block that says it has 65,535 lines."""
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 65_535)


XMP = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
TURNED = ("turned upright by EXIF",)
ODD = ("EXIF unreadable",)
# fmt: off
CASES = (
    *(Case(number=46 + way, name=f"exif{way}.png", what=f"EXIF orientation {way}", make=lambda way=way: held(way),
           status=200, remarks=TURNED if way > 1 else (), golden=photo) for way in UNDO),
    Case(number=52, name="exif6.jpg", what="EXIF orientation 6 in a JPEG", make=lambda: held_jpeg(6), status=200,
         remarks=TURNED, golden=photo, within=6),
    Case(number=52, name="exif6-text.png", what="the same in a text of a PNG", make=held_by_text, status=200,
         remarks=TURNED, golden=photo),
    Case(number=52, name="xmp6.jpg", what="the same by XMP alone", status=200, remarks=TURNED, golden=photo, within=6,
         make=lambda: b"\xff\xd8" + segment(0xE1, XMP) + encoded(lying(6), "JPEG", quality=100)[2:]),
    Case(number=55, name="exif-text.png", what="EXIF orientation that is text", status=200, remarks=ODD, golden=photo,
         make=lambda: inserted(encoded(photo(), "PNG"), chunk(b"eXIf", odd_type()[6:]))),
    Case(number=55, name="exif-noise.png", what="EXIF block of noise", status=200, remarks=ODD, golden=photo,
         make=lambda: inserted(encoded(photo(), "PNG"), chunk(b"eXIf", b"\xff" * 40))),
    Case(number=55, name="exif-endless.jpg", what="EXIF block that promises more than it holds", status=200,
         remarks=ODD, make=lambda: held_jpeg(1)[:2] + segment(0xE1, endless()) + encoded(photo(), "JPEG")[2:]),
    Case(number=55, name="exif-64k.jpg", what="EXIF block of 64 KiB", status=200, remarks=TURNED, golden=photo,
         within=6, make=lambda: held_jpeg(6)[:2] + segment(0xE1, large()) + held_jpeg(6)[2:]),
    Case(number=55, name="exif-two.jpg", what="two EXIF blocks, the first unreadable", status=200, golden=photo,
         within=6, make=lambda: held_jpeg(6, odd_type()), remarks=(*ODD, *TURNED)),
)
# fmt: on
