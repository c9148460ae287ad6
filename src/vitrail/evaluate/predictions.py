"""Prediction tables of classification, multilabel and regression, written to and read from CSV.

Reports and comparisons are built from these tables and never run the model again. The columns are

    path,id,split,target,label,probability,prob_<class>...[,set],abstain           classes
    path,id,split,target,label,probability,prob_<label>...,abstain                 labels
    path,id,split,target,label,score,p_value,abstain                               anomaly
    path,id,split,target_<column>...,value_<column>...[,low_<column>,high_<column>...],abstain    regression
    path,id,split,target_<class>...,value_<class>...[,overlap_<class>,predicted_<class>,true_<class>...],abstain
                                                                                            segmentation

With data.pixel_size segmentation has `extent,area_<class>...[,area_low_<class>,area_high_<class>...]` too.

Where cases were answered too, `case` and `share` follow. Before `abstain` comes `decision`, the name of the kept
decision that has answered, unless it is the training's own. An empty target is unknown. Cells of labels hold several
names, see `tables.format_label_cell`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Never, TypeVar

import numpy as np

from ..data.csv_injection import escape_cell, unescape_cell
from ..data.labels.defects import ANOMALY_CLASSES, GOOD
from ..data.source import Task
from ..errors import DataError, UsageError
from ..formatting import format_count
from .tables import (
    NO_LABELS,
    ColumnKind,
    PredictionRow,
    PredictionTable,
    TypedColumn,
    escape_name,
    format_float32,
    format_float64,
    format_label_cell,
    parse_label_cell,
    read_rows,
    wrong_header_error,
)

UNKNOWN_CLASS = -1
"""Target of an image of unknown class; an empty cell in the file."""

TARGET_COLUMNS = ("target", "label", "probability")
ANOMALY_COLUMNS = ("target", "label", "score", "p_value")
SET_COLUMN = "set"
"""Column of the conformal set, if sets were requested."""


@dataclass(frozen=True, kw_only=True)
class ClassificationRow(PredictionRow):
    """The predicted class of one image."""

    label: str
    """Name of the predicted class."""
    index: int
    """Its place among the classes."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """The probability of each class, by its name."""
    score: float | None = None
    """Of anomaly: the larger, the less the image looks like good ones."""
    p_value: float | None = None
    """Of anomaly: how often a good image has a score as large."""

    def __str__(self) -> str:
        figure = f"{self.probability:.4f}" if self.p_value is None else f"p {self.p_value:.4g}, score {self.score:.4g}"
        return f"{self.id}: {self.abstain_reason or self.label} ({figure})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassificationPredictions(PredictionTable):
    """Predictions of one class for each of n images.

    `labels` are the n predicted names and `indices` (int64 [n]) their places in the K `classes`; `probabilities` are
    float32 [n, K], `confidences` those of the predicted classes. A run's own threshold may choose another class than
    the most probable one. `paths` and `ids` name the images, `abstained` (bool [n]) and `abstain_reasons` those without
    an answer, `skipped` those that could not be read. `sets` are conformal sets, bool [n, K], if they were asked for.

    Of an anomaly model the classes are good and defect, and an image has a score and a p-value, by which `label` is
    decided. `probabilities` are then the p-value and what it lacks to 1, and no probability of a defect.
    """

    targets: np.ndarray | None
    """int64 [n], indices into `classes`, -1 where unknown; None when no target is known."""
    probabilities: np.ndarray
    """float32 [n, K], rows sum to 1."""
    classes: tuple[str, ...]
    """The K class names, in the order of the model's outputs."""
    predicted: np.ndarray | None = None
    """int64 [n]: the predicted class; None takes the most probable one."""
    sets: np.ndarray | None = None
    """bool [n, K]: conformal sets; None if they were not requested."""
    scores: np.ndarray | None = None
    """float32 [n]: anomaly scores; None for another task."""
    p_values: np.ndarray | None = None
    """float64 [n]: for each score how often that of a good image is as large; None for another task."""
    defect_types: np.ndarray | None = None
    """n names: what the source calls the image, good or the type of its defect; None if it does not say."""

    def __post_init__(self) -> None:
        _check_prediction_shape(self, self.probabilities, self.classes, "class", "classes", "probabilities")
        if self.predicted is not None and self.predicted.shape != (len(self.ids),):
            raise UsageError(f"One answer per picture is needed, {len(self.ids)}. Got {len(self.predicted)}.")
        if self.targets is not None and len(self.targets) != len(self.ids):
            raise UsageError(f"One target per picture is needed, {len(self.ids)}. Got {len(self.targets)}.")
        object.__setattr__(self, "probabilities", self.probabilities.astype(np.float32, copy=False))

    @property
    def indices(self) -> np.ndarray:
        """int64 [n]: the predicted class, as its place in `classes`."""
        if self.predicted is not None:
            return self.predicted
        return self.probabilities.argmax(1) if len(self) else np.zeros(0, np.int64)

    @property
    def labels(self) -> tuple[str, ...]:
        """n names: the predicted class."""
        return tuple(self.classes[k] for k in self.indices.tolist())

    @property
    def target_names(self) -> tuple[str, ...]:
        """n names: the true class, or the type of the defect; "" where it is unknown."""
        if self.defect_types is not None:
            return tuple(self.defect_types.tolist())
        return tuple("" if k == UNKNOWN_CLASS else self.classes[k] for k in _targets_or_unknown(self).tolist())

    @property
    def confidences(self) -> np.ndarray:
        """float32 [n]: the probability of the predicted class."""
        return self.probabilities[np.arange(len(self)), self.indices]

    def __iter__(self) -> Iterator[ClassificationRow]:
        """One row per image, in order."""
        chances, answers = self.probabilities.tolist(), zip(self.labels, self.indices.tolist(), strict=True)
        nothing = [None] * len(self)
        scores = nothing if self.scores is None else self.scores.tolist()
        p_values = nothing if self.p_values is None else self.p_values.tolist()
        rows = zip(self._row_fields(), answers, chances, scores, p_values, strict=True)
        for shared, (label, k), row, score, p_value in rows:
            named = dict(zip(self.classes, row, strict=True))
            yield ClassificationRow(
                **shared, label=label, index=k, probability=row[k], probabilities=named, score=score, p_value=p_value
            )

    def column_names(self) -> list[str]:
        """Target, label, its probability, and that of every class; the set, if there are sets. Of anomaly target,
        label, score and p-value.
        """
        if self.scores is not None:
            return list(ANOMALY_COLUMNS)
        names = [*TARGET_COLUMNS, *(f"prob_{name}" for name in self.classes)]
        return names if self.sets is None else [*names, SET_COLUMN]

    def format_cells(self) -> Iterator[list[str]]:
        """As in `PredictionTable`."""
        if self.scores is not None and self.p_values is not None:
            for target, label, score, p_value in zip(
                self.target_names, self.labels, self.scores.tolist(), self.p_values.tolist(), strict=True
            ):
                yield [escape_cell(target), label, format_float32(score), format_float64(p_value)]
            return
        names, escaped = [escape_cell(name) for name in self.classes], [escape_name(name) for name in self.classes]
        sets = None if self.sets is None else self.sets.astype(float).tolist()
        labels, confidences = self.indices.tolist(), self.confidences.tolist()
        targets = _targets_or_unknown(self)
        for i in range(len(self)):
            target = "" if targets[i] == UNKNOWN_CLASS else names[targets[i]]
            chances = map(format_float32, self.probabilities[i].tolist())
            row = [target, names[labels[i]], format_float32(confidences[i]), *chances]
            yield row if sets is None else [*row, escape_cell(format_label_cell(sets[i], escaped))]

    def typed_columns(self) -> dict[str, TypedColumn]:
        """As in `PredictionTable`; a set is a list of names."""
        target = TypedColumn("text", [name or None for name in self.target_names])
        if self.scores is not None and self.p_values is not None:
            figures = {"score": TypedColumn("number", self.scores), "p_value": TypedColumn("double", self.p_values)}
            return {"target": target, "label": TypedColumn("text", self.labels), **figures}
        columns = {
            "target": target,
            "label": TypedColumn("text", self.labels),
            "probability": TypedColumn("number", self.confidences),
            **{f"prob_{name}": TypedColumn("number", self.probabilities[:, k]) for k, name in enumerate(self.classes)},
        }
        if self.sets is not None:
            sets = [[self.classes[k] for k in np.flatnonzero(row)] for row in self.sets]
            columns[SET_COLUMN] = TypedColumn("names", sets)
        return columns


def read_class_predictions_csv(path: Path) -> ClassificationPredictions:
    """Read a table that `ClassificationPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, f"{','.join(TARGET_COLUMNS)},prob_<class>...", TARGET_COLUMNS)
    with_sets = table.header[-1:] == (SET_COLUMN,)
    classes = _classes_from_header(table.header[:-1] if with_sets else table.header, path)
    positions = {name: k for k, name in enumerate(classes)}
    targets = [_class_index(unescape_cell(cells[0]), positions, where) for where, cells in table.rows]
    chances = slice(len(TARGET_COLUMNS), len(TARGET_COLUMNS) + len(classes))
    rows = [_parse_numbers(cells[chances], where, "probabilities") for where, cells in table.rows]
    labels = [_class_index(unescape_cell(cells[1]), positions, where, "label") for where, cells in table.rows]
    known = np.array(targets, dtype=np.int64)
    sets = None
    if with_sets:
        escaped = {escape_name(name): k for k, name in enumerate(classes)}
        cells_of_sets = [
            parse_label_cell(unescape_cell(cells[-1]), escaped, where, SET_COLUMN) for where, cells in table.rows
        ]
        sets = np.array(cells_of_sets, np.float32).reshape(len(rows), len(classes)) == 1
    return ClassificationPredictions(
        **table.shared,
        targets=known if (known != UNKNOWN_CLASS).any() else None,
        probabilities=np.array(rows, dtype=np.float32).reshape(len(rows), len(classes)),
        classes=classes,
        predicted=np.array(labels, dtype=np.int64),
        sets=sets,
    )


def anomaly_fields(scores: np.ndarray, p_values: np.ndarray, is_defect: np.ndarray) -> dict[str, Any]:
    """The fields of the table of an anomaly model, of its scores [n], p-values [n] and what is a defect, bool [n]."""
    return {
        "classes": ANOMALY_CLASSES,
        "probabilities": np.stack([p_values, 1 - p_values], axis=1),
        "predicted": is_defect.astype(np.int64),
        "scores": scores.astype(np.float32, copy=False),
        "p_values": p_values,
    }


def read_anomaly_predictions_csv(path: Path) -> ClassificationPredictions:
    """Read a table of an anomaly model that `ClassificationPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, ",".join(ANOMALY_COLUMNS), ANOMALY_COLUMNS)
    numbers = np.array([_parse_numbers(cells[2:4], where, "scores") for where, cells in table.rows])
    scores, p_values = numbers.reshape(len(table.rows), 2).T
    positions = {name: k for k, name in enumerate(ANOMALY_CLASSES)}
    labels = [_class_index(cells[1], positions, where, "label") for where, cells in table.rows]
    types = np.array([unescape_cell(cells[0]) for _, cells in table.rows], object)
    targets = np.where(types == "", UNKNOWN_CLASS, types != GOOD).astype(np.int64)
    known = bool((types != "").any())
    return ClassificationPredictions(
        **table.shared,
        **anomaly_fields(scores, p_values, np.array(labels) == 1),
        targets=targets if known else None,
        defect_types=types if known else None,
    )


def _classes_from_header(header: Sequence[str], path: Path) -> tuple[str, ...]:
    """The names after `prob_` in the header of a table of classes or labels."""
    columns = header[len(TARGET_COLUMNS) :]
    if not all(name.startswith("prob_") for name in columns):
        raise wrong_header_error(path, f"{','.join(TARGET_COLUMNS)},prob_<class>...", header)
    return tuple(name.removeprefix("prob_") for name in columns)


def _class_index(name: str, positions: dict[str, int], where: str, column: str = "target") -> int:
    if name not in positions and (name or column == "label"):
        empty = "empty or " if column == "target" else ""
        raise DataError(f"{where}: {column} must be {empty}one of {', '.join(positions)}. Got {name!r}.")
    return positions[name] if name else UNKNOWN_CLASS


# -- Multilabel

LABEL_THRESHOLD = 0.5
"""Default threshold of label probabilities; soft targets count as positive from it on too."""


@dataclass(frozen=True, kw_only=True)
class MultilabelRow(PredictionRow):
    """The predicted labels of one image."""

    labels: tuple[str, ...]
    """Names of the predicted labels; none, one or several."""
    probabilities: dict[str, float]
    """The probability of each label, by its name."""

    def __str__(self) -> str:
        chosen = ", ".join(f"{name} ({self.probabilities[name]:.4f})" for name in self.labels)
        return f"{self.id}: {self.abstain_reason or chosen or NO_LABELS}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MultilabelPredictions(PredictionTable):
    """Predictions of any of K labels for each of n images; the `probability` column is that of the likeliest label.

    `labels` are the predicted names of each image, a tuple; `indices` their places in the K `classes`, and `indicators`
    the same as bool [n, K]. `probabilities` are float32 [n, K], independent of each other. `paths`, `ids`, `abstained`
    and `skipped` are as in `ClassificationPredictions`.
    """

    targets: np.ndarray | None
    """float32 [n, K] in 0..1, NaN where unknown; None when no target is known."""
    probabilities: np.ndarray
    """float32 [n, K], independent of each other."""
    classes: tuple[str, ...]
    """The K names, in the order of the model's outputs; unique and not empty."""
    predicted: np.ndarray | None = None
    """bool [n, K]: the predicted labels; None takes a threshold of 0.5."""

    def __post_init__(self) -> None:
        _check_prediction_shape(self, self.probabilities, self.classes, "label", "labels", "probabilities")
        if self.targets is not None and self.targets.shape != self.probabilities.shape:
            raise UsageError(f"Targets must have shape {self.probabilities.shape}. Got {self.targets.shape}.")
        if self.predicted is not None and self.predicted.shape != self.probabilities.shape:
            raise UsageError(f"Answers must have shape {self.probabilities.shape}. Got {self.predicted.shape}.")
        if len({*self.classes, ""}) <= len(self.classes):
            raise UsageError(f"Every label needs a name of its own. Got {self.classes}.")
        object.__setattr__(self, "probabilities", self.probabilities.astype(np.float32, copy=False))
        if self.targets is not None:
            object.__setattr__(self, "targets", self.targets.astype(np.float32, copy=False))

    @property
    def indicators(self) -> np.ndarray:
        """bool [n, K]: the predicted labels."""
        return self.probabilities >= LABEL_THRESHOLD if self.predicted is None else self.predicted

    @property
    def indices(self) -> tuple[np.ndarray, ...]:
        """n times int64 [number of predicted labels]: their places in `classes`."""
        return tuple(np.flatnonzero(row) for row in self.indicators)

    @property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        """n times the names of the predicted labels; none, one or several."""
        return tuple(tuple(self.classes[k] for k in row.tolist()) for row in self.indices)

    def __iter__(self) -> Iterator[MultilabelRow]:
        """One row per image, in order."""
        for shared, labels, row in zip(self._row_fields(), self.labels, self.probabilities.tolist(), strict=True):
            yield MultilabelRow(**shared, labels=labels, probabilities=dict(zip(self.classes, row, strict=True)))

    @property
    def known_mask(self) -> np.ndarray:
        """bool [n, K]: labels with a known target."""
        return ~np.isnan(_targets_or_unknown(self))

    def column_names(self) -> list[str]:
        """Targets, labels, the highest probability, and that of every label."""
        return [*TARGET_COLUMNS, *(f"prob_{name}" for name in self.classes)]

    def format_cells(self) -> Iterator[list[str]]:
        """As in `PredictionTable`."""
        names = [escape_name(name) for name in self.classes]
        targets, labels = _targets_or_unknown(self).tolist(), self.indicators.astype(float).tolist()
        for target, label, row in zip(targets, labels, self.probabilities.tolist(), strict=True):
            words = [escape_cell(format_label_cell(each, names)) for each in (target, label)]
            yield [*words, format_float32(max(row)), *map(format_float32, row)]

    def typed_columns(self) -> dict[str, TypedColumn]:
        """As in `PredictionTable`; predicted labels are a list, targets a dictionary of 0..1 or None."""
        targets: list[dict[str, float | None] | None] = []
        for row in _targets_or_unknown(self).tolist():
            shares = [None if share != share else share for share in row]
            is_known = any(share is not None for share in shares)
            targets.append(dict(zip(self.classes, shares, strict=True)) if is_known else None)
        return {
            "target": TypedColumn(self.classes, targets),
            "label": TypedColumn("names", [list(names) for names in self.labels]),
            "probability": TypedColumn("number", self.probabilities.max(1)),
            **{f"prob_{name}": TypedColumn("number", self.probabilities[:, k]) for k, name in enumerate(self.classes)},
        }


def read_label_predictions_csv(path: Path) -> MultilabelPredictions:
    """Read a table that `MultilabelPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, f"{','.join(TARGET_COLUMNS)},prob_<label>...", TARGET_COLUMNS)
    classes = _classes_from_header(table.header, path)
    positions = {escape_name(name): k for k, name in enumerate(classes)}
    targets = [parse_label_cell(unescape_cell(cells[0]), positions, where) for where, cells in table.rows]
    labels = [parse_label_cell(unescape_cell(cells[1]), positions, where) for where, cells in table.rows]
    rows = [_parse_numbers(cells[len(TARGET_COLUMNS) :], where, "probabilities") for where, cells in table.rows]
    shape = (len(rows), len(classes))
    known = np.array(targets, dtype=np.float32).reshape(shape)
    return MultilabelPredictions(
        **table.shared,
        targets=None if np.isnan(known).all() else known,
        probabilities=np.array(rows, dtype=np.float32).reshape(shape),
        classes=classes,
        predicted=np.array(labels, dtype=np.float32).reshape(shape) >= LABEL_THRESHOLD,
    )


# -- Regression

EXPECTED_HEADER = "target_<column>...,value_<column>..."
EXTENT = "extent"
"""Column of the area of a whole picture, in squares of the unit of data.pixel_size."""
RANGE_ENDS = ("low", "high")
OVERLAP_PARTS = ("overlap", "predicted", "true", "border", "border_hit", "true_border", "true_border_hit", "sure")


@dataclass(frozen=True, kw_only=True)
class RegressionRow(PredictionRow):
    """The predicted numbers of one image."""

    values: dict[str, float]
    """The number of each column, by its name."""

    def __str__(self) -> str:
        return f"{self.id}: {self.abstain_reason or ', '.join(f'{k} {v:g}' for k, v in self.values.items())}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RegressionPredictions(PredictionTable):
    """Predictions of K numbers for each of n images, in the user's units.

    `values` are float32 [n, K] (float64 where that is too coarse), `columns` the K names, and `ranges` [n, K, 2] the
    conformal intervals if they were asked for. `paths`, `ids` and `skipped` are as in `ClassificationPredictions`.

    Of a segmentation model the columns are its classes, `values` the fraction of the pixels of each, and `masks` uint8
    [n, H, W] the class of every pixel, as its place in `columns`, at the size that the model reads.
    """

    targets: np.ndarray | None
    """float64 [n, K], NaN where unknown; None when no target is known."""
    values: np.ndarray
    """float32 [n, K]: the predictions; float64 where float32 is too coarse for them (`TargetScaling.needs_float64`)."""
    columns: tuple[str, ...]
    """The K names, in the order of the model's outputs."""
    ranges: np.ndarray | None = None
    """[n, K, 2], of the type of the values: conformal ranges, low and high; None if they were not requested."""
    masks: np.ndarray | None = None
    """uint8 [n, H, W]: of segmentation, the class of every pixel; None where not kept, or for another task."""
    confidences: np.ndarray | None = None
    """uint8 [n, H, W]: of segmentation, the probability of that class in 255ths; None as there, or of an exported file,
    which does not give it."""
    overlaps: np.ndarray | None = None
    """float64 [n, K, 8]: of segmentation, the fractions of pixels that are of a class both by answer and by mask, by
    answer where the mask is known, and by mask; that are on its border by answer, of those the ones near its border by
    mask, and the same of mask and answer; then the sum of the confidences by which known pixels are answered as it.
    None without masks to compare with, or for another task."""
    extents: np.ndarray | None = None
    """float64 [n]: of segmentation with data.pixel_size, the area of each picture in squares of its unit, of which
    values and ranges are fractions."""

    def __post_init__(self) -> None:
        _check_prediction_shape(self, self.values, self.columns, "column", "columns", "values")
        if self.targets is not None and self.targets.shape != self.values.shape:
            raise UsageError(f"Targets must have shape {self.values.shape}. Got {self.targets.shape}.")
        if self.values.dtype != np.float64:
            object.__setattr__(self, "values", self.values.astype(np.float32, copy=False))
        if self.targets is not None:
            object.__setattr__(self, "targets", self.targets.astype(np.float64, copy=False))

    @property
    def labels(self) -> Never:
        """There are none; raises AttributeError, as every name that an object does not have."""
        raise AttributeError(
            "Predicted numbers have no labels. Their values [n, K] are in .values, the names of the K columns in "
            f".columns: {', '.join(self.columns)}."
        )

    def __iter__(self) -> Iterator[RegressionRow]:
        """One row per image, in order."""
        for shared, row in zip(self._row_fields(), self.values.tolist(), strict=True):
            yield RegressionRow(**shared, values=dict(zip(self.columns, row, strict=True)))

    @property
    def known_mask(self) -> np.ndarray:
        """bool [n, K]: known targets."""
        return ~np.isnan(_targets_or_unknown(self))

    def column_names(self) -> list[str]:
        """The targets, then the predictions; then their ranges, and areas, if there are any."""
        targets, values = ([f"{what}_{name}" for name in self.columns] for what in ("target", "value"))
        return [*targets, *values, *self._range_columns(), *self.areas]

    @property
    def areas(self) -> dict[str, np.ndarray]:
        """float64 [n] each: `extent`, and `area_CLASS` in squares of the unit of data.pixel_size; with ranges
        `area_low_CLASS` and `area_high_CLASS`. Empty without a pixel size.
        """
        if self.extents is None:
            return {}
        found = {f"area_{name}": self.values[:, k] for k, name in enumerate(self.columns)}
        if self.ranges is not None:
            for k, name in enumerate(self.columns):
                found |= {f"area_{end}_{name}": self.ranges[:, k, place] for place, end in enumerate(RANGE_ENDS)}
        return {EXTENT: self.extents} | {name: part * self.extents for name, part in found.items()}

    def format_cells(self) -> Iterator[list[str]]:
        """As in `PredictionTable`."""
        areas = np.stack([*self.areas.values()], axis=1).tolist() if self.areas else [[]] * len(self)
        rows = zip(_targets_or_unknown(self).tolist(), self.values.tolist(), self._flat_ranges(), areas, strict=True)
        format_value = format_float64 if self.values.dtype == np.float64 else format_float32
        format_end = format_value if self.overlaps is None else format_float64
        for target, value, ends, sizes in rows:
            known = ["" if number != number else format_float64(number) for number in target]
            yield [*known, *map(format_value, value), *map(format_end, ends), *map(format_float64, sizes)]

    def typed_columns(self) -> dict[str, TypedColumn]:
        """As in `PredictionTable`."""
        targets = _targets_or_unknown(self).T.tolist()
        known = [[None if number != number else number for number in column] for column in targets]
        kind: ColumnKind = "double" if self.values.dtype == np.float64 else "number"
        ends = (
            np.array(self._flat_ranges(), np.float64 if self.overlaps is not None else self.values.dtype)
            .reshape(len(self), len(self._range_columns()))
            .T
        )
        return {
            **{f"target_{name}": TypedColumn("double", known[k]) for k, name in enumerate(self.columns)},
            **{f"value_{name}": TypedColumn(kind, self.values[:, k]) for k, name in enumerate(self.columns)},
            **{
                name: TypedColumn(kind if self.overlaps is None else "double", column)
                for name, column in zip(self._range_columns(), ends, strict=True)
            },
            **{name: TypedColumn("double", column) for name, column in self.areas.items()},
        }

    def _range_columns(self) -> list[str]:
        ends = () if self._ranges_or_overlaps is None else OVERLAP_PARTS if self.ranges is None else RANGE_ENDS
        return [f"{end}_{name}" for name in self.columns for end in ends]

    def _flat_ranges(self) -> list[list[float]]:
        """Low, high, low, high, ... of each image, or its overlaps; empty lists without either."""
        if self._ranges_or_overlaps is None:
            return [[]] * len(self)
        ends: list[list[float]] = self._ranges_or_overlaps.reshape(len(self), len(self._range_columns())).tolist()
        return ends

    @property
    def _ranges_or_overlaps(self) -> np.ndarray | None:
        return self.overlaps if self.ranges is None else self.ranges


def class_areas(maps: np.ndarray, num_classes: int) -> np.ndarray:
    """float32 [n, K]: the fraction of the pixels of each image that are of each class, from class maps [n, H, W]."""
    counts = [np.bincount(each.ravel(), minlength=num_classes)[:num_classes] / each.size for each in maps]
    return np.array(counts, np.float32).reshape(len(maps), num_classes)


def add_extents(table: TableT, pixel_size: float, map_areas: np.ndarray) -> TableT:
    """The table of a segmentation model with areas in squares of the unit of `data.pixel_size`; as it is with 0.

    Args:
        map_areas: float64 [n], `ImageSpec.map_area` of each image.
    """
    if not pixel_size or not isinstance(table, RegressionPredictions):
        return table
    return replace(table, extents=map_areas * pixel_size**2)


def read_regression_predictions_csv(path: Path) -> RegressionPredictions:
    """Read a table that `RegressionPredictions.write_csv` wrote.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    table = read_rows(path, EXPECTED_HEADER)
    count = table.header.index(EXTENT) if EXTENT in table.header else len(table.header)
    header = table.header[:count]  # what follows is computed from it
    columns = tuple(name.removeprefix("target_") for name in header if name.startswith("target_"))
    K, last = len(columns), header[-1] if header else ""
    parts = next((each for each in (RANGE_ENDS, OVERLAP_PARTS) if last.startswith(f"{each[-1]}_")), ())
    own = [*(f"target_{name}" for name in columns), *(f"value_{name}" for name in columns)]
    if header != (*own, *(f"{end}_{name}" for name in columns for end in parts)):
        if f"overlap_{columns[0] if columns else ''}" in header:
            raise DataError(
                f"{path} was written by an older version, which counted less of every mask. Evaluate the run again, "
                "for example with vitrail evaluate RUN, or train it anew; its model answers as before."
            )
        raise wrong_header_error(path, EXPECTED_HEADER, table.header)
    targets = [_parse_numbers([cell or "nan" for cell in cells[:K]], where, "targets") for where, cells in table.rows]
    values = [_parse_numbers(cells[K : 2 * K], where, "values") for where, cells in table.rows]
    ends = [_parse_numbers(cells[2 * K : count], where, "ranges") for where, cells in table.rows]
    extents = [_parse_numbers(cells[count : count + 1], where, EXTENT) for where, cells in table.rows]
    known = np.array(targets, dtype=np.float64).reshape(len(targets), K)
    rounded = np.array(values, np.float32).reshape(len(values), K)
    written = (cell for _, cells in table.rows for cell in cells[K : 2 * K])
    exact = all(map(str.__eq__, written, map(format_float32, rounded.ravel().tolist())))
    dtype = np.float32 if exact else np.float64
    return RegressionPredictions(
        **table.shared,
        targets=None if np.isnan(known).all() else known,
        values=np.array(values, dtype).reshape(len(values), K),
        ranges=np.array(ends, dtype).reshape(len(ends), K, 2) if parts == RANGE_ENDS else None,
        overlaps=np.array(ends, np.float64).reshape(len(ends), K, len(parts)) if parts == OVERLAP_PARTS else None,
        extents=np.array(extents, np.float64).ravel() if count < len(table.header) else None,
        columns=columns,
    )


# -- Tables of any task

TaskPredictions = ClassificationPredictions | MultilabelPredictions | RegressionPredictions
TableT = TypeVar("TableT", bound=TaskPredictions)


def concat_predictions(parts: Sequence[TableT]) -> TableT:
    """One table from several of the same task, names and split, in the order given, without their cases.

    Raises:
        UsageError: no parts, or parts of different tasks, names or splits.
    """
    if not parts:
        raise UsageError("Joining predictions needs at least one part. Got none.")
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise UsageError("Predictions to join must be of one task. Got several.")
    for part in parts:
        if (output_names(part), part.split) != (output_names(first), first.split):
            raise UsageError(
                "Predictions to join must share classes and split. "
                f"Got {output_names(first)} of '{first.split}' and {output_names(part)} of '{part.split}'."
            )
        if part.decision != first.decision:
            raise UsageError(
                "Predictions to join must be answered by one decision. "
                f"Got those of {first.decision or 'the training'} and of {part.decision or 'the training'}."
            )
    columns: dict[str, Any] = {
        "targets": None, "abstain_reasons": (), "is_unlike_known": all(part.is_unlike_known for part in parts),
    }  # fmt: skip
    if any(part.targets is not None for part in parts):
        columns["targets"] = np.concatenate([_targets_or_unknown(part) for part in parts])
    if any(part.abstain_reasons for part in parts):
        columns["abstain_reasons"] = tuple(why for part in parts for why in part.abstain_reasons or ("",) * len(part))
    for part in parts:
        for name, values in _array_columns(part).items():
            columns.setdefault(name, []).append(values)
    for name in _array_columns(first):
        columns[name] = None if any(one is None for one in columns[name]) else np.concatenate(columns[name])
    return replace(
        first,
        paths=tuple(path for part in parts for path in part.paths),
        ids=tuple(id for part in parts for id in part.ids),
        skipped=tuple(pair for part in parts for pair in part.skipped),
        case_names=(),  # a case may have images in several parts
        shares=None,
        cases=None,
        **columns,
    )


def _array_columns(table: TaskPredictions) -> dict[str, np.ndarray | None]:
    """The arrays of a table with one row per image, but for the targets."""
    if isinstance(table, RegressionPredictions):
        names = ("values", "ranges", "masks", "confidences", "overlaps", "extents", "distances", "pool_inputs")
        return {name: vars(table)[name] for name in names}
    arrays: dict[str, np.ndarray | None] = {name: vars(table)[name] for name in ("distances", "pool_inputs")}
    arrays["probabilities"] = table.probabilities
    arrays["predicted"] = decision_array(table)
    if isinstance(table, ClassificationPredictions):
        arrays |= {name: vars(table)[name] for name in ("sets", "scores", "p_values", "defect_types")}
    return arrays


def _targets_or_unknown(table: TaskPredictions) -> np.ndarray:
    """The targets; where there are none, an array of unknown ones."""
    if table.targets is not None:
        return table.targets
    if isinstance(table, ClassificationPredictions):
        return np.full(len(table), UNKNOWN_CLASS, np.int64)
    return np.full((len(table), len(output_names(table))), np.nan)


def output_names(table: TaskPredictions) -> tuple[str, ...]:
    """Names of the classes, labels or columns."""
    return table.columns if isinstance(table, RegressionPredictions) else table.classes


def decision_array(table: ClassificationPredictions | MultilabelPredictions) -> np.ndarray:
    """The predicted class of each image, int64 [n], or its predicted labels, bool [n, K]."""
    return table.indicators if isinstance(table, MultilabelPredictions) else table.indices


def reorder_outputs(table: TaskPredictions, names: tuple[str, ...]) -> TaskPredictions:
    """Reorder classes, labels or columns as in `names`, a permutation of the table's names."""
    if output_names(table) == names:
        return table
    places = [output_names(table).index(name) for name in names]
    if isinstance(table, ClassificationPredictions):
        new = np.append(np.argsort(places), UNKNOWN_CLASS)  # old class index -> new one; -1 stays -1
        return replace(
            table,
            classes=names,
            probabilities=table.probabilities[:, places],
            targets=None if table.targets is None else new[table.targets],
            predicted=new[table.indices],
            sets=None if table.sets is None else table.sets[:, places],
        )
    targets = None if table.targets is None else table.targets[:, places]
    if isinstance(table, MultilabelPredictions):
        probabilities, predicted = table.probabilities[:, places], table.indicators[:, places]
        return replace(table, classes=names, probabilities=probabilities, targets=targets, predicted=predicted)
    ranges, overlaps = (None if each is None else each[:, places] for each in (table.ranges, table.overlaps))
    masks = None if table.masks is None else np.argsort(places).astype(np.uint8)[table.masks]
    return replace(
        table, columns=names, values=table.values[:, places], targets=targets, ranges=ranges, masks=masks,
        overlaps=overlaps,
    )  # fmt: skip


def read_predictions_csv(path: Path, task: Task) -> TaskPredictions:
    """Read a predictions file of this task.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    if task == "anomaly":
        return read_anomaly_predictions_csv(path)
    if task == "classification":
        return read_class_predictions_csv(path)
    return read_label_predictions_csv(path) if task == "multilabel" else read_regression_predictions_csv(path)


# -- Parts of the tables


def _check_prediction_shape(
    table: PredictionTable, predictions: np.ndarray, names: tuple[str, ...], thing: str, things: str, what: str
) -> None:
    """Refuse predictions that are not one row per image and one column per name."""
    shape = (len(table.ids), len(names))
    if predictions.shape != shape or len(table.paths) != len(table.ids):
        raise UsageError(
            f"Predictions of {format_count(shape[0], 'id')} and {format_count(shape[1], thing, things)} need {what} of "
            f"shape {shape} and as many "
            f"paths. Got {predictions.shape} and {format_count(len(table.paths), 'path')}."
        )
    if table.abstain_reasons and len(table.abstain_reasons) != len(table.ids):
        raise UsageError(f"One reason per picture is needed, {len(table.ids)}. Got {len(table.abstain_reasons)}.")


def _parse_numbers(cells: Sequence[str], where: str, what: str) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError as problem:
        raise DataError(f"{where}: {what} must be numbers. Got {', '.join(cells)[:200]}.") from problem
