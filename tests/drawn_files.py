"""Drawn pictures as files of every kind that the exported page decodes by itself, and as others that a browser does."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def waves(height: int, width: int, channels: int, rng: np.random.Generator, white: int = 255) -> np.ndarray:
    """Soft and sharp edges with noise, [H, W, C] as whole numbers."""
    y, x = np.mgrid[:height, :width]
    turn = rng.uniform(0, 2 * np.pi, channels)
    soft = np.sin((np.cos(turn) * x[..., None] + np.sin(turn) * y[..., None]) * rng.uniform(0.05, 0.9))
    levels = 0.5 + 0.5 * (np.sign(soft) if rng.uniform() < 0.5 else soft) + rng.normal(0, 0.1, soft.shape)
    return np.rint(levels.clip(0, 1) * white).astype(np.uint8 if white == 255 else np.uint16)


def drawn_pngs(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """PNG files of every colour type, depth, filter and interlacing, some of them transparent or turned."""
    rng = np.random.default_rng(seed)
    kinds = [(colour, depth) for colour, depths in DEPTHS.items() for depth in depths]
    for place in range(count):
        colour, depth = kinds[place % len(kinds)]
        interlaced = place // len(kinds) % 2 == 1
        height, width = (int(side) for side in rng.integers(1, 60, 2))
        values = waves(height, width, SAMPLES[colour], rng, 65535).astype(np.int64) >> (16 - depth)
        key = bytes(rng.integers(0, 256, 6, dtype=np.uint8))
        if colour in (0, 2):  # a colour that occurs
            key = values[0, 0].astype(">u2").tobytes()
        extra = [(b"PLTE", bytes(rng.integers(0, 256, 3 * 2**depth, dtype=np.uint8)))] if colour == 3 else []
        if colour in (0, 2, 3) and rng.uniform() < 0.5:
            extra.append((b"tRNS", key if colour != 3 else key[: 2**depth]))
        if rng.uniform() < 0.3:
            extra.append((b"eXIf", exif(int(rng.integers(1, 9)))))
        yield f"{place:03}.png", png(values, colour, depth, interlaced, extra, rng)


def exif(orientation: int) -> bytes:
    """An EXIF block that says which way up a picture is."""
    return b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def png(
    values: np.ndarray,
    colour: int,
    depth: int,
    interlaced: bool,
    extra: list[tuple[bytes, bytes]],
    rng: np.random.Generator,
) -> bytes:
    """A PNG file of samples [H, W, S], each row filtered by a drawn filter."""
    height, width, samples = values.shape
    step = max(1, depth * samples // 8)
    packed = bytearray()
    for left, top, across, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
        part = values[top::down, left::across]
        before = np.zeros(-(-part.shape[1] * depth * samples // 8), np.int64)
        for row in part if part.size else ():
            bits = (row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1
            line = np.packbits(bits.ravel().astype(np.uint8)).astype(np.int64)
            packed += filtered(line, before, step, int(rng.integers(0, 5)))
            before = line
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", zlib.compress(bytes(packed))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def filtered(line: np.ndarray, above: np.ndarray, step: int, kind: int) -> bytes:
    """One row of bytes behind the number of its filter (PNG, section 9)."""
    left = np.concatenate([np.zeros(step, np.int64), line])[: len(line)]
    corner = np.concatenate([np.zeros(step, np.int64), above])[: len(line)]
    guess = left + above - corner
    distances = np.stack([abs(guess - left), abs(guess - above), abs(guess - corner)])
    paeth = np.choose(distances.argmin(0), [left, above, corner])
    said = [np.zeros_like(line), left, above, (left + above) // 2, paeth][kind]
    return bytes([kind]) + ((line - said) % 256).astype(np.uint8).tobytes()


def drawn_arrays(count: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """NumPy files: grey and colour of 8 and 16 bits, some stored by columns or in the other byte order."""
    rng = np.random.default_rng(seed)
    for place in range(count):
        height, width = (int(side) for side in rng.integers(1, 90, 2))
        values = waves(height, width, (1, 3)[place % 2], rng, (255, 65535)[place // 2 % 2])
        if place % 3 == 1:
            values = np.asfortranarray(values)
        if place % 5 == 1:
            values = values.astype(values.dtype.newbyteorder(">"))
        file = io.BytesIO()
        np.save(file, values[..., 0] if values.shape[2] == 1 and place % 4 == 0 else values)
        yield f"{place:03}.npy", file.getvalue()


def drawn_photographs(count: int, kind: str, seed: int = 2) -> Iterator[tuple[str, bytes]]:
    """Files that Pillow writes and a browser decodes: JPEG, WebP, GIF or BMP, in colour and grey."""
    rng = np.random.default_rng(seed)
    for place in range(count):
        height, width = (int(side) for side in rng.integers(8, 120, 2))
        values = waves(height, width, 3, rng)
        image = Image.fromarray(values[..., 0] if place % 4 == 3 and kind != "WEBP" else values)
        file = io.BytesIO()
        options = {"JPEG": {"quality": 90, "subsampling": place % 3, "progressive": place % 5 == 4}}
        image.save(file, kind, **options.get(kind, {}))
        yield f"{place:03}.{kind.lower()}", file.getvalue()
