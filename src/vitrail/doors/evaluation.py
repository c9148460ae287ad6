"""A trained model's answers to labelled pictures: those it was never shown, or another source with the same classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import config
from ..data.checks import findings
from ..data.open import open_source
from ..data.settings import DataSettings
from ..data.source import MANIFEST_EXTENSIONS, SPLITS, ImageInput, Source, Task
from ..data.sources.lazy_sequences import SubsetSequence
from ..errors import DataError, UsageError
from ..evaluate.prediction_tables import TaskPredictions, concat_predictions
from ..evaluate.tables import image_path
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..predict.predictor import Predictor
from ..train import cross_validation
from ..train.dataset import class_indices, open_dataset
from ..train.plan import Plan
from ..train.run_folder import RunFolder
from .wishes import check_names

BATCH = 64
READS = ("task", "path", "targets", "split", "uncertain", "keep_empty", "allow_outside_root", "exclude")
"""Fields of [data] that say how another source is read; the others part one, or belong to the model."""
ALL = "all"
Counter = Callable[[Iterator[TaskPredictions], int], Iterator[TaskPredictions]]
"""Passes parts on while it shows how many of how many pictures have been answered."""


ANSWERS: dict[Task, tuple[str, str]] = {
    "classes": ("one of {} classes", "one class each"),
    "labels": ("any of {} labels", "a column of zeros and ones for each label, or one of labels joined by |"),
    "number": ("{} columns of numbers", "those numbers"),
}
"""What a model answers with, and what pictures must have that it is to be measured on."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and the answers that it was measured on."""

    metrics: TaskMetrics
    predictions: TaskPredictions
    source: str


@dataclass(frozen=True)
class Labelled:
    """Rows of a source to be answered."""

    source: Source
    rows: NDArray[np.int64]
    split: str
    notes: tuple[str, ...] = ()
    """What is not as it was when the run began that held them out."""

    @property
    def pictures(self) -> Sequence[ImageInput]:
        """The pictures of these rows, each made when it is asked for."""
        return SubsetSequence[ImageInput](self.source.pictures, self.rows)


def evaluate(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> Evaluation:
    """Answer every picture and measure.

    Raises:
        DataError: as `answer`.
    """
    predictions = answer(predictor, labelled, skip_bad, counted)
    figures = compute_metrics(
        predictions, predictor.scaling, groups_of(labelled, predictions), predictor.decided.ordered
    )
    return Evaluation(figures, predictions, labelled.source.name)


def answer(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False, counted: Counter | None = None
) -> TaskPredictions:
    """Answer every picture; the answers keep the source's names of its pictures, and what these show.

    Raises:
        DataError: a picture cannot be read (unless `skip_bad`), or the source has a class that the model lacks, or
            shows something else than the model answers with.
    """
    numbers = fitting(predictor, labelled)
    answered = (
        replace(part, targets=targets_of(labelled.source, rows, numbers, len(predictor.classes)))
        for rows, part in answered_parts(predictor, labelled, skip_bad)
    )
    return concat_predictions(list(counted(answered, len(labelled.rows)) if counted else answered))


def fitting(predictor: Predictor, labelled: Labelled) -> NDArray[np.int64]:
    """For each class, label or column of a source its number in a model that answers the same question.

    Raises:
        DataError: it shows something else than the model answers with, or has a class that the model lacks.
    """
    if labelled.source.task != predictor.task:
        says, need = ANSWERS[predictor.task]
        raise DataError(
            f"{labelled.source.name} is a source of {labelled.source.task}, and the model answers with "
            f"{says.format(len(predictor.classes))}. Give pictures that have {need}."
        )
    return class_numbers(labelled.source, predictor.classes)


def answered_parts(
    predictor: Predictor, labelled: Labelled, skip_bad: bool = False
) -> Iterator[tuple[NDArray[np.int64], TaskPredictions]]:
    """Batch by batch the rows that could be read, and the answers to them under the source's names, without targets.

    Raises:
        DataError: a picture cannot be read, unless `skip_bad`.
    """
    source = labelled.source
    starts = range(0, len(labelled.rows), BATCH)
    for start, part in zip(starts, _parts(predictor, labelled, skip_bad), strict=True):
        rows = labelled.rows[start : start + BATCH]
        bad = {name for name, _ in part.skipped}
        places = enumerate(rows.tolist(), start)
        kept = [row for place, row in places if (image_path(source.pictures[row]) or str(place)) not in bad]
        named = replace(
            part,
            paths=tuple(image_path(source.pictures[row]) for row in kept),
            ids=tuple(source.ids[row] for row in kept),
            split=labelled.split,
        )
        yield np.array(kept, np.int64), named


def groups_of(labelled: Labelled, answered: TaskPredictions) -> np.ndarray | None:
    """The group of each answered picture, such as its patient, where the source says which belong together."""
    groups = labelled.source.groups
    return None if groups is None else groups[rows_of(labelled, answered)]


def rows_of(labelled: Labelled, answered: TaskPredictions) -> NDArray[np.int64]:
    """The row of each answered picture in the source."""
    if len(answered) == len(labelled.rows):
        return labelled.rows
    ids, names = labelled.source.ids, set(answered.ids)
    return np.array([row for row in labelled.rows.tolist() if ids[row] in names], np.int64)


def held_out(run: Path, split: str | None, given: object | None = None) -> Labelled:
    """A split of the pictures that a run was made from, exactly as the run parted them; its test split by default.

    Args:
        given: the object that the run was trained on, if it was one.

    Raises:
        UsageError: not a run folder, no such split, or nothing in it.
        DataError: the data is not what the run was begun with.
    """
    if cross_validation.is_folds_folder(run):
        raise UsageError(
            f"{run} holds several folds, each of which has held out other pictures. Ask one of them, such as "
            f"{cross_validation.first_run_folder(run)}, or give another SOURCE."
        )
    folder = RunFolder.existing(run)
    if not folder.splits_file.is_file():
        raise UsageError(f"The run {run} does not say which pictures it held out: {folder.splits_file} is missing.")
    plan = folder.read_plan()
    dataset = open_dataset(plan.data, plan.seed, folder, given)
    chosen = split or next((name for name in ("test", "val") if len(dataset.splits[name])), "test")
    return replace(_part(dataset.source, dataset.splits, chosen), notes=dataset.notes)


def other_source(source: object, split: str | None, settings: DataSettings) -> Labelled:
    """Another source: its published test pictures by default, or all where it has published none.

    Args:
        source: as `open_source` takes it.

    Raises:
        DataError: the source cannot be read.
        UsageError: no such split, or nothing in it.
    """
    found = open_source(source, settings)
    part = _part(found, found.splits, split or ("test" if "test" in found.splits else ALL))
    if not settings.exclude:
        return part
    listed = findings.read_exclude_list(Path(settings.exclude).expanduser(), found)
    return replace(part, rows=np.setdiff1d(part.rows, listed))


def reading(
    model: str | Path,
    source: object,
    changes: Mapping[str, str],
    data_root: Path | None = None,
    task: Task | Literal["auto"] = "classes",
) -> DataSettings:
    """How another source is to be read: as the changes say; a manifest, if a run learnt from one, by the same columns.

    Args:
        task: what the model answers; "auto" for pictures of any kind, of which nothing is taken over from the run.

    Raises:
        UsageError: a change that is no field of [data].
    """
    check_names(changes)
    if foreign := [name for name in changes if name.removeprefix("data.") not in READS]:
        raise UsageError(
            f"An evaluation can only be told how to read its pictures, by --data.{', --data.'.join(READS)}. "
            f"Got --{foreign[0]}."
        )
    named = str(source) if isinstance(source, str | Path) else ""
    settings = DataSettings(source=named, data_root=str(data_root or ""), task=task)
    folder = RunFolder(cross_validation.first_run_folder(Path(model)))
    if folder.plan_file.is_file():
        learnt = folder.read_plan().data
        if task != "auto" and _is_manifest(settings.source) and _is_manifest(learnt.source):
            settings = replace(settings, path=learnt.path, targets=learnt.targets, uncertain=learnt.uncertain)
    return config.override(Plan(data=settings), changes).data


def _is_manifest(source: str) -> bool:
    return Path(source).suffix.lower() in MANIFEST_EXTENSIONS


def class_numbers(source: Source, classes: Sequence[str]) -> NDArray[np.int64]:
    """For each class, label or column of the source its number in the model, by name.

    Raises:
        DataError: the source has classes that the model does not know.
    """
    unknown = [name for name in source.classes if name not in classes]
    if unknown:
        what = {"classes": "classes", "labels": "labels", "number": "columns"}[source.task]
        shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise DataError(
            f"{source.name} has {what} that the model does not know: {shown}. It knows {', '.join(classes[:10])}"
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


def _parts(predictor: Predictor, labelled: Labelled, skip_bad: bool) -> Iterator[TaskPredictions]:
    try:
        yield from predictor.parts(labelled.pictures, BATCH, skip_bad)
    except DataError as error:
        raise unreadable(error) from error


def unreadable(why: DataError) -> DataError:
    """The same, with what a person can do about it."""
    return DataError(f"{why} Put the picture back or mend it, or leave such pictures out with --skip-bad.")


def targets_of(source: Source, rows: NDArray[np.int64], numbers: NDArray[np.int64], outputs: int) -> np.ndarray:
    """What rows of a source show, as the model counts; labels and columns that the source lacks are not known."""
    if source.task == "classes":
        return numbers[class_indices(source, rows)]
    targets = np.full((len(rows), outputs), np.nan, np.float32)
    targets[:, numbers] = source.targets[rows]
    return targets
