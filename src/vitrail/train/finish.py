"""Finish a run after the last step: held-out predictions, metrics, the bundle and the report."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from .. import config
from ..checkpoints import bundle, bundle_weights
from ..data.decoding.decode import to_8_bits
from ..data.mask_store import measure_map_areas
from ..errors import DataError, DivergedError, NonFiniteError
from ..evaluate import decisions, task_metrics
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.calibration import SCALING_KEY
from ..evaluate.cases import CASES_KEY, CasePool, describe_case_limits, read_case_pool
from ..evaluate.decisions import Decisions
from ..evaluate.inference import DEFAULT_SETTINGS, InferenceSettings
from ..evaluate.mask_overlap import MaskComparison
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.ood import FeatureStats
from ..evaluate.pixel_metrics import measure_pixels
from ..evaluate.precision import COMPARISON_KEY, PRECISION_KEY, PrecisionComparison, read_comparison
from ..evaluate.predictions import TaskPredictions, add_extents
from ..evaluate.task_metrics import TaskMetrics, compute_metrics, has_known_targets
from ..explain import methods
from ..explain.faithfulness.map_choice import MAP_CHOICE_KEY, MapChoice, read_map_choice
from ..files import atomic
from ..formatting import MIN_TEST_IMAGES, format_count
from ..model.vit import ViT, parameter_count
from ..report import cards, image_selection, page, provenance, thumbnails
from ..report.mask_panels import draw_masks
from . import contamination, phases, seen_images
from . import held_out as held_out_module
from .calibration_file import describe_odd_images
from .context import TrainContext
from .dataset import Dataset
from .events import Event, FinishEvent, Note, StageEvent
from .finetune import features, left_out, linear_probe
from .held_out import (
    EVALUATION_BATCH,
    MapInput,
    ModelOutputs,
    build_predictions,
    choose_map,
    compare_fast_precision,
    compute_outputs,
    fit_cases,
    fit_decisions,
)
from .loop import TrainState
from .optim import use_ema_weights
from .phase import PHASE_NAMES, sum_phase_images
from .plan import Plan
from .planning.planner import choose_attention_paths
from .run_folder import RunFolder, describe_environment
from .seen_images import SeenImages

BANK_ORIGINS = {
    "train": "every good picture", "val": "not needed: a bank has nothing to choose",
    "test": "pictures of defects, where there are any",
}  # fmt: skip
"""Where the images of a split come from in a run with a bank."""


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
    yield StageEvent("Predicting the held-out pictures")
    try:
        outputs = {name: compute_outputs(train_state, plan, dataset, dataset.splits[name]) for name in ("val", "test")}
        if dataset.source.task == "anomaly" and not any(len(each.rows) for each in outputs.values()):
            outputs["train"] = left_out.read_left_out_outputs(context)
        stored = _read_decisions(run, train_state, dataset)
        if stored is None:
            yield StageEvent("Fitting decisions, comparing number formats and choosing the map")
            fitted = fit_decisions(train_state, plan, dataset, outputs["val"], run.calibration_file)
            compared = None
            try:
                compared = compare_fast_precision(train_state, plan, dataset, outputs["val"], *fitted)
            except DataError as error:  # the metrics do not depend on it
                yield Note(f"The fast number format was not compared with float32: {error}")
            choice = choose_map(train_state, plan, dataset, outputs["val"], totals.seconds)
            stored = (*fitted, compared, choice, fit_cases(plan, dataset, outputs["val"], fitted[0]))
        yield StageEvent("Computing metrics and their intervals")
        decided, feature_stats, compared, choice, case_pool = stored
        predictions = {
            split: build_predictions(dataset, split, each, decided, feature_stats, case_pool)
            for split, each in outputs.items()
            if len(each.rows)
        }
        if size := plan.data.pixel_size:
            for split, table in predictions.items():
                areas = measure_map_areas(dataset.source, outputs[split].rows, plan.image)
                predictions[split] = add_extents(table, size, areas)
        evaluated = [
            EvaluatedSplit(
                table,
                compute_metrics(
                    table, scaling, _groups_of(dataset, outputs[split].rows), plan.decisions.ordered, decided.promise
                ),
            )
            for split, table in predictions.items()
            if dataset.source.task == "classification" or not np.isnan(dataset.targets(split)).all()
        ]
        cases = [
            EvaluatedSplit(table.cases, compute_metrics(table.cases, scaling, None, plan.decisions.ordered))
            for table in predictions.values()
            if table.cases is not None and has_known_targets(table.cases)
        ]
        if dataset.source.task == "anomaly":
            evaluated = [
                one if one.metrics.split == "train" else _add_pixel_metrics(context, train_state, one)
                for one in evaluated
            ]
    except DataError as error:  # the model is kept, without decisions
        write_bundle(context, train_state, None)
        if isinstance(error, NonFiniteError):
            raise DivergedError(f"{error} Its weights are in {run.bundle}.") from error
        raise DataError(
            f"{error} The trained model is in {run.bundle}. Once that is mended, let the evaluation and the report "
            f"follow with: vitrail train --resume {shlex.quote(str(run.path))}"
        ) from error
    seen = seen_images.write_seen_images(run, dataset, totals.seconds)
    held_out = [split for split in predictions if split != "train"]
    counts, copy_notes = _find_held_out_copies(seen, dataset, held_out, totals.seconds)
    num_validation = len(outputs["val"].rows)
    limits = [
        *decisions.describe_limits(dataset.source.task, [decided], num_validation),
        *_describe_larger_alpha(plan, decided),
        *([] if case_pool is None else describe_case_limits(case_pool, dataset.source.task)),
        *(describe_odd_images(run.calibration_file) if dataset.source.task == "anomaly" else ()),
    ]
    last_split = evaluated[-1].metrics.split if evaluated else ""
    copies = cards.list_copy_warnings(run.path, last_split)
    copies = copies or [text for split, text in copy_notes.items() if split == last_split]
    doubts = [*_describe_few_images(evaluated, plan), *limits]
    card = _model_card_section(plan, dataset, decided, evaluated, compared, copies, doubts, case_pool, cases)
    write_bundle(context, train_state, decided, feature_stats, compared, card, choice, case_pool)
    yield from map(Note, limits)
    if case_pool is not None:
        yield Note(f"Cases: {case_pool.describe()}.")
    yield from map(Note, copy_notes.values())
    for split, table in predictions.items():
        write_predictions(run, table)
        if table.cases is not None:
            write_predictions(run, table.cases)
        if split not in [one.metrics.split for one in evaluated]:
            yield Note(f"Nothing is known of the {split} pictures, so they get predictions and no metrics.")
    for one in (*evaluated, *cases):
        atomic.write_json(run.path / f"metrics-{one.metrics.split}.json", one.metrics.to_json())
    yield from _write_results(run, plan, [one.metrics for one in (*evaluated, *cases)], counts)
    if not evaluated:
        why = "Nothing could be measured" if run.predictions.is_dir() else "No pictures were held out"
        yield Note(f"{why}, so there is no report. The model is in {run.bundle}.")
        return
    last = evaluated[-1]
    yield StageEvent("Drawing maps and writing the report")
    answered = outputs[last.predictions.split]
    _write_report(
        context, reasons, train_state, evaluated, answered, totals, decided, compared, choice, (*copies, *doubts),
        case_pool, cases,
    )  # fmt: skip
    if isinstance(last.metrics, ClassificationMetrics | AnomalyMetrics) and (doubt := last.metrics.describe_doubt()):
        yield Note(doubt)
    if cases:
        yield Note(f"{cases[-1].metrics.headline()}.")
    yield FinishEvent(run.path, run.path / page.REPORT_FILE, last.metrics, totals.seconds)


def _describe_few_images(evaluated: Sequence[EvaluatedSplit], plan: Plan) -> list[str]:
    """A sentence if the last evaluated split is so small that its metrics tell little."""
    if not evaluated or evaluated[-1].metrics.n >= MIN_TEST_IMAGES or evaluated[-1].metrics.split == "train":
        return []
    few = format_count(evaluated[-1].metrics.n, "held-out picture")
    known = plan.data.folds or plan.data.task in ("anomaly", "segmentation")
    advice = "" if known else "; vitrail train --folds 5 holds out every picture once"
    return [f"{few} tell little{advice}."]


def _describe_larger_alpha(plan: Plan, decided: Decisions) -> list[str]:
    """A sentence if the good images of an anomaly model are too few for the false alarms that the plan promises."""
    if decided.alpha <= plan.decisions.alpha:
        return []
    n = format_count(round(1 / decided.alpha) - 1, "group" if decided.calibration_weights else "good picture")
    needed = f"{plan.decisions.alpha:.1%} takes {math.ceil(1 / plan.decisions.alpha - 1 - 1e-9):,}"
    promise = f"{n} promise at most {decided.alpha:.1%} false alarms, 1 / (n + 1)"
    return [f"{promise}, so defects are decided by that. {needed}."]


def _add_pixel_metrics(context: TrainContext, train_state: TrainState, one: EvaluatedSplit) -> EvaluatedSplit:
    """The metrics of a split with those of pixels, where it has masks."""
    plan, dataset, rows = context.plan, context.dataset, context.dataset.splits[one.predictions.split]
    assert isinstance(train_state.model, ViT) and isinstance(one.metrics, AnomalyMetrics)
    groups = _groups_of(dataset, rows)
    settings = InferenceSettings(device=plan.compute.device, batch_size=EVALUATION_BATCH)
    fields = measure_pixels(train_state.model, dataset.source, rows, plan.image, settings, groups)
    return one._replace(metrics=replace(one.metrics, **fields))


def _find_held_out_copies(
    seen: SeenImages, dataset: Dataset, splits: Sequence[str], seconds: float
) -> tuple[dict[str, int], dict[str, str]]:
    """Number of copies of training images in each held-out split, and a sentence for each split that has some."""
    found = {split: seen_images.describe_held_out_copies(seen, dataset, split, seconds) for split in splits}
    return {split: count for split, (count, _) in found.items()}, {
        split: text for split, (_, text) in found.items() if text
    }


def _write_results(
    run: RunFolder, plan: Plan, metrics: Sequence[TaskMetrics], copies: Mapping[str, int]
) -> Iterator[Note]:
    """Write results.csv, send the final metrics to the trackers, and close them."""
    if metrics:
        task_metrics.write_results_csv(run.path / task_metrics.RESULTS_FILE, metrics, copies)
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
) -> tuple[Decisions, FeatureStats | None, PrecisionComparison | None, MapChoice, CasePool | None] | None:
    """What `finish_run` has fitted and measured, in a bundle that this run has written; None without such a one."""
    info = bundle.read_bundle_info(run.bundle).trained_info if run.bundle.exists() else {}
    if decisions.DECISIONS_KEY not in info:
        return None
    assert isinstance(train_state.model, ViT)
    where, width = str(run.bundle), train_state.model.config.width
    decided = decisions.read_decisions(info, dataset.source.task, dataset.source.classes, where)
    feature_stats = FeatureStats.from_tensors(bundle_weights.load_feature_stats(run.bundle), width, where)
    unknown = MapChoice(
        method=methods.default_method(train_state.model.config), pictures=0, reason="an older version trained it"
    )
    case_pool = read_case_pool(info, dataset.source.task, dataset.source.classes, width, where)
    return decided, feature_stats, read_comparison(info, where), read_map_choice(info, where) or unknown, case_pool


def write_bundle(
    context: TrainContext,
    train_state: TrainState,
    decision_values: Decisions | None,
    feature_stats: FeatureStats | None = None,
    compared: PrecisionComparison | None = None,
    card: str = "",
    choice: MapChoice | None = None,
    case_pool: CasePool | None = None,
) -> None:
    """Write the model bundle, unless this run has written one with decisions already.

    Args:
        decision_values: None where they could not be fitted yet; such a bundle is replaced later.
        compared: the fast number format beside float32.
        card: the model card's section about the held-out metrics.
        choice: the default explanation method.
        case_pool: how the images of a case are answered together.
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
        **({bundle.PIXEL_SIZE_KEY: plan.data.pixel_size} if plan.data.pixel_size else {}),
        **({} if scaling is None else {SCALING_KEY: scaling.to_json()}),
        **({} if decision_values is None else {decisions.DECISIONS_KEY: config.write(decision_values)}),
        **({} if compared is None else {COMPARISON_KEY: config.write(compared)}),
        **({} if choice is None else {MAP_CHOICE_KEY: config.write(choice)}),
        **({} if case_pool is None else {CASES_KEY: config.write(case_pool)}),
    }
    tensors = None if feature_stats is None else feature_stats.to_tensors()
    with use_ema_weights(train_state.model, train_state.ema):
        task, classes = dataset.source.task, dataset.source.classes
        bundle_weights.save_bundle(run.bundle, train_state.model, plan.image, task, classes, info, tensors, card)


def _write_report(
    context: TrainContext,
    reasons: Mapping[str, str],
    train_state: TrainState,
    evaluated_splits: Sequence[EvaluatedSplit],
    answered: ModelOutputs,
    totals: TrainingTotals,
    decisions: Decisions,
    compared: PrecisionComparison | None,
    choice: MapChoice,
    warnings: Sequence[str],
    case_pool: CasePool | None,
    cases: Sequence[EvaluatedSplit],
) -> None:
    """Write thumbnails, explanation maps, groups, report.json and report.html for the last evaluated split.

    Args:
        answered: the images of that split.
        warnings: what limits the metrics.
        cases: of the same splits, where there is a pool.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    held_out, rows = evaluated_splits[-1].predictions, answered.rows
    chosen = image_selection.select_with_worst(held_out, decisions, thumbnails.MAX_THUMBNAILS)
    images = answered.images.take(rows[chosen])  # [k, C, H, W]
    aspects = dataset.aspect_ratios(rows[chosen], plan.image)
    shown = to_8_bits(images.permute(0, 2, 3, 1).numpy())
    assert isinstance(train_state.model, ViT)
    if dataset.source.task == "segmentation":
        settings = InferenceSettings(device=plan.compute.device)
        shown = draw_masks(
            MaskComparison(train_state.model, answered.images, dataset.source, rows[chosen], plan.image, settings)
        )
        aspects = 2 * aspects
    thumbnails.save_thumbnails(run.path, shown, chosen, aspects)
    with use_ema_weights(train_state.model, train_state.ema):
        model = train_state.model
        is_left_out = held_out.split == "train"
        model_for = left_out.open_models_without(context, model) if is_left_out else lambda _: model
        map_inputs = {
            row: MapInput(model_for(held_out.ids[row]), plan.image, one)
            for row, one in zip(chosen.tolist(), images, strict=True)
        }
        if dataset.source.task != "segmentation":  # whose masks are drawn already
            held_out_module.write_explanations(
                run.path, held_out, chosen, map_inputs.__getitem__, totals.seconds, choice, plan.recipe.views.num_views
            )
    provenance.save_groups(run.path, _groups_of(dataset, rows))
    metrics = [one.metrics for one in (*evaluated_splits, *cases)]
    facts = _report_facts(context, reasons, metrics, totals, decisions, compared)
    provenance.write_facts(run.path, replace(facts, warnings=tuple(warnings), case_pool=case_pool))
    page.build_report(run.path)


def _split_counts(dataset: Dataset, plan: Plan) -> tuple[provenance.SplitCount, ...]:
    counts = []
    for name, rows in dataset.splits.items():
        groups, origin = _groups_of(dataset, rows), _split_origin(name, dataset.source.splits, plan)
        number = None if groups is None else len(np.unique(groups))
        counts.append(provenance.SplitCount(split=name, n=len(rows), origin=origin, groups=number))
    return tuple(counts)


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
        **provenance.metrics_by_task(metrics),
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
    if plan.model.head == "bank" and name not in published:
        return BANK_ORIGINS[name]
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


def _groups_of(dataset: Dataset, rows: np.ndarray) -> np.ndarray | None:
    """The group of each of some images."""
    groups = dataset.source.groups
    return None if groups is None else groups[rows]


def _model_card_section(
    plan: Plan,
    dataset: Dataset,
    decisions: Decisions,
    evaluated_splits: Sequence[EvaluatedSplit],
    compared: PrecisionComparison | None,
    copies: Sequence[str],
    limits: Sequence[str],
    case_pool: CasePool | None,
    cases: Sequence[EvaluatedSplit],
) -> str:
    """The model card's section about the last evaluated split; empty where none was evaluated."""
    if not evaluated_splits:
        return ""
    predictions, metrics = evaluated_splits[-1]
    source = dataset.source
    return cards.performance_section(
        metrics, predictions, decisions, source.name, _split_counts(dataset, plan), source.fingerprint(), compared,
        copies, limits, *([(case_pool, cases[-1].metrics)] if case_pool is not None and cases else []),
    )  # fmt: skip
