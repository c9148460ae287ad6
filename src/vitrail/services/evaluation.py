"""Evaluation of a trained model on its held-out images or another source: metrics, comparison, subgroups, shortcuts."""

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
from ..config.python_spelling import to_python
from ..data import split_files
from ..data.checks import findings
from ..data.labels.codes import take_rows
from ..data.labels.defects import get_defect_types
from ..data.open import open_source
from ..data.settings import DataSettings
from ..data.source import MANIFEST_EXTENSIONS, SPLITS, ImageInput, Source, Task
from ..data.sources.lazy_sequences import SubsetSequence
from ..errors import DataError, UsageError
from ..evaluate import shortcut_reliance
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.compare import Comparison, compare_predictions
from ..evaluate.inference import MaskedModel
from ..evaluate.mask_overlap import measure_overlaps
from ..evaluate.pixel_metrics import measure_pixels
from ..evaluate.predictions import (
    ClassificationPredictions,
    RegressionPredictions,
    TaskPredictions,
    concat_predictions,
    output_names,
)
from ..evaluate.shortcut_reliance import PixelMask, ShortcutReport
from ..evaluate.subgroups import SubgroupReport, compute_subgroups
from ..evaluate.tables import image_path
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..formatting import format_count, format_some, format_these
from ..model.vit import ViT
from ..predict.predictor import Predictor
from ..report.cards import list_copy_warnings
from ..report.decision_section import decide_run
from ..spec import ImageSpec
from ..train import cross_validation, dataset
from ..train.cross_validation import ENSEMBLE_UNMEASURED, OUT_OF_FOLD
from ..train.dataset import class_indices, open_dataset
from ..train.plan import Plan
from ..train.run_folder import RunFolder, find_run, first_run_folder, is_folds_folder
from ..train.seen_images import HASHED_SPLITS, SeenCopies, SeenImages, find_copies, read_seen_images
from .train_arguments import check_plan_fields

SOURCE_FIELDS = (
    "task", "good", "legend", "path", "targets", "split", "group", "decimal", "uncertain", "class_level", "keep_empty",
    "allow_outside_root", "exclude",
)  # fmt: skip
"""Fields of [data] that apply to another source; the others concern splits or the model."""
ALL_IMAGES = "all"
ProgressCallback = Callable[[Iterator[TaskPredictions], int], Iterator[TaskPredictions]]
"""Passes batches on and shows progress towards a number of images."""


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics and the predictions that they were computed from."""

    metrics: TaskMetrics
    predictions: TaskPredictions
    source: str
    seen: SeenCopies | None = None
    """As in `LabelledImages`."""
    warning: str = ""
    """As `LabelledImages.warning`."""
    cases: TaskMetrics | None = None
    """Metrics of the cases of these images, where the model answers cases and the images have groups."""


@dataclass(frozen=True)
class LabelledImages:
    """Rows of a labelled source, to evaluate a model on."""

    source: Source
    rows: NDArray[np.int64]
    split: str
    notes: tuple[str, ...] = ()
    """Notes for the user, such as changes of the data since the training."""
    seen: SeenCopies | None = None
    """Which of them the model has seen in its training; None where that was not asked or is unknown."""
    warning: str = ""
    """Why metrics on these images are too good, because the model has seen them; it goes wherever the metrics go."""

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and the warning if there is one."""
        return (*self.notes, self.warning) if self.warning else self.notes

    @property
    def images(self) -> Sequence[ImageInput]:
        """The images of these rows, loaded lazily."""
        return SubsetSequence[ImageInput](self.source.images, self.rows)


def evaluate_model(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> EvaluationResult:
    """Predict every image and compute metrics.

    Raises:
        DataError: as `predict_labelled`.
    """
    predictions = predict_labelled(predictor, labelled, skip_bad, progress)
    groups = get_prediction_groups(labelled, predictions)
    decisions, cases = predictor.decisions, None
    metrics = compute_metrics(predictions, predictor.scaling, groups, decisions.ordered, decisions.promise)
    if predictor.case_pool is not None and groups is not None:
        predictions = predictor.add_cases(predictions, groups)
        assert predictions.cases is not None
        cases = compute_metrics(predictions.cases, predictor.scaling, None, decisions.ordered)
    if isinstance(metrics, AnomalyMetrics):
        member = predictor.single_member()
        assert isinstance(member.model, ViT)
        rows = find_predicted_rows(labelled, predictions)
        fields = measure_pixels(member.model, labelled.source, rows, predictor.spec, member.settings, groups)
        metrics = replace(metrics, **fields)
    return EvaluationResult(metrics, predictions, labelled.source.name, labelled.seen, labelled.warning, cases)


def require_picture_answers(task: Task, what: str) -> None:
    """Refuse something that is asked of answers for whole images.

    Raises:
        UsageError: the model answers pixels.
    """
    if task == "segmentation":
        raise UsageError(f"{what} looks at one answer for each picture, and a segmentation model answers every pixel.")


def predict_labelled(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> TaskPredictions:
    """Predictions for every image, with the source's names and targets.

    Raises:
        DataError: an image cannot be read (unless `skip_bad`), or the source has another task or a class that the model
            does not know.
    """
    output_indices = match_source_to_model(predictor, labelled)
    batches = (
        _add_targets(batch, labelled.source, rows, output_indices, predictor.spec)
        for rows, batch in predict_labelled_batches(predictor, labelled, skip_bad)
    )
    return concat_predictions(list(progress(batches, len(labelled.rows)) if progress else batches))


def _add_targets(
    batch: TaskPredictions,
    source: Source,
    rows: NDArray[np.int64],
    output_indices: NDArray[np.int64],
    spec: ImageSpec,
) -> TaskPredictions:
    """Predictions with the targets of the source, the types of defects where it has them, and overlaps with masks, of
    which only the counts are kept.
    """
    targets = map_targets(source, rows, output_indices, len(output_names(batch)))
    if isinstance(batch, ClassificationPredictions):
        return replace(batch, targets=targets, defect_types=get_defect_types(source, rows))
    if isinstance(batch, RegressionPredictions) and batch.masks is not None:
        assert batch.confidences is not None
        K = len(batch.columns)
        overlaps = measure_overlaps(batch.masks, batch.confidences, source, rows, spec, K, output_indices)
        return replace(batch, targets=targets, overlaps=overlaps, masks=None, confidences=None)
    return replace(batch, targets=targets)


def match_source_to_model(predictor: Predictor, labelled: LabelledImages) -> NDArray[np.int64]:
    """Output index of the model for each class, label or column of a source.

    Raises:
        DataError: the source has another task, or a class that the model does not know.
    """
    if labelled.source.task != predictor.task:
        count = len(predictor.classes)
        predicted, needed = {
            "classification": (f"one of {count} classes", "one class each"),
            "multilabel": (
                f"any of {count} labels",
                "a column of zeros and ones for each label, or one of labels joined by |",
            ),
            "regression": (f"{count} columns of numbers", "those numbers"),
            "anomaly": ("good or defect", "one class each, of which one is the good ones"),
            "segmentation": (f"one of {count} classes for every pixel", "masks"),
        }[predictor.task]
        raise DataError(
            f"{labelled.source.name} is a {labelled.source.task} source, and the model answers with "
            f"{predicted}. Give pictures that have {needed}."
        )
    source, classes = labelled.source, predictor.classes
    unknown = [name for name in source.classes if name not in classes]
    if unknown:
        what = {"multilabel": "labels", "regression": "columns"}.get(source.task, "classes")
        shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise DataError(
            f"{source.name} has {what} that the model does not know: {shown}. It knows {', '.join(classes[:10])}"
            f"{', ...' if len(classes) > 10 else ''}; rename the source's or leave them out."
            f"{''.join(f' {note}' for note in source.notes)}"
        )
    return np.array([classes.index(name) for name in source.classes], np.int64)


def predict_labelled_batches(
    predictor: Predictor, labelled: LabelledImages, skip_bad: bool = False
) -> Iterator[tuple[NDArray[np.int64], TaskPredictions]]:
    """Batch by batch: the rows that could be read, and their predictions with the source's names, without targets.

    Raises:
        DataError: an image cannot be read, unless `skip_bad`.
    """
    source, batch_size = labelled.source, predictor.settings.batch_size
    starts = range(0, len(labelled.rows), batch_size)
    try:
        batches = predictor.predict_batches(labelled.images, skip_bad)
        for start, batch in zip(starts, batches, strict=True):
            rows = labelled.rows[start : start + batch_size]
            bad = {name for name, _ in batch.skipped}
            places = enumerate(rows.tolist(), start)
            kept = [row for place, row in places if (image_path(source.images[row]) or str(place)) not in bad]
            named = replace(
                batch,
                paths=tuple(image_path(source.images[row]) for row in kept),
                ids=tuple(source.ids[row] for row in kept),
                split=labelled.split,
            )
            yield np.array(kept, np.int64), named
    except DataError as error:
        raise explain_unreadable(error) from error


def get_prediction_groups(labelled: LabelledImages, predictions: TaskPredictions) -> np.ndarray | None:
    """The group (such as the patient) of each predicted image; None if the source has no groups."""
    return get_groups(labelled.source, find_predicted_rows(labelled, predictions))


def get_groups(source: Source, rows: NDArray[np.int64]) -> np.ndarray | None:
    """The group of each row; None if the source has no groups."""
    return None if source.groups is None else source.groups[rows]


def find_predicted_rows(labelled: LabelledImages, predictions: TaskPredictions) -> NDArray[np.int64]:
    """The row of each predicted image in the source."""
    if len(predictions) == len(labelled.rows):
        return labelled.rows
    ids, names = labelled.source.ids, set(predictions.ids)
    return np.array([row for row in labelled.rows.tolist() if ids[row] in names], np.int64)


def load_held_out(run: Path, split: str | None, source_object: object | None = None) -> LabelledImages:
    """A split of a run's data, exactly as in the training; by default test, or val without a test split.

    Args:
        source_object: the object that the run was trained on, if it was one.

    Raises:
        UsageError: not a run folder, no such split, or nothing in it.
        DataError: the data has changed since the training.
    """
    if is_folds_folder(run):
        raise UsageError(
            f"{run} holds several folds, each of which has held out other pictures. Ask one of them, such as "
            f"{first_run_folder(run)}, or give another SOURCE."
        )
    folder = RunFolder.open_existing(run)
    if not folder.splits_file.is_file():
        raise UsageError(f"The run {run} does not say which pictures it held out: {folder.splits_file} is missing.")
    plan = folder.read_plan()
    dataset = open_dataset(plan.data, plan.seed, folder, source_object)
    chosen = split or next((name for name in ("test", "val") if len(dataset.splits[name])), "test")
    copies = list_copy_warnings(run, chosen)
    labelled = replace(_select_split(dataset.source, dataset.splits, chosen), notes=(*dataset.notes, *copies))
    learnt, fitted = (len(np.intersect1d(labelled.rows, dataset.splits[name])) for name in ("train", "val"))
    warning = _describe_seen_images(run, len(labelled.rows), learnt, 0 if split is None else fitted)
    return replace(labelled, warning=warning)


def load_other_source(source: object, split: str | None, settings: DataSettings, own_group: str = "") -> LabelledImages:
    """Another source: by default its official test split, or all images if it has none.

    Args:
        source: as `open_source` takes it.
        own_group: the column by which the run's own images are grouped; where this source has it too, unless another is
            asked for, its images are grouped by it, and else a note says that intervals count each image alone.

    Raises:
        DataError: the source cannot be read.
        UsageError: no such split, or nothing in it.
    """
    opened, notes = open_source(source, settings), tuple[str, ...]()
    if own_group and not settings.group and opened.groups is None:
        if own_group in opened.metadata:
            opened = open_source(source, replace(settings, group=own_group))
        else:
            note = (
                f"The run groups its pictures by {own_group!r}, and these have no groups: intervals count each alone, "
                "and are too narrow where several show the same. --data.group NAME groups them."
            )
            notes = (note,)
    labelled = _select_split(opened, opened.splits, split or ("test" if "test" in opened.splits else ALL_IMAGES))
    labelled = replace(labelled, notes=(*opened.notes, *notes))
    if not settings.exclude:
        return labelled
    excluded = findings.read_exclude_list(Path(settings.exclude).expanduser(), opened)
    return replace(labelled, rows=np.setdiff1d(labelled.rows, excluded))


def build_source_settings(
    model: str | Path,
    source: object,
    changes: Mapping[str, str],
    data_root: Path | None = None,
    task: Task | Literal["auto"] = "classification",
) -> DataSettings:
    """Settings for reading another source: from `changes`, and for a manifest the columns of the run's manifest.

    Args:
        task: the model's task; "auto" for images of any kind, without the run's columns.

    Raises:
        UsageError: a change that is no field of [data].
    """
    check_plan_fields(changes)
    if foreign := [name for name in changes if name.removeprefix("data.") not in SOURCE_FIELDS]:
        raise UsageError(
            f"An evaluation only takes settings for reading its pictures: --data.{', --data.'.join(SOURCE_FIELDS)}. "
            f"Got --{foreign[0]}."
        )
    named = str(source) if isinstance(source, str | Path) else ""
    settings = DataSettings(source=named, data_root=str(data_root or ""), task=task)
    folder = RunFolder(find_run(first_run_folder(Path(model))))
    if folder.plan_file.is_file():
        own = folder.read_plan().data
        if task == "anomaly":
            settings = replace(settings, good=own.good)
        if task == "segmentation":
            settings = replace(settings, legend=own.legend)
        are_manifests = all(Path(name).suffix.lower() in MANIFEST_EXTENSIONS for name in (named, own.source))
        if task != "auto" and are_manifests:
            settings = replace(
                settings, path=own.path, targets=own.targets, decimal=own.decimal, uncertain=own.uncertain
            )
    return config.override(Plan(data=settings), changes).data


def find_group_column(model: str | Path) -> str:
    """The column by which a run groups its images; empty where it has none, or the model is no run."""
    folder = RunFolder(find_run(first_run_folder(Path(model))))
    return folder.read_plan().data.group if folder.plan_file.is_file() else ""


def _select_split(source: Source, splits: Mapping[str, NDArray[np.int64]], split: str) -> LabelledImages:
    if split == ALL_IMAGES:
        return LabelledImages(source, np.arange(len(source)), ALL_IMAGES)
    if split not in SPLITS:
        raise UsageError(f"The split must be one of {', '.join((*SPLITS, ALL_IMAGES))}. Got {split!r}.")
    rows = splits.get(split, np.zeros(0, np.int64))
    if not len(rows):
        available = ", ".join([name for name, members in splits.items() if len(members)] + [ALL_IMAGES])
        raise UsageError(f"{source.name} has no pictures in its {split} split. It has: {available}.")
    return LabelledImages(source, rows, split)


def explain_unreadable(error: DataError) -> DataError:
    """The error with advice for the user."""
    return DataError(f"{error} Put the picture back or mend it, or leave such pictures out with --skip-bad.")


def map_targets(source: Source, rows: NDArray[np.int64], output_indices: NDArray[np.int64], outputs: int) -> np.ndarray:
    """Targets of rows in the model's order of outputs; NaN for labels and columns that the source lacks."""
    if source.task in ("classification", "anomaly"):
        return output_indices[class_indices(source, rows)]
    targets = np.full((len(rows), outputs), np.nan, source.targets.dtype)
    targets[:, output_indices] = source.targets[rows]
    return targets


# -- Comparison of two models.


@dataclass(frozen=True)
class ModelComparison:
    """Metrics of two models and their comparison."""

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
    """Evaluate two models on the same images, and compare them.

    Raises:
        as `evaluate_model`; DataError: different tasks or class names.
    """
    require_picture_answers(first.task, "A comparison of two models")
    one = evaluate_model(first, labelled, skip_bad, progress)
    other = evaluate_model(second, labelled, skip_bad, progress)
    groups = get_prediction_groups(labelled, one.predictions)
    comparison = compare_predictions(one.predictions, other.predictions, groups)
    return ModelComparison(one, other, replace(comparison, notes=labelled.all_notes))


def find_seen_images(model: Path, labelled: LabelledImages) -> SeenCopies | None:
    """Which of the images a run, or the folds in a folder, has seen in its training; None where that is unknown.

    They are compared by their contents, and by their names where the run has not hashed all of its images and the
    source is the same.
    """
    runs = [RunFolder(path) for path in cross_validation.fold_folders(model)] or [RunFolder(find_run(model))]
    hashed = [seen for one in runs if (seen := read_seen_images(one.path)) is not None]
    is_hashed = len(hashed) == len(runs)
    if is_hashed and not any(seen.num_missing for seen in hashed):
        return _find_copies_of(hashed, labelled)
    if all(one.splits_file.is_file() and dataset.is_same_data(one.data_file, labelled.source) for one in runs):
        splits = [split_files.read_splits(one.splits_file, labelled.source)[0] for one in runs]
        train, val = (
            np.isin(labelled.rows, np.concatenate([each[split] for each in splits])) for split in HASHED_SPLITS
        )
        return SeenCopies(train=train, val=val)
    return _find_copies_of(hashed, labelled) if is_hashed else None


def _find_copies_of(hashed: Sequence[SeenImages], labelled: LabelledImages) -> SeenCopies:
    names = take_rows(labelled.source.ids, labelled.rows)
    return find_copies(SeenImages.join(hashed), labelled.images, names)


def drop_seen_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """Drop the images that are in a run's training and validation data, by their contents.

    For a model of which that is not known, a note says so.

    Raises:
        DataError: the run was trained on all of them.
    """
    if not RunFolder(find_run(run)).splits_file.is_file():
        return _add_note(labelled, f"{run} does not say which pictures it has learnt from; it may have seen these.")
    seen = find_seen_images(run, labelled)
    if seen is None:
        note = f"{run} has learnt from other data; whether it has seen these pictures is not known."
        return _add_note(labelled, note)
    kept = labelled.rows[~(seen.train | seen.val)]
    if not len(kept):
        raise DataError(
            f"{run} has learnt from {format_these(len(labelled.rows), 'picture')}, so it cannot be compared here. "
            "Give another SOURCE, or train both models with the same seed."
        )
    if left := len(labelled.rows) - len(kept):
        text = (
            f"{format_count(left, 'picture')} that {run} has learnt from {'is' if left == 1 else 'are'} left out; "
            f"{len(kept):,} are new to both."
        )
        return _add_note(replace(labelled, rows=kept), text)
    return labelled


def note_seen_images(run: Path, labelled: LabelledImages) -> LabelledImages:
    """Count the images that a run, or the folds in a folder, was trained or calibrated on, with a warning."""
    seen = find_seen_images(run, labelled)
    if seen is None:
        return labelled
    counted, own = seen.describe(str(run)), f"Pictures that it has held out: vitrail evaluate {run}"
    return replace(labelled, seen=seen, warning=f"{counted} {own}" if counted else labelled.warning)


def describe_seen_files(model: str, paths: Sequence[str]) -> tuple[str, ...]:
    """A sentence about files that a run has seen in its training, by their contents; none if there are none."""
    hashed = read_seen_images(find_run(Path(model)))
    counted = "" if hashed is None else find_copies(hashed, map(Path, paths), paths).describe(model)
    return (counted,) if counted else ()


def _describe_seen_images(run: Path, n: int, learnt: int, fitted: int) -> str:
    """The warning about n images of which some were learnt, and some had thresholds and temperatures fitted to them."""
    held_out = f"Those of the pictures that it has held out: vitrail evaluate {run}"
    if learnt:
        return (
            f"{run} has learnt from {format_some(learnt, n, 'picture')} with the answers, so the figures are too good. "
            f"{held_out}"
        )
    if fitted:
        return (
            f"The temperature and thresholds of {run} were fitted to {format_some(fitted, n, 'picture')}, so the "
            f"figures are a little too good. {held_out}"
        )
    return ""


def _add_note(labelled: LabelledImages, text: str) -> LabelledImages:
    return replace(labelled, notes=(*labelled.notes, text))


# -- Subgroups: the main metric for every value of a metadata column, such as view, age or camera.

ALL_COLUMNS = "all"


def evaluate_subgroups(labelled: LabelledImages, predictions: TaskPredictions, columns: str) -> SubgroupReport:
    """The main metric for every value of some columns.

    Args:
        columns: the name of a column, several with commas between them, or "all".

    Raises:
        UsageError: a column that the source does not have.
    """
    source = labelled.source
    require_picture_answers(source.task, "A table of subgroups")
    rows = find_predicted_rows(labelled, predictions).tolist()
    cells = {name: [str(source.metadata[name][row]) for row in rows] for name in select_columns(source, columns)}
    return compute_subgroups(predictions, cells, get_prediction_groups(labelled, predictions))


def evaluate_stored_subgroups(run: Path, source_object: object | None = None) -> SubgroupReport | str:
    """The main metric for every value of every column, from the stored predictions by the decision in use.

    No picture is decoded. Where there is no table, the reason.

    Args:
        run: the folder of a run or of all folds.
        source_object: the object that it was trained on, if it was one.

    Raises:
        UsageError: no report.json, or no predictions of its held-out split.
    """
    predictions = decide_run(run).predictions
    try:
        if is_folds_folder(run):
            labelled = evaluate_out_of_fold(run, None, source_object)[0]
        else:
            labelled = load_held_out(run, predictions.split, source_object)
        if not labelled.source.metadata:
            return f"{labelled.source.name} has no further columns to part the pictures by; a manifest may have them."
        return evaluate_subgroups(labelled, predictions, ALL_COLUMNS)
    except (DataError, UsageError) as error:
        return str(error)


def select_columns(source: Source, columns: str) -> Sequence[str]:
    """The selected metadata columns.

    Raises:
        UsageError: a column that the source does not have.
    """
    known = list(source.metadata)
    if columns == ALL_COLUMNS and known:
        return known
    names = [columns] if columns in known else [name.strip() for name in columns.split(",")]
    if missing := [name for name in names if name not in known]:
        has = f"It has {', '.join(map(repr, known))}" if known else "It has none"
        raise UsageError(
            f"{source.name} has no further column {missing[0]!r} to part the pictures by. {has}; columns come from a "
            "manifest, beside the path and what is learnt."
        )
    return names


# -- Shortcut test: predictions with the centre or the border of every image masked.


def measure_shortcuts(
    predictor: Predictor,
    labelled: LabelledImages,
    predictions: TaskPredictions,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> ShortcutReport:
    """Predict with the centre masked, then with the border masked, and compare.

    Args:
        predictions: of the unmasked images.

    Raises:
        DataError: as `predict_labelled`, or nothing can be measured.
    """
    require_picture_answers(predictor.task, "The test of shortcuts")
    outer = shortcut_reliance.border_mask(*predictor.spec.size)
    border = predict_labelled(mask_predictor(predictor, outer), labelled, skip_bad, progress)
    centre = predict_labelled(mask_predictor(predictor, ~outer), labelled, skip_bad, progress)
    return shortcut_reliance.compare_regions(predictions, border, centre, get_prediction_groups(labelled, predictions))


def mask_predictor(predictor: Predictor, visible: PixelMask) -> Predictor:
    """A predictor that sees only some pixels, without out-of-distribution detection, which would reject all images."""
    members = [
        replace(
            one,
            model=MaskedModel(one.model, visible),
            decisions=replace(one.decisions, unlike=None),
            feature_stats=None,
        )
        for one in predictor.members
    ]
    masked = Predictor(members)
    masked.spec = predictor.spec
    return masked


# -- Cross-validation: metrics of out-of-fold predictions.


def evaluate_out_of_fold(
    path: Path, split: str | None = None, source_object: object | None = None
) -> tuple[LabelledImages, EvaluationResult]:
    """The images of all folds with metrics of their stored out-of-fold predictions.

    Args:
        path: the folder of all folds.
        split: None or "out-of-fold"; only single folds have splits.
        source_object: the object that they were trained on, if it was one.

    Raises:
        UsageError: another split, or an unfinished fold.
        DataError: the data has changed since the training.
    """
    if split not in (None, OUT_OF_FOLD):
        raise UsageError(
            f"Folds hold out every picture once, so their split is {OUT_OF_FOLD}. Got {split!r}; ask one fold for "
            f"it, such as {first_run_folder(path)}."
        )
    folds = cross_validation.load_fold_predictions(path, source_object)
    predictions, source = folds.predictions, folds.dataset.source
    notes = (*folds.dataset.notes, *([] if "test" in source.splits else [ENSEMBLE_UNMEASURED]))
    labelled = LabelledImages(source, folds.source_rows(predictions), OUT_OF_FOLD, notes)
    return labelled, EvaluationResult(folds.metrics(), predictions, source.name)


def warn_of_notes(labelled: LabelledImages) -> LabelledImages:
    """Issue a UserWarning for each note of labelled images."""
    warn_of(labelled.all_notes)
    return labelled


def warn_of(notes: Sequence[str]) -> None:
    """Issue a UserWarning for each note, in Python's words, at the caller's line outside of the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("vitrail."):
        frame, level = frame.f_back, level + 1
    for note in notes:
        warnings.warn(to_python(note), UserWarning, stacklevel=level)
