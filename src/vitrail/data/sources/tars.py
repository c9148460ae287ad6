"""Where the files inside a tar archive lie, found by reading its headers only; nothing is ever unpacked.

The format: each file is a header of 512 bytes and then its contents, filled up to whole blocks of 512; empty blocks
end the archive. Names and sizes that do not fit into a header stand in a file of their own before the one they belong
to (POSIX pax, GNU). The standard library's tarfile takes a damaged header in the middle for the end of the archive and
says nothing; here it is an error, as is everything else that would lose files silently.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from ...errors import DataError

BLOCK = 512
AT_ONCE = 8192
"""Bytes read at a time: small files come together with their headers, of large ones only the header is touched."""
LONGEST = 2**18
"""Bytes of the longest extended header that is read."""
TAIL = 2**20
"""Bytes after the end of an archive that are looked at: they must be empty."""


Kind = Literal["file", "folder", "link", "other"]


class Entry(NamedTuple):
    """One file of an archive."""

    name: str
    """As the archive says it: it may be absolute or lead upwards, and must never be used as a path."""
    offset: int
    """Where its contents begin."""
    size: int
    kind: Kind
    """Only files have contents that can be read; devices and pipes are "other"."""


def entries(path: Path) -> Iterator[Entry]:
    """Every file of an archive, in its order.

    Raises:
        DataError: no tar archive, or one that is compressed, cut off, damaged, or holds files in pieces.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block
            raise DataError(f"{path} is a folder, pipe, socket or device; expected a tar file.")
        with path.open("rb", buffering=AT_ONCE) as file:
            yield from _walk(file, path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


def quoted(name: str) -> str:
    """A name from an archive as it may be shown: in quotes, on one line, without control characters, not too long."""
    shown = repr(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= 200 else f"{shown[:200]}...'"


def _walk(file: BinaryIO, path: Path, length: int) -> Iterator[Entry]:
    position = 0
    told: dict[str, str] = {}  # what extended headers have said of the next file
    while True:
        file.seek(position)
        block = file.read(BLOCK)
        if block == EMPTY:
            _check_end(file, path, position)
            return
        header = _parse(block, path, position)
        extends = header.kind in EXTENDING
        name, size = (header.name, header.size) if extends or not told else _as_told(header, told, path)
        start = position + BLOCK
        if start + size > length:
            raise DataError(
                f"{path} is cut off: {quoted(name)} should end at byte {start + size:,}, but the file has {length:,} "
                "bytes. Fetch or write it again."
            )
        if extends:
            told |= _extended(file, header, path, position)
        else:
            yield Entry(name, start, size, "folder" if name.endswith("/") else KINDS.get(header.kind, "other"))
            told = {}
        position = start + -(-size // BLOCK) * BLOCK


class _Header(NamedTuple):
    name: str
    size: int
    kind: int


# fmt: off
EMPTY = bytes(BLOCK)
KINDS: dict[int, Kind] = {  # 0 is written as a digit or, long ago, as a zero byte; 7 lay in one piece on its disk
    ord("0"): "file", 0: "file", ord("7"): "file", ord("1"): "link", ord("2"): "link", ord("5"): "folder",
}
EXTENDING = b"xXgLK"       # POSIX: for one file, Solaris' own, for all files; GNU: long name, long link
WITHOUT_CONTENTS = b"123456V"  # links, devices, folders, pipes, and an archive's own name, whatever size they state
IN_PIECES = {
    ord("S"): "a sparse file (pack it without --sparse)",
    ord("M"): "the second part of a file (join the volumes)",
}
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# fmt: on


def _parse(block: bytes, path: Path, position: int) -> _Header:
    """Name, size and kind out of one header, once its checksum is found right."""
    if len(block) < BLOCK:
        raise DataError(_no_end(path) if not block and position else _foreign(block, path, position))
    try:
        stated, size = _number(block[148:156]), _number(block[124:136])
    except ValueError:
        raise DataError(_foreign(block, path, position)) from None
    if stated != sum(block) - sum(block[148:156]) + 8 * 0x20 or size < 0:  # the checksum counts itself as blanks
        raise DataError(_foreign(block, path, position))
    kind = block[156]
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:  # GNU's own header, "ustar ", keeps times there
        name = f"{_text(block[345:500])}/{name}"
    if kind in IN_PIECES:
        raise DataError(f"{path} holds {IN_PIECES[kind]}: {quoted(name)}. Pictures are read in place, in one piece.")
    return _Header(name, 0 if kind in WITHOUT_CONTENTS else size, kind)


def _number(field: bytes) -> int:
    """Octal digits, or, for what is too large for them, a first byte of 128 and then the number itself."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.split(b"\0", 1)[0].strip()
    if digits and not digits.isdigit():  # int() would take a sign
        raise ValueError(field)
    return int(digits or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _as_told(header: _Header, told: dict[str, str], path: Path) -> tuple[str, int]:
    """(name, size) of a file that extended headers stood before."""
    size = told.get("size", str(header.size))
    if not (size.isascii() and size.isdigit() and len(size) < 20):
        raise DataError(f"{path} says that {quoted(header.name)} is {size[:40]!r} bytes long. Write the shard again.")
    return told.get("path", header.name), 0 if header.kind in WITHOUT_CONTENTS else int(size)


def _extended(file: BinaryIO, header: _Header, path: Path, position: int) -> dict[str, str]:
    """What an extended header says of name and size."""
    if header.size > LONGEST:
        raise DataError(f"{path} has a header of {header.size:,} bytes at byte {position:,}, limit {LONGEST:,}.")
    contents = file.read(header.size)
    if header.kind == ord("L"):
        return {"path": _text(contents)}
    if header.kind == ord("K"):
        return {}
    try:
        told = dict(_records(contents))
    except ValueError:
        raise DataError(_damaged(path, position)) from None
    if any(name.startswith("GNU.sparse") for name in told):
        raise DataError(f"{path} holds a sparse file at byte {position:,}. Pack it without --sparse.")
    found: dict[str, str] = {name: told[name] for name in ("path", "size") if name in told}
    if header.kind == ord("g") and found:
        raise DataError(f"{path} gives all of its files one {' and '.join(found)} (byte {position:,}). Write it again.")
    return found


def _records(contents: bytes) -> Iterator[tuple[str, str]]:
    """Lines of `length name=value`, each as long as it says."""
    start = 0
    while start < len(contents) and contents[start]:
        space = contents.index(b" ", start, start + 20)
        length = _decimal(contents[start:space])
        line = contents[space + 1 : start + length]
        if start + length > len(contents) or not line.endswith(b"\n") or b"=" not in line:
            raise ValueError(line)
        name, _, value = line[:-1].decode("utf-8", "surrogateescape").partition("=")
        yield name, value
        start += length


def _decimal(digits: bytes) -> int:
    if not digits.isdigit():
        raise ValueError(digits)
    return int(digits)


def _check_end(file: BinaryIO, path: Path, position: int) -> None:
    rest = file.read(TAIL)
    if rest.count(0) < len(rest):
        raise DataError(
            f"{path} ends at byte {position:,}, yet more follows, which every reader would miss. Were two tar files "
            "joined by cat? Join them with tar --concatenate, or keep both."
        )


def _no_end(path: Path) -> str:
    return (
        f"{path} lacks the empty blocks that close a tar file, so its last pictures may be missing. Fetch or write it "
        f"again; if it is whole, `head -c 1024 /dev/zero >> {path.name}` closes it."
    )


def _foreign(block: bytes, path: Path, position: int) -> str:
    """What is wrong where a header should be."""
    if position:
        return _damaged(path, position)
    for start, kind in PACKED.items():
        if block.startswith(start):
            return (
                f"{path} is packed with {kind}, and shards are read in place, so they must not be. Unpack it first, "
                f"for example with `{UNPACK[kind]} {path.name} > unpacked.tar`."
            )
    return f"{path} is not a tar file{', it is empty' if not block else ''}. Fetch or write it again."


UNPACK = {"gzip": "gzip -dc", "bzip2": "bzip2 -dc", "xz": "xz -dc", "zstd": "zstd -dc"}


def _damaged(path: Path, position: int) -> str:
    return f"{path} is damaged: there is no readable header at byte {position:,}. Fetch or write it again."
