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
    Column,
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

EXPECTED = "target_<column>...,value_<column>..."
ENDS = ("low", "high")


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberPredictions(Table):
    """What a model said of n pictures, with K numbers each."""

    targets: np.ndarray | None
    """float32 [n, K], NaN where unknown; None when no target is known."""
    values: np.ndarray
    """float32 [n, K]: the answers."""
    columns: tuple[str, ...]
    """The K names, in the order of the model's outputs."""
    ranges: np.ndarray | None = None
    """float32 [n, K, 2]: from where to where each number lies as often as was promised; None if nobody asked."""

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
        """The targets, then the answers; their ranges, if there are any."""
        targets, values = ([f"{what}_{name}" for name in self.columns] for what in ("target", "value"))
        return [*targets, *values, *self._ends()]

    def cells(self) -> Iterator[list[str]]:
        """As `Table` says."""
        told = zip(self._targets().tolist(), self.values.tolist(), self._flat_ranges(), strict=True)
        for target, value, ends in told:
            known = ["" if number != number else digits(number) for number in target]
            yield [*known, *map(digits, value), *map(digits, ends)]

    def own_columns(self) -> dict[str, Column]:
        """As `Table` says."""
        known = [[None if number != number else number for number in column] for column in self._targets().T.tolist()]
        ends = np.array(self._flat_ranges(), np.float32).reshape(len(self), len(self._ends())).T
        return {
            **{f"target_{name}": Column("number", column) for name, column in zip(self.columns, known, strict=True)},
            **{f"value_{name}": Column("number", self.values[:, k]) for k, name in enumerate(self.columns)},
            **{name: Column("number", column) for name, column in zip(self._ends(), ends, strict=True)},
        }

    def _ends(self) -> list[str]:
        return [] if self.ranges is None else [f"{end}_{name}" for name in self.columns for end in ENDS]

    def _flat_ranges(self) -> list[list[float]]:
        """Of each picture low, high, low, high, ...; nothing where there are no ranges."""
        if self.ranges is None:
            return [[]] * len(self)
        found: list[list[float]] = self.ranges.reshape(len(self), 2 * len(self.columns)).tolist()
        return found

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
        ranges=joined_extras([part.ranges for part in parts]),
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
    with_ranges = bool(table.header) and table.header[-1].startswith(f"{ENDS[1]}_")
    K = len(table.header) // (4 if with_ranges else 2)
    columns = tuple(name.removeprefix("target_") for name in table.header[:K])
    own = [*(f"target_{name}" for name in columns), *(f"value_{name}" for name in columns)]
    if table.header != (*own, *(f"{end}_{name}" for name in columns for end in ENDS if with_ranges)):
        raise wrong_header(path, EXPECTED, table.header)
    targets = [numbers([cell or "nan" for cell in cells[:K]], where, "targets") for where, cells in table.rows]
    values = [numbers(cells[K : 2 * K], where, "values") for where, cells in table.rows]
    ends = [numbers(cells[2 * K :], where, "ranges") for where, cells in table.rows]
    known = np.array(targets, dtype=np.float32).reshape(len(targets), K)
    return NumberPredictions(
        paths=table.paths,
        ids=table.ids,
        split=table.split,
        targets=None if np.isnan(known).all() else known,
        values=np.array(values, dtype=np.float32).reshape(len(values), K),
        ranges=np.array(ends, np.float32).reshape(len(ends), K, 2) if with_ranges else None,
        columns=columns,
        abstained=table.abstained,
    )
