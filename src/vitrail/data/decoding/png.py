"""PNG files: every chunk's checksum is compared here, and a parser gets to see only those that make up the pixels.

Texts, profiles and animations never reach it. Checksums of pixels must hold; those of other chunks are remarked.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL.PngImagePlugin import PngImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .exif import upright
from .pillow import deep_colour, high_and_low, loaded
from .values import (
    DAMAGE_BESIDE,
    END_MISSING,
    SEVERAL_FRAMES,
    Stored,
    check_size,
    damaged,
    first_only,
    profile_remark,
    truncated,
)

KIND = "PNG"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXELS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT"}
TEXTS = {b"zTXt", b"iTXt", b"iCCP"}
MAX_CHUNKS = 200_000
MAX_TEXT = 4 * 2**20
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
Passes = tuple[tuple[int, int, int, int], ...]
PLAIN = ((0, 0, 1, 1),)
INTERLACED = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The passes of a picture: first column, first row, and the steps between columns and between rows."""


class Chunk(NamedTuple):
    """One chunk: its name, its content, and all its bytes with length and checksum."""

    name: bytes
    content: bytes
    whole: bytes
    intact: bool


def parse_png(data: bytes, spec: ImageSpec) -> Stored:
    """Grey, RGB or palette of 1 to 16 bits, with its transparency; of an animation the picture shown without one."""
    if len(data) < 33:
        raise truncated(KIND, len(data))
    if data[12:16] != b"IHDR":
        raise damaged(KIND, "it does not begin with its header")
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    check_size(height, width, spec.max_pixels)
    kept, exif, remarks = _sorted_out(data)
    if SEVERAL_FRAMES in remarks:
        first_only("animated PNG", spec.page)
    stream = _stream(kept, depth, colour)
    image = PngImageFile(io.BytesIO(stream))
    if (depth, colour) == (16, GREY_ALPHA):
        stored = _grey_alpha(stream)
    elif deep := deep_colour(image):
        stored = high_and_low(PngImageFile, stream, deep)
    else:
        stored = loaded(image)
    last = stored.values[-1]
    passes = INTERLACED if data[28] else PLAIN
    if (data[28] or (last == last[0]).all()) and not _is_whole(
        kept[b"IDAT"], width, height, depth * SAMPLES[colour], passes
    ):
        raise truncated(KIND, len(data))
    if depth == 16 and colour in (GREY, RGB) and b"tRNS" in kept:
        stored = stored._replace(alpha=_keyed(stored.values, kept[b"tRNS"][0].content))
    return upright(stored._replace(remarks=remarks), exif)


def _sorted_out(data: bytes) -> tuple[dict[bytes, list[Chunk]], list[bytes], tuple[str, ...]]:
    """The chunks that make up the pixels, the EXIF blocks, and what is remarkable."""
    kept: dict[bytes, list[Chunk]] = {}
    exif: list[bytes] = []
    remarks: dict[str, None] = {}
    room = MAX_TEXT
    for chunk in _chunks(data):
        if chunk.name == b"IEND":
            break
        if not chunk.intact:
            if chunk.name[:1].isupper():
                raise damaged(KIND, f"the checksum of its chunk {chunk.name.decode()} is wrong")
            remarks[DAMAGE_BESIDE] = None
        if chunk.name in PIXELS:
            kept.setdefault(chunk.name, []).append(chunk)
        elif chunk.name == b"eXIf":
            exif.append(chunk.content)
        elif chunk.name == b"acTL" and int.from_bytes(chunk.content[:4], "big") > 1:
            remarks[SEVERAL_FRAMES] = None
        elif chunk.name in TEXTS:
            text = _inflated(chunk, room)
            room -= len(text)
            if chunk.name == b"iCCP":
                remarks |= dict.fromkeys(profile_remark(text + chunk.content[:80]))
    else:
        remarks[END_MISSING] = None
    if b"IDAT" not in kept:
        raise truncated(KIND, len(data))
    return kept, exif, tuple(remarks)


def _chunks(data: bytes) -> Iterator[Chunk]:
    """Chunk after chunk; ends where the file ends between two of them, or inside one that pixels can do without."""
    position = len(SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return
        length, name = struct.unpack_from(">I4s", data, position)
        if not name.isalpha():
            raise damaged(KIND, f"no chunk is called {name!r}")
        end = position + 12 + length
        if end > len(data):
            if name in PIXELS:
                raise DataError(f"truncated ({len(data):,} of at least {end:,} bytes).")
            return
        content = data[position + 8 : end - 4]
        intact = zlib.crc32(content, zlib.crc32(name)) == int.from_bytes(data[end - 4 : end], "big")
        yield Chunk(name, content, data[position:end], intact)
        position = end
    raise damaged(KIND, f"more than {MAX_CHUNKS:,} chunks")


def _inflated(chunk: Chunk, room: int) -> bytes:
    """The text in a compressed chunk, which nobody reads: only that it stays small is looked at."""
    name, _, rest = chunk.content.partition(b"\0")
    packed = rest[1:]  # after the method
    if chunk.name == b"iTXt":
        if rest[:1] != b"\1":
            return b""
        packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]  # after language and translated name
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, max(1, room))
    except zlib.error:
        return name
    if inflater.unconsumed_tail:
        raise TooLargeError(
            f"image carries texts or profiles of more than {MAX_TEXT // 2**20} MiB packed into {len(packed):,} bytes, "
            "as files do that are made to exhaust memory; save it again without them."
        )
    return text


def _stream(kept: dict[bytes, list[Chunk]], depth: int, colour: int) -> bytes:
    """A PNG file of the chunks that make up the pixels, in their proper order.

    Grey with opacity of 16 bits has pixels of four bytes, as RGBA of 8 bits has: the header is made to say so, because
    Pillow would drop every second byte.
    """
    header = kept[b"IHDR"][0].content if b"IHDR" in kept else b""
    if len(header) != 13:
        raise damaged(KIND, "its header is missing")
    if colour == PALETTE and b"PLTE" not in kept:
        raise damaged(KIND, "its palette is missing")
    if (depth, colour) == (16, GREY_ALPHA):
        header = header[:8] + bytes([8, RGBA]) + header[10:]
    parts = [SIGNATURE, _chunk(b"IHDR", header)]
    parts += [_chunk(b"PLTE", chunk.content) for chunk in kept.get(b"PLTE", [])[:1] if colour != GREY]
    if depth <= 8:
        parts += [_chunk(b"tRNS", _key(chunk.content, depth, colour)) for chunk in kept.get(b"tRNS", [])[:1]]
    parts += [chunk.whole for chunk in kept[b"IDAT"]]
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _key(content: bytes, depth: int, colour: int) -> bytes:
    """The transparent grey level as Pillow compares it: with levels of 2 and 4 bits stretched to 8."""
    if colour != GREY or depth not in (2, 4):
        return content
    return (int.from_bytes(content[:2], "big") * 255 // (2**depth - 1)).to_bytes(2, "big")


def _grey_alpha(stream: bytes) -> Stored:
    pixels = np.array(PngImageFile(io.BytesIO(stream))).astype(np.uint16)  # [H, W, 4]: high, low, high, low
    return Stored(pixels[:, :, 0] << 8 | pixels[:, :, 1], pixels[:, :, 2] << 8 | pixels[:, :, 3])


def _is_whole(pixels: list[Chunk], width: int, height: int, bits: int, passes: Passes) -> bool:
    """Whether the chunks unpack to every row; where some are missing, Pillow leaves them black and says nothing.

    Asked only where the last row has one colour, or rows are interlaced: it takes a third of the time again.
    """
    needed = 0
    for left, top, across, down in passes:
        columns, rows = max(0, -((left - width) // across)), max(0, -((top - height) // down))
        needed += rows * (1 + (columns * bits + 7) // 8) if columns else 0
    inflater, found = zlib.decompressobj(), 0
    for chunk in pixels:
        waiting = chunk.content
        while waiting and not inflater.eof:
            found += len(inflater.decompress(waiting, 2**20))
            waiting = inflater.unconsumed_tail
    return found + len(inflater.flush()) >= needed


def _keyed(values: np.ndarray, content: bytes) -> np.ndarray | None:
    """Opacity of a 16-bit picture in which one colour is called transparent."""
    channels = 1 if values.ndim == 2 else 3
    if len(content) < 2 * channels:
        return None
    key = np.frombuffer(content[: 2 * channels], ">u2")
    clear = (values.reshape(*values.shape[:2], channels) == key).all(-1)
    return np.where(clear, 0, 65535).astype(np.uint16)
