"""From the files of tar shards to samples, by WebDataset's rule: one sample is all files that share a name up to its
first dot, folders included (`dogs/0007.jpg`, `dogs/0007.cls`, `dogs/0007.json`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..texts import Texts
from .class_folders import LITTER
from .members import Members, Shard
from .tars import Entry, entries, quoted

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jpe", "jfif", "dib", "npy", "dcm", "dicom")
"""Endings of pictures; of several in one sample the first of this list is taken."""
SHOWN = 5


@dataclass(frozen=True)
class Part:
    """Where one kind of file of every sample lies; the offset is -1 where a sample has none."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def rows(self) -> NDArray[np.int64]:
        """Samples that have it."""
        return np.flatnonzero(self.offsets >= 0)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Every sample that has a picture, in the order of its shards."""

    shards: tuple[Shard, ...]
    numbers: NDArray[np.int64]
    """Which shard each lies in; rising."""
    ids: Texts
    """Shard, then the samples' own name."""
    pictures: Members
    labels: Mapping[str, Part]
    """By suffix: cls, json, txt, and those that were asked for."""
    notes: tuple[str, ...]

    def where(self, row: int) -> str:
        """What messages call a sample."""
        return self.ids[row]


def gather(root: str, shards: Sequence[tuple[str, Shard]], labels: Iterable[str], picture: str = "") -> Samples:
    """Index shards by their headers.

    Args:
        shards: each with its path relative to `root`.
        labels: suffixes of the files that may say what a picture shows.
        picture: suffix of the file that is the picture; empty for any ending of PICTURES.

    Raises:
        DataError: a shard cannot be read, a name stands in it twice, a sample has several pictures of equal right, or
            nowhere is a picture.
    """
    gathering = _Gathering(labels, picture)
    for number, (label, shard) in enumerate(shards):
        gathering.add(number, label, shard)
    return gathering.samples(root, tuple(shard for _, shard in shards))


NOWHERE = -1
NO_PICTURE = 1000
COMPOUND = 100


class _Column:
    """Places of one kind of file, a row a sample."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")

    def grow(self) -> None:
        self.offsets.append(NOWHERE)
        self.sizes.append(0)

    def put(self, row: int, entry: Entry) -> None:
        self.offsets[row], self.sizes[row] = entry.offset, entry.size

    def part(self, rows: NDArray[np.int64]) -> Part:
        return Part(np.array(self.offsets, np.int64)[rows], np.array(self.sizes, np.int64)[rows])


class _Gathering:
    """Columns that grow by one row a sample."""

    def __init__(self, labels: Iterable[str], picture: str):
        self.wanted = picture.lower().lstrip(".")
        self.ids: list[str] = []
        self.numbers = array("q")
        self.pictures = _Column()
        self.labels = {name: _Column() for name in labels if name != self.wanted}
        self.ranks = array("h")  # how good the picture is that a sample has so far; NO_PICTURE is the worst
        self.suffix = array("i")
        self.suffixes: dict[str, int] = {}
        self.links = self.litter = 0
        self.unread: Counter[str] = Counter()

    def add(self, number: int, label: str, shard: Shard) -> None:
        """All files of one shard."""
        rows: dict[str, int] = {}
        for entry in entries(shard.path):
            if entry.kind == "folder":
                continue
            key, suffix = _parted(entry.name)
            if entry.kind != "file":
                self.links += 1
            elif not key:
                self.litter += 1
            else:
                row = rows.get(key)
                if row is None:
                    row = rows[key] = self._sample(number, f"{label}/{key}")
                self._place(row, suffix, entry, shard)

    def _sample(self, number: int, id: str) -> int:
        self.ids.append(id)
        self.numbers.append(number)
        self.ranks.append(NO_PICTURE)
        self.suffix.append(0)
        for column in (self.pictures, *self.labels.values()):
            column.grow()
        return len(self.ids) - 1

    def _place(self, row: int, suffix: str, entry: Entry, shard: Shard) -> None:
        label = self.labels.get(suffix)
        if label is not None:
            if label.offsets[row] != NOWHERE:
                raise DataError(_twice(shard, entry))
            label.put(row, entry)
            return
        rank, before = self._rank(suffix), self.ranks[row]
        if rank == NO_PICTURE:
            self.unread[suffix] += 1
            return
        if rank == before:
            taken = list(self.suffixes)[self.suffix[row]]
            raise DataError(_twice(shard, entry) if suffix == taken else _several(self.ids[row], taken, suffix))
        if before != NO_PICTURE:
            self.unread[suffix if rank > before else list(self.suffixes)[self.suffix[row]]] += 1
        if rank < before:
            self.pictures.put(row, entry)
            self.ranks[row] = rank
            self.suffix[row] = self.suffixes.setdefault(suffix, len(self.suffixes))

    def _rank(self, suffix: str) -> int:
        """Which of a sample's pictures is taken: the lowest."""
        if self.wanted:
            return 0 if suffix == self.wanted else NO_PICTURE
        last = suffix.rpartition(".")[2]
        if last not in PICTURES:
            return NO_PICTURE
        return PICTURES.index(last) if last == suffix else COMPOUND

    def samples(self, root: str, shards: tuple[Shard, ...]) -> Samples:
        """What has been gathered, without samples that have no picture."""
        rows = np.flatnonzero(np.array(self.pictures.offsets, np.int64) >= 0)
        if not len(rows):
            raise DataError(self._no_picture(shards))
        numbers = np.array(self.numbers, np.int64)[rows]
        ids = Texts(self.ids[row] for row in rows.tolist())
        place = self.pictures.part(rows)
        suffix = np.array(self.suffix, np.int32)[rows]
        return Samples(
            shards=shards,
            numbers=numbers,
            ids=ids,
            pictures=Members(root, shards, numbers, place.offsets, place.sizes, ids, tuple(self.suffixes), suffix),
            labels={name: column.part(rows) for name, column in self.labels.items()},
            notes=tuple(self._notes(rows)),
        )

    def _notes(self, rows: NDArray[np.int64]) -> Iterator[str]:
        lost = np.setdiff1d(np.arange(len(self.ids)), rows)
        if len(lost):
            names = ", ".join(self.ids[row] for row in lost[:SHOWN].tolist())
            more = f" and {len(lost) - SHOWN:,} more" if len(lost) > SHOWN else ""
            yield f"Left out {len(lost):,} samples that have no picture: {names}{more}."
        if self.unread:
            yield f"Did not read {self.unread.total():,} other files of the samples: {self._endings()}."
        if self.links:
            yield (
                f"Left out {self.links:,} links and devices, which hold no picture; tar --dereference "
                "--hard-dereference packs what links lead to."
            )
        if self.litter:
            yield f"Left out {self.litter:,} hidden or system files."

    def _endings(self) -> str:
        return ", ".join(f"{count:,} x {quoted('.' + suffix)}" for suffix, count in self.unread.most_common(SHOWN))

    def _no_picture(self, shards: tuple[Shard, ...]) -> str:
        expected = f".{self.wanted}, as --data.path says" if self.wanted else ", ".join(f".{name}" for name in PICTURES)
        held = f"files ending in {self._endings()}" if self.unread else "nothing of the kind"
        where = str(shards[0].path) if len(shards) == 1 else f"{shards[0].path} and {len(shards) - 1:,} more shards"
        return f"{where}: no pictures found. Expected names ending in {expected}; got {held}."


def _twice(shard: Shard, entry: Entry) -> str:
    return (
        f"{shard.path} holds {quoted(entry.name)} twice, the second at byte {entry.offset:,}; which one is meant? "
        "Write the shard again with each name once."
    )


def _several(id: str, first: str, second: str) -> str:
    return (
        f"{id} has several pictures, .{first} and .{second}. Say which is to be learnt from, for example with "
        f"--data.path {first}. (A sample is all files that share a name up to its first dot.)"
    )


def _parted(name: str) -> tuple[str, str]:
    """(key, suffix in small letters) of a file's name; no key for litter."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    if not stem or base in LITTER or "__MACOSX" in folder:
        return "", ""
    return _safe(f"{folder}{slash}{stem}"), suffix.lower()


def _safe(key: str) -> str:
    """A key as relative text on one line, so that nobody who takes it for a path leaves a folder by it."""
    if key.isprintable() and not key.startswith(("/", ".")) and "//" not in key and "/." not in key:
        return key
    text = key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    path = "/".join("__" if part == ".." else part for part in text.split("/") if part not in ("", "."))
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in path)
