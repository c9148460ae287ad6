"""`Source`: the one kind of object that comes out of every data format.

A source is an index: it knows where each picture is, what it shows and which split it was published in. It decodes
nothing. A row keeps its number for the whole life of a run, so that randomness keyed by that number does not change
when other pictures are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import DataError

Picture = Path | np.ndarray
"""A file, or an array [H, W] or [H, W, C] of any integer or float type."""

Task = Literal["classes", "labels", "number"]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Example:
    """One row of a source."""

    picture: Picture
    target: np.ndarray | np.generic
    id: str
    group: object | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Pictures, their targets and their published splits, in a fixed order.

    Raises:
        DataError: the columns have different lengths, a target lies outside the classes, or two splits share a row.
    """

    name: str
    """What the data is called in run folders and reports."""
    task: Task = "classes"
    """classes: one of K; labels: any of K; number: regression."""
    classes: tuple[str, ...]
    """Names of the K outputs, in the order of their numbers; always text, never guessed to be numbers."""
    pictures: Sequence[Picture] | np.ndarray
    """One picture per row; pictures of one shape may be a single array [n, H, W] or [n, H, W, C]."""
    targets: np.ndarray
    """int64 [n] for classes; float [n, K] for labels and numbers."""
    ids: Sequence[str]
    """A name per row that stays the same from run to run."""
    groups: np.ndarray | None = None
    """Rows with an equal value (one patient, one module) never cross from one split to another."""
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Official splits: row numbers (int64) under train, val, test; those that were not published are absent."""
    notes: tuple[str, ...] = ()
    """What a person should know about how the data was read, one sentence each."""

    def __post_init__(self) -> None:
        n = len(self.pictures)
        columns = {"targets": len(self.targets), "ids": len(self.ids)}
        if self.groups is not None:
            columns["groups"] = len(self.groups)
        for column, length in columns.items():
            if length != n:
                raise DataError(f"{self.name} has {n:,} pictures but {length:,} {column}. Each picture needs one.")
        if self.task == "classes":
            self._check_targets()
        self._check_splits()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Example:
        group = None if self.groups is None else self.groups[index]
        return Example(self.pictures[index], self.targets[index], self.ids[index], group)

    def fingerprint(self) -> str:
        """SHA-256 over names, targets, groups and splits, and over the pixels of arrays or the sizes of files.

        The bytes of picture files are not read, so that a million files take seconds. A file that is
        missing is hashed as missing.
        """
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(len(part).to_bytes(8, "little"))  # so that "ab" + "c" differs from "a" + "bc"
            digest.update(part)
        return digest.hexdigest()

    def _parts(self) -> Iterator[bytes]:
        for text in (self.name, self.task, *self.classes, *self.ids):
            yield text.encode("utf-8", "surrogateescape")
        yield np.ascontiguousarray(self.targets).tobytes()
        if self.groups is not None:
            yield "\0".join(map(str, self.groups)).encode("utf-8", "surrogateescape")
        for split in sorted(self.splits):
            yield split.encode()
            yield np.asarray(self.splits[split], dtype="<i8").tobytes()
        if isinstance(self.pictures, np.ndarray):
            yield _content(self.pictures)
        else:
            yield from map(_content, self.pictures)

    def _check_targets(self) -> None:
        wrong = np.flatnonzero((self.targets < 0) | (self.targets >= len(self.classes)))
        if len(wrong):
            first = int(wrong[0])
            raise DataError(
                f"Targets of {self.name} must lie in 0..{len(self.classes) - 1}, one number per class. "
                f"Got {self.targets[first]} at row {first} ({self.ids[first]}); {len(wrong):,} such rows in all."
            )

    def _check_splits(self) -> None:
        owner = np.full(len(self), -1)
        for number, (split, rows) in enumerate(self.splits.items()):
            if split not in SPLITS:
                raise DataError(f"Splits are called {', '.join(SPLITS)}. {self.name} has one called {split!r}.")
            if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
                raise DataError(f"Split {split} of {self.name} names rows beyond its {len(self):,} pictures.")
            taken = rows[owner[rows] >= 0]
            if len(taken):
                other = list(self.splits)[owner[taken[0]]]
                raise DataError(
                    f"{self.ids[taken[0]]} is in both {other} and {split} of {self.name} "
                    f"({len(taken):,} such pictures). A picture belongs to one split."
                )
            owner[rows] = number


def _content(picture: Picture) -> bytes:
    if isinstance(picture, np.ndarray):
        return f"{picture.dtype} {picture.shape} ".encode() + picture.tobytes()
    try:
        return str(picture.stat().st_size).encode()
    except OSError:
        return b"missing"
