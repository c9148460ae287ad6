"""Cross-validation: a model for every fold, out-of-fold predictions, and an ensemble of all models."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from .. import runtime
from ..checkpoints import bundle, bundle_weights
from ..data.decoding.decode import to_8_bits
from ..data.preprocess import preprocess_image
from ..errors import UsageError
from ..evaluate import task_metrics
from ..evaluate.decisions import Decisions, average_decisions, average_predictions
from ..evaluate.label_errors import LabelErrorReport, label_error_advice, list_label_errors
from ..evaluate.precision import largest_comparison
from ..evaluate.predictions import RegressionPredictions, TaskPredictions, concat_predictions, read_predictions_csv
from ..evaluate.primary_metric import compute_primary_metric
from ..evaluate.probe import learnable_mask
from ..evaluate.task_metrics import TaskMetrics, compute_metrics, has_known_targets
from ..explain.faithfulness.map_choice import MapChoice, combine_map_choices, read_map_choice
from ..explain.methods import default_method
from ..files import atomic, checksums, lock
from ..formatting import format_count
from ..report import image_selection, page, provenance, thumbnails
from . import held_out
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .dataset import Dataset, open_dataset
from .distributed.collectives import group_from_env
from .events import Event, FinishEvent, Note, RunFolderEvent
from .fit import fit, resolve_request_data, resume_run
from .held_out import MapInput
from .phases import to_absolute_path
from .plan import CNN_TEACHER
from .planning.planner import resolve_minutes
from .request import TrainRequest, request_from_json, request_to_json
from .run_folder import RunFolder, fold_folder, is_folds_folder, make_default_folder
from .signals import FOLDS_FILE

PATH_FIELDS = ("pretrain.extra_images", "distill.teacher", "finetune.weights")
"""Plan fields that may name something on this machine."""
LABEL_ERRORS_FILE = "suspects.csv"
"""In the folder of all folds: suspected label errors, from out-of-fold predictions."""


def fit_folds(
    request: TrainRequest,
    settings: runtime.RuntimeSettings,
    out: Path | None = None,
    source_object: object | None = None,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
) -> Generator[Event]:
    """Train the folds one after another into OUT/fold-0, OUT/fold-1, ..., each with its share of the minutes, and join
    them.

    Finished folds are kept, an interrupted one is resumed.

    Args:
        out: the folder of all folds; None makes runs/<date>-<time>-<source>-<model>.
        source_object, custom_functions: as `fit.fit`.

    Raises:
        UsageError: something else is in the folder, another process trains in it, or several ranks train together.
        as `fit.fit`.
    """
    _check_single_process()
    request = resolve_request_paths(resolve_request_data(request, source_object))
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
) -> Generator[Event]:
    """The plan of the first fold; nothing is trained.

    Raises:
        as `fit_folds`.
    """
    _check_single_process()
    yield Note(f"The plan of the first of {request.data.folds} folds; the others differ from it by their pictures.")
    fold_request = _request_for_fold(request, 0)
    yield from fit(fold_request, settings, None, True, source_object, custom_functions)


def resume_folds(
    out: Path, source_object: object | None = None, custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS
) -> Generator[Event]:
    """Resume folds that were interrupted.

    Raises:
        as `fit_folds`.
    """
    _check_single_process()
    request, settings = _read_request(out)
    yield RunFolderEvent(out)
    with lock.Lock(out):
        yield from _train_folds(request, settings, out, source_object, custom_functions)


def fold_folders(out: Path) -> tuple[Path, ...]:
    """The run folders of all folds; empty where a folder holds no folds."""
    if not is_folds_folder(out):
        return ()
    request, _ = _read_request(out)
    return tuple(fold_folder(out, fold) for fold in range(request.data.folds))


def _check_single_process() -> None:
    if group_from_env().world_size > 1:
        raise UsageError("Folds are trained one after another by one process. Train one with --data.fold NUMBER.")


def resolve_request_paths(request: TrainRequest) -> TrainRequest:
    """The request with absolute paths, so that its runs can be resumed from anywhere."""
    named = {
        name: to_absolute_path(text)
        for name, text in request.overrides.items()
        if name in PATH_FIELDS and text != CNN_TEACHER
    }
    weights = request.weights if request.weights in ("auto", "none") else to_absolute_path(request.weights)
    return dataclasses.replace(request, weights=weights, overrides={**request.overrides, **named})


def _read_request(out: Path) -> tuple[TrainRequest, runtime.RuntimeSettings]:
    """The request and settings that `_create_folds_folder` has written."""
    return request_from_json(json.loads((out / FOLDS_FILE).read_text(encoding="utf-8")), str(out / FOLDS_FILE))


def _create_folds_folder(out: Path | None, request: TrainRequest, settings: runtime.RuntimeSettings) -> Path:
    """Make the folder of all folds with its request; one with the same request may exist already."""
    text = request_to_json(request, settings)
    if out is None:
        out = make_default_folder(request.data.source, request.model or "automatic", datetime.now())
    elif is_folds_folder(out):
        if json.loads((out / FOLDS_FILE).read_text(encoding="utf-8")) != json.loads(json.dumps(text)):
            raise UsageError(
                f"{out} holds the folds of another training. Go on with that one by --resume "
                f"{shlex.quote(str(out))}, or choose another folder with --out."
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
) -> Generator[Event]:
    folds = request.data.folds
    seconds = 0.0
    for fold in range(folds):
        run = RunFolder(fold_folder(out, fold))
        yield Note(f"Fold {fold + 1} of {folds}, in {run.path}.")
        events = (
            resume_run(run.path, source_object, custom_functions=custom_functions)
            if run.plan_file.is_file()
            else fit(_request_for_fold(request, fold), settings, run.path, False, source_object, custom_functions)
        )
        with closing(events):
            for event in events:
                if isinstance(event, FinishEvent):
                    seconds += event.seconds
                    yield Note(f"{event.metrics.headline()}.")
                elif not isinstance(event, RunFolderEvent):  # the folder of all folds is open
                    yield event
    out_of_fold = load_fold_predictions(out, source_object)
    metrics = finish_folds(out, out_of_fold)
    yield Note(_write_label_errors(out, out_of_fold))
    yield FinishEvent(out, out / page.REPORT_FILE, metrics, seconds or provenance.read_facts(out).seconds)


def _request_for_fold(request: TrainRequest, fold: int) -> TrainRequest:
    """The request of one fold: all folds share the minutes, and each has the steps or epochs."""
    minutes = resolve_minutes(request) / request.data.folds
    return dataclasses.replace(request, data=dataclasses.replace(request.data, fold=fold), minutes=minutes or None)


def finish_folds(out: Path, out_of_fold: OutOfFoldPredictions) -> TaskMetrics:
    """Write predictions, metrics, the ensemble and the report of all folds."""
    predictions, metrics = out_of_fold.predictions, out_of_fold.metrics()
    (out / "predictions").mkdir(exist_ok=True)
    predictions.write_csv(out / "predictions" / f"{OUT_OF_FOLD}.csv")
    atomic.write_json(out / f"metrics-{OUT_OF_FOLD}.json", metrics.to_json())
    ensemble = out_of_fold.ensemble_on_test()
    if ensemble is not None:
        ensemble.predictions.write_csv(out / "predictions" / f"{ENSEMBLE_ON_TEST}.csv")
        atomic.write_json(out / f"metrics-{ENSEMBLE_ON_TEST}.json", ensemble.metrics.to_json())
    measured = [metrics] if ensemble is None else [metrics, ensemble.metrics]
    task_metrics.write_results_csv(out / task_metrics.RESULTS_FILE, measured)
    _save_ensemble(out / "model", [run.bundle for run in out_of_fold.folds])
    _write_folds_report(out, out_of_fold, predictions, metrics, ensemble)
    return metrics


def _save_ensemble(folder: Path, bundles: Sequence[Path]) -> None:
    """Copy the folds' models, unless equal copies exist: a fold may have been extended since."""
    if folder.exists():
        copies = [folder / f"member-{number}" for number in range(len(bundles))]
        if [*map(_read_manifest, copies)] == [*map(_read_manifest, bundles)]:
            return
        atomic.remove_folder(folder)
    bundle.save_ensemble(folder, bundles)


def _read_manifest(folder: Path) -> bytes:
    """The manifest of a bundle; empty without one."""
    path = folder / checksums.MANIFEST
    return path.read_bytes() if path.is_file() else b""


def _write_label_errors(out: Path, out_of_fold: OutOfFoldPredictions) -> str:
    """Write the list of label errors, unless it exists and may have been edited; returns a sentence about it."""
    path = out / LABEL_ERRORS_FILE
    if path.exists():
        return f"{path} is kept as it is; delete it to have it written again."
    report = out_of_fold.label_errors()
    if not report.inconclusive:
        report.write_csv(path)
    advice = f" {label_error_advice(path)}" if report.suspects else ""
    return f"{report.summary(path)}{advice}"


def _write_folds_report(
    out: Path,
    out_of_fold: OutOfFoldPredictions,
    predictions: TaskPredictions,
    metrics: TaskMetrics,
    ensemble: EvaluatedEnsemble | None,
) -> None:
    """Write the report of all out-of-fold predictions, with a line for each fold and for the ensemble."""
    folds, dataset = out_of_fold.folds, out_of_fold.dataset
    each = [provenance.read_facts(run.path) for run in folds]
    first, plan = each[0], folds[0].read_plan()
    chosen = image_selection.select_with_worst(predictions, Decisions(), thumbnails.MAX_THUMBNAILS)
    shown_rows = out_of_fold.source_rows(predictions)[chosen]
    images = dataset.load_rows(shown_rows, plan.image, plan.compute.num_workers)
    aspects = dataset.aspect_ratios(shown_rows, plan.image)
    thumbnails.save_thumbnails(out, to_8_bits(images.take(shown_rows).permute(0, 2, 3, 1).numpy()), chosen, aspects)
    provenance.save_groups(out, out_of_fold.groups(predictions))
    fold_metrics = [_rename_fold_metrics(one, number) for number, one in enumerate(each)]
    all_metrics = (*fold_metrics, *([] if ensemble is None else [ensemble.metrics]), metrics)
    seconds = sum(one.seconds for one in each)
    source_rows, views = out_of_fold.source_rows(predictions), plan.recipe.views.num_views
    held_out.write_explanations(
        out,
        predictions,
        chosen,
        lambda row: _map_input_for_row(out_of_fold, row, int(source_rows[row])),
        seconds,
        combine_map_choices([_read_fold_map_choice(run) for run in folds]),
        views,
    )
    provenance.write_facts(
        out,
        dataclasses.replace(
            first,
            title=f"{first.title}, {format_count(len(folds), 'fold')}",
            counts=(
                *(
                    provenance.SplitCount(
                        split=one.split, n=one.n, origin=f"in {run.path.name}, by a model that has not seen them"
                    )
                    for one, run in zip(fold_metrics, folds, strict=True)
                ),
                *([] if ensemble is None else [_ensemble_count(ensemble)]),
            ),
            seconds=seconds,
            steps=sum(one.steps for one in each),
            images_seen=sum(one.images_seen for one in each),
            images_per_second=sum(one.images_seen for one in each) / max(seconds, 1e-9),
            command=f"vitrail train --resume {out}",
            created=f"{datetime.now():%Y-%m-%d %H:%M}",
            **provenance.metrics_by_task(all_metrics),
            decisions=Decisions(),
            fast_precision=largest_comparison([one.fast_precision for one in each]),
            notes=(
                *first.notes,
                f"Every picture is answered by the one model of {len(folds)} that has not seen it.",
                *([ENSEMBLE_UNMEASURED] if ensemble is None else [f"{ensemble.metrics.headline()}."]),
            ),
        ),
    )
    page.build_report(out)


def _read_fold_map_choice(run: RunFolder) -> MapChoice:
    """The default explanation method that the training of a fold has chosen."""
    info = bundle.read_bundle_info(run.bundle)
    unknown = MapChoice(method=default_method(info.architecture), pictures=0, reason="an older version trained it")
    return read_map_choice(info.trained_info, str(run.bundle)) or unknown


def _ensemble_count(ensemble: EvaluatedEnsemble) -> provenance.SplitCount:
    """The row of the ensemble in the table of splits."""
    return provenance.SplitCount(
        split=ENSEMBLE_ON_TEST, n=ensemble.metrics.n, origin="official test split, by the mean of all models"
    )


def _map_input_for_row(out_of_fold: OutOfFoldPredictions, row: int, source_row: int) -> MapInput:
    """The model that was not trained on an image, and the image preprocessed for it.

    Args:
        row: in the table of all predictions.
        source_row: the same image's row in the source.
    """
    ends = np.cumsum([len(part) for part in out_of_fold.fold_predictions])
    kept = bundle_weights.load_bundle(out_of_fold.folds[int(np.searchsorted(ends, row, side="right"))].bundle)
    return MapInput(kept.model, kept.spec, preprocess_image(out_of_fold.dataset.source.images[source_row], kept.spec))


def _rename_fold_metrics(report_facts: provenance.ReportFacts, fold: int) -> TaskMetrics:
    """The metrics of a fold's held-out images under the fold's name."""
    metrics = report_facts.metrics_for_split(report_facts.held_out_split)
    assert metrics is not None
    return dataclasses.replace(metrics, split=f"fold {fold}")


# -- Out-of-fold predictions: each image by the one model that was not trained on it

OUT_OF_FOLD, ENSEMBLE_ON_TEST = "out-of-fold", "ensemble-on-test"
"""The split names of out-of-fold predictions, and of the ensemble's predictions for an official test split."""
ENSEMBLE_UNMEASURED = (
    "These figures are of single models. The mean of all models, which answers new pictures, is measured on none, "
    "because each picture was learnt by some of them; an official test split, or another source, would measure it."
)


class EvaluatedEnsemble(NamedTuple):
    """Predictions of the ensemble and their metrics."""

    predictions: TaskPredictions
    metrics: TaskMetrics


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """The predictions of all folds for their held-out images."""

    dataset: Dataset
    folds: tuple[RunFolder, ...]
    fold_predictions: tuple[TaskPredictions, ...]
    """One table per fold."""
    ordered: bool
    """Whether the classes are ordinal."""

    @property
    def predictions(self) -> TaskPredictions:
        """One table of all folds, in their order."""
        return concat_predictions([replace(part, split=OUT_OF_FOLD) for part in self.fold_predictions])

    def source_rows(self, predictions: TaskPredictions) -> NDArray[np.int64]:
        """The row of each predicted image in the source."""
        row_of_id = {name: row for row, name in enumerate(self.dataset.source.ids)}
        return np.array([row_of_id[name] for name in predictions.ids], np.int64)

    def groups(self, predictions: TaskPredictions) -> Shaped[np.ndarray, " n"] | None:
        """The group of each predicted image; None without groups."""
        groups = self.dataset.source.groups
        return None if groups is None else groups[self.source_rows(predictions)]

    def metrics(self) -> TaskMetrics:
        """The metrics of all predictions."""
        predictions = self.predictions
        return compute_metrics(predictions, self.dataset.scaling, self.groups(predictions), self.ordered)

    def ensemble_on_test(self) -> EvaluatedEnsemble | None:
        """The mean of all models on the official test split, which none has seen; None without one."""
        if "test" not in self.dataset.source.splits:
            return None
        tables = [read_predictions_csv(run.predictions / "test.csv", self.dataset.source.task) for run in self.folds]
        decisions = average_decisions([provenance.read_facts(run.path).decisions for run in self.folds])
        predictions = replace(average_predictions(tables, decisions), split=ENSEMBLE_ON_TEST)
        if not has_known_targets(predictions):
            return None
        groups = self.groups(predictions)
        return EvaluatedEnsemble(predictions, compute_metrics(predictions, self.dataset.scaling, groups, self.ordered))

    def label_errors(self) -> LabelErrorReport:
        """Labels that contradict the out-of-fold predictions (Northcutt et al. 2021, `evaluate.label_errors`)."""
        predictions, source = self.predictions, self.dataset.source
        assert predictions.targets is not None
        outputs = predictions.values if isinstance(predictions, RegressionPredictions) else predictions.probabilities
        judged = np.where(self._teachable_cells(), outputs, np.float32(np.nan))
        judges, metric = (len(self.folds), "models"), compute_primary_metric(predictions)
        return list_label_errors(
            source, self.source_rows(predictions), judged, predictions.targets, judges, metric.name, metric.value
        )

    def _teachable_cells(self) -> np.ndarray:
        """Bool [n, K]: cells that can be learnt from the targets of the other folds."""
        source, masks = self.dataset.source, []
        targets = [part.targets for part in self.fold_predictions]
        for fold, fold_targets in enumerate(targets):
            others = [one for other, one in enumerate(targets) if other != fold and one is not None]
            assert fold_targets is not None
            masks.append(learnable_mask(np.concatenate(others), fold_targets, source.task, len(source.classes)))
        return np.concatenate(masks)


def load_fold_predictions(out: Path, source_object: object | None = None) -> OutOfFoldPredictions:
    """Read the out-of-fold predictions of the finished folds in a folder.

    Args:
        source_object: the object that they were trained on, if it was one.

    Raises:
        DataError: the data has changed since, or a table of predictions is missing or damaged.
    """
    runs = tuple(RunFolder.open_existing(path) for path in fold_folders(out))
    plan = runs[0].read_plan()
    dataset = open_dataset(plan.data, plan.seed, runs[0], source_object)
    split = "val" if "test" in dataset.source.splits else "test"
    parts = tuple(read_predictions_csv(run.predictions / f"{split}.csv", dataset.source.task) for run in runs)
    return OutOfFoldPredictions(dataset, runs, parts, plan.decisions.ordered)
