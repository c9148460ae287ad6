"""Features of all pictures of a split, a portion at a time; about once a minute, and at its end, they go to the disk.

Portions hold whole batches and are always the same, so that a run which was stopped here ends with the same bits. A
batch that does not fit into the memory is halved, for good: bits may depend on it, so a resume goes on with that one.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import nn

from ... import config
from ...checkpoints.adapt import build_model
from ...data.loader import ImageStore
from ...errors import DamagedFileError, InterruptedRun, ResourceError
from ...evaluate.inference import FeatureExtractor, InferenceSettings, cast_weights, run_inference
from ...files import safetensors_file
from ...model.vit import ViT
from ...runtime import is_out_of_memory
from ..checkpoint import SECONDS_BETWEEN_SAVES
from ..dataset import Dataset, class_indices
from ..events import Event, Note, TaskProgress
from ..phase import plan_metadata
from ..plan import Plan
from ..request import FEW_IMAGES
from ..run_folder import RunFolder
from ..signals import SignalRequest, listen_for_signals, resume_instructions
from . import linear_probe, weights
from .linear_probe import FeatureSet, fit_probes
from .weights import build_start_model, open_checkpoint

FEATURE_BATCH = 64
"""Pictures at once, where the memory has room for them; a power of two."""
PORTIONS = 100
FEATURES_FOLDER = "features"
"""Of a run, while its features are not all there."""
SOURCE_KEY = "of"
"""In a file's header: what its numbers were computed with and from."""
BATCH_KEY = "batch"
"""In a file's header: how many pictures at once gave its last numbers."""


def extract_features(
    run: RunFolder,
    model: ViT,
    plan: Plan,
    dataset: Dataset,
    split: str,
    signal_request: SignalRequest,
    mirror: bool = False,
) -> Generator[Event, None, FeatureSet]:
    """All pictures of a split, or their mirror images, as features, in the split's order, with their targets.

    Args:
        signal_request: signals; after the portion at hand they are followed.

    Raises:
        InterruptedRun: a signal asked to stop; what is computed is saved.
        DataError: a picture cannot be read.
        ResourceError: the memory has no room for a single picture.
    """
    rows, width = dataset.splits[split], plan.model.pooled_width
    targets = (
        class_indices(dataset.source, rows)
        if split == "val" and dataset.source.has_soft_labels
        else dataset.loss_targets(split)
    )
    if not len(rows):
        return FeatureSet(np.zeros((0, width), np.float32), targets)
    pictures = dataset.load_images(split, plan.image, plan.compute.num_workers)
    pooled = cast_weights(FeatureExtractor(model, mirror), plan.compute.precision)
    parts = FeatureFiles(run, plan, f"{split}{'-mirrored' * mirror}", rows)
    kept = parts.load()
    done = first = sum(map(len, kept))
    if done:
        yield Note(f"Going on after the features of {done:,} of {len(rows):,} {split} pictures.")
    fresh: list[np.ndarray] = []
    began = saved = time.perf_counter()
    for features, batch in _compute_portions(pooled, plan, pictures, rows[done:], len(rows), parts.batch):
        if batch < parts.batch:
            yield Note(f"The memory is full with {parts.batch} pictures at once: features go on with {batch} at once.")
            parts.batch = batch
        fresh.append(features)
        done += len(features)
        whole = done == len(rows)  # kept, for the next split may take long
        if whole or signal_request or signal_request.save or time.perf_counter() - saved > SECONDS_BETWEEN_SAVES:
            kept.append(parts.save(fresh, done))
            if signal_request.save:
                where = f"the features of {done:,} of {len(rows):,} {split} pictures"
                yield Note(f"Saved after {where}, as a signal asked; it goes on.")
            fresh, signal_request.save, saved = [], False, time.perf_counter()
        if signal_request:
            where = f"{done:,} of {len(rows):,} {split} pictures"
            raise InterruptedRun(
                f"Interrupted in the features of {where}, saved. {resume_instructions(run.path)}",
                signal_request.exit_code,
            )
        left = (time.perf_counter() - began) / (done - first) * (len(rows) - done)
        yield TaskProgress(f"features of the {split} pictures", done, len(rows), left)
    return FeatureSet(np.concatenate([*kept, *fresh]), targets)


class FeatureFiles:
    """The features of one split on the disk, in files that are named by where they end."""

    def __init__(self, run: RunFolder, plan: Plan, name: str, rows: np.ndarray):
        self._folder, self._name = run.path / FEATURES_FOLDER, name
        made_of = config.to_toml(plan, {}).encode() + rows.astype(np.int64).tobytes()
        self._source_hash = hashlib.sha256(made_of).hexdigest()
        self.batch = FEATURE_BATCH
        """How many pictures at once gave the last numbers that were found or will be kept."""

    def load(self) -> list[Float32[np.ndarray, "n P"]]:
        """What is there from the first picture on; nothing of another plan or other pictures, nor what is damaged."""
        found: list[np.ndarray] = []
        for path in sorted(self._folder.glob(f"{self._name}-*.safetensors")):
            try:
                header = safetensors_file.read_metadata(path)
                if header.get(SOURCE_KEY) != self._source_hash:
                    break
                part = safetensors_file.load_tensors(path)[FEATURES_FOLDER].numpy()
            except DamagedFileError:
                break
            if path != self._path(sum(map(len, found)) + len(part)):
                break
            found.append(part)
            self.batch = int(header.get(BATCH_KEY, FEATURE_BATCH))
        return found

    def save(self, portions: list[np.ndarray], end: int) -> Float32[np.ndarray, "n P"]:
        """Write what came since the last time, up to picture `end`; it in one piece."""
        part = np.concatenate(portions)
        self._folder.mkdir(exist_ok=True)
        header = {SOURCE_KEY: self._source_hash, BATCH_KEY: str(self.batch)}
        safetensors_file.save_tensors(self._path(end), {FEATURES_FOLDER: torch.from_numpy(part)}, header, checksum=True)
        return part

    def _path(self, end: int) -> Path:
        return self._folder / f"{self._name}-{end:012d}.safetensors"


def remove_features(run: RunFolder) -> None:
    """Remove the features of a run whose probes are done."""
    shutil.rmtree(run.path / FEATURES_FOLDER, ignore_errors=True)


def _compute_portions(
    pooled: nn.Module, plan: Plan, images: ImageStore, rows: np.ndarray, count: int, batch: int
) -> Iterator[tuple[Float32[np.ndarray, "b P"], int]]:
    """Yield features in portions of whole batches, for progress events, with the batch size of each.

    Args:
        count: pictures of the split, of which `rows` are left to compute.
        batch: pictures at once, at first.
    """
    portion = -(-max(count // PORTIONS, 1) // FEATURE_BATCH) * FEATURE_BATCH
    for start in range(0, len(rows), portion):
        features, batch = _compute_with_fitting_batch(pooled, plan, images, rows[start : start + portion], batch)
        yield features, batch


def _compute_with_fitting_batch(
    pooled: nn.Module, plan: Plan, images: ImageStore, rows: np.ndarray, batch: int
) -> tuple[Float32[np.ndarray, "b P"], int]:
    """The features of a portion, with the first of batch, batch/2, batch/4, ... for which there is memory."""
    while batch:
        try:
            settings = InferenceSettings(device=plan.compute.device, precision=plan.compute.precision, batch_size=batch)
            features = run_inference(pooled, images, rows, plan.image, settings)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return features, batch
        batch //= 2  # outside of the handler: the exception holds the frames that hold the memory
    raise ResourceError(
        "The memory is full: not even one picture at once leaves room for its features. Begin with a smaller "
        "--image-size or model, or on another --device."
    )


# -- Initial weights of a run from a checkpoint: all features once, then the best probe as the head

METRICS_PREFIX = "features"
"""Begins the names of its numbers in metrics.jsonl."""


def prepare_start_model(run: RunFolder, plan: Plan, dataset: Dataset) -> Generator[Event, None, ViT]:
    """The model at step 0, from the run folder if it is there already, else probed and put there.

    Raises:
        InterruptedRun: a signal asked to stop while features were computed; those are saved.
        UsageError, DamagedFileError, ResourceError: the checkpoint cannot be read, or is not the plan's.
        DataError: a picture cannot be read.
    """
    if run.start_file.is_file():
        return load_start_model(run, plan)
    checkpoint = open_checkpoint(plan.finetune.weights)
    model = build_start_model(checkpoint, plan.model, plan.finetune).to(plan.compute.device)
    first, words = time.perf_counter(), ""
    with listen_for_signals() as wish:
        train = yield from extract_features(run, model, plan, dataset, "train", wish)
        valid = yield from extract_features(run, model, plan, dataset, "val", wish)
        if uses_mirror_images(plan, dataset):
            words = " and mirror images"
            other = yield from extract_features(run, model, plan, dataset, "train", wish, mirror=True)
            features = np.concatenate([train.features, other.features])
            train = FeatureSet(features, np.concatenate([train.targets, other.targets]))
    if wish:  # with the last portion
        raise InterruptedRun(f"Interrupted after the features. {resume_instructions(run.path)}", wish.exit_code)
    count = len(train.features) + len(valid.features)
    yield Note(f"Features of {count:,} pictures{words}, computed once, in {_format_elapsed(first)}.")
    began = time.perf_counter()
    task = dataset.source.task
    result = fit_probes(train, valid, task, plan.model.outputs, weights.list_feature_columns(model), plan.seed)
    yield Note(f"Neighbours and linear probes on them, on the validation pictures ({_format_elapsed(began)}):")
    for line in linear_probe.format_candidates(result.candidates):
        yield Note(line)
    weights.set_head(model, result.best, result.columns)
    model = model.cpu()
    linear_probe.write_candidates(run.start_table, result.candidates)
    seconds = time.perf_counter() - first
    run.record(
        {
            "step": 0,
            f"{METRICS_PREFIX}_step": 1,
            f"{METRICS_PREFIX}_seconds": round(seconds, 4),
            f"{METRICS_PREFIX}_images": count,
        }
    )
    header = {"format": "pt", **plan_metadata(plan)}
    safetensors_file.save_tensors(
        run.start_file, model.state_dict(), header, checksum=True
    )  # last: a resume looks for it
    remove_features(run)
    return model


def load_start_model(run: RunFolder, plan: Plan) -> ViT:
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


def uses_mirror_images(plan: Plan, dataset: Dataset) -> bool:
    """Whether the probe learns from mirror images too: where they mean the same, and pictures are few."""
    return plan.recipe.flip and len(dataset.splits["train"]) < FEW_IMAGES


def _format_elapsed(start_time: float) -> str:
    return f"{time.perf_counter() - start_time:.1f} s"
