"""A trained model's answers to labelled pictures: those it was never shown, or another source with the same classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..data.open import open_source
from ..data.source import SPLITS, Source
from ..errors import DataError, UsageError
from ..evaluate.metrics import Metrics, measure
from ..evaluate.predictions import Predictions, join
from ..predict.predictor import Predictor
from ..train.dataset import open_dataset
from ..train.run import RunFolder

BATCH = 64
ALL = "all"
Counter = Callable[[Iterator[Predictions], int], Iterator[Predictions]]
"""Passes parts on while it shows how many of how many pictures have been answered."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and the answers that it was measured on."""

    metrics: Metrics
    predictions: Predictions
    source: str


@dataclass(frozen=True)
class Labelled:
    """Rows of a source to be answered."""

    source: Source
    rows: NDArray[np.int64]
    split: str


def evaluate(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> Evaluation:
    """Answer every picture and measure; the answers keep the source's names of its pictures.

    Raises:
        DataError: a picture cannot be read (unless `skip_bad`), or the source has a class that the model lacks.
    """
    numbers = class_numbers(labelled.source, predictor.classes)
    answered = _answers(predictor, labelled, numbers, skip_bad)
    predictions = join(list(counted(answered, len(labelled.rows)) if counted else answered))
    return Evaluation(measure(predictions), predictions, labelled.source.name)


def held_out(run: Path, split: str | None) -> Labelled:
    """A split of the pictures that a run was made from, exactly as the run parted them; its test split by default.

    Raises:
        UsageError: not a run folder, no such split, or nothing in it.
    """
    folder = RunFolder.existing(run)
    if not folder.splits_file.is_file():
        raise UsageError(f"The run {run} does not say which pictures it held out: {folder.splits_file} is missing.")
    plan = folder.read_plan()
    dataset = open_dataset(plan.data, plan.seed, stored=folder.splits_file)
    chosen = split or next((name for name in ("test", "val") if len(dataset.splits[name])), "test")
    return _part(dataset.source, dataset.splits, chosen)


def other_source(name: str, split: str | None, data_root: Path | None) -> Labelled:
    """Another source: its published test pictures by default, or all where it has published none.

    Raises:
        DataError: the source cannot be read.
        UsageError: no such split, or nothing in it.
    """
    source = open_source(name, data_root)
    return _part(source, source.splits, split or ("test" if "test" in source.splits else ALL))


def class_numbers(source: Source, classes: Sequence[str]) -> NDArray[np.int64]:
    """For each class of the source its number in the model, by name.

    Raises:
        DataError: the source has classes that the model does not know.
    """
    unknown = [name for name in source.classes if name not in classes]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise DataError(
            f"{source.name} has classes that the model does not know: {shown}. It knows {', '.join(classes[:10])}"
            f"{', ...' if len(classes) > 10 else ''}; rename the source's or leave them out."
        )
    return np.array([list(classes).index(name) for name in source.classes], np.int64)


def _part(source: Source, splits: Mapping[str, NDArray[np.int64]], split: str) -> Labelled:
    if split == ALL:
        return Labelled(source, np.arange(len(source)), ALL)
    if split not in SPLITS:
        raise UsageError(f"The split must be one of {', '.join((*SPLITS, ALL))}. Got {split!r}.")
    rows = splits.get(split, np.zeros(0, np.int64))
    if not len(rows):
        there = ", ".join([name for name, members in splits.items() if len(members)] + [ALL])
        raise UsageError(f"{source.name} has no pictures in its {split} split. It has: {there}.")
    return Labelled(source, rows, split)


def _answers(
    predictor: Predictor, labelled: Labelled, numbers: NDArray[np.int64], skip_bad: bool
) -> Iterator[Predictions]:
    source = labelled.source
    pictures = [source.pictures[row] for row in labelled.rows]
    starts = range(0, len(pictures), BATCH)
    for start, part in zip(starts, predictor.parts(pictures, BATCH, skip_bad), strict=True):
        rows = labelled.rows[start : start + BATCH]
        bad = {path for path, _ in part.skipped}
        kept = [row for row in rows.tolist() if _path(source, row) not in bad]
        yield replace(
            part,
            paths=tuple(_path(source, row) for row in kept),
            ids=tuple(source.ids[row] for row in kept),
            split=labelled.split,
            targets=numbers[source.targets[kept]],
        )


def _path(source: Source, row: int) -> str:
    picture = source.pictures[row]
    return "" if isinstance(picture, np.ndarray) else str(picture)
