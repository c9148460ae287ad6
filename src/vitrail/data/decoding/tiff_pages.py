"""The directories of a TIFF file: how many pages there are, what each holds, and one page as a file of its own.

A parser gets to see a file with one directory of the tags that make up the pixels: no EXIF, no profiles, no texts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .values import damaged, truncated

KIND = "TIFF"
MAX_PAGES = 10_000
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION = 254, 256, 257, 258, 259, 262, 274
STRIPS, SAMPLES, ROWS, PLANAR, TILE_WIDTH, TILE_HEIGHT, TILES = 273, 277, 278, 284, 322, 323, 324
EXTRA, FORMAT, PROFILE = 338, 339, 34675
# fmt: off
NEEDED = {
    WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, 266, STRIPS, SAMPLES, ROWS, 279, PLANAR, 292, 293, 317, 320,
    TILE_WIDTH, TILE_HEIGHT, TILES, 325, 332, EXTRA, FORMAT, 347, *range(512, 522), 529, 530, 531, 532,
}
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
NUMBERS = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}
SINGLE = {WIDTH, HEIGHT, COMPRESSION, PHOTOMETRIC, 266, SAMPLES, ROWS, PLANAR, 317, TILE_WIDTH, TILE_HEIGHT}
# fmt: on


class Entry(NamedTuple):
    """One line of a directory: the type of its numbers, how many, and the field with them or their place."""

    kind: int
    many: int
    field: bytes


class Writing(NamedTuple):
    """How a file writes its numbers: byte order, and whether places in it take 8 bytes (BigTIFF) or 4."""

    order: str
    big: bool

    @property
    def place(self) -> str:
        """The struct format of a place in the file."""
        return self.order + ("Q" if self.big else "I")

    @property
    def line(self) -> str:
        """The struct format of one directory entry."""
        return self.order + ("HHQ8s" if self.big else "HHI4s")

    @property
    def head(self) -> str:
        """The struct format of the number of entries, with which a directory begins."""
        return self.order + ("Q" if self.big else "H")


class Page(NamedTuple):
    """The directory of one page, and the file that it is in."""

    writing: Writing
    entries: dict[int, Entry]
    data: bytes

    def numbers(self, tag: int, default: tuple[int, ...] = (), most: int = 16) -> tuple[int, ...]:
        """The first whole numbers under a tag."""
        entry = self.entries.get(tag)
        if entry is None:
            return default
        if entry.kind not in NUMBERS:
            raise damaged(KIND, f"its tag {tag} holds no whole numbers")
        count = min(entry.many, most)
        form = f"{self.writing.order}{count}{NUMBERS[entry.kind]}"
        return struct.unpack_from(form, self.content(entry))

    def number(self, tag: int, default: int = 0) -> int:
        """The first whole number under a tag."""
        return next(iter(self.numbers(tag, (default,))), default)

    def content(self, entry: Entry) -> bytes:
        """The bytes of an entry, wherever they lie.

        Raises:
            DataError: beyond the end of the file.
        """
        size = entry.many * SIZES.get(entry.kind, 1)
        if size <= len(entry.field):
            return entry.field[:size]
        (start,) = struct.unpack(self.writing.place, entry.field)
        if start + size > len(self.data):
            raise truncated(KIND, len(self.data), start + size)
        return self.data[start : start + size]

    def alone(self) -> bytes:
        """The file with this directory only, and of that only what makes up the pixels."""
        kept = {tag: entry for tag, entry in sorted(self.entries.items()) if tag in NEEDED}
        for tag, entry in kept.items():
            self.content(entry)
            if tag in SINGLE and entry.many != 1:
                raise damaged(KIND, f"its tag {tag} holds {entry.many:,} numbers instead of one")
        lines = b"".join(struct.pack(self.writing.line, tag, *entry) for tag, entry in kept.items())
        directory = struct.pack(self.writing.head, len(kept)) + lines + struct.pack(self.writing.place, 0)
        head = 16 if self.writing.big else 8
        start = len(self.data) + len(self.data) % 2
        begin = self.data[: head - struct.calcsize(self.writing.place)] + struct.pack(self.writing.place, start)
        return b"".join([begin, self.data[head:], b"\0" * (len(self.data) % 2), directory])


def pages(data: bytes) -> list[Page]:
    """Every page of full size, in their order; thumbnails and masks are no pages.

    Raises:
        DataError: the file ends too early, or has more than 10,000 pages.
    """
    writing = Writing("<" if data[:2] == b"II" else ">", b"+" in data[2:4])
    found: list[Page] = []
    seen: set[int] = set()
    (start,) = _unpacked(writing.place, data, 8 if writing.big else 4)
    while start and start not in seen:
        seen.add(start)
        if len(seen) > MAX_PAGES:
            raise damaged(KIND, f"more than {MAX_PAGES:,} pages")
        page, start = _directory(writing, data, start)
        if not page.number(SUBFILE) & 0b101:
            found.append(page)
    if not found:
        raise damaged(KIND, "it has no page")
    return found


def _directory(writing: Writing, data: bytes, start: int) -> tuple[Page, int]:
    """The page at a place, and the place of the next."""
    (count,) = _unpacked(writing.head, data, start)
    first, step = start + struct.calcsize(writing.head), struct.calcsize(writing.line)
    if first + step * count > len(data):
        raise truncated(KIND, len(data), first + step * count)
    lines = struct.iter_unpack(writing.line, data[first : first + step * count])
    entries = {tag: Entry(kind, number, field) for tag, kind, number, field in lines}
    (following,) = _unpacked(writing.place, data, first + step * count)
    return Page(writing, entries, data), following


def _unpacked(form: str, data: bytes, place: int) -> tuple[int, ...]:
    if place + struct.calcsize(form) > len(data):
        raise truncated(KIND, len(data), place + struct.calcsize(form))
    return struct.unpack_from(form, data, place)
