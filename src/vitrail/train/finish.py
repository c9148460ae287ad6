"""Finish a run after the last step: held-out predictions, metrics, the bundle and the report."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np

from .. import config
from ..checkpoints import bundle
from ..data.decoding.decode import to_8_bits
from ..data.loader import ImageStore
from ..data.source import Task
from ..errors import DataError, DivergedError, NonFiniteError
from ..evaluate import calibration, decisions, task_metrics
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.calibration import SCALING_KEY
from ..evaluate.conformal import min_calibration_size
from ..evaluate.decisions import Decisions
from ..evaluate.inference import DEFAULT_SETTINGS, InferenceSettings
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.ood import OOD_ALPHA, FeatureStats
from ..evaluate.pixel_metrics import measure_pixels
from ..evaluate.precision import COMPARISON_KEY, PRECISION_KEY, PrecisionComparison, read_comparison
from ..evaluate.predictions import TaskPredictions
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..files import atomic
from ..formatting import format_count
from ..model.vit import ViT, parameter_count
from ..report import cards, image_selection, page, provenance, thumbnails
from . import contamination, phases
from . import held_out as held_out_module
from .context import TrainContext
from .dataset import Dataset
from .events import Event, FinishEvent, Note
from .finetune import features, linear_probe
from .held_out import (
    EVALUATION_BATCH,
    MapInput,
    build_predictions,
    compare_fast_precision,
    compute_outputs,
    fit_decisions,
)
from .loop import TrainState
from .optim import use_ema_weights
from .phase import PHASE_NAMES, sum_phase_images
from .plan import Plan
from .planning.planner import choose_attention_paths
from .run_folder import RunFolder, describe_environment


@dataclass(frozen=True)
class TrainingTotals:
    """Seconds of the training with its evaluations and the phases before it, and images of all steps."""

    seconds: float
    images_seen: int


def finish_run(context: TrainContext, reasons: Mapping[str, str], train_state: TrainState) -> Iterator[Event]:
    """Evaluate a trained model on the held-out images and write the rest of the run folder.

    Raises:
        DataError: a held-out image cannot be read any more; the model is in the run folder by then.
        DivergedError: the model's answers are NaN or infinite; likewise.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    totals, scaling = _training_totals(run), dataset.scaling
    views = plan.recipe.views.num_views
    mean = f", by the mean of {views} views of each; evaluations during the training used one" if views > 1 else ""
    yield Note(f"Evaluating on the held-out pictures{mean}.")
    try:
        outputs = {name: compute_outputs(train_state, plan, dataset, dataset.splits[name]) for name in ("val", "test")}
        stored = _read_decisions(run, train_state, dataset)
        if stored is None:
            fitted = fit_decisions(train_state, plan, dataset, outputs["val"], run.calibration_file)
            compared = None
            try:
                compared = compare_fast_precision(train_state, plan, dataset, outputs["val"], *fitted)
            except DataError as error:  # the metrics do not depend on it
                yield Note(f"The fast number format was not compared with float32: {error}")
            stored = (*fitted, compared)
        decided, feature_stats, compared = stored
        predictions = {
            split: build_predictions(dataset, split, each, decided, feature_stats)
            for split, each in outputs.items()
            if len(each.rows)
        }
        evaluated = [
            EvaluatedSplit(
                table,
                compute_metrics(table, scaling, _split_groups(dataset, split), plan.decisions.ordered, decided.alpha),
            )
            for split, table in predictions.items()
            if dataset.source.task == "classification" or not np.isnan(dataset.targets(split)).all()
        ]
        if dataset.source.task == "anomaly":
            evaluated = [_add_pixel_metrics(context, train_state, one) for one in evaluated]
    except DataError as error:  # the model is kept, without decisions
        write_bundle(context, train_state, None)
        if isinstance(error, NonFiniteError):
            raise DivergedError(f"{error} Its weights are in {run.bundle}.") from error
        raise DataError(
            f"{error} The trained model is in {run.bundle}. Once that is mended, let the evaluation and the report "
            f"follow with: vitrail train --resume {shlex.quote(str(run.path))}"
        ) from error
    card = _model_card_section(plan, dataset, decided, evaluated, compared)
    write_bundle(context, train_state, decided, feature_stats, compared, card)
    yield from map(Note, _small_validation_notes(dataset.source.task, plan, decided, len(outputs["val"].rows)))
    for split, table in predictions.items():
        write_predictions(run, table)
        if split not in [one.metrics.split for one in evaluated]:
            yield Note(f"Nothing is known of the {split} pictures, so they get predictions and no metrics.")
    for one in evaluated:
        atomic.write_json(run.path / f"metrics-{one.metrics.split}.json", one.metrics.to_json())
    yield from _write_results(run, plan, [one.metrics for one in evaluated])
    if not evaluated:
        why = "Nothing could be measured" if run.predictions.is_dir() else "No pictures were held out"
        yield Note(f"{why}, so there is no report. The model is in {run.bundle}.")
        return
    last = evaluated[-1]
    _write_report(
        context, reasons, train_state, evaluated, outputs[last.predictions.split].images, totals, decided, compared
    )
    if isinstance(last.metrics, ClassificationMetrics | AnomalyMetrics) and (doubt := last.metrics.describe_doubt()):
        yield Note(doubt)
    yield FinishEvent(run.path, run.path / page.REPORT_FILE, last.metrics, totals.seconds)


def _add_pixel_metrics(context: TrainContext, train_state: TrainState, one: EvaluatedSplit) -> EvaluatedSplit:
    """The metrics of a split with those of pixels, where it has masks."""
    plan, dataset, rows = context.plan, context.dataset, context.dataset.splits[one.predictions.split]
    assert isinstance(train_state.model, ViT) and isinstance(one.metrics, AnomalyMetrics)
    groups = _split_groups(dataset, one.predictions.split)
    settings = InferenceSettings(device=plan.compute.device, batch_size=EVALUATION_BATCH)
    fields = measure_pixels(train_state.model, dataset.source, rows, plan.image, settings, groups)
    return one._replace(metrics=dataclasses.replace(one.metrics, **fields))


def _small_validation_notes(task: Task, plan: Plan, decisions: Decisions, num_validation: int) -> list[str]:
    """What too few validation images leave undecided; empty where there are enough."""
    few = f"{format_count(num_validation, 'validation picture')} cannot"
    notes: list[str] = []
    if decisions.alpha > plan.decisions.alpha:
        n = round(1 / decisions.alpha) - 1
        what = "group" if decisions.calibration_weights else "good picture"
        notes.append(
            f"{format_count(n, what)} promise at most {decisions.alpha:.1%} false alarms, 1 / (n + 1), so defects are "
            f"decided by that. {plan.decisions.alpha:.1%} takes {math.ceil(1 / plan.decisions.alpha - 1 - 1e-9):,}."
        )
    uncalibrated = plan.decisions.calibrate and task not in ("regression", "anomaly") and not decisions.temperature
    if uncalibrated and 0 < num_validation < calibration.MIN_IMAGES:
        needed = f"which takes {calibration.MIN_IMAGES}"
        notes.append(f"{few} calibrate probabilities, {needed}: treat them as a ranking, not as percentages.")
    if task != "anomaly" and decisions.unlike is None and 0 < num_validation < min_calibration_size(OOD_ALPHA):
        needed = f"which takes {min_calibration_size(OOD_ALPHA)}"
        notes.append(f"{few} tell which pictures are unlike the training, {needed}, so this is off.")
    return notes


def _write_results(run: RunFolder, plan: Plan, metrics: Sequence[TaskMetrics]) -> Iterator[Note]:
    """Write results.csv, send the final metrics to the trackers, and close them."""
    if metrics:
        task_metrics.write_results_csv(run.path / task_metrics.RESULTS_FILE, metrics)
        rows = [row for each in metrics for row in task_metrics.iter_results(each) if not row.scope]
        values = {f"final/{row.split}_{row.metric}": row.value for row in rows if row.value is not None}
        run.trackers.record_final(plan.recipe.steps, values)
    yield from map(Note, run.trackers.close(completed=True))


def _training_totals(run: RunFolder) -> TrainingTotals:
    """Seconds by the run's clock, and images of all steps: each recorded row stands for the steps since the row before
    it.
    """
    rows = run.read_rows()
    images, before = 0.0, 0.0
    for row in rows:
        if "images" in row:
            images, before = images + (row["step"] - before) * row["images"], row["step"]
    images += sum(sum_phase_images(rows, name) for name in (*PHASE_NAMES, features.METRICS_PREFIX))
    return TrainingTotals(run.elapsed_seconds(), round(images))


def _read_decisions(
    run: RunFolder, train_state: TrainState, dataset: Dataset
) -> tuple[Decisions, FeatureStats | None, PrecisionComparison | None] | None:
    """Decisions, feature statistics and comparison in a bundle that this run has written; None without such a one."""
    info = bundle.read_bundle_info(run.bundle).trained_info if run.bundle.exists() else {}
    if decisions.DECISIONS_KEY not in info:
        return None
    assert isinstance(train_state.model, ViT)
    where, width = str(run.bundle), train_state.model.config.width
    decided = decisions.read_decisions(info, dataset.source.task, dataset.source.classes, where)
    feature_stats = FeatureStats.from_tensors(bundle.load_feature_stats(run.bundle), width, where)
    return decided, feature_stats, read_comparison(info, where)


def write_bundle(
    context: TrainContext,
    train_state: TrainState,
    decision_values: Decisions | None,
    feature_stats: FeatureStats | None = None,
    compared: PrecisionComparison | None = None,
    card: str = "",
) -> None:
    """Write the model bundle, unless this run has written one with decisions already.

    Args:
        decision_values: None where they could not be fitted yet; such a bundle is replaced later.
        compared: the fast number format beside float32.
        card: the model card's section about the held-out metrics.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    if run.bundle.exists():
        if decision_values is None or decisions.DECISIONS_KEY in bundle.read_bundle_info(run.bundle).info:
            return
        atomic.remove_folder(run.bundle)
    assert isinstance(train_state.model, ViT)
    training, inference = choose_attention_paths(plan)
    scaling = dataset.scaling
    info = {
        "model_name": plan.model_name,
        PRECISION_KEY: DEFAULT_SETTINGS.precision,
        **plan.recipe.views.to_notes(),
        "attention": {"training": training, "inference": inference},
        "data": {"source": dataset.source.name, "fingerprint": dataset.source.fingerprint()},
        "steps": plan.recipe.steps,
        "seed": plan.seed,
        **{
            name: text
            for name, text in (("loss", plan.recipe.custom_loss), ("augment", plan.recipe.custom_augment))
            if text
        },
        **({} if scaling is None else {SCALING_KEY: scaling.to_json()}),
        **({} if decision_values is None else {decisions.DECISIONS_KEY: config.write(decision_values)}),
        **({} if compared is None else {COMPARISON_KEY: config.write(compared)}),
    }
    tensors = None if feature_stats is None else feature_stats.to_tensors()
    with use_ema_weights(train_state.model, train_state.ema):
        task, classes = dataset.source.task, dataset.source.classes
        bundle.save_bundle(run.bundle, train_state.model, plan.image, task, classes, info, tensors, card)


def _write_report(
    context: TrainContext,
    reasons: Mapping[str, str],
    train_state: TrainState,
    evaluated_splits: Sequence[EvaluatedSplit],
    image_source: ImageStore,
    totals: TrainingTotals,
    decisions: Decisions,
    compared: PrecisionComparison | None,
) -> None:
    """Write thumbnails, explanation maps, groups, report.json and report.html for the last evaluated split.

    Args:
        image_source: the images of that split.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    held_out, rows = evaluated_splits[-1].predictions, dataset.splits[evaluated_splits[-1].predictions.split]
    chosen = image_selection.select_with_worst(held_out, decisions, thumbnails.MAX_THUMBNAILS)
    images = image_source.take(rows[chosen])  # [k, C, H, W]
    aspects = dataset.aspect_ratios(rows[chosen], plan.image)
    thumbnails.save_thumbnails(run.path, to_8_bits(images.permute(0, 2, 3, 1).numpy()), chosen, aspects)
    assert isinstance(train_state.model, ViT)
    with use_ema_weights(train_state.model, train_state.ema):
        map_inputs = {
            row: MapInput(train_state.model, plan.image, one) for row, one in zip(chosen.tolist(), images, strict=True)
        }
        held_out_module.write_explanations(
            run.path, held_out, chosen, map_inputs.__getitem__, totals.seconds, plan.recipe.views.num_views
        )
    provenance.save_groups(run.path, _split_groups(dataset, held_out.split))
    metrics = [one.metrics for one in evaluated_splits]
    provenance.write_facts(run.path, _report_facts(context, reasons, metrics, totals, decisions, compared))
    page.build_report(run.path)


def _split_counts(dataset: Dataset, plan: Plan) -> tuple[provenance.SplitCount, ...]:
    return tuple(
        provenance.SplitCount(split=name, n=len(rows), origin=_split_origin(name, dataset.source.splits, plan))
        for name, rows in dataset.splits.items()
    )


def _report_facts(
    context: TrainContext,
    reasons: Mapping[str, str],
    metrics: Sequence[TaskMetrics],
    totals: TrainingTotals,
    decisions: Decisions,
    compared: PrecisionComparison | None,
) -> provenance.ReportFacts:
    run, plan, dataset = context.run, context.plan, context.dataset
    environment = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in describe_environment().items()
    }
    return provenance.ReportFacts(
        title=f"{dataset.source.name}: {plan.model_name}",
        source=dataset.source.name,
        counts=_split_counts(dataset, plan),
        classes=dataset.source.classes,
        model=plan.model_name,
        parameters=parameter_count(plan.model),
        seconds=totals.seconds,
        steps=plan.recipe.steps,
        images_seen=totals.images_seen,
        images_per_second=totals.images_seen / max(totals.seconds, 1e-9),
        command=f"vitrail train --plan {run.plan_file}",
        plan=run.plan_file.read_text(encoding="utf-8"),
        created=f"{datetime.now():%Y-%m-%d %H:%M}",
        reasons=provenance.to_entries(dict(reasons)),
        environment=provenance.to_entries(environment),
        task=dataset.source.task,
        metrics=tuple(each for each in metrics if isinstance(each, ClassificationMetrics)),
        label_metrics=tuple(each for each in metrics if isinstance(each, MultilabelMetrics)),
        number_metrics=tuple(each for each in metrics if isinstance(each, RegressionMetrics)),
        anomaly_metrics=tuple(each for each in metrics if isinstance(each, AnomalyMetrics)),
        decisions=decisions,
        evaluated_precision=DEFAULT_SETTINGS.precision,
        fast_precision=compared,
        notes=(
            *dataset.source.notes,
            *dataset.notes,
            *phases.describe_phases(plan),
            *contamination.read_contamination(run),
            *linear_probe.describe_candidates(run.start_table),
        ),
        start=plan.finetune.weights if plan.finetune.from_checkpoint else "from scratch",
    )


def _split_origin(name: str, official: Mapping[str, object], plan: Plan) -> str:
    data = plan.data
    if data.folds and name == ("val" if "test" in official else "test"):
        return f"fold {data.fold} of 0..{data.folds - 1}, seed {plan.seed}"
    published = set(official) & {"test"} if data.folds else set(official)
    if name in published and not (name == "train" and "val" not in published):
        return "official"
    share = {"val": data.val_fraction, "test": data.test_fraction}.get(name)
    return "what is left" if share is None else f"{share:.1%}, stratified, seed {plan.seed}"


def write_predictions(run: RunFolder, predictions: TaskPredictions) -> None:
    """Write the predictions of a split as CSV."""
    run.predictions.mkdir(exist_ok=True)
    predictions.write_csv(run.predictions / f"{predictions.split}.csv")


class EvaluatedSplit(NamedTuple):
    """Predictions of a split and their metrics."""

    predictions: TaskPredictions
    metrics: TaskMetrics


def _split_groups(dataset: Dataset, split: str) -> np.ndarray | None:
    """The group of each image of a split."""
    groups = dataset.source.groups
    return None if groups is None else groups[dataset.splits[split]]


def _model_card_section(
    plan: Plan,
    dataset: Dataset,
    decisions: Decisions,
    evaluated_splits: Sequence[EvaluatedSplit],
    compared: PrecisionComparison | None,
) -> str:
    """The model card's section about the last evaluated split; empty where none was evaluated."""
    if not evaluated_splits:
        return ""
    predictions, metrics = evaluated_splits[-1]
    source = dataset.source
    return cards.performance_section(
        metrics, predictions, decisions, source.name, _split_counts(dataset, plan), source.fingerprint(), compared
    )
