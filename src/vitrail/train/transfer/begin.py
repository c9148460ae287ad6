"""The weights at the first step of a run from a checkpoint: all features once, then the best probe as the head."""

from __future__ import annotations

import time
from collections.abc import Generator

import numpy as np

from ...checkpoints.adapt import build_model
from ...errors import DamagedFileError, InterruptedRun
from ...files import safetensors_file
from ...model.vit import ViT
from ..dataset import Dataset
from ..events import Event, Note
from ..keeping.signals import go_on, listening
from ..keeping.started import plan_facts
from ..plan import Plan
from ..planning.wishes import FEW_PICTURES
from ..run import RunFolder
from . import extracting, head, tried
from .probing import Seen, probed
from .weights import open_checkpoint, starting

NAME = "features"
"""Begins the names of its numbers in metrics.jsonl."""


def begun(run: RunFolder, plan: Plan, dataset: Dataset) -> Generator[Event, None, ViT]:
    """The model at step 0, from the run folder if it is there already, else probed and put there.

    Raises:
        InterruptedRun: a signal asked to stop while features were computed; those are saved.
        UsageError, DamagedFileError, ResourceError: the checkpoint cannot be read, or is not the plan's.
        DataError: a picture cannot be read.
    """
    if run.start_file.is_file():
        return kept(run, plan)
    checkpoint = open_checkpoint(plan.start.weights)
    model = starting(checkpoint, plan.model, plan.start).to(plan.compute.device)
    first, words = time.perf_counter(), ""
    with listening() as wish:
        train = yield from extracting.seen(run, model, plan, dataset, "train", wish)
        valid = yield from extracting.seen(run, model, plan, dataset, "val", wish)
        if mirrored(plan, dataset):
            words = " and mirror images"
            other = yield from extracting.seen(run, model, plan, dataset, "train", wish, mirrored=True)
            features = np.concatenate([train.features, other.features])
            train = Seen(features, np.concatenate([train.targets, other.targets]))
    if wish:  # with the last portion
        raise InterruptedRun(f"Interrupted after the features. {go_on(run.path)}", wish.exit_code)
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
    header = {"format": "pt", **plan_facts(plan)}
    safetensors_file.save_tensors(
        run.start_file, model.state_dict(), header, checksum=True
    )  # last: a resume looks for it
    extracting.forget(run)
    return model


def kept(run: RunFolder, plan: Plan) -> ViT:
    """The model at step 0 as an earlier beginning of this run has left it.

    Raises:
        DamagedFileError: the file is damaged or of another shape.
    """
    try:
        return build_model(plan.model, safetensors_file.load_tensors(run.start_file))
    except RuntimeError as error:
        raise DamagedFileError(
            f"{run.start_file} does not fit the plan of this run. Remove it, and it is made again from the checkpoint."
        ) from error


def mirrored(plan: Plan, dataset: Dataset) -> bool:
    """Whether the probe learns from mirror images too: where they mean the same, and pictures are few."""
    return plan.recipe.flip and len(dataset.splits["train"]) < FEW_PICTURES


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"
