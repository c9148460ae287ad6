"""Untrusted zip archives: validated by their directory before anything is unpacked, and never unpacked to disk.

torch and NumPy both store weights in zip archives. A hostile archive has two files of one name, names that lead out
of a folder, a few bytes that unpack to terabytes, or many entries that share one piece of packed data.
"""

from __future__ import annotations

import mmap
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import DamagedFileError

MAX_DIRECTORY_BYTES = 4 * 2**20
"""Largest directory that is read, enough for 40,000 entries."""
MAX_EXPANSION = 16
"""Largest ratio of unpacked to packed bytes; weights hardly compress at all."""
EXPANSION_SLACK_BYTES = 64 * 2**20
"""Unpacked bytes that are always allowed, because small files of zeros compress a thousandfold."""


class ArchiveMember(NamedTuple):
    """One file of an archive."""

    name: str
    offset: int
    """First packed byte in the archive."""
    packed_size: int
    size: int
    is_stored: bool
    """Whether it is not compressed."""
    crc: int
    """CRC-32; 0 if the writer omitted it, as torch can."""


class ZipArchive:
    """A memory-mapped zip archive with a validated directory.

    Args:
        max_expansion: largest ratio of unpacked to packed bytes.

    Raises:
        DamagedFileError: no whole zip archive, or a hostile one; the message names the entry.
    """

    def __init__(self, path: Path, max_expansion: int = MAX_EXPANSION):
        self.path = Path(path)
        self._max_expansion = max_expansion
        with self.path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        entries = self._read_directory()
        self.members: Mapping[str, ArchiveMember] = self._check_entries(entries)
        self.comment = entries[0].comment if entries else b""
        """What the writer noted about the first member."""
        self._verified_names: set[str] = set()

    def read(self, name: str, limit: int) -> bytes:
        """The unpacked content of a member, with its checksum verified.

        Raises:
            DamagedFileError: it is missing, has more than `limit` bytes, or is damaged.
        """
        member = self.member(name)
        if member.size > limit:
            raise DamagedFileError(f"{self.path}: {name} unpacks to {member.size} bytes; at most {limit} are read.")
        data = self.memory[member.offset : member.offset + member.packed_size]
        if not member.is_stored:
            data = self._inflate(member, data, member.size + 1)  # one byte more shows that there are too many
            if len(data) != member.size:
                raise self._damaged_error(f"{name} does not unpack to the {member.size} bytes it promises")
        self._check_crc(member, data)
        return data

    def read_prefix(self, name: str, count: int) -> bytes:
        """The first `count` unpacked bytes of a member, or fewer; its checksum is not verified.

        Raises:
            DamagedFileError: it is missing or cannot be unpacked.
        """
        member = self.member(name)
        data = self.memory[member.offset : member.offset + min(member.packed_size, 2 * count + 2**10)]
        return data[:count] if member.is_stored else self._inflate(member, data, count)

    def verify_uncompressed(self, name: str) -> ArchiveMember:
        """An uncompressed member, with its checksum verified; read it from `memory`.

        Raises:
            DamagedFileError: it is missing, compressed or damaged.
        """
        member = self.member(name)
        if not member.is_stored:
            raise self._damaged_error(f"{name} is packed, which torch never does")
        if name not in self._verified_names:  # a pickle can mention one large member a hundred thousand times
            with memoryview(self.memory) as view:
                self._check_crc(member, view[member.offset : member.offset + member.size])
            self._verified_names.add(name)
        return member

    def member(self, name: str) -> ArchiveMember:
        """The member of a name.

        Raises:
            DamagedFileError: there is none.
        """
        if name not in self.members:
            raise self._damaged_error(f"{name[:80]} is missing from it")
        return self.members[name]

    def has_checksums(self) -> bool:
        """Whether every member that is not empty has a checksum."""
        return all(member.crc or not member.size for member in self.members.values())

    def _read_directory(self) -> list[zipfile.ZipInfo]:
        if self.memory[:4] != b"PK\x03\x04":
            raise self._damaged_error("it begins with something else")
        if (length := _directory_length(self.memory)) is None:
            raise self._damaged_error("its directory cannot be read, it does not end as the format says")
        if length > MAX_DIRECTORY_BYTES:
            raise self._damaged_error(f"its directory has {length} bytes, at most {MAX_DIRECTORY_BYTES} are read")
        try:
            with zipfile.ZipFile(self.path) as opened:
                return opened.infolist()
        except Exception as error:  # a damaged directory can raise anything
            raise self._damaged_error(
                f"its directory cannot be read, {type(error).__name__}: {str(error)[:80]}"
            ) from error

    def _check_entries(self, entries: list[zipfile.ZipInfo]) -> dict[str, ArchiveMember]:
        members: dict[str, ArchiveMember] = {}
        for entry in entries:
            if entry.filename in members:
                raise self._damaged_error(f"two of its files are called {entry.filename[:80]}")
            members[entry.filename] = self._check_entry(entry)
        self._check_overlaps(members)
        unpacked = sum(member.size for member in members.values())
        if unpacked > self._max_expansion * len(self.memory) + EXPANSION_SLACK_BYTES:
            raise self._damaged_error(f"its {len(self.memory)} bytes unpack to {unpacked}")
        return members

    def _check_entry(self, entry: zipfile.ZipInfo) -> ArchiveMember:
        name = entry.filename
        if not _is_safe_name(name) or entry.orig_filename != name:
            raise self._damaged_error(
                f"one of its files is called {entry.orig_filename[:80]!r}, which leads out of a folder"
            )
        if entry.flag_bits & 0x1:
            raise self._damaged_error(f"{name} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._damaged_error(f"{name} is packed by method {entry.compress_type}; 0 and 8 are read")
        is_stored = entry.compress_type == zipfile.ZIP_STORED
        if is_stored and entry.compress_size != entry.file_size:
            raise self._damaged_error(f"{name} is stored as it is, but with two sizes")
        start = entry.header_offset
        local = self.memory[start : start + 30]
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise self._damaged_error(f"{name} is not where the directory says")
        of_name, of_extra = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
        if self.memory[start + 30 : start + 30 + of_name] != name.encode("utf-8"):
            raise self._damaged_error(f"{name} has another name where it lies")
        offset = start + 30 + of_name + of_extra
        return ArchiveMember(name, offset, entry.compress_size, entry.file_size, is_stored, entry.CRC)

    def _check_overlaps(self, members: dict[str, ArchiveMember]) -> None:
        reached, last = 0, ""
        for member in sorted(members.values(), key=lambda member: (member.offset, member.packed_size)):
            if member.offset < reached:
                raise self._damaged_error(f"{last} and {member.name} share their data")
            reached, last = member.offset + member.packed_size, member.name
        if reached > len(self.memory):
            raise self._damaged_error(f"{last} goes beyond the end")

    def _inflate(self, member: ArchiveMember, data: bytes, count: int) -> bytes:
        try:
            return zlib.decompressobj(-15).decompress(data, count)
        except zlib.error as error:
            raise self._damaged_error(f"{member.name} cannot be unpacked, {error}") from error

    def _check_crc(self, member: ArchiveMember, data: bytes | memoryview) -> None:
        if member.crc and zlib.crc32(data) != member.crc:
            raise self._damaged_error(f"the checksum of {member.name} does not match")

    def _damaged_error(self, reason: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self.path} is not a whole archive ({reason}). It is cut short, changed or hostile: "
            "copy it again from a source that you trust."
        )


def _is_safe_name(name: str) -> bool:
    parts = name.rstrip("/").split("/")
    return name.isprintable() and not {"\\", ":"} & set(name) and not {"", ".", ".."} & set(parts)


def _directory_length(memory: mmap.mmap) -> int | None:
    """Bytes of the directory, from the same end records that `zipfile` reads; None if they are missing."""
    end = len(memory) - 22  # without a comment, so that there is only one place for the end record
    if end < 0 or memory[end : end + 4] != b"PK\x05\x06" or memory[end + 20 :] != bytes(2):
        return None
    length = int.from_bytes(memory[end + 12 : end + 16], "little")
    locator, large = end - 20, end - 76  # of a Zip64 archive: its end record of 56 bytes, and a locator of 20 bytes
    if memory[max(0, locator) : end][:4] != b"PK\x06\x07":
        return length
    place = int.from_bytes(memory[locator + 8 : locator + 16], "little")
    if large < 0 or place != large or memory[large : large + 4] != b"PK\x06\x06":
        return None
    return max(length if length < 2**32 - 1 else 0, int.from_bytes(memory[large + 40 : large + 48], "little"))
