"""WiSE-FT (Wortsman et al. 2022): keep the interpolation of initial and tuned weights that validates best."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...checkpoints.adapt import build_model
from ...data.loader import ImageStore
from ...evaluate.inference import InferenceSettings, run_inference
from ...evaluate.mask_overlap import MaskComparison, measure_quickly
from ...model import lora
from ...model.vit import ViT
from ..context import TrainContext
from ..events import Event, Note, TaskProgress
from ..loop import TrainState
from ..optim import use_ema_weights
from ..plan import MAX_COMPARED_IMAGES, Plan
from . import linear_probe
from .features import FEATURE_BATCH, load_start_model
from .linear_probe import Candidate, evaluate_candidate


def choose_weights(context: TrainContext, train_state: TrainState) -> Generator[Event, None, TrainState]:
    """The train state with the weights that are best on the validation images, as a plain model again.

    Candidates are the start, which is the frozen probe, and (1 - alpha) * start + alpha * tuned for every alpha of the
    plan (Wortsman et al. 2022); the metric decides, then the loss, then the smaller alpha. They are evaluated with all
    views of the plan on at most `MAX_COMPARED_IMAGES` images; where there are more, the best and the start are
    evaluated on all, and the start is kept unless the best is better. So the result is never below the probe.

    Of a model with mask queries the tuned weights are tried without them too, and where that or the start is best, the
    model is one without queries.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    model = train_state.model
    assert isinstance(model, ViT)
    with use_ema_weights(model, train_state.ema):
        tuned = _copy_merged_weights(model, plan)
    start = load_start_model(run, plan).state_dict()
    plain = load_start_model(run, plan).to(plan.compute.device)
    candidates: list[Candidate] = []
    images = dataset.load_images("val", plan.image, plan.compute.num_workers)
    sample, all_rows = dataset.sample("val", MAX_COMPARED_IMAGES, plan.seed), dataset.splits["val"]
    alphas = (0.0, *sorted(plan.finetune.wise_ft_alphas))
    points = [_Point(alpha) for alpha in alphas] + [_Point(alphas[-1], False)] * bool(plan.model.queries)
    for count, point in enumerate(points, 1):
        _interpolate_weights(plain, start, tuned, point)
        if (candidate := _evaluate_weights(context, plain, images, point, sample)) is not None:
            candidates.append(candidate)
        yield TaskProgress("means of start and tuned weights", count, len(points), 0.0)
    best = max(range(len(candidates)), key=lambda index: candidates[index].rank) if candidates else len(alphas) - 1
    if candidates and best and len(sample) < len(all_rows):
        for index in (0, best):
            _interpolate_weights(plain, start, tuned, points[index])
            candidate = _evaluate_weights(context, plain, images, points[index], all_rows)
            assert candidate is not None  # targets of a part of them are known
            candidates[index] = replace(candidate, name=f"{candidate.name}, on all {len(all_rows):,}")
        best = best if candidates[best].rank > candidates[0].rank else 0
    candidates = [replace(each, chosen=index == best) for index, each in enumerate(candidates)]
    frozen, continued = linear_probe.read_candidates(run.start_table)[0], linear_probe.read_continued(run.start_table)
    linear_probe.write_candidates(run.start_table, frozen, candidates, continued)
    if candidates:
        yield Note("Start, tuned weights, and means of both, on the validation pictures:")
        yield from map(Note, linear_probe.format_candidates(candidates))
    else:
        yield Note("Nothing is known of the validation pictures, so the tuned weights are kept without a comparison.")
    _interpolate_weights(plain, start, tuned, points[best])
    if plain.config.queries and (best == 0 or not points[best].has_queries):
        plain = _drop_queries(plain)
    return TrainState(plain, (), None)


class _Point(NamedTuple):
    """Weights that are compared."""

    alpha: float
    has_queries: bool = True

    @property
    def name(self) -> str:
        """In the table of candidates."""
        if self.alpha == 0:
            return "the start, frozen"
        part = "tuned" if self.alpha == 1 else f"{self.alpha:g} of the way to tuned"
        return part if self.has_queries else f"{part}, without queries"


def _drop_queries(model: ViT) -> ViT:
    """The model without mask queries, and so without outputs of parts of patches."""
    config = replace(model.config, queries=0, upsample=1)
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.queries.")}
    return build_model(config, kept).to(next(model.parameters()).device)


def _copy_merged_weights(model: ViT, plan: Plan) -> dict[str, Tensor]:
    """The weights of a model without adapters, as a copy."""
    if plan.finetune.method == "lora":
        lora.merge_adapters(model)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def _interpolate_weights(model: ViT, start: Mapping[str, Tensor], tuned: Mapping[str, Tensor], point: _Point) -> None:
    """Weights between two points; at both ends exactly those of the end. Without queries, their classes are equal."""
    alpha = point.alpha
    for name, tensor in model.state_dict().items():
        first, last = start[name].to(tensor), tuned[name].to(tensor)
        tensor.copy_(first if alpha == 0 else last if alpha == 1 else torch.lerp(first, last, alpha))
        if not point.has_queries and name.startswith("head.queries.classes."):
            tensor.zero_()


def _evaluate_weights(
    context: TrainContext, model: ViT, images: ImageStore, point: _Point, rows: NDArray[np.int64]
) -> Candidate | None:
    plan, task = context.plan, context.dataset.source.task
    if not len(rows):
        return None
    settings = InferenceSettings(device=plan.compute.device, views=plan.recipe.views, batch_size=FEATURE_BATCH)
    if task == "segmentation":
        comparison = MaskComparison(model, images, context.dataset.source, rows, plan.image, settings)
        return linear_probe.to_candidate(point.name, measure_quickly(comparison))
    outputs = run_inference(model, images, rows, plan.image, settings, task)
    return evaluate_candidate(point.name, task, outputs, context.dataset.metric_targets(rows))
