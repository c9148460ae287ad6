"""Which way up a picture was taken: the one EXIF tag that changes pixels, read without a general parser."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from .values import EXIF_UNREADABLE, TURNED, Stored

ORIENTATION = 0x0112
UPRIGHT = 1
# fmt: off
NUMBERS = {1: "B", 3: "H", 4: "I"}  # EXIF's codes for whole numbers of one, two and four bytes
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
# fmt: on


def upright(stored: Stored, blocks: Sequence[bytes]) -> Stored:
    """The picture as its first readable EXIF block says it was held; without one, as it lies."""
    found = [orientation(block) for block in blocks]
    known = next((way for way in found if way is not None), UPRIGHT)
    remarks = stored.remarks + ((EXIF_UNREADABLE,) if None in found else ())
    if known == UPRIGHT:
        return stored._replace(remarks=remarks)
    return turned(stored._replace(remarks=remarks), known)


def turned(stored: Stored, way: int) -> Stored:
    """The picture turned and mirrored as the EXIF orientation 2..8 asks."""
    turn = TURNS[way]
    alpha = None if stored.alpha is None else turn(stored.alpha)
    return stored._replace(values=turn(stored.values), alpha=alpha, remarks=(*stored.remarks, TURNED))


def orientation(block: bytes) -> int | None:
    """1 to 8; 1 where the block does not say, None where it cannot be read or says nonsense."""
    tiff = block.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _ = struct.unpack_from(f"{order}HHI", tiff, place)
            if tag == ORIENTATION:
                (value,) = struct.unpack_from(order + NUMBERS[kind], tiff, place + 8)
                return value if 1 <= value <= 8 else None
    except (struct.error, KeyError):
        return None
    return UPRIGHT
