"""Small pictures, as arrays and as files of every kind, drawn by formula."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photo() -> np.ndarray:
    """uint8 [37, 53, 3] smooth in both directions, no two channels alike."""
    rows, columns = np.mgrid[0:37, 0:53]
    return np.stack([rows * 6, columns * 4, (rows * columns) % 97 + 60], axis=-1).astype(np.uint8)


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """The bytes of a picture file."""

    def encoded(values: np.ndarray | Image.Image, kind: str, **options: object) -> bytes:
        image = values if isinstance(values, Image.Image) else Image.fromarray(values)
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    return encoded


@pytest.fixture
def png16() -> Callable[[np.ndarray], bytes]:
    """A 16-bit PNG, which Pillow cannot write in colour: uint16 [H, W, 1..4] as grey, grey+alpha, RGB or RGBA."""

    def encoded(values: np.ndarray) -> bytes:
        height, width, channels = values.shape
        kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
        rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
        header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
        return PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

    return encoded


@pytest.fixture
def bomb() -> bytes:
    """A PNG of a few bytes that says it is 13,000 x 13,000."""
    return PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 13000, 13000, 8, 0, 0, 0, 0)) + chunk(b"IDAT", b"")


PNG = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """Draw files below one root: draw("cat/1.png", "dog/2.jpg") -> the root."""

    def drawn(*names: str) -> Path:
        for number, name in enumerate(names):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = {".jpg": "JPEG", ".JPG": "JPEG"}.get(path.suffix, "PNG")
            Image.fromarray(np.full((6, 5), 40 + number, np.uint8)).save(path, kind)
        return tmp_path

    return drawn
