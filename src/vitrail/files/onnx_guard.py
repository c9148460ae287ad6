"""Check that an ONNX file's external data are plain files inside its own folder, before any runtime opens it.

A tensor of an ONNX model can name another file that holds its data, and a hostile model names files that are not its
own. Only the structure is read (Protocol Buffers' wire format), without building the model. Source: onnx.proto3 of
ONNX 1.21; docs/ExternalDataSecurity.md there.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from ..errors import DamagedFileError

MAX_FIELDS = 1_000_000
"""Most fields that are read; the largest published ViTs have some ten thousand."""
MAX_DEPTH = 64
"""Deepest nesting of messages; a model of nested loops has about ten."""
EXTERNAL_LOCATION = 1
"""`data_location` of a tensor whose data are in another file."""

# fmt: off
MESSAGE_FIELDS: dict[str, dict[int, str]] = {  # message -> the fields of it that are messages which can hold a tensor
    "model":     {7: "graph", 20: "training", 25: "function"},
    "training":  {1: "graph", 2: "graph"},
    "function":  {7: "node", 11: "attribute"},
    "graph":     {1: "node", 5: "tensor", 15: "sparse"},
    "node":      {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse":    {1: "tensor", 2: "tensor"},
}
# fmt: on


class ExternalTensor(NamedTuple):
    """A tensor's place in another file."""

    tensor: str
    location: str
    offset: int
    length: int | None


def check_onnx_file(path: Path) -> list[ExternalTensor]:
    """Check an ONNX file and list its external tensors; their files exist, are large enough and lie in its folder.

    Raises:
        DamagedFileError: the file is no ONNX model, nests too deep, or names a file outside its folder.
    """
    path = Path(path)
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DamagedFileError(f"{path} is empty. Copy it again.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            try:
                found = list(_find_external_tensors(memory))
            except _MalformedOnnxError as error:
                raise DamagedFileError(f"{path} is not a whole ONNX model: {error}. Use another copy.") from error
    for external in found:
        if reason := _refusal_reason(path.parent, external):
            raise DamagedFileError(
                f"{path}: the tensor {external.tensor[:80]!r} lies in {external.location[:80]!r}, which {reason}. "
                "External data must be a plain file inside the model folder. Use another copy."
            )
    return found


class _MalformedOnnxError(Exception):
    """The bytes are no model; the text says why."""


class _WireField(NamedTuple):
    """One field of a message: its number, and its value or the range of its bytes (-1 for none)."""

    number: int
    value: int
    begin: int
    end: int


def _find_external_tensors(memory: mmap.mmap) -> Iterator[ExternalTensor]:
    """Every tensor with external data in the model and its nested graphs."""
    todo = [("model", 0, len(memory), 0)]
    seen, graphs = 0, 0
    while todo:
        kind, begin, end, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise _MalformedOnnxError(f"it nests deeper than {MAX_DEPTH} messages")
        fields = []
        for field in _walk_fields(memory, begin, end):
            seen += 1
            if seen > MAX_FIELDS:
                raise _MalformedOnnxError(f"it has more than {MAX_FIELDS:,} fields")
            child = MESSAGE_FIELDS.get(kind, {}).get(field.number)
            if child is not None and field.begin >= 0:
                graphs += child == "graph"
                todo.append((child, field.begin, field.end, depth + 1))
            elif kind == "tensor":
                fields.append(field)
        if kind == "tensor" and (external := _parse_external(memory, fields)) is not None:
            yield external
    if not graphs:
        raise _MalformedOnnxError("it holds no graph")


def _walk_fields(memory: mmap.mmap, begin: int, end: int) -> Iterator[_WireField]:
    place = begin
    while place < end:
        key, place = _read_varint(memory, place, end)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _read_varint(memory, place, end)
            yield _WireField(number, value, -1, -1)
        elif wire == 2:
            length, place = _read_varint(memory, place, end)
            if length > end - place:
                raise _MalformedOnnxError(f"a field of {length:,} bytes goes beyond its end")
            yield _WireField(number, 0, place, place + length)
            place += length
        elif wire in (1, 5):
            place += 8 if wire == 1 else 4
            if place > end:
                raise _MalformedOnnxError("a number goes beyond its end")
        else:
            raise _MalformedOnnxError("its bytes are no Protocol Buffers message")


def _read_varint(memory: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise _MalformedOnnxError("it is truncated")
        byte = memory[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _MalformedOnnxError("a number in it has more than ten bytes")


def _parse_external(memory: mmap.mmap, fields: list[_WireField]) -> ExternalTensor | None:
    """The external data of a TensorProto: field 8 is its name, 13 pairs about the other file, 14 the data location."""
    pairs = [_parse_pair(memory, field) for field in fields if field.number == 13 and field.begin >= 0]
    outside = any(field.number == 14 and field.value == EXTERNAL_LOCATION for field in fields)
    if not outside and not pairs:
        return None
    name = next((_read_text(memory, field) for field in fields if field.number == 8 and field.begin >= 0), "")
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _MalformedOnnxError(f"the tensor {name[:80]!r} says one thing of its external data twice")
    length = _parse_count(entries["length"]) if "length" in entries else None
    return ExternalTensor(name, entries.get("location", ""), _parse_count(entries.get("offset", "0")), length)


def _parse_pair(memory: mmap.mmap, field: _WireField) -> tuple[str, str]:
    inside = {
        each.number: _read_text(memory, each)
        for each in _walk_fields(memory, field.begin, field.end)
        if each.begin >= 0
    }
    return inside.get(1, ""), inside.get(2, "")


def _read_text(memory: mmap.mmap, field: _WireField) -> str:
    return memory[field.begin : min(field.end, field.begin + 4096)].decode("utf-8", "backslashreplace")


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise _MalformedOnnxError(f"an offset or length of external data reads {text[:40]!r}")
    return int(text)


def _refusal_reason(folder: Path, external: ExternalTensor) -> str:
    """Why a location must not be read; empty if it may."""
    location = external.location
    if not location or "\0" in location:
        return "is no file name"
    windows = PureWindowsPath(location)
    if PurePosixPath(location).is_absolute() or windows.drive or windows.root:
        return "is an absolute path"
    parts = windows.parts  # takes / and \ as separators
    if ".." in parts:
        return "leads out of the folder"
    place = folder
    for part in parts:
        place = place / part
        try:
            info = os.lstat(place)
        except OSError as error:
            return f"cannot be read ({(error.strerror or str(error)).lower()})"
        if stat.S_ISLNK(info.st_mode):
            return "is or lies behind a link"
    if not stat.S_ISREG(info.st_mode):
        return "is no plain file"
    if info.st_nlink > 1:
        return "has a second name on the disk (a hard link)"
    wanted = external.offset + (external.length or 0)
    if wanted > info.st_size:
        return f"has {info.st_size:,} bytes, though the tensor goes up to {wanted:,}"
    return ""
