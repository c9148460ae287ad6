"""Finish a run after the last step: held-out predictions, metrics, the bundle and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np

from .. import config
from ..checkpoints import bundle
from ..data.loader import ImageStore
from ..data.source import Task
from ..errors import DataError
from ..evaluate import calibration, decisions, task_metrics
from ..evaluate.calibration import SCALING_KEY
from ..evaluate.conformal import min_calibration_size
from ..evaluate.decisions import Decisions
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.ood import OOD_ALPHA, FeatureStats
from ..evaluate.predictions import TaskPredictions
from ..evaluate.regression_metrics import RegressionMetrics
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..files import atomic
from ..formatting import format_count
from ..model.vit import ViT, parameter_count
from ..report import cards, image_selection, page, provenance, thumbnails
from . import contamination, phases
from . import held_out as held_out_module
from .dataset import Dataset
from .events import Event, FinishEvent, Note
from .finetune import features, linear_probe
from .held_out import MapInput, build_predictions, compute_outputs, fit_decisions
from .loop import TrainState
from .optim import use_ema_weights
from .phase import PHASE_NAMES
from .phase import sum_phase_totals as spent_before
from .plan import Plan
from .planning.planner import choose_attention_paths
from .run_folder import RunFolder, describe_environment

MAX_THUMBNAILS = thumbnails.MAX_THUMBNAILS


@dataclass(frozen=True)
class TrainingTotals:
    """What the training took."""

    seconds: float
    images_seen: int


def finish_run(
    run: RunFolder, plan: Plan, reasons: Mapping[str, str], train_state: TrainState, dataset: Dataset
) -> Iterator[Event]:
    """Evaluate a trained learner on the held-out pictures and write everything that the run folder still lacks.

    Raises:
        DataError: a held-out picture cannot be read any more; the model is in the run folder by then.
    """
    spent = _training_totals(run)
    yield Note(_evaluation_note(plan.recipe.views.num_views))
    with _keep_model_on_error(run, train_state, plan, dataset):
        seen = {split: compute_outputs(train_state, plan, dataset, dataset.splits[split]) for split in ("val", "test")}
        decided, familiar = _read_decisions(run, train_state, dataset) or fit_decisions(
            train_state, plan, dataset, seen["val"]
        )
        there = {split: outputs for split, outputs in seen.items() if len(outputs.rows)}
        said = {
            split: build_predictions(dataset, split, outputs, decided, familiar) for split, outputs in there.items()
        }
        judged = [_evaluate_split(dataset, plan, said[split]) for split in there if _has_targets(dataset, split)]
    write_bundle(
        run, train_state, plan, dataset, decided, familiar, _model_card_section(plan, dataset, decided, judged)
    )
    yield from map(Note, _small_validation_notes(dataset.source.task, plan, decided, len(seen["val"].rows)))
    for split, answered in said.items():
        write_predictions(run, answered)
        if split not in [one.metrics.split for one in judged]:
            yield Note(f"Nothing is known of the {split} pictures, so they have answers and no figures.")
    for one in judged:
        atomic.write_json(run.path / f"metrics-{one.metrics.split}.json", one.metrics.to_json())
    yield from _write_results(run, plan, [one.metrics for one in judged])
    if not judged:
        why = "Nothing could be measured" if run.predictions.is_dir() else "No pictures were held out"
        yield Note(f"{why}, so there is no report. The model is in {run.bundle}.")
        return
    pictures = there[judged[-1].predictions.split].images
    write_report(run, plan, reasons, train_state, dataset, judged, pictures, spent, decided)
    yield from map(Note, _doubt_notes(judged[-1].metrics))
    yield FinishEvent(run.path, run.path / page.REPORT_FILE, judged[-1].metrics, spent.seconds)


def _evaluation_note(views: int) -> str:
    """What comes now; and why its validation figures may differ from those on the way, which look at pictures once."""
    text = "Evaluating on the held-out pictures"
    return f"{text}, by the mean of {views} views of each; figures on the way were of one." if views > 1 else f"{text}."


def _small_validation_notes(task: Task, plan: Plan, decisions: Decisions, num_validation: int) -> list[str]:
    """What a person must know of answers that few validation pictures stand behind; nothing where there are enough."""
    few = f"{format_count(num_validation, 'validation picture')} cannot"
    found: list[str] = []
    if (
        plan.decisions.calibrate
        and task != "number"
        and not decisions.temperature
        and 0 < num_validation < calibration.MIN_IMAGES
    ):
        takes = f"which takes {calibration.MIN_IMAGES}"
        found.append(f"{few} calibrate probabilities, {takes}: they are an order of sureness and no shares.")
    if decisions.unlike is None and 0 < num_validation < min_calibration_size(OOD_ALPHA):
        takes = f"which takes {min_calibration_size(OOD_ALPHA)}"
        found.append(f"{few} tell what is unlike the training, {takes}: no picture is left unanswered for it.")
    return found


def _doubt_notes(metrics: TaskMetrics) -> list[str]:
    """That nothing may have been learnt, where the figures of held-out pictures leave that open."""
    return [doubt] if isinstance(metrics, ClassificationMetrics) and (doubt := metrics.describe_doubt()) else []


def _write_results(run: RunFolder, plan: Plan, metrics: Sequence[TaskMetrics]) -> Iterator[Note]:
    """The figures as a table, and to the trackers, whose part ends here."""
    if metrics:
        task_metrics.write_results_csv(run.path / task_metrics.RESULTS_FILE, metrics)
        rows = [row for each in metrics for row in task_metrics.iter_results(each) if not row.scope]
        whole = {f"final/{row.split}_{row.metric}": row.value for row in rows if row.value is not None}
        run.trackers.record_final(plan.recipe.steps, whole)
    yield from map(Note, run.trackers.close(completed=True))


def _training_totals(run: RunFolder) -> TrainingTotals:
    """Seconds and pictures of all steps: each recorded row stands for the steps since the one before it."""
    seconds, images, before = 0.0, 0.0, 0.0
    for row in run.read_rows():
        if "seconds" in row:
            steps = row["step"] - before
            seconds, images, before = seconds + steps * row["seconds"], images + steps * row["images"], row["step"]
    for name in (*PHASE_NAMES, features.METRICS_PREFIX):
        before_seconds, before_images = spent_before(run.read_rows(), name)
        seconds, images = seconds + before_seconds, images + before_images
    return TrainingTotals(seconds, round(images))


def _read_decisions(
    run: RunFolder, train_state: TrainState, dataset: Dataset
) -> tuple[Decisions, FeatureStats | None] | None:
    """What the bundle of this run's end holds already; None if there is none, or it could not decide yet."""
    info = bundle.read_bundle_info(run.bundle).info if run.bundle.exists() else {}
    if decisions.DECISIONS_KEY not in info:
        return None
    assert isinstance(train_state.model, ViT)
    where, width = str(run.bundle), train_state.model.config.width
    decided = decisions.read_decisions(info, dataset.source.task, dataset.source.classes, where)
    return decided, FeatureStats.from_tensors(bundle.load_feature_stats(run.bundle), width, where)


@contextmanager
def _keep_model_on_error(run: RunFolder, train_state: TrainState, plan: Plan, dataset: Dataset) -> Iterator[None]:
    """A picture that cannot be read costs the evaluation and not the model, which is kept as it is, undecided."""
    try:
        yield
    except DataError as error:
        write_bundle(run, train_state, plan, dataset, None, None)
        raise DataError(
            f"{error} The trained model is in {run.bundle}. Once that is mended, let the evaluation and the report "
            f"follow with: vitrail train --resume {run.path}"
        ) from error


def write_bundle(
    run: RunFolder,
    train_state: TrainState,
    plan: Plan,
    dataset: Dataset,
    decision_values: Decisions | None,
    feature_stats: FeatureStats | None,
    card: str = "",
) -> None:
    """Keep the trained model in the portable form; one that is there already and decided is that of this run's end.

    Args:
        decision_values: None where that could not be found out yet; such a bundle is replaced when it can.
        card: what the figures of the held-out pictures say, for the model card.
    """
    if run.bundle.exists():
        if decision_values is None or decisions.DECISIONS_KEY in bundle.read_bundle_info(run.bundle).info:
            return
        atomic.remove_folder(run.bundle)
    assert isinstance(train_state.model, ViT)
    training, inference = choose_attention_paths(plan)
    scaling = dataset.scaling
    info = {
        "model_name": plan.model_name,
        "number_format": plan.compute.precision,
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
    }
    tensors = None if feature_stats is None else feature_stats.to_tensors()
    with use_ema_weights(train_state.model, train_state.ema):
        task, classes = dataset.source.task, dataset.source.classes
        bundle.save_bundle(run.bundle, train_state.model, plan.image, task, classes, info, tensors, card)


def write_report(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    train_state: TrainState,
    dataset: Dataset,
    evaluated_splits: Sequence[EvaluatedSplit],
    image_source: ImageStore,
    totals: TrainingTotals,
    decisions: Decisions,
) -> None:
    """Thumbnails, maps, groups, report.json and report.html; of the last split that was judged.

    Args:
        image_source: that the split's rows are of.
    """
    held_out, rows = evaluated_splits[-1].predictions, dataset.splits[evaluated_splits[-1].predictions.split]
    chosen = image_selection.select_with_worst(held_out, decisions, MAX_THUMBNAILS)
    images = image_source.take(rows[chosen])  # uint8 [k, C, H, W]
    aspects = dataset.aspect_ratios(rows[chosen], plan.image)
    thumbnails.save_thumbnails(run.path, images.permute(0, 2, 3, 1).numpy(), chosen, aspects)
    assert isinstance(train_state.model, ViT)
    with use_ema_weights(train_state.model, train_state.ema):
        given = {
            row: MapInput(train_state.model, plan.image, one) for row, one in zip(chosen.tolist(), images, strict=True)
        }
        held_out_module.write_explanations(
            run.path, held_out, chosen, given.__getitem__, totals.seconds, plan.recipe.views.num_views
        )
    provenance.save_groups(run.path, _split_groups(dataset, held_out.split))
    provenance.write_facts(
        run.path,
        _report_facts(run, plan, reasons, dataset, [one.metrics for one in evaluated_splits], totals, decisions),
    )
    page.build_report(run.path)


def _split_counts(dataset: Dataset, plan: Plan) -> tuple[provenance.SplitCount, ...]:
    return tuple(
        provenance.SplitCount(split=name, n=len(rows), origin=_split_origin(name, dataset.source.splits, plan))
        for name, rows in dataset.splits.items()
    )


def _report_facts(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    metrics: Sequence[TaskMetrics],
    totals: TrainingTotals,
    decisions: Decisions,
) -> provenance.ReportFacts:
    around = {
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
        environment=provenance.to_entries(around),
        task=dataset.source.task,
        metrics=tuple(each for each in metrics if isinstance(each, ClassificationMetrics)),
        label_metrics=tuple(each for each in metrics if isinstance(each, MultilabelMetrics)),
        number_metrics=tuple(each for each in metrics if isinstance(each, RegressionMetrics)),
        decisions=decisions,
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
    """Store a split's answers."""
    run.predictions.mkdir(exist_ok=True)
    predictions.write_csv(run.predictions / f"{predictions.split}.csv")


class EvaluatedSplit(NamedTuple):
    """The answers to a split, and what they are worth."""

    predictions: TaskPredictions
    metrics: TaskMetrics


def _evaluate_split(dataset: Dataset, plan: Plan, predictions: TaskPredictions) -> EvaluatedSplit:
    return EvaluatedSplit(
        predictions,
        compute_metrics(
            predictions, dataset.scaling, _split_groups(dataset, predictions.split), plan.decisions.ordered
        ),
    )


def _split_groups(dataset: Dataset, split: str) -> np.ndarray | None:
    """Of each picture of a split."""
    groups = dataset.source.groups
    return None if groups is None else groups[dataset.splits[split]]


def _model_card_section(
    plan: Plan, dataset: Dataset, decisions: Decisions, evaluated_splits: Sequence[EvaluatedSplit]
) -> str:
    """What the model card says of the last split that was judged; nothing where none was."""
    if not evaluated_splits:
        return ""
    said, figures = evaluated_splits[-1]
    source = dataset.source
    return cards.performance_section(
        figures, said, decisions, source.name, _split_counts(dataset, plan), source.fingerprint()
    )


def _has_targets(dataset: Dataset, split: str) -> bool:
    return dataset.source.task == "classes" or not bool(np.isnan(dataset.targets(split)).all())
