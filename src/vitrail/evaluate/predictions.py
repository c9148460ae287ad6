"""The table of answers that every door gives: one row per picture, the same columns everywhere.

`path,id,split,target,label,probability,prob_<class>...,abstain`. Reports and comparisons are built from this table
and never ask the model again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.formulas import guarded, lines, unguarded
from ..data.source import Picture
from ..errors import DataError, UsageError
from ..files import atomic

UNKNOWN = -1
"""The target of a picture whose class is not known; an empty cell in the file."""

_BEFORE = ("path", "id", "split", "target", "label", "probability")
_AFTER = ("abstain",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """What a model said of n pictures, with K probabilities each."""

    paths: tuple[str, ...]
    """Where each picture lies; empty for one that came as an array."""
    ids: tuple[str, ...]
    """The name of each picture inside its source."""
    split: str
    """Which part of the source: train, val, test, or empty when nobody said."""
    targets: np.ndarray | None
    """int64 [n], positions in `classes`, -1 where unknown; None when no target is known."""
    probabilities: np.ndarray
    """float32 [n, K], rows sum to 1."""
    classes: tuple[str, ...]
    """The K class names, in the order of the model's outputs."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of pictures that could not be read and were left out on purpose; not part of the file."""

    def __post_init__(self) -> None:
        shape = (len(self.ids), len(self.classes))
        if self.probabilities.shape != shape or len(self.paths) != len(self.ids):
            raise UsageError(
                f"Predictions of {shape[0]} ids and {shape[1]} classes need probabilities of shape {shape} and as many "
                f"paths. Got {self.probabilities.shape} and {len(self.paths)} paths."
            )
        if self.targets is not None and len(self.targets) != len(self.ids):
            raise UsageError(f"One target per picture is needed, {len(self.ids)}. Got {len(self.targets)}.")
        object.__setattr__(self, "probabilities", self.probabilities.astype(np.float32, copy=False))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> np.ndarray:
        """int64 [n]: the most probable class of each picture."""
        return self.probabilities.argmax(1) if len(self) else np.zeros(0, np.int64)

    @property
    def confidences(self) -> np.ndarray:
        """float32 [n]: the probability of that class."""
        return self.probabilities.max(1) if len(self) else np.zeros(0, np.float32)

    def write_csv(self, path: Path) -> None:
        """Write the table in one step. Numbers keep nine digits, which give every float32 back exactly."""
        atomic.write_bytes(path, self.csv_bytes())

    def csv_bytes(self) -> bytes:
        """The same table as the bytes of a file, for standard output."""
        return "".join(lines(self._rows())).encode("utf-8", "surrogateescape")

    def _rows(self) -> Iterator[list[str]]:
        yield [*_BEFORE, *(f"prob_{name}" for name in self.classes), *_AFTER]
        names = [guarded(name) for name in self.classes]
        split = guarded(self.split)
        labels, confidences = self.labels, self.confidences
        targets = np.full(len(self), UNKNOWN) if self.targets is None else self.targets
        for i, (path, id) in enumerate(zip(self.paths, self.ids, strict=True)):
            target = "" if targets[i] == UNKNOWN else names[targets[i]]
            numbers = [f"{p:.9g}" for p in self.probabilities[i].tolist()]
            yield [guarded(path), guarded(id), split, target, names[labels[i]], f"{confidences[i]:.9g}", *numbers, "0"]


def path_of(picture: Picture) -> str:
    """Where a picture lies: its file, or its name inside something larger; empty for an array."""
    if isinstance(picture, np.ndarray):
        return ""
    return str(picture) if isinstance(picture, Path) else picture.name


def join(parts: Sequence[Predictions]) -> Predictions:
    """One table from several over the same classes and split, in the order given.

    Raises:
        UsageError: no parts, or parts of different classes or splits.
    """
    if not parts:
        raise UsageError("Joining predictions needs at least one part. Got none.")
    first = parts[0]
    for part in parts:
        if (part.classes, part.split) != (first.classes, first.split):
            raise UsageError(
                "Predictions to join must share classes and split. "
                f"Got {first.classes} of '{first.split}' and {part.classes} of '{part.split}'."
            )
    known = [part.targets for part in parts if part.targets is not None]
    if known and len(known) < len(parts):
        known = [np.full(len(p), UNKNOWN, np.int64) if p.targets is None else p.targets for p in parts]
    return Predictions(
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        split=first.split,
        targets=np.concatenate(known) if known else None,
        probabilities=np.concatenate([part.probabilities for part in parts]),
        classes=first.classes,
        skipped=tuple(pair for part in parts for pair in part.skipped),
    )


def read_csv(path: Path) -> Predictions:
    """Read a table that `Predictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as problem:
        raise DataError(f"A predictions file is needed at {path}. {problem.strerror or problem}.") from problem
    reader = csv.reader(io.StringIO(text, newline=""))
    classes = _classes_of(next(reader, []), path)
    positions = {name: k for k, name in enumerate(classes)}
    paths, ids, splits, targets, numbers = [], [], [], [], []
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if len(row) != len(_BEFORE) + len(classes) + len(_AFTER):
            raise DataError(
                f"{where}: a row must have {len(_BEFORE) + len(classes) + len(_AFTER)} cells, as the header. "
                f"Got {len(row)}."
            )
        paths.append(unguarded(row[0]))
        ids.append(unguarded(row[1]))
        splits.append(unguarded(row[2]))
        targets.append(_position(unguarded(row[3]), positions, where))
        numbers.append(_numbers(row[len(_BEFORE) : -len(_AFTER)], where))
    if len(set(splits)) > 1:
        raise DataError(f"{path}: one file holds one split. Got {', '.join(sorted(set(splits)))}.")
    known = np.array(targets, dtype=np.int64)
    return Predictions(
        paths=tuple(paths),
        ids=tuple(ids),
        split=splits[0] if splits else "",
        targets=known if (known != UNKNOWN).any() else None,
        probabilities=np.array(numbers, dtype=np.float32).reshape(len(ids), len(classes)),
        classes=classes,
    )


def _classes_of(header: list[str], path: Path) -> tuple[str, ...]:
    middle = header[len(_BEFORE) : -len(_AFTER)]
    if (
        tuple(header[: len(_BEFORE)]) != _BEFORE
        or tuple(header[-len(_AFTER) :]) != _AFTER
        or not all(name.startswith("prob_") for name in middle)
    ):
        raise DataError(
            f"{path}: the first line must read {','.join(_BEFORE)},prob_<class>...,{','.join(_AFTER)}. "
            f"Got {','.join(header)[:200] or 'nothing'}."
        )
    return tuple(name.removeprefix("prob_") for name in middle)


def _position(name: str, positions: dict[str, int], where: str) -> int:
    if name and name not in positions:
        raise DataError(f"{where}: target must be empty or one of {', '.join(positions)}. Got {name!r}.")
    return positions[name] if name else UNKNOWN


def _numbers(cells: list[str], where: str) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError as problem:
        raise DataError(f"{where}: probabilities must be numbers. Got {', '.join(cells)[:200]}.") from problem
