"""Data sets of torch: anything with a length that gives (picture, label) for a row, torchvision's among them.

Labels are collected once, when the data set is opened; pictures are fetched when they are needed, one at a time,
because nobody knows whether the data set's own code bears several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from ...errors import DataError
from ..honoured import refuse_others
from ..settings import DataSettings
from ..source import Source
from .answers import answers_of, plain
from .assemble import assemble
from .rows import Items, Numbered

MOST = 100
"""Rows that are asked whether the listed labels are theirs."""


def open_dataset(dataset: Any, settings: DataSettings) -> Source:
    """A map-style data set whose rows are (picture, label).

    Labels are taken from `.targets` or `.labels` where there are such and three rows agree with them, else every row
    is asked for its label. `.classes` names the classes. A transform of the data set's own runs whenever a picture is
    fetched.

    Raises:
        DataError: no rows, or rows that are no (picture, label).
    """
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        from .objects import open_two

        return open_two(*dataset.tensors, settings)
    refuse_others(settings, "torch data set", f"a {_kind(dataset)}")
    count = len(dataset)
    if not count:
        raise DataError(f"This {_kind(dataset)} has no rows.")
    _row(dataset, 0)
    labels, notes = _labels(dataset, count)
    ids = Numbered("", count)
    pictures = Items(
        ids,
        lambda row: f"{_kind(dataset)} {count} {row}",
        lambda row: _row(dataset, row)[0],
        one_at_a_time=True,
    )
    answers = answers_of(labels, count, settings, f"labels of this {_kind(dataset)}", _class_names(dataset))
    return assemble(_kind(dataset).lower(), pictures, ids, answers, notes=notes)


def _kind(dataset: Any) -> str:
    return type(_inner(dataset)).__name__


def _inner(dataset: Any) -> Any:
    """The data set of which others are parts."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _row(dataset: Any, row: int) -> tuple[object, object]:
    """One row, checked."""
    try:
        found = dataset[row]
    except Exception as error:  # somebody's own code can raise anything
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"Row {row:,} of this {_kind(dataset)} cannot be read ({type(error).__name__}: {said})."
        ) from error
    if not isinstance(found, list | tuple) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, list | tuple | dict) else ""
        raise DataError(
            f"Row {row:,} of this {_kind(dataset)} is a {type(found).__name__}{size}, expected (picture, label). Wrap "
            "the data set in one whose __getitem__ returns the two."
        )
    return found[0], found[1]


def _labels(dataset: Any, count: int) -> tuple[object, tuple[str, ...]]:
    """One label a row, and what is to be noted."""
    notes = []
    if any(_attribute(dataset, name) is not None for name in ("transform", "transforms")):
        notes.append(
            f"This {_kind(dataset)} has a transform of its own, which runs first: leave random ones and normalisation "
            "to Vitrail."
        )
    known, why = _known_labels(dataset), "for it has no list of labels"
    if known is not None and len(known) == count:
        firsts = {str(known[row]): row for row in reversed(range(count))}  # a row of every label
        rows = {0, count // 2, count - 1, *sorted(firsts.values())[:MOST]}
        if all(_same(known[row], _row(dataset, row)[1]) for row in sorted(rows)):
            return known, tuple(notes)
        why = "for the labels that it lists are not those that its rows give"
    notes.append(f"Every row of this {_kind(dataset)} was read once for its label, {why}.")
    return [_row(dataset, row)[1] for row in range(count)], tuple(notes)


def _known_labels(dataset: Any) -> np.ndarray | list[object] | None:
    """The labels that a data set lists, without touching a picture; None where it does not."""
    if isinstance(dataset, Subset):
        inner = _known_labels(dataset.dataset)
        return None if inner is None else [inner[int(row)] for row in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [_known_labels(part) for part in dataset.datasets]
        there = [part for part in parts if part is not None]
        return [label for part in there for label in part] if len(there) == len(parts) else None
    if _attribute(dataset, "target_transform") is not None:
        return None
    for found in (_attribute(dataset, "targets"), _attribute(dataset, "labels")):
        if isinstance(found, Tensor | np.ndarray) or (isinstance(found, Sequence) and not isinstance(found, str)):
            return plain(found)
    return None


def _class_names(dataset: Any) -> Sequence[str]:
    """Names that a data set gives its classes; none where it gives none, or something else."""
    found = _attribute(dataset, "classes")
    if isinstance(found, list | tuple) and len(found) > 1 and all(isinstance(name, str) for name in found):
        return found
    return ()


def _attribute(dataset: Any, name: str) -> Any:
    return getattr(_inner(dataset), name, None)


def _same(one: object, other: object) -> bool:
    one, other = (np.asarray(each.cpu() if isinstance(each, Tensor) else each) for each in (one, other))
    return one.shape == other.shape and bool((one == other).all())
