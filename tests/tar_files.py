"""Tar shards for tests, written by the standard library or byte by byte."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def picture(grey: int, size: tuple[int, int] = (6, 5), kind: str = "PNG") -> bytes:
    """The bytes of a picture of one grey level."""
    values = np.full(size, grey, np.uint8)
    out = io.BytesIO()
    Image.fromarray(values).save(out, kind)
    return out.getvalue()


def write_tar(
    path: Path, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], layout: int = tarfile.USTAR_FORMAT
) -> Path:
    """A tar file of plain files, in their order; a name may come twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=layout) as tar:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def classed(labels: Iterable[object], start: int = 0) -> dict[str, bytes]:
    """Samples 0000, 0001, ...: each a picture and the class in .cls."""
    found = {}
    for number, label in enumerate(labels, start):
        found[f"{number:04d}.png"] = picture(number % 256)
        found[f"{number:04d}.cls"] = str(label).encode()
    return found


def header(name: bytes, size: int | bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    """One header of 512 bytes with a right checksum, whatever nonsense it says."""
    told = size if isinstance(size, bytes) else b"%011o\0" % size
    block = name.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + told + b"00000000000\0" + 8 * b" " + kind
    block = (block.ljust(257, b"\0") + magic).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def filled(data: bytes) -> bytes:
    """Contents up to whole blocks."""
    return data + bytes(-len(data) % 512)


END = bytes(1024)
