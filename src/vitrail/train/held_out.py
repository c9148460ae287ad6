"""Predict the held-out images, and fit temperature, thresholds and abstention on validation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import runtime
from ..data.labels.defects import get_defect_types
from ..data.loader import ImageStore
from ..data.preprocess import normalize, preprocess_image
from ..data.source import Source, Task
from ..errors import DataError
from ..evaluate.cases import CasePool, fit_case_pool, predict_cases
from ..evaluate.decisions import Decisions, fit_anomaly_decisions, fit_rules, predictions_from_outputs
from ..evaluate.decisions import fit_decisions as decisions_fit_decisions
from ..evaluate.inference import (
    InferenceSettings,
    cast_weights,
    forward_batch,
    inference_mode,
    run_inference,
    run_inference_with_features,
)
from ..evaluate.mask_overlap import MaskComparison, predict_areas
from ..evaluate.metrics import require_finite
from ..evaluate.ood import FeatureStats, fit_feature_stats
from ..evaluate.precision import RATE_BATCH_SIZE, PrecisionComparison, compare_precisions, measure_rates
from ..evaluate.predictions import TaskPredictions
from ..evaluate.segmentation_metrics import known_areas
from ..evaluate.tables import image_path
from ..evaluate.tta import TtaViews
from ..explain import methods
from ..explain.attribution import AttributionMap, EmptyMapError
from ..explain.faithfulness.map_choice import MAX_CHECK_IMAGES, MIN_CHECK_IMAGES, MapChoice, choose_map_method
from ..explain.patch_features import ATTENTION_METHODS, find_artifact_patches
from ..model.config import ViTConfig
from ..model.vit import ViT
from ..report import saliency
from ..report.saliency import MapInfo, StoredExplanations
from ..spec import ImageSpec
from .calibration_file import read_calibration
from .dataset import Dataset, class_indices
from .loop import TrainState
from .optim import use_ema_weights
from .plan import Plan

EVALUATION_BATCH = 250
MAX_PRECISION_IMAGES = 2000
"""Validation images on which the fast number format is compared with float32."""
FEATURE_STATS_IMAGES = 5000
"""Training images for the feature statistics of out-of-distribution detection."""


class ModelOutputs(NamedTuple):
    """Outputs and features of some images."""

    rows: NDArray[np.int64]
    images: ImageStore
    outputs: np.ndarray
    """float32 [n, K]"""
    features: np.ndarray
    """float32 [n, D]: the pooled features of the last block."""
    overlaps: np.ndarray | None = None
    """float64 [n, K, 7]: of segmentation, whose outputs are areas, see `RegressionPredictions`."""


def compute_outputs(
    train_state: TrainState,
    plan: Plan,
    dataset: Dataset,
    rows: NDArray[np.int64],
    views: TtaViews | None = None,
    precision: str = "float32",
) -> ModelOutputs:
    """The model's outputs for some rows, in their order.

    Args:
        views: test-time augmentation; None takes the plan's.
        precision: float32, in which the interfaces answer, whatever the training computed in.

    Raises:
        DataError: an image cannot be read, or outputs are not finite.
    """
    assert isinstance(train_state.model, ViT)
    images = dataset.load_rows(rows, plan.image, plan.compute.num_workers)
    settings = InferenceSettings(
        device=plan.compute.device,
        precision=precision,
        views=views or plan.recipe.views,
        batch_size=EVALUATION_BATCH,
    )
    overlaps = None
    with use_ema_weights(train_state.model, train_state.ema):
        if dataset.source.task == "segmentation":
            outputs, overlaps = predict_areas(
                MaskComparison(train_state.model, images, dataset.source, rows, plan.image, settings)
            )
            features = np.zeros((len(rows), 0), np.float32)
        elif dataset.source.task == "anomaly":  # its score says already what is unlike the training
            outputs = run_inference(train_state.model, images, rows, plan.image, settings, "anomaly").reshape(-1, 1)
            features = np.zeros((len(rows), 0), np.float32)
        else:
            outputs, features = run_inference_with_features(
                train_state.model, images, rows, plan.image, settings, dataset.source.task
            )
    require_finite(outputs)
    require_finite(features)
    return ModelOutputs(rows, images, outputs, features, overlaps)


def compare_fast_precision(
    train_state: TrainState,
    plan: Plan,
    dataset: Dataset,
    valid_outputs: ModelOutputs,
    decisions: Decisions,
    feature_stats: FeatureStats | None,
) -> PrecisionComparison | None:
    """Compare predictions in the fast number format of the device with those in float32, on validation images.

    On at most `MAX_PRECISION_IMAGES` of them. None if the training and the device know no fast number format, there are
    no validation images, or the answers are masks.

    Raises:
        DataError: outputs in the fast number format are not finite.
    """
    device = plan.compute.device
    trained = plan.compute.precision
    fast = trained if trained != "float32" else runtime.choose(runtime.RuntimeSettings(device=device)).precision
    chosen = np.isin(valid_outputs.rows, dataset.sample("val", MAX_PRECISION_IMAGES, plan.seed))
    rows = valid_outputs.rows[chosen]
    if fast == "float32" or not len(rows) or dataset.source.task == "segmentation":
        return None
    exact = valid_outputs._replace(
        rows=rows, outputs=valid_outputs.outputs[chosen], features=valid_outputs.features[chosen]
    )
    outputs = compute_outputs(train_state, plan, dataset, rows, precision=fast)
    predict = partial(build_predictions, dataset, "val", decisions=decisions, feature_stats=feature_stats)
    assert isinstance(train_state.model, ViT)
    with use_ema_weights(train_state.model, train_state.ema), inference_mode(train_state.model):
        forward = {}
        for precision in ("float32", fast):
            settings = InferenceSettings(device=device, precision=precision, views=plan.recipe.views)
            model = cast_weights(train_state.model, precision)
            forward[precision] = partial(_forward_to_cpu, model, plan.image, settings, dataset.source.task)
        rates = measure_rates(forward, exact.images.take(rows[:RATE_BATCH_SIZE]).numpy())
    speedup = rates[fast] / rates["float32"]
    return compare_precisions(predict(exact), predict(outputs), fast, torch.device(device).type, speedup)


def _forward_to_cpu(
    model: nn.Module, spec: ImageSpec, settings: InferenceSettings, task: Task, images: np.ndarray
) -> Tensor:
    """One forward pass, with its wait for the device."""
    return forward_batch(model, torch.from_numpy(images), spec, settings, task)[0].cpu()


def fit_decisions(
    train_state: TrainState, plan: Plan, dataset: Dataset, valid_outputs: ModelOutputs, calibration_file: Path
) -> tuple[Decisions, FeatureStats | None]:
    """Fit decisions on the validation images, and feature statistics on a sample of the training images.

    Args:
        calibration_file: of an anomaly run, the scores of its good images, on which its decisions rest.

    Raises:
        DataError: outputs are not finite.
    """
    source = dataset.source
    if source.task == "anomaly":
        return fit_anomaly_decisions(plan.decisions, *read_calibration(calibration_file)), None
    if not len(valid_outputs.rows):
        return Decisions(ordered=plan.decisions.ordered, miss=plan.decisions.conformal_alpha), None
    if source.task == "segmentation":  # the likeliest class of every pixel, and ranges of areas
        assert valid_outputs.overlaps is not None
        answered, true = known_areas(valid_outputs.overlaps)
        return fit_rules(Decisions(), source.task, plan.decisions, source.classes, answered, true), None
    rows = dataset.sample("train", FEATURE_STATS_IMAGES, plan.seed)
    try:
        sample = compute_outputs(train_state, plan, dataset, rows, views=TtaViews())
    except DataError:  # the training continued without unreadable images and has named them
        sample = compute_outputs(train_state, plan, dataset, _readable_rows(source, rows, plan.image), views=TtaViews())
    feature_stats = fit_feature_stats(
        sample.features, class_indices(source, sample.rows) if source.task == "classification" else None
    )
    outputs = valid_outputs.outputs if dataset.scaling is None else dataset.scaling.unstandardize(valid_outputs.outputs)
    targets = dataset.true_targets(valid_outputs.rows)
    distances = None if feature_stats is None else feature_stats.mahalanobis_distances(valid_outputs.features)
    return decisions_fit_decisions(
        source.task, plan.decisions, source.classes, outputs, targets, distances
    ), feature_stats


def _readable_rows(source: Source, rows: NDArray[np.int64], spec: ImageSpec) -> NDArray[np.int64]:
    """The rows whose images can be read, each tried by itself."""
    kept = []
    for row in rows.tolist():
        with suppress(DataError):
            preprocess_image(source.images[row], spec)
            kept.append(row)
    return np.array(kept, np.int64)


def fit_cases(plan: Plan, dataset: Dataset, valid_outputs: ModelOutputs, decisions: Decisions) -> CasePool | None:
    """Fit the pool of cases that the plan asks for to the validation images; None where it asks for none.

    Args:
        decisions: of the images.
    """
    source, rows = dataset.source, valid_outputs.rows
    if plan.decisions.case == "none":
        return None
    assert source.groups is not None
    return fit_case_pool(
        plan.decisions.case, source.task, plan.decisions, source.classes, dataset.scaling, valid_outputs.outputs,
        valid_outputs.features, dataset.true_targets(rows), source.groups[rows], decisions.temperature, plan.seed,
    )  # fmt: skip


def build_predictions(
    dataset: Dataset,
    split: str,
    model_outputs: ModelOutputs,
    decisions: Decisions,
    feature_stats: FeatureStats | None,
    case_pool: CasePool | None = None,
) -> TaskPredictions:
    """The predictions for a whole split, in its order, and with a pool those of its cases."""
    source = dataset.source
    names = [(image_path(source.images[row]), source.ids[row]) for row in model_outputs.rows.tolist()]
    predictions = predictions_from_outputs(
        source.task,
        model_outputs.outputs,
        source.classes,
        dataset.scaling,
        names,
        split,
        dataset.true_targets(model_outputs.rows),
        decisions=decisions,
        distances=None if feature_stats is None else feature_stats.mahalanobis_distances(model_outputs.features),
        defect_types=get_defect_types(source, model_outputs.rows),
        overlaps=model_outputs.overlaps,
    )
    if case_pool is None:
        return predictions
    assert source.groups is not None
    inputs = np.column_stack([model_outputs.outputs, case_pool.score_images(model_outputs.features)])
    predictions = replace(predictions, pool_inputs=inputs)
    return predict_cases(case_pool, source.task, dataset.scaling, predictions, source.groups[model_outputs.rows])


# -- Explanation maps for a few held-out images, computed once after the training

MAP_TIME_FRACTION = 0.03
"""Fraction of the training's seconds for maps: check, evaluation and report have 15 % together."""
MIN_CHECK_SECONDS = 10.0
"""Seconds for the check of the maps in any case, beside the same fraction."""
MIN_MAP_SECONDS = 10.0
"""Seconds for maps in any case."""


class MapInput(NamedTuple):
    """The inputs of an explanation map."""

    model: ViT
    spec: ImageSpec
    image: Integer[Tensor, "C H W"]
    """Preprocessed by the spec."""


class _ExplainedImage(NamedTuple):
    """A map with the mask of its artefact patches."""

    row: int
    target: int
    attribution: AttributionMap
    artefacts: Bool[np.ndarray, "rows columns"]


def write_explanations(
    folder: Path,
    predictions: TaskPredictions,
    rows: Int64[np.ndarray, " k"],
    get_map_input: Callable[[int], MapInput],
    seconds: float,
    choice: MapChoice,
    views: int = 1,
) -> None:
    """Write explanations.npz: maps by the chosen method, as many as the time allows; none where no method passed.

    Args:
        rows: of the table, those with a thumbnail.
        get_map_input: returns the map input of one of these rows.
        seconds: of the training.
        choice: the method, see `choose_map`.
        views: number of views that each prediction is the mean of.
    """
    began, limit = time.perf_counter(), max(MIN_MAP_SECONDS, MAP_TIME_FRACTION * seconds)
    explained: list[_ExplainedImage] = []
    without_map: list[str] = []
    config: ViTConfig | None = None
    for row, target in saliency.select_rows_to_explain(predictions, rows):
        if explained and time.perf_counter() - began > limit:
            break
        map_input = get_map_input(row)
        config = map_input.model.config
        if not choice.method:
            without_map.append(choice.describe())
            break
        try:
            explained.append(_explain_image(row, target, map_input, choice.method))
        except EmptyMapError as problem:
            without_map.append(f"{predictions.paths[row] or predictions.ids[row]}: {problem}")
    if config is not None:
        remarks = (methods.AVERAGED_NOTE.format(views),) if views > 1 else ()
        saliency.save_explanations(folder, _stack_maps(explained, config, choice, remarks, tuple(without_map)))


def choose_map(
    train_state: TrainState, plan: Plan, dataset: Dataset, valid_outputs: ModelOutputs, seconds: float
) -> MapChoice:
    """Choose the explanation method by a check on validation images, in a fraction of the training's seconds."""
    assert isinstance(train_state.model, ViT)
    chosen = np.flatnonzero(np.isin(valid_outputs.rows, dataset.sample("val", MAX_CHECK_IMAGES, plan.seed)))
    rows, groups = valid_outputs.rows[chosen], dataset.source.groups
    with use_ema_weights(train_state.model, train_state.ema):
        device = next(train_state.model.parameters()).device
        enough = len(rows) >= MIN_CHECK_IMAGES
        images = normalize(valid_outputs.images.take(rows).to(device), plan.image) if enough else None
        return choose_map_method(
            train_state.model,
            torch.zeros(len(rows), 1, 1, 1) if images is None else images,
            valid_outputs.outputs[chosen],
            dataset.source.task,
            max(MIN_CHECK_SECONDS, MAP_TIME_FRACTION * seconds),
            None if groups is None else groups[rows],
            plan.seed,
        )


def _explain_image(row: int, target: int, map_input: MapInput, method: str) -> _ExplainedImage:
    images = normalize(map_input.image[None].to(next(map_input.model.parameters()).device), map_input.spec)
    is_specific = methods.list_methods_of(map_input.model.config)[method].class_specific
    attribution = methods.explain_images(map_input.model, images, method, target if is_specific else None)
    artefacts = np.zeros(attribution.values.shape[1:], bool)
    if attribution.method in ATTENTION_METHODS:
        artefacts = find_artifact_patches(map_input.model, images)[0]
    return _ExplainedImage(row, target, attribution, artefacts)


def _stack_maps(
    explained_images: list[_ExplainedImage],
    shape: ViTConfig,
    choice: MapChoice,
    remarks: tuple[str, ...],
    without_map: tuple[str, ...],
) -> StoredExplanations:
    """All maps as arrays, also empty ones, so that the page can say why."""
    size = (len(explained_images), *shape.input_grid)
    first = explained_images[0].attribution if explained_images else None
    return StoredExplanations(
        about=MapInfo(
            method=choice.method,
            layer=first.layer if first else "",
            line=first.description if first else "",
            scale=first.scale if first else "positive",
            patch=shape.patch,
            remarks=remarks,
            checked=choice.describe(),
            nothing=without_map,
        ),
        rows=np.array([each.row for each in explained_images], np.int64),
        targets=np.array([each.target for each in explained_images], np.int64),
        values=np.array([each.attribution.values[0] for each in explained_images], np.float32).reshape(size),
        artifact_mask=np.array([each.artefacts for each in explained_images], bool).reshape(size),
    )
