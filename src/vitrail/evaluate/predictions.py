"""The table of answers to the task `classes`: one of K for each picture.

`path,id,split,target,label,probability,prob_<class>...,abstain`. Reports and comparisons are built from this table
and never ask the model again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.csv_injection import escape_cell, unescape_cell
from ..errors import DataError, UsageError
from .label_cells import cell_of, escaped, labels_in
from .table import (
    Column,
    Read,
    Table,
    check_alike,
    check_shape,
    digits,
    joined_extras,
    joined_reasons,
    joined_targets,
    numbers,
    read_rows,
    wrong_header,
)

UNKNOWN = -1
"""The target of a picture whose class is not known; an empty cell in the file."""

OWN = ("target", "label", "probability")
SET = "set"
"""The column of classes that hold the truth together, where sets were asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions(Table):
    """What a model said of n pictures, with K probabilities each."""

    targets: np.ndarray | None
    """int64 [n], positions in `classes`, -1 where unknown; None when no target is known."""
    probabilities: np.ndarray
    """float32 [n, K], rows sum to 1."""
    classes: tuple[str, ...]
    """The K class names, in the order of the model's outputs."""
    answered: np.ndarray | None = None
    """int64 [n]: the class that each picture is said to be of; the most probable one if nothing else is given."""
    sets: np.ndarray | None = None
    """bool [n, K]: which classes hold the truth together as often as was promised; None if nobody asked."""

    def __post_init__(self) -> None:
        check_shape(self, self.probabilities, self.classes, "classes need probabilities")
        if self.answered is not None and self.answered.shape != (len(self.ids),):
            raise UsageError(f"One answer per picture is needed, {len(self.ids)}. Got {len(self.answered)}.")
        if self.targets is not None and len(self.targets) != len(self.ids):
            raise UsageError(f"One target per picture is needed, {len(self.ids)}. Got {len(self.targets)}.")
        object.__setattr__(self, "probabilities", self.probabilities.astype(np.float32, copy=False))

    @property
    def labels(self) -> np.ndarray:
        """int64 [n]: the class that each picture is said to be of."""
        if self.answered is not None:
            return self.answered
        return self.probabilities.argmax(1) if len(self) else np.zeros(0, np.int64)

    @property
    def confidences(self) -> np.ndarray:
        """float32 [n]: the probability of that class."""
        return self.probabilities[np.arange(len(self)), self.labels]

    def header(self) -> list[str]:
        """Target, label, its probability, and that of every class; the set, if there are sets."""
        return [*OWN, *(f"prob_{name}" for name in self.classes), *([] if self.sets is None else [SET])]

    def cells(self) -> Iterator[list[str]]:
        """As `Table` says."""
        names = [escape_cell(name) for name in self.classes]
        sets = self._set_cells()
        labels, confidences = self.labels.tolist(), self.confidences.tolist()
        targets = np.full(len(self), UNKNOWN) if self.targets is None else self.targets
        for i in range(len(self)):
            target = "" if targets[i] == UNKNOWN else names[targets[i]]
            chances = map(digits, self.probabilities[i].tolist())
            yield [target, names[labels[i]], digits(confidences[i]), *chances, *sets[i]]

    def _set_cells(self) -> list[list[str]]:
        if self.sets is None:
            return [[]] * len(self)
        names = [escaped(name) for name in self.classes]
        return [[escape_cell(cell_of(row, names))] for row in self.sets.astype(float).tolist()]

    def own_columns(self) -> dict[str, Column]:
        """As `Table` says; a set is the names that it holds."""
        targets = [UNKNOWN] * len(self) if self.targets is None else self.targets.tolist()
        chances = {f"prob_{name}": Column("number", self.probabilities[:, k]) for k, name in enumerate(self.classes)}
        return {
            "target": Column("text", [None if k == UNKNOWN else self.classes[k] for k in targets]),
            "label": Column("text", [self.classes[k] for k in self.labels.tolist()]),
            "probability": Column("number", self.confidences),
            **chances,
            **self._set_column(),
        }

    def _set_column(self) -> dict[str, Column]:
        if self.sets is None:
            return {}
        return {SET: Column("names", [[self.classes[k] for k in np.flatnonzero(row)] for row in self.sets])}


def join(parts: Sequence[Predictions]) -> Predictions:
    """One table from several over the same classes and split, in the order given.

    Raises:
        UsageError: no parts, or parts of different classes or splits.
    """
    check_alike(parts, [part.classes for part in parts])
    return Predictions(
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        split=parts[0].split,
        targets=joined_targets([(part.targets, np.full(len(part), UNKNOWN, np.int64)) for part in parts]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
        classes=parts[0].classes,
        answered=np.concatenate([part.labels for part in parts]),
        sets=joined_extras([part.sets for part in parts]),
        abstained=joined_reasons(parts),
        skipped=tuple(pair for part in parts for pair in part.skipped),
    )


def read_csv(path: Path) -> Predictions:
    """Read a table that `Predictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, f"{','.join(OWN)},prob_<class>...", OWN)
    with_sets = table.header[-1:] == (SET,)
    classes = classes_of(table.header[:-1] if with_sets else table.header, path)
    positions = {name: k for k, name in enumerate(classes)}
    targets = [_position(unescape_cell(cells[0]), positions, where) for where, cells in table.rows]
    chances = slice(len(OWN), len(OWN) + len(classes))
    rows = [numbers(cells[chances], where, "probabilities") for where, cells in table.rows]
    said = [_position(unescape_cell(cells[1]), positions, where, "label") for where, cells in table.rows]
    known = np.array(targets, dtype=np.int64)
    return Predictions(
        paths=table.paths,
        ids=table.ids,
        split=table.split,
        targets=known if (known != UNKNOWN).any() else None,
        probabilities=np.array(rows, dtype=np.float32).reshape(len(rows), len(classes)),
        classes=classes,
        answered=np.array(said, dtype=np.int64),
        sets=_sets_in(table, classes) if with_sets else None,
        abstained=table.abstained,
    )


def _sets_in(table: Read, classes: tuple[str, ...]) -> np.ndarray:
    positions = {escaped(name): k for k, name in enumerate(classes)}
    held = [labels_in(unescape_cell(cells[-1]), positions, where, SET) for where, cells in table.rows]
    return np.array(held, np.float32).reshape(len(held), len(classes)) == 1


def classes_of(header: Sequence[str], path: Path) -> tuple[str, ...]:
    """The names behind `prob_` in the header of a table of classes or labels.

    Raises:
        DataError: another column among them.
    """
    columns = header[len(OWN) :]
    if not all(name.startswith("prob_") for name in columns):
        raise wrong_header(path, f"{','.join(OWN)},prob_<class>...", header)
    return tuple(name.removeprefix("prob_") for name in columns)


def _position(name: str, positions: dict[str, int], where: str, column: str = "target") -> int:
    if name not in positions and (name or column == "label"):
        empty = "empty or " if column == "target" else ""
        raise DataError(f"{where}: {column} must be {empty}one of {', '.join(positions)}. Got {name!r}.")
    return positions[name] if name else UNKNOWN
