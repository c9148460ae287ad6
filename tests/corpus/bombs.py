"""Kinds 17 to 26: small files that would fill the memory, and pictures of odd sizes."""

from __future__ import annotations

import functools
import struct
import zlib

import numpy as np

from .case import Case
from .writing import PNG, chunk, encoded, inserted, photo, png, shorts, three, tiff

SIDE = 13_000


def header_only() -> bytes:
    """A PNG that says it is 60,000 x 60,000 and holds nothing."""
    return png(60_000, 60_000, 8, 0, b"")


@functools.cache
def real_bomb() -> bytes:
    """A whole PNG of 13,000 x 13,000 black pixels, of some 160 KiB."""
    packer = zlib.compressobj(9)
    row = bytes(SIDE + 1)
    packed = b"".join(packer.compress(row) for _ in range(SIDE)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
    return PNG + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@functools.cache
def gif(*frames: tuple[int, int]) -> bytes:
    """A GIF of 8 x 8 pixels with further frames of (width, height), each one white block of compressed pixels."""
    start = encoded(np.zeros((8, 8), np.uint8), "GIF")[:-1]
    image = b"\x02\x02\x44\x01\x00"
    return start + b"".join(b"," + struct.pack("<HHHHB", 0, 0, *size, 0) + image for size in frames) + b";"


@functools.cache
def strips() -> bytes:
    """A TIFF of 1,000 x 1,000 pixels that is cut into a million strips."""
    places = (4, 1_000_000, struct.pack(">I", 8) * 1_000_000)
    tags = {256: shorts(1000), 257: shorts(1000), 258: shorts(8), 262: shorts(1), 278: shorts(1)}
    return tiff(tags | {273: places, 279: places}, bytes(1000))


@functools.cache
def text_bomb(name: bytes = b"zTXt") -> bytes:
    """A PNG with a comment that unpacks to 100 MB."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(2**20)) for _ in range(100)) + packer.flush()
    before = b"Comment\0\0" if name == b"zTXt" else b"Comment\0\1\0\0\0"
    return inserted(encoded(photo(), "PNG"), chunk(name, before + packed))


def sized(height: int, width: int) -> bytes:
    """A grey PNG of this size."""
    return encoded(_ramp(height, width), "PNG")


def _ramp(height: int, width: int) -> np.ndarray:
    return (np.arange(height * width) % 251).astype(np.uint8).reshape(height, width)


LIMIT = r"limit 50 Mpx \(--image\.max_pixels\)"
# fmt: off
CASES = (
    Case(number=17, name="60k.png", what="PNG header of 60,000 x 60,000", make=header_only, status=413,
         says=r"^image is 3,600 Mpx \(60,000 x 60,000\), " + LIMIT),
    Case(number=18, name="13k.png", what="whole PNG of 13,000 x 13,000", make=real_bomb, status=413, heavy=True,
         says=r"^image is 169 Mpx \(13,000 x 13,000\), " + LIMIT),
    Case(number=19, name="grows.gif", what="GIF whose second frame enlarges the canvas", status=413,
         make=lambda: gif((65_535, 65_535)), says=r"^image is 4,295 Mpx \(65,535 x 65,535\), " + LIMIT),
    Case(number=20, name="strips.tif", what="TIFF of a million strips", make=strips, status=413, heavy=True,
         says=r"^image is cut into 1,000,000 strips or tiles, limit 65,536"),
    Case(number=21, name="ztxt.png", what="PNG with a comment that unpacks to 100 MB", make=text_bomb, status=413,
         heavy=True, says=r"^image carries texts or profiles of more than 4 MiB packed into [\d,]+ bytes"),
    Case(number=21, name="itxt.png", what="the same in an international comment", status=413, heavy=True,
         make=lambda: text_bomb(b"iTXt"), says=r"^image carries texts or profiles of more than 4 MiB"),
    Case(number=22, name="frames.gif", what="GIF of 100,000 frames", make=lambda: gif(*[(8, 8)] * 99_999), status=413,
         heavy=True, says=r"^image has more than 4,096 frames"),
    Case(number=23, name="1x1.png", what="1 x 1", make=lambda: sized(1, 1), status=200,
         golden=lambda: three(_ramp(1, 1))),
    Case(number=24, name="1x10000.png", what="1 x 10,000", make=lambda: sized(1, 10_000), status=200,
         golden=lambda: three(_ramp(1, 10_000))),
    Case(number=25, name="10000x1.png", what="10,000 x 1", make=lambda: sized(10_000, 1), status=200,
         golden=lambda: three(_ramp(10_000, 1))),
    Case(number=26, name="0x10.png", what="0 x 10", make=lambda: png(10, 0, 8, 0, b""), status=422,
         says=r"^image has no pixels \(0 x 10\)"),
)
# fmt: on
