"""The end of a tuning: of the start, the tuned weights and means of both, the best in validation is kept."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.loader import ImageStore
from ...evaluate.collect import collect
from ...model.vit import ViT
from ..dataset import Dataset, class_of
from ..events import Event, Note, Worked
from ..loop import Learner
from ..plan import Plan
from ..run import RunFolder
from ..stepping.optimizer import averaged
from . import tried
from .begin import kept
from .extracting import BATCH
from .settings import MOST_JUDGED
from .tried import Tried, judged
from .tuning import tightened


def chosen(run: RunFolder, plan: Plan, learner: Learner, dataset: Dataset) -> Generator[Event, None, Learner]:
    """The learner with the weights that answered best on the validation pictures, as a plain model again.

    Tried are the start, which is the frozen probe, and (1 - share) * start + share * tuned for every share of the plan
    (Wortsman et al. 2022); the figure decides, then the loss, then the smaller share. They answer as the model will,
    with all views of its plan, to at most `MOST_JUDGED` of these pictures; where there are more, the best answers to
    all of them, and so does the start, which is kept unless the best is better. So the result is never below the probe.
    """
    model = learner.model
    assert isinstance(model, ViT)
    with averaged(model, learner.average):
        tuned = _plain(model, plan)
    start = kept(run, plan).state_dict()
    plain = kept(run, plan).to(plan.compute.device)
    rows: list[Tried] = []
    pictures = dataset.pictures("val", plan.image, plan.compute.workers)
    few = dataset.sample("val", MOST_JUDGED, plan.seed)
    shares = (0.0, *sorted(plan.start.average))
    for number, share in enumerate(shares):
        _put(plain, start, tuned, share)
        if (judgement := _judged(plain, plan, dataset, pictures, share, few)) is not None:
            rows.append(judgement)
        yield Worked("means of start and tuned weights", number + 1, len(shares), 0.0)
    best = max(range(len(rows)), key=lambda place: rows[place].rank) if rows else len(shares) - 1
    if rows and best and len(few) < len(every := dataset.splits["val"]):
        for place in (0, best):
            _put(plain, start, tuned, shares[place])
            judgement = _judged(plain, plan, dataset, pictures, shares[place], every)
            assert judgement is not None  # something is known of a part of them
            rows[place] = replace(judgement, name=f"{judgement.name}, on all {len(every):,}")
        best = best if rows[best].rank > rows[0].rank else 0
    rows = [replace(row, chosen=place == best) for place, row in enumerate(rows)]
    tried.write(run.start_table, tried.read(run.start_table)[0], rows)
    yield from _told(rows)
    _put(plain, start, tuned, shares[best])
    return Learner(plain, (), None)


def _told(rows: list[Tried]) -> Generator[Event]:
    if not rows:
        yield Note("Nothing is known of the validation pictures, so the tuned weights are kept without a comparison.")
        return
    yield Note("Start, tuned weights, and means of both, on the validation pictures:")
    for line in tried.lines(rows):
        yield Note(line)


def _plain(model: ViT, plan: Plan) -> dict[str, Tensor]:
    """The weights of a model without adapters, as a copy."""
    if plan.start.method == "lora":
        tightened(model)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def _put(model: ViT, start: Mapping[str, Tensor], tuned: Mapping[str, Tensor], share: float) -> None:
    """Weights between two points; at both ends exactly those of the end."""
    for name, tensor in model.state_dict().items():
        first, last = start[name].to(tensor), tuned[name].to(tensor)
        tensor.copy_(first if share == 0 else last if share == 1 else torch.lerp(first, last, share))


def _judged(
    model: ViT, plan: Plan, dataset: Dataset, pictures: ImageStore, share: float, rows: NDArray[np.int64]
) -> Tried | None:
    source = dataset.source
    if not len(rows):
        return None
    device, number_format, views = plan.compute.device, plan.compute.number_format, plan.recipe.views
    outputs = collect(model, pictures, rows, plan.image, BATCH, device, number_format, views, source.task)
    targets = class_of(source, rows) if source.task == "classes" else source.targets[rows]
    learnt = targets if dataset.scaling is None else dataset.scaling.standardised(targets)
    name = "the start, frozen" if share == 0 else "tuned" if share == 1 else f"{share:g} of the way to tuned"
    return judged(name, source.task, outputs, learnt)
