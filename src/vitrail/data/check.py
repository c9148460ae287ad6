"""The doctor: look at every picture once before anything is trained, and say all that is wrong at once.

Nothing is changed and nothing is left out here; the findings name each bad picture with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..spec import ImageSpec
from .decode import convert
from .parallel import in_order
from .source import Picture, Source
from .stored import Stored, check_array, read

SHOWN = 20  # names in a list before it is cut short
FEW = 10  # training pictures of a class below which it is mentioned


@dataclass(frozen=True, kw_only=True)
class Size:
    """Height and width of a picture in pixels, and its id."""

    height: int
    width: int
    id: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the check found; `bad` stops a training, the rest is to be known."""

    name: str
    pictures: int
    bad: list[tuple[str, str]]
    """(id, reason) of every picture that cannot be used."""
    bad_indices: NDArray[np.int64]
    """Their rows in the source."""
    class_counts: dict[str, dict[str, int]]
    """Pictures per class in each split; empty for tasks without classes."""
    smallest: Size | None
    largest: Size | None
    small: list[str]
    """Ids of pictures lower or narrower than one patch."""
    depths: dict[str, int]
    """Pictures per type of stored value: uint8, uint16, ..."""
    notes: tuple[str, ...]
    """Those of the source, then the check's own."""

    def table(self) -> str:
        """All of it as plain text, every bad picture named."""
        lines = [f"{self.name}: {self.pictures:,} pictures, {len(self.bad):,} of them unusable"]
        lines += [f"  {name}  {reason}" for name, reason in self.bad]
        if self.smallest and self.largest:
            small, large = self.smallest, self.largest
            lines.append(f"smallest {small.height} x {small.width} ({small.id})")
            lines.append(f"largest {large.height} x {large.width} ({large.id})")
        lines += self._counts()
        if self.small:
            more = f" and {len(self.small) - SHOWN:,} more" if len(self.small) > SHOWN else ""
            lines.append(f"smaller than one patch: {', '.join(self.small[:SHOWN])}{more}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        """One line a class, one column a split."""
        if not self.class_counts:
            return []
        splits = list(self.class_counts)
        names = list(self.class_counts[splits[0]])
        wide = max(map(len, [*names, "class"]))
        lines = [f"{'class':<{wide}}" + "".join(f"{split:>9}" for split in splits)]
        for name in names:
            lines.append(f"{name:<{wide}}" + "".join(f"{self.class_counts[split][name]:>9,}" for split in splits))
        return lines

    def to_json(self) -> dict[str, Any]:
        """The same for machines; `bad` as objects with id and reason."""
        return {
            "name": self.name,
            "pictures": self.pictures,
            "bad": [{"id": name, "reason": reason} for name, reason in self.bad],
            "class_counts": self.class_counts,
            "smallest": vars(self.smallest) if self.smallest else None,
            "largest": vars(self.largest) if self.largest else None,
            "smaller_than_a_patch": self.small,
            "stored_values": self.depths,
            "notes": list(self.notes),
        }


def check(
    source: Source, splits: Mapping[str, NDArray[np.int64]], spec: ImageSpec, patch: tuple[int, int] = (1, 1)
) -> Findings:
    """Decode every picture of the splits, by as many threads as there are cores; nothing can be wrong with one picture
    of a uint8 array that is not wrong with all, so of those one is looked at.

    Args:
        patch: rows and columns of pixels of one patch of the model.
    """
    rows = np.sort(np.concatenate([*splits.values(), np.zeros(0, dtype=np.int64)]))
    looks = _look_at_all(source, rows, spec)
    bad = [(row, look) for row, look in zip(rows.tolist(), looks, strict=True) if isinstance(look, str)]
    good = [(row, look) for row, look in zip(rows.tolist(), looks, strict=True) if not isinstance(look, str)]
    kinds, counts = np.unique([look.depth for _, look in good], return_counts=True)
    depths = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    class_counts = _class_counts(source, splits)
    return Findings(
        name=source.name,
        pictures=len(rows),
        bad=[(source.ids[row], reason) for row, reason in bad],
        bad_indices=np.array([row for row, _ in bad], dtype=np.int64),
        class_counts=class_counts,
        smallest=_size(source, min(good, key=_area, default=None)),
        largest=_size(source, max(good, key=_area, default=None)),
        small=[source.ids[row] for row, look in good if look.height < patch[0] or look.width < patch[1]],
        depths=depths,
        notes=(*source.notes, *_few(class_counts), *_mixed(depths)),
    )


@dataclass(frozen=True)
class _Look:
    """What one picture is."""

    height: int
    width: int
    depth: str


def _area(found: tuple[int, _Look]) -> int:
    return found[1].height * found[1].width


def _size(source: Source, found: tuple[int, _Look] | None) -> Size | None:
    return found and Size(height=found[1].height, width=found[1].width, id=source.ids[found[0]])


def _look_at_all(source: Source, rows: NDArray[np.int64], spec: ImageSpec) -> list[_Look | str]:
    """A look, or the reason why there is none, for each row."""
    stack = source.pictures
    if isinstance(stack, np.ndarray) and stack.dtype == np.uint8 and (spec.low, spec.high) == (0, 255):
        return [_look(stack[row], spec) for row in rows[:1]] * len(rows)
    return list(in_order(partial(_look, spec=spec), (stack[row] for row in rows.tolist())))


def _look(picture: Picture, spec: ImageSpec) -> _Look | str:
    try:
        stored = Stored(check_array(picture)) if isinstance(picture, np.ndarray) else read(picture)
        convert(stored, spec.channels, spec.low, spec.high)
    except DataError as error:
        return str(error).removeprefix(f"{picture}: ")
    return _Look(stored.values.shape[0], stored.values.shape[1], stored.values.dtype.name)


def _class_counts(source: Source, splits: Mapping[str, NDArray[np.int64]]) -> dict[str, dict[str, int]]:
    if source.task != "classes":
        return {}
    found = {}
    for split, rows in splits.items():
        counts = np.bincount(source.targets[rows], minlength=len(source.classes))
        found[split] = dict(zip(source.classes, counts.tolist(), strict=True))
    return found


def _few(class_counts: dict[str, dict[str, int]]) -> list[str]:
    """Classes that will be hard to learn, or that a split cannot judge."""
    notes = []
    for split, counts in class_counts.items():
        least = FEW if split == "train" else 1
        scarce = [f"{name!r} ({count})" for name, count in counts.items() if count < least]
        if scarce and any(counts.values()):
            more = f" and {len(scarce) - SHOWN:,} more" if len(scarce) > SHOWN else ""
            notes.append(f"Few pictures in {split}: {', '.join(scarce[:SHOWN])}{more}.")
    return notes


def _mixed(depths: dict[str, int]) -> list[str]:
    if len(depths) < 2:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in depths.items())
    return [f"Pictures of different depth: {kinds}. The 8-bit ones are taken as scaled already."]
