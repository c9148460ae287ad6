"""The weights at the first step of a run from a checkpoint: all features once, then the best probe as the head."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import numpy as np
from jaxtyping import Float32
from torch import nn

from ...checkpoints.build import build
from ...data.loader import Pictures
from ...errors import DamagedFileError
from ...evaluate.collect import collect, made_ready
from ...evaluate.pooled import Pooled
from ...files import tensors
from ...model.vit import ViT
from ..dataset import Dataset, class_of
from ..events import Event, Note, Worked
from ..plan import Plan
from ..planning.wishes import FEW_PICTURES
from ..run import RunFolder
from . import head, tried
from .probing import Seen, probed
from .weights import open_checkpoint, starting

NAME = "features"
"""Begins the names of its numbers in metrics.jsonl."""
BATCH = 64
PORTIONS = 100


def begun(run: RunFolder, plan: Plan, dataset: Dataset) -> Generator[Event, None, ViT]:
    """The model at step 0, from the run folder if it is there already, else probed and put there.

    Raises:
        UsageError, DamagedFileError, ResourceError: the checkpoint cannot be read, or is not the plan's.
        DataError: a picture cannot be read.
    """
    if run.start_file.is_file():
        return kept(run, plan)
    checkpoint = open_checkpoint(plan.start.weights)
    model = starting(checkpoint, plan.model, plan.start).to(plan.compute.device)
    first = time.perf_counter()
    train = yield from _seen(model, plan, dataset, "train")
    valid = yield from _seen(model, plan, dataset, "val")
    words = ""
    if mirrored(plan, dataset):
        words = " and mirror images"
        other = yield from _seen(model, plan, dataset, "train", mirrored=True)
        features = np.concatenate([train.features, other.features])
        train = Seen(features, np.concatenate([train.targets, other.targets]))
    count = len(train.features) + len(valid.features)
    yield Note(f"Features of {count:,} pictures{words}, computed once, in {_since(first)}.")
    began = time.perf_counter()
    task = dataset.source.task
    result = probed(train, valid, task, plan.model.outputs, head.parts(model), plan.seed)
    yield Note(f"Neighbours and linear probes on them, on the validation pictures ({_since(began)}):")
    for line in tried.lines(result.tried):
        yield Note(line)
    head.put(model, result.best, result.columns)
    model = model.cpu()
    tried.write(run.start_table, result.tried)
    seconds = time.perf_counter() - first
    run.record({"step": 0, f"{NAME}_step": 1, f"{NAME}_seconds": round(seconds, 4), f"{NAME}_images": count})
    tensors.save(run.start_file, model.state_dict(), {"format": "pt"}, checksum=True)  # last: a resume looks for it
    return model


def kept(run: RunFolder, plan: Plan) -> ViT:
    """The model at step 0 as an earlier beginning of this run has left it.

    Raises:
        DamagedFileError: the file is damaged or of another shape.
    """
    try:
        return build(plan.model, tensors.load(run.start_file))
    except RuntimeError as error:
        raise DamagedFileError(
            f"{run.start_file} does not fit the plan of this run. Remove it, and it is made again from the checkpoint."
        ) from error


def mirrored(plan: Plan, dataset: Dataset) -> bool:
    """Whether the probe learns from mirror images too: where they mean the same, and pictures are few."""
    return plan.recipe.flip and len(dataset.splits["train"]) < FEW_PICTURES


def _seen(model: ViT, plan: Plan, dataset: Dataset, split: str, mirrored: bool = False) -> Generator[Event, None, Seen]:
    """All pictures of a split, or their mirror images, as features, in the split's order, with their targets."""
    rows, width = dataset.splits[split], plan.model.pooled_width
    targets = class_of(dataset.source, rows) if split == "val" and dataset.source.soft else dataset.learnt(split)
    if not len(rows):
        return Seen(np.zeros((0, width), np.float32), targets)
    pictures = dataset.pictures(split, plan.image, plan.compute.workers)
    pooled = made_ready(Pooled(model, mirrored), plan.compute.number_format)
    portions = []
    began = time.perf_counter()
    for done, features in _computed(pooled, plan, pictures, rows):
        portions.append(features)
        left = (time.perf_counter() - began) / done * (len(rows) - done)
        yield Worked(f"features of the {split} pictures", done, len(rows), left)
    return Seen(np.concatenate(portions), targets)


def _computed(
    pooled: nn.Module, plan: Plan, pictures: Pictures, rows: np.ndarray
) -> Iterator[tuple[int, Float32[np.ndarray, "b P"]]]:
    """Portions of whole batches, so that somebody can watch; the batches, and so the numbers, are always the same."""
    portion = -(-max(len(rows) // PORTIONS, 1) // BATCH) * BATCH
    for start in range(0, len(rows), portion):
        few = rows[start : start + portion]
        yield (
            start + len(few),
            collect(pooled, pictures, few, plan.image, BATCH, plan.compute.device, plan.compute.number_format),
        )


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"
