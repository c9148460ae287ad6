"""Small pickles that ask for the same large thing again and again: each mention is three bytes and costs megabytes."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

import torch

from hostile_pickles import MAGIC, saved, tensor, text, zipped_pickle

Made = Iterator[tuple[str, bytes, str]]
LONG = "x" * 2**21
"""A name that is kept once and used often."""


def amplifiers() -> Made:
    """Copies, joins and walks; and names that are no names."""
    keep = b"\x80\x04" + text(LONG) + b"q\x00"
    entries = b"".join(b"J" + struct.pack("<i", number) + b"N" for number in range(65_536))
    copied = b"\x80\x02}q\x00(" + entries + b"u0ccollections\nOrderedDict\nq\x010" + b"h\x01h\x00\x85R" * 80_000
    yield "copies.pt", copied + b".", "its dictionaries have more than 500000 entries"
    yield "joined-names.pt", keep + b"h\x00h\x00\x93" * 100_000 + b".", "has more than 256 letters"
    yield "joined-later.pt", keep + text(LONG) + b"\x82\x01" + b"\x93" * 400_000 + b".", "uses EXT1"
    devices = keep + b"0ctorch\ndevice\nq\x010" + b"h\x01(" + b"h\x00" * 50 + b"tR" + b"0h\x01(h\x00h\x00tR" * 50_000
    yield "devices.pt", devices + b".", "not a weights file of torch"
    yield from modules()
    key = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0" * 300) + text("cpu") + b"K\x01tQ"
    yield "long-key.pt", zipped_pickle(b"\x80\x02}" + text("weight") + key + b"s."), "a storage has no key and no count"
    nested = b"\x80\x02])" + b"2\x86" * 60 + b"a."
    old = b"\x80\x02" + MAGIC + b"\x80\x02M\xe9\x03.\x80\x02}." + tensor(1, (1,), (1,)) + nested
    yield "keys-bomb.pt", old, "its list of storages is not that of its tensors"
    yield "zero-axis.pt", zipped_pickle(tensor(0, (2**30, 2**30, 0), (1, 1, 1)), b""), "no tensor can have the shape"
    yield "escape.pt", saved({"\x1b[2Jweight": torch.ones(1)}), r"called '\\x1b\[2Jweight', which is no plain name"
    yield (
        "digits.pt",
        saved({f"transformer.layers.{'9' * 5000}.0.norm.weight": torch.ones(1)}),
        "which is no plain name",
    )
    yield "numbered.pt", saved({"model": {3: torch.ones(1)}}), "called 3, which is no plain name"
    wrapped: dict[str, object] = {"weight": torch.ones(1)}
    for _ in range(100):
        wrapped = {"model": wrapped}
    yield "wrapped.pt", saved(wrapped), "nested deeper than 64"


def modules() -> Made:
    """TorchScript archives whose modules stand in each other under long names, or share one large state."""
    opening = b"\x80\x02c__torch__\nM\nq\x000" + text(LONG) + b"q\x010"
    deep = b"h\x00)\x81}h\x01" * 1000 + b"h\x00)\x81}b" + b"sb" * 1000
    yield "deep-modules.pt", scripted(opening + deep + b"."), "has no name of at most 512 letters"
    parts = b"}(" + b"".join(text(number) + b"N" for number in range(10_000)) + b"uq\x020"
    inside = b"".join(text(number) + b"h\x00)\x81h\x02b" for number in range(10_000))
    shared = b"\x80\x02c__torch__\nM\nq\x000" + parts + b"h\x00)\x81}(" + inside + b"ub."
    yield "shared-state.pt", scripted(shared), "modules have more than 500000 parts"


def scripted(data: bytes) -> bytes:
    """A TorchScript archive with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/constants.pkl", b"\x80\x02).")
    return file.getvalue()
