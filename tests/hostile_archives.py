"""Zip archives with tricks in their directories, as torch files and as NumPy files."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from hostile_pickles import call, saved, zipped_pickle

Made = Iterator[tuple[str, bytes, str]]
GOOD = b"\x80\x02}."
"""An empty dictionary as a pickle."""


def archives(canary: Path) -> Made:
    """Both kinds."""
    yield from of_torch(canary)
    yield from of_numpy(canary)


def of_torch(canary: Path) -> Made:
    """Under the names of torch's files."""
    run = b"\x80\x02" + call("os mkdir", canary) + b"."
    yield "two-roots.pt", zipped(("a/data.pkl", GOOD), ("b/data.pkl", run)), "an archive with 2 files data.pkl"
    yield "no-root.pt", zipped(("a/other", GOOD)), "an archive with 0 files data.pkl"
    twice = zipped(("a/data.pkl", GOOD), ("b/data.pkl", run)).replace(b"b/data.pkl", b"a/data.pkl")
    yield "two-names.pt", twice, "two of its files are called a/data.pkl"
    slip = zipped(("a/data.pkl", GOOD), ("../../.bashrc", b"x"))
    yield "slip.pt", slip, r"called '\.\./\.\./\.bashrc', which leads out"
    yield "absolute.pt", zipped(("a/data.pkl", GOOD), ("/etc/passwd", b"x")), "leads out of a folder"
    yield "drive.pt", zipped(("a/data.pkl", GOOD), ("c:\\x", b"x")), "leads out of a folder|another name"
    yield "encrypted.pt", encrypted(zipped(("a/data.pkl", GOOD))), "a/data.pkl is encrypted"
    bomb = zipped(("a/data.pkl", GOOD), ("a/data/0", bytes(96 * 2**20)), method=zipfile.ZIP_DEFLATED)
    yield "bomb.pt", bomb, r"bytes unpack to 1006633\d\d"
    yield "bomb-pickle.pt", promised(zipped(("a/data.pkl", GOOD), method=8), 4, 12_000_000), "to the 12000000 bytes"
    yield (
        "bomb-40gb.npz",
        promised(zipped(("a.npy", array(4)), method=8), len(array(4)), 2**32 - 2),
        "unpack to 4294967294",
    )
    lzma = zipped(("a/data.pkl", GOOD), method=zipfile.ZIP_LZMA)
    yield "lzma.pt", lzma, "packed by method 14"
    yield "shared-data.pt", shared(), "share their data|not where the directory says|another name"
    yield "flipped.pt", flipped(saved({"weight": torch.arange(64.0)})), r"checksum of \w+/data/0 does not match"
    yield "directory.pt", zipped(*((f"a/{i:0200}", b"") for i in range(20_000))), "its directory has"
    yield from hidden_directories(zipped(*((f"a/{i:0200}", b"") for i in range(20_000))))
    scripted = zipped(("a/data.pkl", run), ("a/constants.pkl", GOOD), ("a/code/a.py", b"import os"))
    yield "scripted.pt", scripted, "asks to run os.mkdir"
    yield "arrays.pt", zipped(("a.npy", array(3))), "must end in .npz"
    other = zipped(("a/data.pkl", GOOD), ("a/byteorder", b"big"))
    yield "big-endian.pt", other, "the other byte order"
    whole = saved({"weight": torch.arange(64.0)})
    yield "cut.pt", whole[: len(whole) // 2], "directory cannot be read"
    yield "listed.pt", zipped_pickle(b"\x80\x02]."), "holds a list, expected a dictionary"


def of_numpy(canary: Path) -> Made:
    """Under the names of NumPy's files."""
    objects = io.BytesIO()
    np.savez(objects, a=np.array([{"a": 1}], dtype=object))
    yield "objects.npz", objects.getvalue(), "Python objects, which can run anything"
    records = io.BytesIO()
    np.savez(records, a=np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]))
    yield "records.npz", records.getvalue(), "an array must hold numbers"
    texts = io.BytesIO()
    np.savez(texts, a=np.array(["abc"]))
    yield "texts.npz", texts.getvalue(), "an array must hold numbers"
    code = f"__import__('os').mkdir({str(canary)!r})"
    yield "header-code.npz", zipped(("a.npy", raw(code))), "its header cannot be read"
    huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }"
    yield "header-lies.npz", zipped(("a.npy", raw(huge % (2**40, 2**40)))), r"takes \d{25} bytes, 0 are there"
    axis = raw(huge.replace("(%d, %d)", "(%d, %d, 0)") % (2**62, 2**62))
    yield "zero-axis.npz", zipped(("a.npy", axis)), "no array can have the shape"
    negative = raw("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4), }") + bytes(16)
    yield "negative.npz", zipped(("a.npy", negative)), "no list of counts"
    yield "header-long.npz", zipped(("a.npy", raw("(" * 60_000))), "its header cannot be read"
    yield "version.npz", zipped(("a.npy", b"\x93NUMPY\x09\x00" + bytes(100))), "its header cannot be read"
    yield "pickled.npz", zipped(("a.npy", array(2)), ("b.pkl", b"\x80\x02" + call("os mkdir", canary) + b".")), "b.pkl"
    yield "slip.npz", zipped(("../a.npy", array(2))), "leads out of a folder"
    many = zipped(("a.npy", array(2)), ("b.npy", array(2))).replace(b"b.npy", b"a.npy")
    yield "twice.npz", many, "two of its files are called a.npy"
    yield "cut.npz", zipped(("a.npy", array(50)))[:150], "directory cannot be read"
    yield "no-zip.npz", b"\x80\x02" + call("os mkdir", canary) + b".", "is no NumPy archive"
    zeros = zipped(("a.npy", raw(huge % (2**12, 6 * 2**10)) + bytes(96 * 2**20)), method=zipfile.ZIP_DEFLATED)
    yield "bomb.npz", zeros, r"bytes unpack to 1006\d{5}"
    packed = zipped(("a.npy", array(64)), method=zipfile.ZIP_DEFLATED)
    yield "flipped.npz", flipped(packed, 70), "checksum|cannot be unpacked|not a whole array|does not unpack"


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return file.getvalue()


def array(count: int) -> bytes:
    """A `.npy` file of so many numbers."""
    file = io.BytesIO()
    npy.write_array(file, np.arange(count, dtype=np.float32))
    return file.getvalue()


def hidden_directories(data: bytes) -> Made:
    """Directories that are too long, where `zipfile` finds them and a careless search does not."""
    length, offset = struct.unpack("<II", data[-10:-2])
    disguised = data[:-18] + b"PK\x05\x06" + data[-14:]  # in the numbers of disks, which nobody reads
    yield "directory-disguised.pt", disguised, f"its directory has {length} bytes, at most 4194304"
    large = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 20_000, 20_000, length, offset)
    signpost = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    small = data[-22:-10] + struct.pack("<IIH", 46, offset, 0)
    yield "directory-64.pt", data[:-22] + large + signpost + small, f"its directory has {length} bytes, at most 4194304"
    elsewhere = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1)
    yield "directory-elsewhere.pt", data[:-22] + large + elsewhere + small, "does not end as the format says"
    yield "directory-comment.pt", data[:-2] + b"\x04\x00abcd", "does not end as the format says"


def raw(header: str) -> bytes:
    """A `.npy` file that is a header alone."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def flipped(data: bytes, place: int | None = None) -> bytes:
    """One bit changed: in the numbers of the first tensor unless a place is given."""
    changed = bytearray(data)
    place = data.index(struct.pack("<3f", 5, 6, 7)) if place is None else place
    changed[place] ^= 1
    return bytes(changed)


def encrypted(data: bytes) -> bytes:
    """The flag of encryption in both places of the one member."""
    changed = bytearray(data)
    changed[6] |= 1
    changed[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def promised(data: bytes, size: int, larger: int) -> bytes:
    """The one member promises to unpack to more than it does."""
    place = data.index(b"PK\x01\x02") + 24
    assert struct.unpack_from("<I", data, place)[0] == size
    changed = bytearray(data)
    struct.pack_into("<I", changed, place, larger)
    return bytes(changed)


def shared() -> bytes:
    """Two entries of the directory for one piece of data."""
    changed = bytearray(zipped(("a/data.pkl", GOOD), ("b/data.pk2", b"xxxx")))
    second = changed.rindex(b"PK\x01\x02")
    struct.pack_into("<I", changed, second + 42, 0)
    return bytes(changed)
