"""The table of answers to the task `labels`: any of K for each picture, each with a probability of its own.

`path,id,split,target,label,probability,prob_<label>...,abstain`, the columns of the other tasks. `target` and `label`
hold any number of names, as `label_cells` says; `probability` is that of the likeliest label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.csv_injection import escape_cell, unescape_cell
from ..errors import UsageError
from .label_cells import cell_of, escaped, labels_in
from .predictions import OWN, classes_of
from .table import Column, Table, check_alike, check_shape, digits, joined_reasons, joined_targets, numbers, read_rows

THRESHOLD = 0.5
"""A label is answered from this probability on where no other threshold was chosen, and there from this share on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelPredictions(Table):
    """What a model said of n pictures, with the probability of each of K labels."""

    targets: np.ndarray | None
    """float32 [n, K] in 0..1, NaN where unknown; None when no target is known."""
    probabilities: np.ndarray
    """float32 [n, K], each for itself."""
    classes: tuple[str, ...]
    """The K names, in the order of the model's outputs; none is empty or there twice."""
    answered: np.ndarray | None = None
    """bool [n, K]: which labels each picture is said to have; those from one half on if nothing else is given."""

    def __post_init__(self) -> None:
        check_shape(self, self.probabilities, self.classes, "labels need probabilities")
        if self.targets is not None and self.targets.shape != self.probabilities.shape:
            raise UsageError(f"Targets must have shape {self.probabilities.shape}. Got {self.targets.shape}.")
        if self.answered is not None and self.answered.shape != self.probabilities.shape:
            raise UsageError(f"Answers must have shape {self.probabilities.shape}. Got {self.answered.shape}.")
        if len({*self.classes, ""}) <= len(self.classes):
            raise UsageError(f"Every label needs a name of its own. Got {self.classes}.")
        object.__setattr__(self, "probabilities", self.probabilities.astype(np.float32, copy=False))
        if self.targets is not None:
            object.__setattr__(self, "targets", self.targets.astype(np.float32, copy=False))

    @property
    def labels(self) -> np.ndarray:
        """bool [n, K]: which labels each picture is said to have."""
        return self.probabilities >= THRESHOLD if self.answered is None else self.answered

    @property
    def known(self) -> np.ndarray:
        """bool [n, K]: of which labels the target is known."""
        return np.zeros(self.probabilities.shape, bool) if self.targets is None else ~np.isnan(self.targets)

    def header(self) -> list[str]:
        """Targets, labels, the highest probability, and that of every label."""
        return [*OWN, *(f"prob_{name}" for name in self.classes)]

    def cells(self) -> Iterator[list[str]]:
        """As `Table` says."""
        names = [escaped(name) for name in self.classes]
        targets = np.full(self.probabilities.shape, np.nan) if self.targets is None else self.targets
        for target, answer, row in zip(
            targets.tolist(), self.labels.tolist(), self.probabilities.tolist(), strict=True
        ):
            words = [escape_cell(cell_of(target, names)), escape_cell(cell_of(list(map(float, answer)), names))]
            yield [*words, digits(max(row)), *map(digits, row)]

    def own_columns(self) -> dict[str, Column]:
        """As `Table` says; the answered labels are a list, and the target says of each label 0..1, or None."""
        targets = np.full(self.probabilities.shape, np.nan) if self.targets is None else self.targets
        said = [[self.classes[k] for k in np.flatnonzero(row)] for row in self.labels]
        return {
            "target": Column(self.classes, [self._shown(target) for target in targets.tolist()]),
            "label": Column("names", said),
            "probability": Column("number", self.probabilities.max(1)),
            **{f"prob_{name}": Column("number", self.probabilities[:, k]) for k, name in enumerate(self.classes)},
        }

    def _shown(self, target: list[float]) -> dict[str, float | None] | None:
        told = {name: None if t != t else t for name, t in zip(self.classes, target, strict=True)}
        return None if all(t is None for t in told.values()) else told


def join(parts: Sequence[LabelPredictions]) -> LabelPredictions:
    """One table from several over the same labels and split, in the order given.

    Raises:
        UsageError: no parts, or parts of different labels or splits.
    """
    check_alike(parts, [part.classes for part in parts])
    unknown = [np.full(part.probabilities.shape, np.nan, np.float32) for part in parts]
    return LabelPredictions(
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        split=parts[0].split,
        targets=joined_targets([(part.targets, none) for part, none in zip(parts, unknown, strict=True)]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
        classes=parts[0].classes,
        answered=np.concatenate([part.labels for part in parts]),
        abstained=joined_reasons(parts),
        skipped=tuple(pair for part in parts for pair in part.skipped),
    )


def read_csv(path: Path) -> LabelPredictions:
    """Read a table that `LabelPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, f"{','.join(OWN)},prob_<label>...", OWN)
    classes = classes_of(table.header, path)
    positions = {escaped(name): k for k, name in enumerate(classes)}
    targets = [labels_in(unescape_cell(cells[0]), positions, where) for where, cells in table.rows]
    said = [labels_in(unescape_cell(cells[1]), positions, where) for where, cells in table.rows]
    rows = [numbers(cells[len(OWN) :], where, "probabilities") for where, cells in table.rows]
    shape = (len(rows), len(classes))
    known = np.array(targets, dtype=np.float32).reshape(shape)
    return LabelPredictions(
        paths=table.paths,
        ids=table.ids,
        split=table.split,
        targets=None if np.isnan(known).all() else known,
        probabilities=np.array(rows, dtype=np.float32).reshape(shape),
        classes=classes,
        answered=np.array(said, dtype=np.float32).reshape(shape) >= THRESHOLD,
        abstained=table.abstained,
    )
