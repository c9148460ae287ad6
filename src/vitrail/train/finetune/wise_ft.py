"""WiSE-FT (Wortsman et al. 2022): keep the interpolation of initial and tuned weights that validates best."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.loader import ImageStore
from ...evaluate.inference import InferenceSettings, run_inference
from ...model.vit import ViT
from ..dataset import Dataset, class_indices
from ..events import Event, Note, TaskProgress
from ..loop import TrainState
from ..optim import merge_lora, use_ema_weights
from ..plan import MAX_COMPARED_IMAGES, Plan
from ..run_folder import RunFolder
from . import linear_probe
from .features import FEATURE_BATCH, load_start_model
from .linear_probe import Candidate, evaluate_candidate


def choose_weights(
    run: RunFolder, plan: Plan, train_state: TrainState, dataset: Dataset
) -> Generator[Event, None, TrainState]:
    """The learner with the weights that answered best on the validation pictures, as a plain model again.

    Tried are the start, which is the frozen probe, and (1 - share) * start + share * tuned for every share of the plan
    (Wortsman et al. 2022); the figure decides, then the loss, then the smaller share. They answer as the model will,
    with all views of its plan, to at most `MOST_JUDGED` of these pictures; where there are more, the best answers to
    all of them, and so does the start, which is kept unless the best is better. So the result is never below the probe.
    """
    model = train_state.model
    assert isinstance(model, ViT)
    with use_ema_weights(model, train_state.ema):
        tuned = _copy_merged_weights(model, plan)
    start = load_start_model(run, plan).state_dict()
    plain = load_start_model(run, plan).to(plan.compute.device)
    rows: list[Candidate] = []
    pictures = dataset.load_images("val", plan.image, plan.compute.num_workers)
    few = dataset.sample("val", MAX_COMPARED_IMAGES, plan.seed)
    shares = (0.0, *sorted(plan.finetune.wise_ft_alphas))
    for number, share in enumerate(shares):
        _interpolate_weights(plain, start, tuned, share)
        if (judgement := _evaluate_weights(plain, plan, dataset, pictures, share, few)) is not None:
            rows.append(judgement)
        yield TaskProgress("means of start and tuned weights", number + 1, len(shares), 0.0)
    best = max(range(len(rows)), key=lambda place: rows[place].rank) if rows else len(shares) - 1
    if rows and best and len(few) < len(every := dataset.splits["val"]):
        for place in (0, best):
            _interpolate_weights(plain, start, tuned, shares[place])
            judgement = _evaluate_weights(plain, plan, dataset, pictures, shares[place], every)
            assert judgement is not None  # something is known of a part of them
            rows[place] = replace(judgement, name=f"{judgement.name}, on all {len(every):,}")
        best = best if rows[best].rank > rows[0].rank else 0
    rows = [replace(row, chosen=place == best) for place, row in enumerate(rows)]
    linear_probe.write_candidates(run.start_table, linear_probe.read_candidates(run.start_table)[0], rows)
    yield from _report_candidates(rows)
    _interpolate_weights(plain, start, tuned, shares[best])
    return TrainState(plain, (), None)


def _report_candidates(rows: list[Candidate]) -> Generator[Event]:
    if not rows:
        yield Note("Nothing is known of the validation pictures, so the tuned weights are kept without a comparison.")
        return
    yield Note("Start, tuned weights, and means of both, on the validation pictures:")
    for line in linear_probe.format_candidates(rows):
        yield Note(line)


def _copy_merged_weights(model: ViT, plan: Plan) -> dict[str, Tensor]:
    """The weights of a model without adapters, as a copy."""
    if plan.finetune.method == "lora":
        merge_lora(model)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def _interpolate_weights(model: ViT, start: Mapping[str, Tensor], tuned: Mapping[str, Tensor], alpha: float) -> None:
    """Weights between two points; at both ends exactly those of the end."""
    for name, tensor in model.state_dict().items():
        first, last = start[name].to(tensor), tuned[name].to(tensor)
        tensor.copy_(first if alpha == 0 else last if alpha == 1 else torch.lerp(first, last, alpha))


def _evaluate_weights(
    model: ViT, plan: Plan, dataset: Dataset, images: ImageStore, alpha: float, rows: NDArray[np.int64]
) -> Candidate | None:
    source = dataset.source
    if not len(rows):
        return None
    settings = InferenceSettings(
        device=plan.compute.device, precision=plan.compute.precision, views=plan.recipe.views, batch_size=FEATURE_BATCH
    )
    outputs = run_inference(model, images, rows, plan.image, settings, source.task)
    targets = class_indices(source, rows) if source.task == "classes" else source.targets[rows]
    learnt = targets if dataset.scaling is None else dataset.scaling.standardize(targets)
    name = "the start, frozen" if alpha == 0 else "tuned" if alpha == 1 else f"{alpha:g} of the way to tuned"
    return evaluate_candidate(name, source.task, outputs, learnt)
