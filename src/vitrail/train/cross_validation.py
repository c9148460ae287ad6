"""Cross-validation: a model for every fold, out-of-fold predictions, and an ensemble of all models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from .. import config, runtime
from ..checkpoints import bundle
from ..data.preprocess import preprocess_image
from ..data.settings import DataSettings
from ..errors import UsageError
from ..evaluate import task_metrics
from ..evaluate.decisions import Decisions
from ..evaluate.label_errors import LabelErrorReport, label_error_advice, list_label_errors
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, concat_predictions, read_predictions_csv
from ..evaluate.primary_metric import compute_primary_metric
from ..evaluate.probe import learnable_mask
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..files import atomic, checksums, lock
from ..report import image_selection, page, provenance, thumbnails
from . import fit as one
from . import held_out
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .dataset import MEMORY, Dataset, open_dataset, resolve_data_paths
from .distributed.collectives import group_from_env
from .events import Event, FinishEvent, Note, RunFolderEvent
from .finish import MAX_THUMBNAILS
from .held_out import MapInput
from .phases import to_absolute_path
from .plan import CNN_TEACHER
from .planning.planner import resolve_minutes
from .request import TrainRequest
from .run_folder import RunFolder, make_default_folder
from .signals import FOLDS_FILE

PATH_FIELDS = ("pretrain.extra_images", "distill.teacher", "finetune.weights")
"""Plan fields that may name something on this machine."""
LABEL_ERRORS_FILE = "suspects.csv"
"""Labels that models contradict which have not seen them, in the folder of all folds."""


def fit_folds(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Iterator[Event]:
    """Train every fold in turn into OUT/fold-0, OUT/fold-1, ..., each with its share of the minutes, and join them.

    Folds that are done already are kept, one that was stopped goes on.

    Args:
        out: the folder of all folds; None makes runs/<date>-<time>-<source>-<model>.
        source_object, custom_functions: as `fit.fit`.

    Raises:
        UsageError: something else is in the folder, another process trains in it, or several train together.
        as `fit.fit`.
    """
    _check_single_process()
    data = (
        resolve_data_paths(request.data) if source_object is None else dataclasses.replace(request.data, source=MEMORY)
    )
    request = _resolve_request_paths(dataclasses.replace(request, data=data))
    out = _create_folds_folder(out, request, settings)
    yield RunFolderEvent(out)
    with lock.Lock(out):
        try:
            yield from _train_folds(request, settings, out, source_object, custom_functions)
        finally:
            if not any(out.glob("fold-*")):  # the first of them was refused
                for name in (FOLDS_FILE, lock.Lock.FILE):
                    (out / name).unlink(missing_ok=True)
                out.rmdir()


def plan_first_fold(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Iterator[Event]:
    """The plan that the first of the folds would follow; nothing is trained.

    Raises:
        as `fit_folds`.
    """
    _check_single_process()
    yield Note(f"The plan of the first of {request.data.folds} folds; the others differ from it by their pictures.")
    yield from one.fit(
        _request_for_fold(request, 0),
        settings,
        dry_run=True,
        source_object=source_object,
        custom_functions=custom_functions,
    )


def resume_folds(
    out: Path, source_object: object | None = None, custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS
) -> Iterator[Event]:
    """Go on with folds that were stopped.

    Raises:
        as `fit_folds`.
    """
    _check_single_process()
    wishes, settings = _read_request(out)
    yield RunFolderEvent(out)
    with lock.Lock(out):
        yield from _train_folds(wishes, settings, out, source_object, custom_functions)


def is_folds_folder(path: Path) -> bool:
    """Whether a folder holds folds."""
    return (path / FOLDS_FILE).is_file()


def fold_folder(out: Path, fold: int) -> Path:
    """The run folder of a fold."""
    return out / f"fold-{fold}"


def fold_folders(out: Path) -> tuple[Path, ...]:
    """The run folders of all folds; none where a folder holds no folds."""
    if not is_folds_folder(out):
        return ()
    wishes, _ = _read_request(out)
    return tuple(fold_folder(out, fold) for fold in range(wishes.data.folds))


def first_run_folder(out: Path) -> Path:
    """The run folder that stands for a training: that of the first fold, or the folder itself."""
    return fold_folder(out, 0) if is_folds_folder(out) else out


def _check_single_process() -> None:
    if group_from_env().world_size > 1:
        raise UsageError("Folds are trained one after another by one process. Train one with --data.fold NUMBER.")


def _resolve_request_paths(request: TrainRequest) -> TrainRequest:
    """The wishes with what they name on this machine by its full name: the folds may be continued from anywhere."""
    named = {
        name: to_absolute_path(text)
        for name, text in request.overrides.items()
        if name in PATH_FIELDS and text != CNN_TEACHER
    }
    weights = request.weights if request.weights in ("auto", "none") else to_absolute_path(request.weights)
    return dataclasses.replace(request, weights=weights, overrides={**request.overrides, **named})


def _read_request(out: Path) -> tuple[TrainRequest, runtime.RuntimeSettings]:
    """What was asked for, as `_begin` has kept it."""
    asked = json.loads((out / FOLDS_FILE).read_text(encoding="utf-8"))
    data = config.read(DataSettings, asked["wishes"].pop("data"), str(out / FOLDS_FILE))
    size = asked["wishes"].pop("image_size")
    wishes = TrainRequest(data=data, image_size=None if size is None else tuple(size), **asked["wishes"])
    return wishes, config.read(runtime.RuntimeSettings, asked["settings"], str(out / FOLDS_FILE))


def _create_folds_folder(out: Path | None, request: TrainRequest, settings: runtime.RuntimeSettings) -> Path:
    """The folder of all folds, with what was asked for; it may be there already, if the same was asked for."""
    asked: dict[str, Any] = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    asked |= {"data": config.write(request.data), "overrides": dict(request.overrides)}
    text = {"wishes": asked, "settings": config.write(settings)}
    if out is None:
        out = make_default_folder(request.data.source, request.model or "automatic", datetime.now())
    elif is_folds_folder(out):
        if json.loads((out / FOLDS_FILE).read_text(encoding="utf-8")) != json.loads(json.dumps(text)):
            raise UsageError(
                f"{out} holds the folds of another training. Go on with that one by --resume {out}, or choose another "
                "folder with --out."
            )
        return out
    RunFolder.check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    atomic.write_json(out / FOLDS_FILE, text)
    return out


def _train_folds(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    out: Path,
    source_object: object | None,
    custom_functions: CustomFunctions,
) -> Iterator[Event]:
    folds = request.data.folds
    seconds = 0.0
    for fold in range(folds):
        run = RunFolder(fold_folder(out, fold))
        yield Note(f"Fold {fold + 1} of {folds}, in {run.path}.")
        events = (
            one.resume_run(run.path, source_object, custom_functions=custom_functions)
            if run.plan_file.is_file()
            else one.fit(
                _request_for_fold(request, fold),
                settings,
                run.path,
                source_object=source_object,
                custom_functions=custom_functions,
            )
        )
        for event in events:
            if isinstance(event, FinishEvent):
                seconds += event.seconds
                yield Note(f"{event.metrics.headline()}.")
            elif not isinstance(event, RunFolderEvent):  # the folder of all folds is open
                yield event
    whole = load_fold_predictions(out, source_object)
    figures = finish_folds(out, whole)
    yield Note(_write_label_errors(out, whole))
    yield FinishEvent(out, out / page.REPORT_FILE, figures, seconds or provenance.read_facts(out).seconds)


def _request_for_fold(request: TrainRequest, fold: int) -> TrainRequest:
    """The wishes of one fold: the minutes, asked for or usual, are shared by all; steps and epochs are each fold's."""
    minutes = resolve_minutes(request) / request.data.folds
    return dataclasses.replace(request, data=dataclasses.replace(request.data, fold=fold), minutes=minutes or None)


def load_fold_predictions(out: Path, source_object: object | None = None) -> OutOfFoldPredictions:
    """What all folds in a folder have answered.

    Raises:
        as `together.of_folds`.
    """
    return join_fold_predictions(fold_folders(out), source_object)


def finish_folds(out: Path, out_of_fold: OutOfFoldPredictions) -> TaskMetrics:
    """Keep the answers of all folds, their figures and the ensemble, and write the report."""
    answers, figures = out_of_fold.predictions, out_of_fold.metrics()
    (out / "predictions").mkdir(exist_ok=True)
    answers.write_csv(out / "predictions" / f"{OUT_OF_FOLD}.csv")
    atomic.write_json(out / f"metrics-{OUT_OF_FOLD}.json", figures.to_json())
    task_metrics.write_results_csv(out / task_metrics.RESULTS_FILE, [figures])
    _save_ensemble(out / "model", [run.bundle for run in out_of_fold.folds])
    _write_folds_report(out, out_of_fold, answers, figures)
    return figures


def _save_ensemble(folder: Path, bundles: Sequence[Path]) -> None:
    """Copy the folds' models, unless the very same are there: a fold may have been extended since."""
    if folder.exists():
        copies = [folder / f"member-{number}" for number in range(len(bundles))]
        if [*map(_read_manifest, copies)] == [*map(_read_manifest, bundles)]:
            return
        atomic.remove_folder(folder)
    bundle.save_ensemble(folder, bundles)


def _read_manifest(folder: Path) -> bytes:
    """The list of a bundle's files with their hashes; nothing where there is none."""
    path = folder / checksums.MANIFEST
    return path.read_bytes() if path.is_file() else b""


def _write_label_errors(out: Path, out_of_fold: OutOfFoldPredictions) -> str:
    """Keep the list of suspects, unless there is one that a person may have shortened, and say what is in it."""
    path = out / LABEL_ERRORS_FILE
    if path.exists():
        return f"{path} is kept as it is; delete it to have it written again."
    found = out_of_fold.label_errors()
    found.write_csv(path)
    advice = f" {label_error_advice(path)}" if found.suspects else ""
    return f"{found.summary(path)}{advice}"


def _write_folds_report(
    out: Path, out_of_fold: OutOfFoldPredictions, predictions: TaskPredictions, metrics: TaskMetrics
) -> None:
    """One page about all answers, with a line for each fold."""
    folds, dataset = out_of_fold.folds, out_of_fold.dataset
    each = [provenance.read_facts(run.path) for run in folds]
    first, plan = each[0], folds[0].read_plan()
    chosen = image_selection.select_with_worst(predictions, Decisions(), MAX_THUMBNAILS)
    shown = out_of_fold.source_rows(predictions)[chosen]
    pictures = dataset.load_rows(shown, plan.image, plan.compute.num_workers)
    aspects = dataset.aspect_ratios(shown, plan.image)
    thumbnails.save_thumbnails(out, pictures.take(shown).permute(0, 2, 3, 1).numpy(), chosen, aspects)
    provenance.save_groups(out, out_of_fold.groups(predictions))
    own = [_rename_fold_metrics(one, number) for number, one in enumerate(each)]
    seconds = sum(one.seconds for one in each)
    places, views = out_of_fold.source_rows(predictions), plan.recipe.views.num_views
    held_out.write_explanations(
        out, predictions, chosen, lambda row: _map_input_for_row(out_of_fold, row, int(places[row])), seconds, views
    )
    provenance.write_facts(
        out,
        dataclasses.replace(
            first,
            title=f"{first.title}, {len(folds)} folds",
            counts=tuple(
                provenance.SplitCount(
                    split=one.split, n=one.n, origin=f"in {run.path.name}, by a model that has not seen them"
                )
                for one, run in zip(own, folds, strict=True)
            ),
            seconds=seconds,
            steps=sum(one.steps for one in each),
            images_seen=sum(one.images_seen for one in each),
            images_per_second=sum(one.images_seen for one in each) / max(seconds, 1e-9),
            command=f"vitrail train --resume {out}",
            created=f"{datetime.now():%Y-%m-%d %H:%M}",
            metrics=tuple(one for one in (*own, metrics) if isinstance(one, ClassificationMetrics)),
            label_metrics=tuple(one for one in (*own, metrics) if isinstance(one, MultilabelMetrics)),
            number_metrics=tuple(one for one in (*own, metrics) if isinstance(one, RegressionMetrics)),
            decisions=Decisions(),
            notes=(*first.notes, f"Every picture is answered by the one model of {len(folds)} that has not seen it."),
        ),
    )
    page.build_report(out)


def _map_input_for_row(out_of_fold: OutOfFoldPredictions, row: int, source_row: int) -> MapInput:
    """The model that has not seen a picture, and the picture as that model reads it.

    Args:
        row: of the table of all answers.
        source_row: the same picture's row in the source.
    """
    ends = np.cumsum([len(part) for part in out_of_fold.fold_predictions])
    kept = bundle.load_bundle(out_of_fold.folds[int(np.searchsorted(ends, row, side="right"))].bundle)
    return MapInput(kept.model, kept.spec, preprocess_image(out_of_fold.dataset.source.images[source_row], kept.spec))


def _rename_fold_metrics(report_facts: provenance.ReportFacts, fold: int) -> TaskMetrics:
    """The figures of a fold's held-out pictures under the fold's name."""
    figures = report_facts.metrics_for_split(report_facts.held_out_split)
    assert figures is not None
    return dataclasses.replace(figures, split=f"fold {fold}")


# -- Out-of-fold predictions: each image by the one model that was not trained on it

OUT_OF_FOLD = "out-of-fold"
"""What the table of all answers calls its pictures."""


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """What all folds have answered."""

    dataset: Dataset
    folds: tuple[RunFolder, ...]
    fold_predictions: tuple[TaskPredictions, ...]
    """Of each fold the answers to the pictures that it has held out."""
    ordered: bool
    """Whether the classes stand in an order."""

    @property
    def predictions(self) -> TaskPredictions:
        """One table of all parts, in their order."""
        return concat_predictions([replace(part, split=OUT_OF_FOLD) for part in self.fold_predictions])

    def source_rows(self, predictions: TaskPredictions) -> NDArray[np.int64]:
        """The row of each answered picture in the source."""
        known = {name: row for row, name in enumerate(self.dataset.source.ids)}
        return np.array([known[name] for name in predictions.ids], np.int64)

    def groups(self, predictions: TaskPredictions) -> Shaped[np.ndarray, " n"] | None:
        """The group of each answered picture; None where pictures stand alone."""
        groups = self.dataset.source.groups
        return None if groups is None else groups[self.source_rows(predictions)]

    def metrics(self) -> TaskMetrics:
        """Every figure of all answers."""
        answers = self.predictions
        return compute_metrics(answers, self.dataset.scaling, self.groups(answers), self.ordered)

    def label_errors(self) -> LabelErrorReport:
        """Labels that the models contradict, each those of the pictures that it has not seen.

        Source: Northcutt et al. 2021, as in `evaluate.suspects`.
        """
        answers, source = self.predictions, self.dataset.source
        assert answers.targets is not None
        given = answers.values if isinstance(answers, RegressionPredictions) else answers.probabilities
        told = np.where(self._teachable_cells(), given, np.float32(np.nan))
        judges, figure = (len(self.folds), "models"), compute_primary_metric(answers)
        return list_label_errors(
            source, self.source_rows(answers), told, answers.targets, judges, figure.name, figure.value
        )

    def _teachable_cells(self) -> np.ndarray:
        """Bool [n, K]: which cells the other folds have something to teach about."""
        source, found = self.dataset.source, []
        targets = [part.targets for part in self.fold_predictions]
        for number, asked in enumerate(targets):
            others = [one for place, one in enumerate(targets) if place != number and one is not None]
            assert asked is not None
            found.append(learnable_mask(np.concatenate(others), asked, source.task, len(source.classes)))
        return np.concatenate(found)


def join_fold_predictions(folds: tuple[Path, ...], source_object: object | None = None) -> OutOfFoldPredictions:
    """The answers of folds that are done.

    Args:
        folds: their run folders.
        source_object: the object that they were trained on, if it was one.

    Raises:
        DataError: the data is not what they were begun with, or a table of answers is missing or damaged.
    """
    runs = tuple(RunFolder.open_existing(path) for path in folds)
    plan = runs[0].read_plan()
    dataset = open_dataset(plan.data, plan.seed, runs[0], source_object)
    split = "val" if "test" in dataset.source.splits else "test"
    parts = tuple(read_predictions_csv(run.predictions / f"{split}.csv", dataset.source.task) for run in runs)
    return OutOfFoldPredictions(dataset, runs, parts, plan.decisions.ordered)
