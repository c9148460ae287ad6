"""The table of answers to the task `number`: one or more numbers for each picture, in the user's units.

`path,id,split,target_<column>...,value_<column>...,abstain`; an empty target is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import UsageError
from .table import (
    Table,
    check_alike,
    check_shape,
    digits,
    joined_reasons,
    joined_targets,
    numbers,
    read_rows,
    wrong_header,
)

EXPECTED = "target_<column>...,value_<column>..."


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberPredictions(Table):
    """What a model said of n pictures, with K numbers each."""

    targets: np.ndarray | None
    """float32 [n, K], NaN where unknown; None when no target is known."""
    values: np.ndarray
    """float32 [n, K]: the answers."""
    columns: tuple[str, ...]
    """The K names, in the order of the model's outputs."""

    def __post_init__(self) -> None:
        check_shape(self, self.values, self.columns, "columns need values")
        if self.targets is not None and self.targets.shape != self.values.shape:
            raise UsageError(f"Targets must have shape {self.values.shape}. Got {self.targets.shape}.")
        object.__setattr__(self, "values", self.values.astype(np.float32, copy=False))
        if self.targets is not None:
            object.__setattr__(self, "targets", self.targets.astype(np.float32, copy=False))

    @property
    def known(self) -> np.ndarray:
        """bool [n, K]: which targets are known."""
        return np.zeros(self.values.shape, bool) if self.targets is None else ~np.isnan(self.targets)

    def header(self) -> list[str]:
        """The targets, then the answers."""
        return [*(f"target_{name}" for name in self.columns), *(f"value_{name}" for name in self.columns)]

    def cells(self) -> Iterator[list[str]]:
        """As `Table` says."""
        for target, value in zip(self._targets().tolist(), self.values.tolist(), strict=True):
            yield [*("" if number != number else digits(number) for number in target), *map(digits, value)]

    def records(self) -> list[dict[str, object]]:
        """As `Table` says."""
        said = zip(self.values.tolist(), self.told(), strict=True)
        rows = zip(self.paths, self.ids, self._targets().tolist(), said, strict=True)
        return [
            {
                "path": path,
                "id": id,
                "split": self.split,
                **{
                    f"target_{name}": None if number != number else number
                    for name, number in zip(self.columns, target, strict=True)
                },
                **{f"value_{name}": number for name, number in zip(self.columns, value, strict=True)},
                "abstain": why,
            }
            for path, id, target, (value, why) in rows
        ]

    def _targets(self) -> np.ndarray:
        return np.full(self.values.shape, np.nan, np.float32) if self.targets is None else self.targets


def join(parts: Sequence[NumberPredictions]) -> NumberPredictions:
    """One table from several over the same columns and split, in the order given.

    Raises:
        UsageError: no parts, or parts of different columns or splits.
    """
    check_alike(parts, [part.columns for part in parts])
    unknown = [np.full(part.values.shape, np.nan, np.float32) for part in parts]
    return NumberPredictions(
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        split=parts[0].split,
        targets=joined_targets([(part.targets, none) for part, none in zip(parts, unknown, strict=True)]),
        values=np.concatenate([part.values for part in parts]),
        columns=parts[0].columns,
        abstained=joined_reasons(parts),
        skipped=tuple(pair for part in parts for pair in part.skipped),
    )


def read_csv(path: Path) -> NumberPredictions:
    """Read a table that `NumberPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, EXPECTED)
    K = len(table.header) // 2
    columns = tuple(name.removeprefix("target_") for name in table.header[:K])
    if table.header != (*(f"target_{name}" for name in columns), *(f"value_{name}" for name in columns)):
        raise wrong_header(path, EXPECTED, table.header)
    targets = [numbers([cell or "nan" for cell in cells[:K]], where, "targets") for where, cells in table.rows]
    values = [numbers(cells[K:], where, "values") for where, cells in table.rows]
    known = np.array(targets, dtype=np.float32).reshape(len(targets), K)
    return NumberPredictions(
        paths=table.paths,
        ids=table.ids,
        split=table.split,
        targets=None if np.isnan(known).all() else known,
        values=np.array(values, dtype=np.float32).reshape(len(values), K),
        columns=columns,
        abstained=table.abstained,
    )
