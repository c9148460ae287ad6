"""Pictures drawn by formula, and writers of files that libraries do not write: odd, damaged or hostile ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
HEIGHT, WIDTH = 36, 52


def photo() -> np.ndarray:
    """uint8 [36, 52, 3], smooth, neither very dark nor very light, no two channels alike."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([80 + rows * 3, 70 + columns * 3, 230 - rows - columns], axis=-1).astype(np.uint8)


def grey() -> np.ndarray:
    """uint8 [36, 52]."""
    return photo()[:, :, 0]


def three(values: np.ndarray) -> np.ndarray:
    """Grey [H, W] as RGB [H, W, 3]."""
    return np.repeat(values[:, :, None], 3, axis=2)


def encoded(values: np.ndarray | Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of a picture file, written by Pillow."""
    image = values if isinstance(values, Image.Image) else Image.fromarray(values)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *before: bytes) -> bytes:
    """A PNG file of any header; `rows` begin with a filter byte each, `before` are chunks before the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"".join([PNG, header, *before, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")])


def png16(values: np.ndarray, *before: bytes) -> bytes:
    """A 16-bit PNG of uint16 [H, W, 1..4]: grey, grey with opacity, RGB or RGBA."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], rows, *before)


def inserted(data: bytes, *chunks: bytes) -> bytes:
    """A PNG file with further chunks behind its header."""
    return data[:33] + b"".join(chunks) + data[33:]


def segment(marker: int, content: bytes) -> bytes:
    """One segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def exif(*entries: tuple[int, int, int, bytes]) -> bytes:
    """An EXIF block of (tag, type, count, four bytes) lines."""
    lines = b"".join(struct.pack(">HHI4s", *entry) for entry in entries)
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(entries)) + lines + b"\0\0\0\0"


def orientation(way: int) -> bytes:
    """The EXIF block that says how the camera was held."""
    return exif((0x0112, 3, 1, struct.pack(">H2x", way)))


def tiff(tags: dict[int, tuple[int, int, bytes]], pixels: bytes, order: str = ">") -> bytes:
    """An uncompressed TIFF of one page: {tag: (type, count, content)}; strips (273, 279) are put in by us.

    Contents of up to 4 bytes stand in the directory, longer ones behind it.
    """
    start = 8
    tags = {273: (4, 1, struct.pack(f"{order}I", start)), 279: (4, 1, struct.pack(f"{order}I", len(pixels)))} | tags
    place = start + len(pixels) + len(pixels) % 2
    beyond = place + 2 + 12 * len(tags) + 4
    lines, long = b"", b""
    for tag, (kind, count, content) in sorted(tags.items()):
        field = content.ljust(4, b"\0") if len(content) <= 4 else struct.pack(f"{order}I", beyond + len(long))
        long += content if len(content) > 4 else b""
        lines += struct.pack(f"{order}HHI", tag, kind, count) + field
    magic = (b"MM" if order == ">" else b"II") + struct.pack(f"{order}HI", 42, place)
    directory = struct.pack(f"{order}H", len(tags)) + lines + struct.pack(f"{order}I", 0)
    return magic + pixels.ljust(place - start, b"\0") + directory + long


def shorts(*numbers: int, order: str = ">") -> tuple[int, int, bytes]:
    """A TIFF entry of 16-bit numbers."""
    return 3, len(numbers), struct.pack(f"{order}{len(numbers)}H", *numbers)


def plain_tiff(
    values: np.ndarray,
    form: int = 1,
    order: str = ">",
    photometric: int | None = None,
    extra: int = 2,
    compression: int = 1,
) -> bytes:
    """A TIFF of [H, W] or [H, W, C] values of any type, samples side by side; form 1 unsigned, 2 signed, 3 float.

    `extra` is what a single further sample is said to be, 2 for opacity; nothing is compressed, whatever is said.
    """
    height, width = values.shape[:2]
    samples = 1 if values.ndim == 2 else values.shape[2]
    colours = (2 if samples >= 3 else 1) if photometric is None else photometric
    tags = {
        256: shorts(width, order=order),
        257: shorts(height, order=order),
        258: shorts(*[values.dtype.itemsize * 8] * samples, order=order),
        259: shorts(compression, order=order),
        262: shorts(colours, order=order),
        277: shorts(samples, order=order),
        278: shorts(height, order=order),
        339: shorts(*[form] * samples, order=order),
    }
    further = samples - (3 if colours == 2 else 1)
    if further > 0 and colours <= 2:
        tags[338] = shorts(*[extra if further == 1 else 0] * further, order=order)
    return tiff(tags, values.astype(values.dtype.newbyteorder(order)).tobytes(), order)
