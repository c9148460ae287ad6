"""A trained model's answers to labelled images: those it was never shown, or another source with the same classes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import config
from ..data import split_files
from ..data.checks import findings
from ..data.open import open_source
from ..data.settings import DataSettings
from ..data.source import MANIFEST_EXTENSIONS, SPLITS, ImageInput, Source, Task
from ..data.sources.lazy_sequences import SubsetSequence
from ..errors import DataError, UsageError
from ..evaluate import shortcut_reliance
from ..evaluate.compare import Comparison, compare_predictions
from ..evaluate.predictions import TaskPredictions, concat_predictions
from ..evaluate.shortcut_reliance import MaskedModel, PixelMask, ShortcutReport
from ..evaluate.subgroups import SubgroupReport, compute_subgroups
from ..evaluate.tables import image_path
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..predict.predictor import Predictor
from ..train import cross_validation, dataset
from ..train.cross_validation import OUT_OF_FOLD
from ..train.dataset import class_indices, open_dataset
from ..train.plan import Plan
from ..train.run_folder import RunFolder
from .train_arguments import check_plan_fields

SOURCE_FIELDS = ("task", "path", "targets", "split", "uncertain", "keep_empty", "allow_outside_root", "exclude")
"""Fields of [data] that say how another source is read; the others part one, or belong to the model."""
ALL_IMAGES = "all"
ProgressCallback = Callable[[Iterator[TaskPredictions], int], Iterator[TaskPredictions]]
"""Passes parts on while it shows how many of how many images have been answered."""


TASK_DESCRIPTIONS: dict[Task, tuple[str, str]] = {
    "classes": ("one of {} classes", "one class each"),
    "labels": ("any of {} labels", "a column of zeros and ones for each label, or one of labels joined by |"),
    "number": ("{} columns of numbers", "those numbers"),
}
"""What a model answers with, and what images must have that it is to be measured on."""


@dataclass(frozen=True)
class EvaluationResult:
    """What was measured, and the answers that it was measured on."""

    metrics: TaskMetrics
    predictions: TaskPredictions
    source: str


@dataclass(frozen=True)
class LabelledImages:
    """Rows of a source to be answered."""

    source: Source
    rows: NDArray[np.int64]
    split: str
    notes: tuple[str, ...] = ()
    """What is not as it was when the run began that held them out."""

    @property
    def images(self) -> Sequence[ImageInput]:
        """The images of these rows, each made when it is asked for."""
        return SubsetSequence[ImageInput](self.source.images, self.rows)


def evaluate_model(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> EvaluationResult:
    """Answer every image and measure.

    Raises:
        DataError: as `answer`.
    """
    predictions = predict_labelled(predictor, labelled, skip_bad, progress)
    figures = compute_metrics(
        predictions, predictor.scaling, get_prediction_groups(labelled, predictions), predictor.decisions.ordered
    )
    return EvaluationResult(figures, predictions, labelled.source.name)


def predict_labelled(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> TaskPredictions:
    """Answer every image; the answers keep the source's names of its images, and what these show.

    Raises:
        DataError: an image cannot be read (unless `skip_bad`), or the source has a class that the model lacks, or
            shows something else than the model answers with.
    """
    numbers = match_source_to_model(predictor, labelled)
    answered = (
        replace(part, targets=map_targets(labelled.source, rows, numbers, len(predictor.classes)))
        for rows, part in predict_labelled_batches(predictor, labelled, skip_bad)
    )
    return concat_predictions(list(progress(answered, len(labelled.rows)) if progress else answered))


def match_source_to_model(predictor: Predictor, labelled: LabelledImages) -> NDArray[np.int64]:
    """For each class, label or column of a source its number in a model that answers the same question.

    Raises:
        DataError: it shows something else than the model answers with, or has a class that the model lacks.
    """
    if labelled.source.task != predictor.task:
        says, need = TASK_DESCRIPTIONS[predictor.task]
        raise DataError(
            f"{labelled.source.name} is a source of {labelled.source.task}, and the model answers with "
            f"{says.format(len(predictor.classes))}. Give pictures that have {need}."
        )
    return map_class_indices(labelled.source, predictor.classes)


def predict_labelled_batches(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False
) -> Iterator[tuple[NDArray[np.int64], TaskPredictions]]:
    """Batch by batch the rows that could be read, and the answers to them under the source's names, without targets.

    Raises:
        DataError: an image cannot be read, unless `skip_bad`.
    """
    source, batch_size = labelled.source, predictor.settings.batch_size
    starts = range(0, len(labelled.rows), batch_size)
    for start, part in zip(starts, _predict_batches(predictor, labelled, skip_bad), strict=True):
        rows = labelled.rows[start : start + batch_size]
        bad = {name for name, _ in part.skipped}
        places = enumerate(rows.tolist(), start)
        kept = [row for place, row in places if (image_path(source.images[row]) or str(place)) not in bad]
        named = replace(
            part,
            paths=tuple(image_path(source.images[row]) for row in kept),
            ids=tuple(source.ids[row] for row in kept),
            split=labelled.split,
        )
        yield np.array(kept, np.int64), named


def get_prediction_groups(labelled: LabelledImages, predictions: TaskPredictions) -> np.ndarray | None:
    """The group of each answered image, such as its patient, where the source says which belong together."""
    groups = labelled.source.groups
    return None if groups is None else groups[find_predicted_rows(labelled, predictions)]


def find_predicted_rows(labelled: LabelledImages, predictions: TaskPredictions) -> NDArray[np.int64]:
    """The row of each answered image in the source."""
    if len(predictions) == len(labelled.rows):
        return labelled.rows
    ids, names = labelled.source.ids, set(predictions.ids)
    return np.array([row for row in labelled.rows.tolist() if ids[row] in names], np.int64)


def load_held_out(run: Path, split: str | None, source_object: object | None = None) -> LabelledImages:
    """A split of the images that a run was made from, exactly as the run parted them; its test split by default.

    Args:
        source_object: the object that the run was trained on, if it was one.

    Raises:
        UsageError: not a run folder, no such split, or nothing in it.
        DataError: the data is not what the run was begun with.
    """
    if cross_validation.is_folds_folder(run):
        raise UsageError(
            f"{run} holds several folds, each of which has held out other pictures. Ask one of them, such as "
            f"{cross_validation.first_run_folder(run)}, or give another SOURCE."
        )
    folder = RunFolder.open_existing(run)
    if not folder.splits_file.is_file():
        raise UsageError(f"The run {run} does not say which pictures it held out: {folder.splits_file} is missing.")
    plan = folder.read_plan()
    dataset = open_dataset(plan.data, plan.seed, folder, source_object)
    chosen = split or next((name for name in ("test", "val") if len(dataset.splits[name])), "test")
    return replace(_select_split(dataset.source, dataset.splits, chosen), notes=dataset.notes)


def load_other_source(source: object, split: str | None, settings: DataSettings) -> LabelledImages:
    """Another source: its published test images by default, or all where it has published none.

    Args:
        source: as `open_source` takes it.

    Raises:
        DataError: the source cannot be read.
        UsageError: no such split, or nothing in it.
    """
    found = open_source(source, settings)
    part = _select_split(found, found.splits, split or ("test" if "test" in found.splits else ALL_IMAGES))
    if not settings.exclude:
        return part
    listed = findings.read_exclude_list(Path(settings.exclude).expanduser(), found)
    return replace(part, rows=np.setdiff1d(part.rows, listed))


def build_source_settings(
    model: str | Path,
    source: object,
    changes: Mapping[str, str],
    data_root: Path | None = None,
    task: Task | Literal["auto"] = "classes",
) -> DataSettings:
    """How another source is to be read: as the changes say; a manifest, if a run learnt from one, by the same columns.

    Args:
        task: what the model answers; "auto" for images of any kind, of which nothing is taken over from the run.

    Raises:
        UsageError: a change that is no field of [data].
    """
    check_plan_fields(changes)
    if foreign := [name for name in changes if name.removeprefix("data.") not in SOURCE_FIELDS]:
        raise UsageError(
            f"An evaluation can only be told how to read its pictures, by --data.{', --data.'.join(SOURCE_FIELDS)}. "
            f"Got --{foreign[0]}."
        )
    named = str(source) if isinstance(source, str | Path) else ""
    settings = DataSettings(source=named, data_root=str(data_root or ""), task=task)
    folder = RunFolder(cross_validation.first_run_folder(Path(model)))
    if folder.plan_file.is_file():
        learnt = folder.read_plan().data
        if task != "auto" and _has_manifest_extension(settings.source) and _has_manifest_extension(learnt.source):
            settings = replace(settings, path=learnt.path, targets=learnt.targets, uncertain=learnt.uncertain)
    return config.override(Plan(data=settings), changes).data


def _has_manifest_extension(source: str) -> bool:
    return Path(source).suffix.lower() in MANIFEST_EXTENSIONS


def map_class_indices(source: Source, classes: Sequence[str]) -> NDArray[np.int64]:
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


def _select_split(source: Source, splits: Mapping[str, NDArray[np.int64]], split: str) -> LabelledImages:
    if split == ALL_IMAGES:
        return LabelledImages(source, np.arange(len(source)), ALL_IMAGES)
    if split not in SPLITS:
        raise UsageError(f"The split must be one of {', '.join((*SPLITS, ALL_IMAGES))}. Got {split!r}.")
    rows = splits.get(split, np.zeros(0, np.int64))
    if not len(rows):
        there = ", ".join([name for name, members in splits.items() if len(members)] + [ALL_IMAGES])
        raise UsageError(f"{source.name} has no pictures in its {split} split. It has: {there}.")
    return LabelledImages(source, rows, split)


def _predict_batches(predictor: Predictor, labelled: LabelledImages, skip_bad: bool) -> Iterator[TaskPredictions]:
    try:
        yield from predictor.predict_batches(labelled.images, skip_bad)
    except DataError as error:
        raise explain_unreadable(error) from error


def explain_unreadable(error: DataError) -> DataError:
    """The same, with what a person can do about it."""
    return DataError(f"{error} Put the picture back or mend it, or leave such pictures out with --skip-bad.")


def map_targets(source: Source, rows: NDArray[np.int64], output_indices: NDArray[np.int64], outputs: int) -> np.ndarray:
    """What rows of a source show, as the model counts; labels and columns that the source lacks are not known."""
    if source.task == "classes":
        return output_indices[class_indices(source, rows)]
    targets = np.full((len(rows), outputs), np.nan, np.float32)
    targets[:, output_indices] = source.targets[rows]
    return targets


# Two trained models on the same images, none of which either has learnt from, as far as their runs can tell.


@dataclass(frozen=True)
class ModelComparison:
    """Both models' figures, and what lies between them."""

    first: EvaluationResult
    second: EvaluationResult
    comparison: Comparison


def compare_models(
    first: Predictor,
    second: Predictor,
    labelled: LabelledImages,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> ModelComparison:
    """Let both answer every image, and compare.

    Raises:
        as `evaluate`; DataError: they answer different tasks or names.
    """
    one = evaluate_model(first, labelled, skip_bad, progress)
    other = evaluate_model(second, labelled, skip_bad, progress)
    found = compare_predictions(one.predictions, other.predictions, get_prediction_groups(labelled, one.predictions))
    return ModelComparison(one, other, replace(found, notes=labelled.notes))


def drop_seen_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """The same images without those that a run has learnt from or chosen by, if its data is the same.

    A model that is no run folder does not say what it has seen, and neither does one that learnt from other data; a
    note says so.

    Raises:
        DataError: the run has seen all of them.
    """
    folder = RunFolder(run)
    if not folder.splits_file.is_file():
        return _add_note(labelled, f"{run} does not say which pictures it has learnt from; it may have seen these.")
    if not dataset.is_same_data(folder.data_file, labelled.source):
        return _add_note(
            labelled, f"{run} has learnt from other data; whether it has seen these pictures is not known."
        )
    splits, _ = split_files.read_splits(folder.splits_file, labelled.source)
    kept = np.setdiff1d(labelled.rows, np.concatenate([splits["train"], splits["val"]]))
    if not len(kept):
        raise DataError(
            f"{run} has learnt from all of these {len(labelled.rows):,} pictures, so it cannot be compared on them. "
            "Give another SOURCE, or train both models with the same seed."
        )
    if left := len(labelled.rows) - len(kept):
        text = f"{left:,} pictures that {run} has learnt from are left out; {len(kept):,} are new to both."
        return _add_note(replace(labelled, rows=kept), text)
    return labelled


def note_seen_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """The same images, with a note from how many of them a run, or the folds in a folder, have learnt."""
    runs = [RunFolder(path) for path in cross_validation.fold_folders(run)] or [RunFolder(run)]
    if not all(one.splits_file.is_file() and dataset.is_same_data(one.data_file, labelled.source) for one in runs):
        return labelled
    learnt = [split_files.read_splits(one.splits_file, labelled.source)[0]["train"] for one in runs]
    count = len(np.intersect1d(labelled.rows, np.concatenate(learnt)))
    if not count:
        return labelled
    return _add_note(
        labelled,
        f"{run} has learnt from {count:,} of these {len(labelled.rows):,} pictures with their answers, so the figures "
        f"are too good. Those of the pictures that it has held out: vitrail evaluate {run}",
    )


def _add_note(labelled: LabelledImages, text: str) -> LabelledImages:
    return replace(labelled, notes=(*labelled.notes, text))


# A model's headline figure for every value of a source's further columns, such as view, age or camera.

ALL_COLUMNS = "all"


def evaluate_subgroups(labelled: LabelledImages, predictions: TaskPredictions, columns: str) -> SubgroupReport:
    """The headline figure for every value of some columns.

    Args:
        columns: the name of a column, several with commas between them, or "all".

    Raises:
        UsageError: a column that the source does not have.
    """
    source = labelled.source
    rows = find_predicted_rows(labelled, predictions).tolist()
    cells = {name: [str(source.metadata[name][row]) for row in rows] for name in select_columns(source, columns)}
    return compute_subgroups(predictions, cells, get_prediction_groups(labelled, predictions))


def select_columns(source: Source, columns: str) -> Sequence[str]:
    """The columns that were asked for, in that order.

    Raises:
        UsageError: one that the source does not have.
    """
    there = list(source.metadata)
    if columns == ALL_COLUMNS and there:
        return there
    names = [columns] if columns in there else [name.strip() for name in columns.split(",")]
    if missing := [name for name in names if name not in there]:
        has = f"It has {', '.join(map(repr, there))}" if there else "It has none"
        raise UsageError(
            f"{source.name} has no further column {missing[0]!r} to part the pictures by. {has}; columns come from a "
            "manifest, beside the path and what is learnt."
        )
    return names


# A model asked again with the centre of every image covered, and with the border covered.


def measure_shortcuts(
    predictor: Predictor,
    labelled: LabelledImages,
    predictions: TaskPredictions,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> ShortcutReport:
    """Ask again with the centre covered, then with the border covered, and compare.

    Args:
        predictions: the answers to whole images.

    Raises:
        DataError: as `evaluation.answer`, or nothing can be measured.
    """
    outer = shortcut_reliance.border_mask(*predictor.spec.size)
    border = predict_labelled(mask_predictor(predictor, outer), labelled, skip_bad, progress)
    centre = predict_labelled(mask_predictor(predictor, ~outer), labelled, skip_bad, progress)
    return shortcut_reliance.compare_regions(predictions, border, centre, get_prediction_groups(labelled, predictions))


def mask_predictor(predictor: Predictor, visible: PixelMask) -> Predictor:
    """The same predictor, seeing only some of the pixels; it does not tell unlike images, since all of them are."""
    members = [
        replace(
            one,
            model=MaskedModel(one.model, visible),
            decisions=replace(one.decisions, unlike=None),
            feature_stats=None,
        )
        for one in predictor.members
    ]
    found = Predictor(members)
    found.spec = predictor.spec
    return found


# A training of several folds, measured on the answers of the models that have not seen the images.


def evaluate_out_of_fold(
    path: Path, split: str | None = None, source_object: object | None = None
) -> tuple[LabelledImages, EvaluationResult]:
    """All images that the folds have held out, and what they are worth; no model is asked again.

    Args:
        path: the folder of all folds.
        split: nothing but "out-of-fold" or None; one fold has splits.
        source_object: the object that they were trained on, if it was one.

    Raises:
        UsageError: another split, or a fold that is not done.
        DataError: the data is not what the folds were begun with.
    """
    if split not in (None, OUT_OF_FOLD):
        raise UsageError(
            f"Folds hold out every picture once, so their split is {OUT_OF_FOLD}. Got {split!r}; ask one fold for "
            f"it, such "
            f"as {cross_validation.first_run_folder(path)}."
        )
    whole = cross_validation.load_fold_predictions(path, source_object)
    answers, source = whole.predictions, whole.dataset.source
    labelled = LabelledImages(source, whole.source_rows(answers), OUT_OF_FOLD, whole.dataset.notes)
    return labelled, EvaluationResult(whole.metrics(), answers, source.name)


# The images that a Python program has a run judged on, and a warning of what should be known of them.


def select_evaluation_images(
    run: Path, trained_on: object | None, task: Callable[[], Task], source: object | None, split: str | None
) -> LabelledImages:
    """Those of a source, read as the run's own; without one, those that the run has held out.

    Args:
        trained_on: the object that the run was trained on, if this program has it.
        task: of the run's model, which is opened for it where a source is read.
    """
    if source is None:
        return load_held_out(run, split, trained_on)
    return load_other_source(source, split, build_source_settings(run, source, {}, task=task()))


def warn_of_notes(labelled: LabelledImages) -> LabelledImages:
    """The same images; each of their notes is a UserWarning, of the line outside of the package that asked."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("vitrail."):
        frame, level = frame.f_back, level + 1
    for note in labelled.notes:
        warnings.warn(note, UserWarning, stacklevel=level)
    return labelled
