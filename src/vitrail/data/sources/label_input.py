"""Convert labels in memory (arrays, tensors, lists, one-hot or not) to a task and targets, and build a `Source`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import DataError
from ...formatting import format_count
from ..labels.codes import take_rows
from ..labels.tasks import PROBABILITY_TOLERANCE, InferredTask, infer_task
from ..settings import DataSettings
from ..source import ImageInput, Source
from .image_input import holds_tensor, tensor_to_array
from .lazy_sequences import SubsetSequence


@dataclass(frozen=True)
class NamedLabels:
    """Labels with the known names of their classes or columns."""

    labels: np.ndarray
    """Indices into the names [n], or one column for each name [n, K]."""
    names: tuple[str, ...]


def infer_labels(
    labels: object,
    count: int,
    settings: DataSettings,
    where: str,
    names: Sequence[str] = (),
    column: str = "",
) -> InferredTask:
    """Infer task and targets from labels: one value per image, or a row of K values per image.

    A row with a single 1 among zeros (one-hot) is one of K, and so is a row of probabilities that sum to 1; other rows
    are K columns of labels or numbers. Integers stored as floats (1.0) are integers.

    Args:
        count: number of images.
        where: the name of the labels in messages.
        names: of the classes, where they are known; integers are then indices into this list.
        column: the name of the labels, where they have one.

    Raises:
        DataError: not one label per image, masks instead of labels, or values of no supported kind.
    """
    if isinstance(labels, NamedLabels):
        names, labels = labels.names, labels.labels
        column = names[0] if len(names) == 1 else column
    values = normalize_labels(labels)
    if len(values) != count:
        raise DataError(
            f"{where}: {format_count(count, 'picture')}, but {format_count(len(values), 'label')}. "
            "Each picture needs one, in order."
        )
    if isinstance(values, np.ndarray):
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim == 2:
            return _infer_from_rows(values, settings, where, names)
        if names and values.dtype.kind in "iu" and settings.label_task in ("auto", "classification"):
            return _infer_from_class_names(values, names, where)
    cells = values.tolist() if isinstance(values, np.ndarray) else values
    has_fractions = any(isinstance(cell, float) and not math.isnan(cell) for cell in cells)
    if has_fractions and all(cell is None or isinstance(cell, int | float) for cell in cells):
        cells = [_float_to_int(cell) for cell in cells]
    column = column or ("value" if has_fractions or settings.label_task == "regression" else "label")
    return infer_task({column: cells}, settings, lambda row: f"{where}, row {row:,}")


def _float_to_int(cell: object) -> object:
    """Convert 1.0 to 1, so that a class is not called 1.0, and NaN to None; other values are kept."""
    if isinstance(cell, float) and math.isnan(cell):
        return None
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def normalize_labels(labels: object) -> np.ndarray | list[object]:
    """Convert labels to an array of numbers or texts [n] or [n, K], or to a list of cells of mixed kinds.

    Raises:
        DataError: not a sequence, or one of masks.
    """
    if holds_tensor(labels):
        labels = tensor_to_array(labels)
    if hasattr(labels, "to_numpy") and not isinstance(labels, np.ndarray):  # a Series of pandas
        labels = labels.to_numpy()
    if isinstance(labels, np.ndarray) and not labels.dtype.hasobject:
        return _check_label_array(labels)
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise DataError(f"Labels must be a list, an array or a tensor, one per picture. Got a {type(labels).__name__}.")
    cells = [_normalize_label(label) for label in labels]
    rows = [cell for cell in cells if isinstance(cell, np.ndarray)]
    if rows and len(rows) == len(cells):
        if len({row.shape for row in rows}) > 1:
            raise DataError("Labels that are rows of numbers must all be equally long, one number per class.")
        return _check_label_array(np.stack(rows))
    if cells and all(type(cell) is int for cell in cells):
        return np.array(cells)
    return cells


def _infer_from_class_names(values: np.ndarray, names: Sequence[str], where: str) -> InferredTask:
    """Encode integers that are indices into a list of class names."""
    beyond = (values < 0) | (values >= len(names))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise DataError(
            f"{where}, row {row:,}: label {values[row]} is none of 0..{len(names) - 1}, for there are {len(names)} "
            f"class names. {format_count(int(np.count_nonzero(beyond)), 'such row')} in all."
        )
    reason = f"Labels are whole numbers that count in a list of {len(names)} class names: one of {len(names)}."
    return InferredTask("classification", tuple(map(str, names)), values.astype(np.int64), reason)


def _check_label_array(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biufSU":
        raise DataError(f"Labels must be whole numbers, fractions or texts. Got an array of {values.dtype}.")
    if values.ndim not in (1, 2) or (values.ndim == 2 and not values.shape[1]):
        hint = " Masks are not learnt, only labels of whole pictures." if values.ndim > 2 else ""
        raise DataError(f"Labels must have the shape [n] or [n, K]. Got {list(values.shape)}.{hint}")
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _normalize_label(label: object) -> object:
    """Convert one label to a plain value or an array [K]; a list of numbers is a row, of texts several labels."""
    if holds_tensor(label):
        label = tensor_to_array(label)
    if isinstance(label, np.generic) or (isinstance(label, np.ndarray) and label.ndim == 0):
        return label.item()
    if isinstance(label, list | tuple) and label and all(isinstance(each, bool | int | float) for each in label):
        return np.asarray(label)
    return label


def _infer_from_rows(values: np.ndarray, settings: DataSettings, where: str, names: Sequence[str]) -> InferredTask:
    columns = tuple(map(str, names)) if len(names) == values.shape[1] else tuple(map(str, range(values.shape[1])))
    if settings.label_task in ("auto", "classification") and values.dtype.kind in "biuf" and len(columns) > 1:
        sums = values.sum(1, dtype=np.float64)
        if np.isin(values, (0, 1)).all() and (sums == 1).all():
            reason = f"Each row of the labels has a single 1 among {len(columns)}: one of {len(columns)}."
            return InferredTask("classification", columns, values.argmax(1).astype(np.int64), reason)
        if (values >= 0).all() and (np.abs(sums - 1) < PROBABILITY_TOLERANCE).all():
            reason = (
                f"Each row of the labels sums to 1: probabilities of {format_count(len(columns), 'class', 'classes')}."
            )
            return InferredTask("classification", columns, (values / sums[:, None]).astype(np.float32), reason)
    cells = {name: values[:, column].tolist() for column, name in enumerate(columns)}
    return infer_task(cells, settings, lambda row: f"{where}, row {row:,}")


# -- Building the source.


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """What is known of images beside their pixels; everything but the targets of `labels` covers all rows."""

    labels: InferredTask
    groups: np.ndarray | None = None
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def build_source(
    name: str, images: Sequence[ImageInput] | np.ndarray, ids: Sequence[str], annotations: Annotations, where: str = ""
) -> Source:
    """Build a source of all rows, or of `annotations.labels.kept_rows`.

    Args:
        images, ids: of all rows.
        where: the name of the source in messages; `name` if empty.

    Raises:
        DataError: val or test has a class that train does not have.
    """
    labels, groups, splits, metadata = annotations.labels, annotations.groups, annotations.splits, annotations.metadata
    kept = labels.kept_rows
    if kept is not None:
        numbers = np.full(len(ids), -1)
        numbers[kept] = np.arange(len(kept))
        images = images[kept] if isinstance(images, np.ndarray) else SubsetSequence(images, kept)
        ids = take_rows(ids, kept)
        groups = None if groups is None else groups[kept]
        splits = {split: numbers[rows][numbers[rows] >= 0] for split, rows in splits.items()}
        metadata = {column: take_rows(values, kept) for column, values in metadata.items()}
    source = Source(
        name=name,
        task=labels.task,
        classes=labels.classes,
        images=images,
        targets=labels.targets,
        ids=ids,
        groups=groups,
        splits=splits,
        reason=labels.reason,
        metadata=metadata,
        notes=(*annotations.notes, *labels.notes),
    )
    _check_split_classes(source, where or name)
    return source


def _check_split_classes(source: Source, name: str) -> None:
    """Refuse a class that is evaluated but not in train: it cannot be learnt."""
    if source.task != "classification" or source.has_soft_labels or "train" not in source.splits:
        return
    learnt = np.bincount(source.targets[source.splits["train"]], minlength=len(source.classes))
    for split, rows in source.splits.items():
        counts = np.bincount(source.targets[rows], minlength=len(source.classes))
        unknown = np.flatnonzero((counts > 0) & (learnt == 0)).tolist()
        if unknown:
            names = ", ".join(
                f"{source.classes[number]!r} ({format_count(int(counts[number]), 'picture')})"
                for number in unknown[:10]
            )
            more = f" and {len(unknown) - 10:,} more" if len(unknown) > 10 else ""
            raise DataError(
                f"{split} of {name} has classes that train does not have: {names}{more}. A model cannot learn them; "
                "add them to train, or remove or rename them."
            )
