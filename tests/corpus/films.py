"""DICOM files written byte by byte, so that what reads them is not judged by its own writer."""

from __future__ import annotations

import struct

import numpy as np

EXPLICIT = "1.2.840.10008.1.2.1"
BIG_ENDIAN = "1.2.840.10008.1.2.2"
DEFLATED = "1.2.840.10008.1.2.1.99"
JPEG = "1.2.840.10008.1.2.4.50"
LOSSLESS_JPEG = "1.2.840.10008.1.2.4.70"
JPEG_2000 = "1.2.840.10008.1.2.4.90"
RLE = "1.2.840.10008.1.2.5"
LONG = ("OB", "OW", "OF", "OD", "SQ", "UN", "UT")
Elements = dict[tuple[int, int], tuple[str, bytes | list["Elements"]]]


def text(kind: str, value: str) -> tuple[str, bytes]:
    """An element of text, padded to an even length."""
    return kind, value.encode().ljust(len(value) + len(value) % 2, b"\0" if kind == "UI" else b" ")


def short(*values: int, kind: str = "US") -> tuple[str, bytes]:
    """An element of 16-bit numbers."""
    return kind, struct.pack(f"<{len(values)}{'h' if kind == 'SS' else 'H'}", *values)


def film(values: np.ndarray, *, syntax: str = EXPLICIT, bits: int = 0, more: Elements | None = None) -> bytes:
    """A DICOM file of [H, W] or [H, W, 3] values, frames [F, H, W] if `more` says how many; MONOCHROME2 unless told."""
    return file(elements_of(values, bits, more), syntax)


def elements_of(values: np.ndarray, bits: int = 0, more: Elements | None = None) -> Elements:
    """The elements of `film`."""
    size = values.shape[1:3] if more and (0x28, 0x08) in more else values.shape[:2]
    deep = values.dtype.itemsize * 8
    stored = bits or deep
    elements: Elements = {
        (0x28, 0x02): short(3 if values.shape[-1] == 3 and values.ndim > 2 else 1),
        (0x28, 0x04): text("CS", "MONOCHROME2"),
        (0x28, 0x10): short(size[0]),
        (0x28, 0x11): short(size[1]),
        (0x28, 0x100): short(deep),
        (0x28, 0x101): short(stored),
        (0x28, 0x102): short(stored - 1),
        (0x28, 0x103): short(int(values.dtype.kind == "i")),
        (0x7FE0, 0x10): ("OW" if deep == 16 else "OB", even(values.astype(values.dtype.newbyteorder("<")).tobytes())),
    }
    return elements | (more or {})


def packed(frames: list[bytes]) -> tuple[str, bytes]:
    """The pixel element of compressed frames, one fragment each."""
    items = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(even(frame))) + even(frame) for frame in frames)
    return "OB", struct.pack("<HHI", 0xFFFE, 0xE000, 0) + items + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)


def file(elements: Elements, syntax: str = EXPLICIT) -> bytes:
    """A whole file: 128 free bytes, the mark, the meta group and the elements."""
    meta = written({(2, 0x10): text("UI", syntax)})
    head = written({(2, 0): ("UL", struct.pack("<I", len(meta)))})
    whole = syntax in (EXPLICIT, DEFLATED, BIG_ENDIAN)
    return bytes(128) + b"DICM" + head + meta + written(elements, not whole, ">" if syntax == BIG_ENDIAN else "<")


def written(elements: Elements, compressed: bool = False, order: str = "<") -> bytes:
    """Explicit bytes of the elements, in their order; sequences are lists of elements."""
    out = b""
    for (group, number), (kind, value) in sorted(elements.items()):
        if isinstance(value, list):
            value = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(written(item))) + written(item) for item in value)
        if order == ">" and kind in ("US", "SS", "OW"):
            value = np.frombuffer(value, "<u2").astype(">u2").tobytes()
        out += struct.pack(f"{order}HH2s", group, number, kind.encode())
        length = 0xFFFFFFFF if compressed and (group, number) == (0x7FE0, 0x10) else len(value)
        out += struct.pack(f"{order}HI", 0, length) if kind in LONG else struct.pack(f"{order}H", length)
        out += value
    return out


def implicit(elements: Elements) -> bytes:
    """Little-endian bytes of elements without sequences, whose types are left out."""
    return b"".join(
        struct.pack("<HHI", *tag, len(value)) + value for tag, (_, value) in sorted(elements.items()) if value
    )


def even(data: bytes) -> bytes:
    """Padded to an even length, as every value of DICOM is."""
    return data + b"\0" * (len(data) % 2)
