"""Labels of objects in memory: arrays, tensors and lists, one-hot or not, brought to what `tasks.infer` understands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...errors import DataError
from ..labels.targets import ROUNDING
from ..labels.tasks import Answers, infer
from ..settings import DataSettings
from .given import array_of

COLUMN, NUMBER = "label", "value"
"""What a column of labels, or of fractions, is called where nobody named it."""


@dataclass(frozen=True)
class Named:
    """Labels together with the names of their classes or columns, which are taken as they are and not guessed at."""

    labels: np.ndarray
    """Whole numbers that count in the names [n], or one column for each name [n, K]."""
    names: tuple[str, ...]


def answers_of(
    labels: object,
    count: int,
    settings: DataSettings,
    where: str,
    names: Sequence[str] = (),
    column: str = "",
) -> Answers:
    """The task and targets behind labels: one value a picture, or a row of K values a picture.

    A row with a single 1 among zeros (one-hot) is one of K, and so is a row of probabilities that sum to 1; other rows
    are K columns of labels or numbers. Whole numbers stored as fractions (1.0) are whole numbers.

    Args:
        count: how many pictures there are.
        where: what messages call the labels.
        names: of the classes, where somebody knows them; whole numbers then count in this list.
        column: what the labels are called, where they have a name.

    Raises:
        DataError: not one label a picture, masks instead of labels, or values of no kind.
    """
    if isinstance(labels, Named):
        names, labels = labels.names, labels.labels
        column = names[0] if len(names) == 1 else column
    values = plain(labels)
    if len(values) != count:
        raise DataError(f"{where}: {count:,} pictures, but {len(values):,} labels. Each picture needs one, in order.")
    if isinstance(values, np.ndarray):
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim == 2:
            return _of_rows(values, settings, where, names)
        if names and values.dtype.kind in "iu" and settings.task in ("auto", "classes"):
            return named(values, names, where)
    cells = values.tolist() if isinstance(values, np.ndarray) else values
    has_fractions = any(isinstance(cell, float) and not math.isnan(cell) for cell in cells)
    if has_fractions and all(cell is None or isinstance(cell, int | float) for cell in cells):
        cells = [_whole(cell) for cell in cells]
    return infer({column or (NUMBER if has_fractions else COLUMN): cells}, settings, _place(where))


def _whole(cell: object) -> object:
    """1.0 as 1, so that a class is not called 1.0; anything else as it is, and what is no number as nothing."""
    if isinstance(cell, float) and math.isnan(cell):
        return None
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def plain(labels: object) -> np.ndarray | list[object]:
    """Labels as an array of numbers or texts [n] or [n, K], or as a list of cells where they are of several kinds.

    Raises:
        DataError: no sequence, or one of masks.
    """
    if isinstance(labels, Tensor):
        labels = array_of(labels)
    if hasattr(labels, "to_numpy") and not isinstance(labels, np.ndarray):  # a Series of pandas
        labels = labels.to_numpy()
    if isinstance(labels, np.ndarray) and not labels.dtype.hasobject:
        return _checked(labels)
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise DataError(f"Labels must be a list, an array or a tensor, one per picture. Got a {type(labels).__name__}.")
    cells = [_cell(label) for label in labels]
    if cells and all(isinstance(cell, np.ndarray) for cell in cells):
        if len({cell.shape for cell in cells if isinstance(cell, np.ndarray)}) > 1:
            raise DataError("Labels that are rows of numbers must all be equally long, one number per class.")
        return _checked(np.stack([np.asarray(cell) for cell in cells]))
    if cells and all(type(cell) is int for cell in cells):
        return np.array(cells)
    return cells


def named(values: np.ndarray, names: Sequence[str], where: str) -> Answers:
    """Whole numbers that count in a list of class names.

    Raises:
        DataError: a number beyond the list.
    """
    beyond = (values < 0) | (values >= len(names))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise DataError(
            f"{where}, row {row:,}: label {values[row]} is none of 0..{len(names) - 1}, for there are {len(names)} "
            f"class names. {np.count_nonzero(beyond):,} such rows in all."
        )
    return Answers(
        task="classes",
        classes=tuple(map(str, names)),
        targets=values.astype(np.int64),
        reason=f"Labels are whole numbers that count in a list of {len(names)} class names: one of {len(names)}.",
        notes=(),
    )


def _checked(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biufSU":
        raise DataError(f"Labels must be whole numbers, fractions or texts. Got an array of {values.dtype}.")
    if values.ndim not in (1, 2) or (values.ndim == 2 and not values.shape[1]):
        hint = " Masks are not learnt, only labels of whole pictures." if values.ndim > 2 else ""
        raise DataError(f"Labels must have the shape [n] or [n, K]. Got {list(values.shape)}.{hint}")
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _cell(label: object) -> object:
    """One label as a plain value, or as an array [K]; nested lists of numbers are rows, of texts several labels."""
    if isinstance(label, Tensor):
        label = array_of(label)
    if isinstance(label, np.generic) or (isinstance(label, np.ndarray) and label.ndim == 0):
        return label.item()
    if isinstance(label, list | tuple) and label and all(isinstance(each, bool | int | float) for each in label):
        return np.asarray(label)
    return label


def _of_rows(values: np.ndarray, settings: DataSettings, where: str, names: Sequence[str]) -> Answers:
    columns = tuple(map(str, names)) if len(names) == values.shape[1] else tuple(map(str, range(values.shape[1])))
    if settings.task in ("auto", "classes") and values.dtype.kind in "biuf" and len(columns) > 1:
        sums = values.sum(1, dtype=np.float64)
        if np.isin(values, (0, 1)).all() and (sums == 1).all():
            reason = f"Each row of the labels has a single 1 among {len(columns)}: one of {len(columns)}."
            return _classes(columns, values.argmax(1).astype(np.int64), reason)
        if (values >= 0).all() and (np.abs(sums - 1) < ROUNDING).all():
            reason = f"Each row of the labels sums to 1: probabilities of {len(columns)} classes."
            return _classes(columns, (values / sums[:, None]).astype(np.float32), reason)
    cells = {name: values[:, column].tolist() for column, name in enumerate(columns)}
    return infer(cells, settings, _place(where))


def _classes(columns: tuple[str, ...], targets: np.ndarray, reason: str) -> Answers:
    return Answers(task="classes", classes=columns, targets=targets, reason=reason, notes=())


def _place(where: str) -> Callable[[int], str]:
    return lambda row: f"{where}, row {row:,}"
