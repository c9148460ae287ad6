"""Index the files of tar archives by their headers, and read members in place; nothing is ever unpacked.

The format: each file is a header of 512 bytes and then its contents, padded to whole blocks of 512; empty blocks end
the archive. Names and sizes that do not fit into a header are in an extended header before it (POSIX pax, GNU). The
standard library's tarfile takes a damaged header in the middle for the end of the archive; here it is an error, as is
everything else that would lose files silently.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .lazy_sequences import LazySequence

BLOCK = 512
READ_BYTES = 8192
"""Buffer size of reading headers: small files are read along with them, contents of large ones are skipped."""
MAX_EXTENDED_HEADER = 2**18
"""Largest extended header that is read, in bytes."""
CHECKED_TAIL_BYTES = 2**20
"""Bytes after the end of an archive that must be zero."""

TarEntryKind = Literal["file", "folder", "link", "other"]


class TarEntry(NamedTuple):
    """One file of an archive."""

    name: str
    """As in the archive: it may be absolute or contain "..", and must never be used as a path."""
    offset: int
    """Offset of its contents."""
    size: int
    kind: TarEntryKind
    """Only files have contents that can be read; devices and pipes are "other"."""


def iter_tar_entries(path: Path) -> Iterator[TarEntry]:
    """Iterate over the files of an archive in their order.

    Raises:
        DataError: no tar archive, or one that is compressed, cut off, damaged, or holds files in pieces.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block
            raise DataError(f"{path} is a folder, pipe, socket or device; expected a tar file.")
        with path.open("rb", buffering=READ_BYTES) as file:
            yield from _iter_entries(file, path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


def quote_tar_name(name: str) -> str:
    """Quote a name from an archive for messages: on one line, without control characters, at most 200 characters."""
    shown = repr(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= 200 else f"{shown[:200]}...'"


def _iter_entries(file: BinaryIO, path: Path, length: int) -> Iterator[TarEntry]:
    position = 0
    fields: dict[str, str] = {}  # of extended headers, for the next file
    while True:
        file.seek(position)
        block = file.read(BLOCK)
        if block == EMPTY:
            rest = file.read(CHECKED_TAIL_BYTES)
            if rest.count(0) < len(rest):
                raise DataError(
                    f"{path} ends at byte {position:,}, yet more follows, which every reader would miss. Were two tar "
                    "files joined by cat? Join them with tar --concatenate, or keep both."
                )
            return
        header = _parse_header(block, path, position)
        extends = header.kind in EXTENDED_TYPES
        name, size = header.name, header.size
        if fields and not extends:
            name, size = _apply_extended_header(header, fields, path)
        start = position + BLOCK
        if start + size > length:
            raise DataError(
                f"{path} is cut off: {quote_tar_name(name)} should end at byte {start + size:,}, but the file has "
                f"{length:,} bytes. Fetch or write it again."
            )
        if extends:
            fields |= _read_extended_header(file, header, path, position)
        else:
            yield TarEntry(name, start, size, "folder" if name.endswith("/") else KINDS.get(header.kind, "other"))
            fields = {}
        position = start + -(-size // BLOCK) * BLOCK


class _TarHeader(NamedTuple):
    name: str
    size: int
    kind: int


# fmt: off
EMPTY = bytes(BLOCK)
# 0 is a regular file, in old archives a zero byte; 7 is a contiguous file
KINDS: dict[int, TarEntryKind] = {
    ord("0"): "file", 0: "file", ord("7"): "file", ord("1"): "link", ord("2"): "link", ord("5"): "folder",
}
EXTENDED_TYPES = b"xXgLK"       # POSIX: for one file, Solaris' own, for all files; GNU: long name, long link
# links, devices, folders, pipes and volume labels have no contents, whatever size they state
TYPES_WITHOUT_CONTENTS = b"123456V"
UNSUPPORTED_TYPES = {
    ord("S"): "a sparse file (pack it without --sparse)",
    ord("M"): "the second part of a file (join the volumes)",
}
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# fmt: on


def _parse_header(block: bytes, path: Path, position: int) -> _TarHeader:
    """Parse name, size and kind of one header after its checksum is verified."""
    if not block and position:
        raise DataError(
            f"{path} lacks the empty blocks that close a tar file, so its last pictures may be missing. Fetch or write "
            f"it again; if it is whole, `head -c 1024 /dev/zero >> {path.name}` closes it."
        )
    if len(block) < BLOCK:
        raise DataError(_bad_header_message(block, path, position))
    try:
        stated, size = _parse_octal(block[148:156]), _parse_octal(block[124:136])
    except ValueError:
        raise DataError(_bad_header_message(block, path, position)) from None
    if stated != sum(block) - sum(block[148:156]) + 8 * 0x20 or size < 0:  # the checksum field counts as blanks
        raise DataError(_bad_header_message(block, path, position))
    kind = block[156]
    name = _decode_field(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:  # GNU's own header, "ustar ", keeps times there
        name = f"{_decode_field(block[345:500])}/{name}"
    if kind in UNSUPPORTED_TYPES:
        raise DataError(
            f"{path} holds {UNSUPPORTED_TYPES[kind]}: {quote_tar_name(name)}. Pictures are read in place, in one piece."
        )
    return _TarHeader(name, 0 if kind in TYPES_WITHOUT_CONTENTS else size, kind)


def _parse_octal(field: bytes) -> int:
    """Parse octal digits, or, for larger numbers, a first byte of 128 and then a binary number."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.split(b"\0", 1)[0].strip()
    if digits and not digits.isdigit():  # int() would take a sign
        raise ValueError(field)
    return int(digits or b"0", 8)


def _decode_field(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _apply_extended_header(header: _TarHeader, extended: dict[str, str], path: Path) -> tuple[str, int]:
    """(name, size) of a file after its extended headers."""
    size = extended.get("size", str(header.size))
    if not (size.isascii() and size.isdigit() and len(size) < 20):
        raise DataError(
            f"{path} says that {quote_tar_name(header.name)} is {size[:40]!r} bytes long. Write the shard again."
        )
    return extended.get("path", header.name), 0 if header.kind in TYPES_WITHOUT_CONTENTS else int(size)


def _read_extended_header(file: BinaryIO, header: _TarHeader, path: Path, position: int) -> dict[str, str]:
    """Read name and size from an extended header."""
    if header.size > MAX_EXTENDED_HEADER:
        raise DataError(
            f"{path} has a header of {header.size:,} bytes at byte {position:,}, limit {MAX_EXTENDED_HEADER:,}."
        )
    contents = file.read(header.size)
    if header.kind == ord("L"):
        return {"path": _decode_field(contents)}
    if header.kind == ord("K"):
        return {}
    try:
        records = dict(_iter_pax_records(contents))
    except ValueError:
        raise DataError(_damaged_message(path, position)) from None
    if any(name.startswith("GNU.sparse") for name in records):
        raise DataError(f"{path} holds a sparse file at byte {position:,}. Pack it without --sparse.")
    fields: dict[str, str] = {name: records[name] for name in ("path", "size") if name in records}
    if header.kind == ord("g") and fields:
        raise DataError(
            f"{path} gives all of its files one {' and '.join(fields)} (byte {position:,}). Write it again."
        )
    return fields


def _iter_pax_records(contents: bytes) -> Iterator[tuple[str, str]]:
    """Iterate over pax records, `length name=value` and a line feed, where length counts the whole record."""
    start = 0
    while start < len(contents) and contents[start]:
        space = contents.index(b" ", start, start + 20)
        digits = contents[start:space]
        length = int(digits) if digits.isdigit() else 0  # int() would take a sign
        line = contents[space + 1 : start + length]
        if start + length > len(contents) or not line.endswith(b"\n") or b"=" not in line:
            raise ValueError(line)
        name, _, value = line[:-1].decode("utf-8", "surrogateescape").partition("=")
        yield name, value
        start += length


def _bad_header_message(block: bytes, path: Path, position: int) -> str:
    """The error message for an invalid header."""
    if position:
        return _damaged_message(path, position)
    for start, kind in PACKED.items():
        if block.startswith(start):
            return (
                f"{path} is packed with {kind}, and shards are read in place, so they must not be. Unpack it first, "
                f"for example with `{UNPACK[kind]} {path.name} > unpacked.tar`."
            )
    return f"{path} is not a tar file{', it is empty' if not block else ''}. Fetch or write it again."


UNPACK = {"gzip": "gzip -dc", "bzip2": "bzip2 -dc", "xz": "xz -dc", "zstd": "zstd -dc"}


def _damaged_message(path: Path, position: int) -> str:
    return f"{path} is damaged: there is no readable header at byte {position:,}. Fetch or write it again."


# -- Random access to members: any order, from several threads, processes and ranks, and exact resume, because nothing
# is a stream. A shard is opened for every read: that costs 0.03 ms, a few per cent of decoding the image, and leaves no
# open files in workers.

MAX_MEMBER_BYTES = 512 * 2**20
"""Largest member that is read, in bytes; equal to the limit of image files."""


@dataclass(frozen=True)
class TarShard:
    """A tar file as it was when it was indexed."""

    path: Path
    size: int
    mtime_ns: int
    """Nanoseconds since 1970."""

    @classmethod
    def from_path(cls, path: Path) -> TarShard:
        """Raises DataError: nothing can be read there."""
        try:
            info = os.stat(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error
        return cls(path, info.st_size, info.st_mtime_ns)

    @contextmanager
    def open_checked(self) -> Iterator[BinaryIO]:
        """Open the shard.

        Raises:
            DataError: it is missing, or was changed after it was indexed, so that offsets may be wrong.
        """
        try:
            with self.path.open("rb") as file:
                info = os.fstat(file.fileno())
                if (info.st_size, info.st_mtime_ns) != (self.size, self.mtime_ns):
                    raise DataError(f"{self.path} was changed while it was in use. Start again to have it indexed.")
                yield file
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


@dataclass(frozen=True)
class TarMember:
    """One image of a shard."""

    shard: TarShard
    offset: int
    size: int
    name: str
    """The shard's path, then the member's name."""

    @property
    def stamp(self) -> str:
        """Shard, offset and size, which change when the shard is rewritten."""
        return f"{self.shard.path.name} {self.offset} {self.size}"

    def fetch(self) -> bytes:
        """Read the image's bytes.

        Raises:
            DataError: larger than 512 MiB, or the shard is missing or has changed.
        """
        with self.shard.open_checked() as file:
            return _read_range(file, self.offset, self.size, self.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class TarMembers(LazySequence[TarMember]):
    """Images of shards as a sequence of `TarMember`, stored as a few bytes each."""

    root: str
    shards: Sequence[TarShard]
    shard_indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ids: Sequence[str]
    """Shard and key of each image, relative to `root`."""
    suffixes: Sequence[str]
    suffix_indices: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets)

    def get_row(self, row: int) -> TarMember:
        name = os.path.join(self.root, f"{self.ids[row]}.{self.suffixes[self.suffix_indices[row]]}")
        return TarMember(self.shards[self.shard_indices[row]], int(self.offsets[row]), int(self.sizes[row]), name)


def read_members(
    shards: Sequence[TarShard], numbers: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[bytes]:
    """Read many small files, with one shard open at a time; empty bytes where the offset is negative.

    Args:
        numbers: int64 [n], ascending: the shard of each.

    Raises:
        DataError: a shard is missing or has changed.
    """
    places = zip(numbers.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
    for number, files in groupby(places, key=lambda place: place[0]):
        with shards[number].open_checked() as shard:
            for _, offset, size in files:
                yield _read_range(shard, offset, size, str(shards[number].path)) if offset >= 0 else b""


def _read_range(file: BinaryIO, offset: int, size: int, name: str) -> bytes:
    if size > MAX_MEMBER_BYTES:
        raise DataError(f"{name}: file is {size / 2**20:,.0f} MiB, limit {MAX_MEMBER_BYTES // 2**20} MiB.")
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise DataError(f"{name}: the shard ends after {len(data):,} of its {size:,} bytes.")
    return data
