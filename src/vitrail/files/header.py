"""The header of a safetensors file, judged in full before the format's own reader touches a tensor.

The file is eight bytes with the header's length, the header in JSON, and the tensors without gaps. A hostile header
costs a reader memory; a damaged one gives other numbers silently. Format: github.com/huggingface/safetensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError
from .json_text import parse
from .kinds import refuse_other

LENGTH = 8 * 2**20
"""Bytes of the longest header that is read, enough for 30,000 tensors. The format itself allows 100 MB."""
AXES = 16
"""Axes of a tensor."""
BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "C64": 8,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
}
"""Number formats that are read, and the bytes of one number."""


class Entry(NamedTuple):
    """One tensor of the header."""

    number: str
    """Its number format, a key of BYTES."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte, counted from the end of the header."""
    end: int
    """The byte behind its last."""


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself; every promise of the format has been seen to hold."""

    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]
    """In the order of the data."""
    start: int
    """Where the data begins in the file."""


def read_header(path: Path) -> Header:
    """Read and judge a header; the data behind it is not touched.

    Raises:
        DamagedFileError: the file is missing, or its header is too long, cut short, no JSON, or breaks a promise of
            the format: known number formats, sizes that fit shapes, plain names that stand once, data without
            overlaps and holes up to the last byte.
    """
    path = Path(path)
    refuse_other(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > size - 8:
            raise not_whole(path, f"its header of {length} bytes goes beyond its {size}")
        if length > LENGTH:
            raise not_whole(path, f"its header has {length} bytes, at most {LENGTH} are read")
        text = file.read(length)
    if not text.startswith(b"{"):
        raise not_whole(path, "its header does not begin with a brace")
    fields = parse(text, f"The header of {path}")
    metadata = _metadata(path, fields.pop("__metadata__", {}))
    entries = {name: _entry(path, name, value) for name, value in fields.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_no_gaps(path, ordered, size - 8 - length)
    return Header(metadata, ordered, 8 + length)


def not_whole(path: Path, reason: str) -> DamagedFileError:
    """The one sentence about a file that does not keep the format's promises."""
    return DamagedFileError(
        f"{path} is not a whole safetensors file ({reason}). It is cut short, changed or of another kind: "
        "copy it again."
    )


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise not_whole(path, "its metadata must be texts by name")


def _entry(path: Path, name: str, value: Any) -> Entry:
    """One tensor's entry, if its name is plain, its format known and its size that of its shape."""
    label = name[:80]
    if not _is_plain(name):
        raise not_whole(path, f"a tensor is called {label!r}, which is no plain name")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise not_whole(path, f"the tensor {label} must have dtype, shape and data_offsets")
    number, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(number, str) or number not in BYTES:
        raise not_whole(path, f"the number format of {label} is {str(number)[:20]!r}, known are {', '.join(BYTES)}")
    if not _are_counts(shape) or len(shape) > AXES:
        raise not_whole(path, f"the shape of {label} must be at most {AXES} counts")
    if not math.prod(shape) and math.prod(max(length, 1) for length in shape) >= 2**60:
        raise not_whole(path, f"no tensor can have the shape {shape}, which is that of {label}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise not_whole(path, f"the place of {label} must be two offsets, the smaller first")
    needed, given = math.prod(shape) * BYTES[number], offsets[1] - offsets[0]
    if needed != given:
        raise not_whole(path, f"{label} of shape {shape} in {number} takes {needed} bytes, its place has {given}")
    return Entry(number, tuple(shape), *offsets)


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 512 and name.isprintable() and not (set(name) & set('\\"')) and ".." not in name.split("/")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**63 for number in value)


def _check_no_gaps(path: Path, entries: Mapping[str, Entry], size: int) -> None:
    """The tensors must follow each other from the first byte of the data to its last."""
    reached, last = 0, "the header"
    for name, entry in entries.items():
        if entry.begin != reached:
            what = "overlaps" if entry.begin < reached else "leaves a hole behind"
            raise not_whole(
                path, f"{name[:80]} begins at byte {entry.begin} and {what} {last}, which ends at {reached}"
            )
        reached, last = entry.end, name[:80]
    if reached != size:
        raise not_whole(path, f"its tensors take {reached} bytes, {size} are there")
