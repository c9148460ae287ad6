"""Decode PNG, GIF, WebP and BMP files with Pillow, which is handed only the bytes that make up the first frame.

PNG: every chunk's checksum is verified here. Texts, profiles and animations never reach Pillow; a wrong checksum of
pixels is an error, that of another chunk a remark. GIF and WebP: the end of the first frame is found here.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Image
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ...errors import DataError, TooLargeError
from ...spec import ImageSpec
from .decoded_image import (
    DAMAGE_OUTSIDE_PIXELS,
    END_MISSING,
    SEVERAL_FRAMES,
    XMP_MARK,
    DecodedImage,
    apply_exif,
    check_first_page,
    check_image_size,
    cmyk_to_rgb,
    damaged_error,
    lab_to_srgb,
    remark_colour_profile,
    truncated_error,
)

PNG = "PNG"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
IOS_HINT = (
    "take the picture from before it was built into an app, or convert it on a Mac: sips -s format jpeg FILE --out NEW"
)
PIXEL_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT"}
TEXT_CHUNKS = {b"tEXt", b"zTXt", b"iTXt", b"iCCP"}
RAW_PROFILE = (b"Raw profile type exif", b"Raw profile type APP1", b"Raw profile type xmp")
"""Names of texts in which ImageMagick and exiftool keep what other formats have blocks for."""
MAX_CHUNKS = 200_000
MAX_TEXT = 4 * 2**20
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES_PER_PIXEL = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
Passes = tuple[tuple[int, int, int, int], ...]
SINGLE_PASS = ((0, 0, 1, 1),)
ADAM7_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The passes of an image: first column, first row, and the steps between columns and between rows."""


class PngChunk(NamedTuple):
    """One PNG chunk: its name, its content, and all its bytes with length and checksum."""

    name: bytes
    content: bytes
    raw: bytes
    is_intact: bool


def parse_png(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Parse a PNG file: grey, RGB or palette of 1 to 16 bits, with transparency; of an animation the default image."""
    if len(data) < 33:
        raise truncated_error(PNG, len(data))
    if data[12:16] == b"CgBI":
        raise DataError(
            f"is a PNG as Xcode writes it into iOS apps (CgBI), which other programs cannot read; {IOS_HINT}."
        )
    if data[12:16] != b"IHDR":
        raise damaged_error(PNG, "it does not begin with its header")
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    check_image_size(height, width, spec.max_pixels)
    kept, exif, xmp, remarks = _select_chunks(data)
    if SEVERAL_FRAMES in remarks:
        check_first_page("animated PNG", spec.page)
    stream = _build_png(kept, depth, colour)
    image = PngImageFile(io.BytesIO(stream))
    if (depth, colour) == (16, GREY_ALPHA):
        pixels = np.array(image).astype(np.uint16)  # [H, W, 4]: high, low, high, low
        stored = DecodedImage(pixels[:, :, 0] << 8 | pixels[:, :, 1], pixels[:, :, 2] << 8 | pixels[:, :, 3])
    elif deep := _raw_mode_16bit(image):
        stored = _decode_16bit_colour(stream, deep)
    else:
        stored = decode_pillow(image)
    last = stored.values[-1]
    interlaced = data[28]
    if interlaced or (last == last[0]).all():  # only then may rows be missing; the check takes a third more time
        passes = ADAM7_PASSES if interlaced else SINGLE_PASS
        if not _has_all_rows(kept[b"IDAT"], width, height, depth * SAMPLES_PER_PIXEL[colour], passes):
            raise truncated_error(PNG, len(data))
    if depth == 16 and colour in (GREY, RGB) and b"tRNS" in kept:
        stored = stored._replace(alpha=_alpha_from_key(stored.values, kept[b"tRNS"][0].content))
    return apply_exif(stored._replace(remarks=remarks), exif, xmp)


def _select_chunks(data: bytes) -> tuple[dict[bytes, list[PngChunk]], list[bytes], list[bytes], tuple[str, ...]]:
    """Select the chunks that make up the pixels, the EXIF blocks and the XMP packets, and collect remarks."""
    kept: dict[bytes, list[PngChunk]] = {}
    exif: list[bytes] = []
    exif_in_texts: list[bytes] = []
    xmp: list[bytes] = []
    remarks: dict[str, None] = {}
    room = MAX_TEXT
    for chunk in _iter_chunks(data):
        if chunk.name == b"IEND":
            break
        if not chunk.is_intact:
            if chunk.name[:1].isupper():
                raise damaged_error(PNG, f"the checksum of its chunk {chunk.name.decode()} is wrong")
            remarks[DAMAGE_OUTSIDE_PIXELS] = None
        if chunk.name in PIXEL_CHUNKS:
            kept.setdefault(chunk.name, []).append(chunk)
        elif chunk.name == b"eXIf":
            exif.append(chunk.content)
        elif chunk.name == b"acTL" and int.from_bytes(chunk.content[:4], "big") > 1:
            remarks[SEVERAL_FRAMES] = None
        elif chunk.name in TEXT_CHUNKS:
            name, text, size = _read_text(chunk, room)
            room -= size
            if chunk.name == b"iCCP":
                remarks |= dict.fromkeys(remark_colour_profile(text + name))
            elif name == b"XML:com.adobe.xmp":
                xmp.append(text)
            elif name.startswith(RAW_PROFILE):
                profile = _parse_raw_profile(text)
                (xmp if name.endswith(b"xmp") or profile.startswith(XMP_MARK) else exif_in_texts).append(profile)
    else:
        remarks[END_MISSING] = None
    if b"IDAT" not in kept:
        raise truncated_error(PNG, len(data))
    return kept, exif + exif_in_texts, xmp, tuple(remarks)


def _iter_chunks(data: bytes) -> Iterator[PngChunk]:
    """Iterate over chunks; ends where the file ends between two of them, or inside one that pixels do not need."""
    position = len(SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return
        length, name = struct.unpack_from(">I4s", data, position)
        if not name.isalpha():
            raise damaged_error(PNG, f"no chunk is called {name!r}")
        end = position + 12 + length
        if end > len(data):
            if name in PIXEL_CHUNKS:
                raise DataError(f"truncated ({len(data):,} of at least {end:,} bytes).")
            return
        content = data[position + 8 : end - 4]
        intact = zlib.crc32(content, zlib.crc32(name)) == int.from_bytes(data[end - 4 : end], "big")
        yield PngChunk(name, content, data[position:end], intact)
        position = end
    raise damaged_error(PNG, f"more than {MAX_CHUNKS:,} chunks")


def _read_text(chunk: PngChunk, room: int) -> tuple[bytes, bytes, int]:
    """Name and text of a chunk, and how many of the bytes were unpacked; a text that cannot be is empty."""
    name, _, rest = chunk.content.partition(b"\0")
    packed = rest[1:]  # after the method
    if chunk.name == b"iTXt":
        packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]  # after language and translated name
    if chunk.name == b"tEXt" or (chunk.name == b"iTXt" and rest[:1] != b"\1"):
        return name, rest if chunk.name == b"tEXt" else packed, 0
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, max(1, room))
    except zlib.error:
        return name, b"", 0
    if inflater.unconsumed_tail:
        raise TooLargeError(
            f"image carries texts or profiles of more than {MAX_TEXT // 2**20} MiB packed into {len(packed):,} bytes, "
            "as files do that are made to exhaust memory; save it again without them."
        )
    return name, text, len(text)


def _parse_raw_profile(text: bytes) -> bytes:
    """The block in a text of three parts: its kind, its length, and its bytes as hexadecimal digits."""
    try:
        return bytes.fromhex(b"".join(text.split()[2:]).decode())
    except ValueError:
        return b""


def _build_png(kept: dict[bytes, list[PngChunk]], depth: int, colour: int) -> bytes:
    """Build a PNG file of the chunks that make up the pixels, in their proper order."""
    header = kept[b"IHDR"][0].content if b"IHDR" in kept else b""
    if len(header) != 13:
        raise damaged_error(PNG, "its header is missing")
    if colour == PALETTE and b"PLTE" not in kept:
        raise damaged_error(PNG, "its palette is missing")
    if (depth, colour) == (16, GREY_ALPHA):  # Pillow would drop every second byte: read as RGBA, also of four bytes
        header = header[:8] + bytes([8, RGBA]) + header[10:]
    parts = [SIGNATURE, _encode_chunk(b"IHDR", header)]
    if b"PLTE" in kept and colour != GREY:
        parts.append(_encode_chunk(b"PLTE", kept[b"PLTE"][0].content))
    if b"tRNS" in kept and depth <= 8:
        level = kept[b"tRNS"][0].content
        if colour == GREY and depth in (2, 4):  # Pillow compares grey levels stretched to 8 bits
            level = (int.from_bytes(level[:2], "big") * 255 // (2**depth - 1)).to_bytes(2, "big")
        parts.append(_encode_chunk(b"tRNS", level))
    parts += [chunk.raw for chunk in kept[b"IDAT"]]
    return b"".join([*parts, _encode_chunk(b"IEND", b"")])


def _encode_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _has_all_rows(pixels: list[PngChunk], width: int, height: int, bits: int, passes: Passes) -> bool:
    """Whether the chunks unpack to every row; Pillow leaves missing rows black without an error."""
    needed = 0
    for left, top, across, down in passes:
        columns, rows = max(0, -((left - width) // across)), max(0, -((top - height) // down))
        needed += rows * (1 + (columns * bits + 7) // 8) if columns else 0
    inflater, size = zlib.decompressobj(), 0
    for chunk in pixels:
        waiting = chunk.content
        while waiting and not inflater.eof:
            size += len(inflater.decompress(waiting, 2**20))
            waiting = inflater.unconsumed_tail
    return size + len(inflater.flush()) >= needed


def _alpha_from_key(values: np.ndarray, content: bytes) -> np.ndarray | None:
    """Opacity of a 16-bit image with one transparent colour (tRNS)."""
    channels = 1 if values.ndim == 2 else 3
    if len(content) < 2 * channels:
        return None
    key = np.frombuffer(content[: 2 * channels], ">u2")
    clear = (values.reshape(*values.shape[:2], channels) == key).all(-1)
    return np.where(clear, 0, 65535).astype(np.uint16)


# -- GIF and WebP: only the first frame is parsed.

GIF_FRAME, GIF_EXTENSION, GIF_TRAILER = 0x2C, 0x21, 0x3B
MAX_FRAMES = 4096


class GifFrame(NamedTuple):
    """The rectangle of a GIF frame on its canvas, and the offset in the file behind the frame."""

    bottom: int
    right: int
    end: int


def parse_gif(data: bytes, spec: ImageSpec) -> DecodedImage:
    """The first frame on its canvas, with its transparency; of later frames only the sizes are checked."""
    check_first_page("GIF", spec.page)
    if len(data) < 13:
        raise truncated_error("GIF", len(data))
    width, height = struct.unpack_from("<HH", data, 6)
    check_image_size(height, width, spec.max_pixels)
    frames = _iter_gif_frames(data, 13 + _gif_palette_size(data[10]))
    first = next(frames, None)
    if first is None:
        raise damaged_error("GIF", "it ends before its first frame")
    check_image_size(max(height, first.bottom), max(width, first.right), spec.max_pixels)
    remarks = _check_later_frames(frames, spec.max_pixels)
    image = GifImageFile(io.BytesIO(data[: first.end] + bytes([GIF_TRAILER])))
    return decode_pillow(image)._replace(remarks=remarks)


def _check_later_frames(frames: Iterator[GifFrame], max_pixels: int) -> tuple[str, ...]:
    """Remarks on the frames after the first; one larger than the limit, or thousands of them, are refused."""
    count = 1
    while True:
        try:
            frame = next(frames, None)
        except DataError:
            return (SEVERAL_FRAMES, END_MISSING) if count > 1 else (END_MISSING,)
        if frame is None:
            return (SEVERAL_FRAMES,) if count > 1 else ()
        check_image_size(max(1, frame.bottom), max(1, frame.right), max_pixels)
        count += 1
        if count > MAX_FRAMES:
            raise TooLargeError(f"image has more than {MAX_FRAMES:,} frames, as files made to exhaust a reader do.")


def _iter_gif_frames(data: bytes, position: int) -> Iterator[GifFrame]:
    """Iterate over frames up to the file's trailer, without decoding any."""
    while position < len(data) and data[position] != GIF_TRAILER:
        if data[position] == GIF_EXTENSION:
            position = _skip_gif_blocks(data, position + 2)
            continue
        if data[position] != GIF_FRAME:
            raise damaged_error("GIF", f"no block begins with {data[position]}")
        if position + 11 > len(data):
            break
        left, top, width, height = struct.unpack_from("<HHHH", data, position + 1)
        position = _skip_gif_blocks(data, position + 11 + _gif_palette_size(data[position + 9]))
        yield GifFrame(top + height, left + width, position)
    if position >= len(data) or data[position] != GIF_TRAILER:
        raise truncated_error("GIF", len(data))


def _skip_gif_blocks(data: bytes, position: int) -> int:
    """The offset behind a run of length-prefixed blocks; a block of length 0 ends the run."""
    while position < len(data):
        length = data[position]
        position += 1 + length
        if length == 0:
            return position
    raise truncated_error("GIF", len(data))


def _gif_palette_size(flags: int) -> int:
    """Bytes of the palette that follows a header with these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def parse_webp(data: bytes, spec: ImageSpec) -> DecodedImage:
    """The first frame on its canvas, with its opacity."""
    check_first_page("WebP", spec.page)
    needed = 8 + int.from_bytes(data[4:8], "little")
    if needed > len(data) or len(data) < 30:
        raise truncated_error("WebP", len(data), max(needed, 30))
    check_image_size(*_webp_canvas_size(data), spec.max_pixels)
    image = WebPImageFile(io.BytesIO(data))
    check_image_size(image.height, image.width, spec.max_pixels)
    stored = decode_pillow(image)
    frames = (SEVERAL_FRAMES,) if image.n_frames > 1 else ()
    remarks = (*frames, *remark_colour_profile(image.info.get("icc_profile") or b""))
    exif, xmp = ([block] if (block := image.info.get(name)) else [] for name in ("exif", "xmp"))
    return apply_exif(stored._replace(remarks=remarks), exif, xmp)


def _webp_canvas_size(data: bytes) -> tuple[int, int]:
    """Height and width from the first chunk, before memory is allocated for them."""
    name = data[12:16]
    if name == b"VP8X":
        width, height = (int.from_bytes(data[place : place + 3], "little") + 1 for place in (24, 27))
    elif name == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif name == b"VP8 ":
        width, height = (side & 0x3FFF for side in np.frombuffer(data, "<u2", 2, 26).tolist())
    else:
        raise damaged_error("WebP", f"no picture begins with {name!r}")
    return height, width


# -- BMP, and what all Pillow decoders share: modes, and the bits that Pillow drops.

DEEP_MODES = ("I", "F")  # and I;16 in both byte orders
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")


def parse_bmp(data: bytes, spec: ImageSpec) -> DecodedImage:
    """Windows bitmaps of any depth up to 32 bits per pixel."""
    image = BmpImageFile(io.BytesIO(data))  # reads the header only
    check_image_size(image.height, image.width, spec.max_pixels)
    return decode_pillow(image)


def decode_pillow(image: Image) -> DecodedImage:
    """Decode an opened Pillow image: modes deeper than 8 bits as they are, all others as 8-bit grey or RGB."""
    image.load()
    if is_deep(image):
        values = np.array(image)
        return DecodedImage(values.astype(values.dtype.newbyteorder("="), copy=False))
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        values = np.array((image.convert("LA") if image.mode == "La" else image).convert("RGBA"))
        if image.mode in ("LA", "La", "1", "L"):
            return DecodedImage(values[:, :, 0], values[:, :, 3])
        return DecodedImage(values[:, :, :3], values[:, :, 3])
    if image.mode == "CMYK":
        return DecodedImage(cmyk_to_rgb(np.array(image)))
    if image.mode == "LAB":
        return DecodedImage(lab_to_srgb(np.array(image)))
    return DecodedImage(np.array(image.convert("L" if image.mode in ("1", "L") else "RGB")))


def is_deep(image: Image) -> bool:
    """Whether an image is grey with more than 8 bits, which every conversion of Pillow would cut off."""
    return image.mode in DEEP_MODES or image.mode.startswith("I;16")


def _raw_mode_16bit(image: PngImageFile) -> str:
    """The raw mode of a colour image with 16 bits per channel, of which Pillow keeps the upper 8; else empty."""
    raw = str(image.tile[0].args) if image.tile else ""
    return raw if raw in ("RGB;16B", "RGBA;16B") else ""


def _decode_16bit_colour(data: bytes, raw: str) -> DecodedImage:
    """Decode 16-bit colour by reading twice: the upper bytes, then, with the byte order swapped, the lower ones."""
    values = _decode_with_raw_mode(data, raw).astype(np.uint16) << 8 | _decode_with_raw_mode(data, raw[:-1] + "L")
    return DecodedImage(values[:, :, :3], values[:, :, 3] if raw.startswith("RGBA") else None)


def _decode_with_raw_mode(data: bytes, raw: str) -> np.ndarray:
    image = PngImageFile(io.BytesIO(data))
    image.tile = [tile._replace(args=raw) for tile in image.tile]
    image.load()
    return np.array(image)
