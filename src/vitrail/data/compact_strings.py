"""Sequences of a million strings or paths in one UTF-8 buffer, without an object per string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class CompactStrings(Sequence[str]):
    """An immutable sequence of strings in one UTF-8 buffer; surrogate escapes are preserved."""

    def __init__(self, texts: Iterable[str]):
        parts = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        self._utf8 = b"".join(parts)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # negative ones count from the end, and one beyond raises IndexError
        start = int(self._ends[row - 1]) if row else 0
        return self._utf8[start : int(self._ends[row])].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends.tolist():
            yield self._utf8[start:end].decode("utf-8", "surrogateescape")
            start = end


class RelativePaths(Sequence[Path]):
    """Paths by their names relative to one folder; an absolute name stays absolute."""

    def __init__(self, root: Path, names: Sequence[str]):
        self.root = root
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self.root / name for name in self._names[index]]
        return self.root / self._names[index]
