"""Frozen features of all images of a split, computed in portions and saved about once a minute.

Portions hold whole batches and are always the same, so a resumed run ends with the same bits. A batch that does not fit
into the memory is halved permanently: bits may depend on its size, so a resumed run keeps it.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import nn

from ... import config
from ...checkpoints.adapt import build_model
from ...checkpoints.bundle import BANK_ROWS
from ...data.loader import ImageStore
from ...data.mask_store import load_mask
from ...data.splits import number_groups
from ...errors import DamagedFileError, InterruptedRun, ResourceError
from ...evaluate.inference import FeatureExtractor, InferenceSettings, SingleImages, cast_weights, run_inference
from ...evaluate.quick_metrics import output_losses
from ...files import safetensors_file
from ...formatting import format_count
from ...model.vit import ViT
from ...runtime import is_out_of_memory
from .. import phase
from ..calibration_file import write_calibration
from ..checkpoint import SECONDS_BETWEEN_SAVES
from ..context import TrainContext
from ..dataset import Dataset
from ..events import Event, Note, TaskProgress
from ..phase import plan_metadata
from ..plan import Plan, PretrainSettings
from ..pretrain import continuing, pretraining
from ..request import FEW_IMAGES
from ..run_folder import RunFolder
from ..signals import SignalRequest, listen_for_signals, resume_instructions
from . import bank_store, coreset, linear_probe, patch_head, weights
from .linear_probe import FeatureSet, fit_probes
from .weights import build_start_model, open_checkpoint

FEATURE_BATCH = 64
"""Images per batch, if the memory allows; a power of two."""
PORTIONS = 100
FEATURES_FOLDER = "features"
"""In a run folder, while its features are computed."""
SOURCE_KEY = "of"
"""In a file's header: a hash of the plan and rows of its features."""
BATCH_KEY = "batch"
"""In a file's header: the batch size of its last features."""


def extract_features(
    context: TrainContext, model: ViT, split: str, signal_request: SignalRequest, mirror: bool = False, name: str = ""
) -> Generator[Event, None, FeatureSet]:
    """Features of all images of a split, or of their mirror images, in the split's order, with their targets.

    Args:
        signal_request: followed after the portion that is being computed.
        name: of the features in files, where they are not those of the checkpoint.

    Raises:
        InterruptedRun: a signal asked to stop; the features so far are saved.
        DataError: an image cannot be read.
        ResourceError: the memory has no room for a single image.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    rows, width = dataset.splits[split], plan.model.pooled_width
    targets = dataset.metric_targets(rows) if split == "val" else dataset.loss_targets(split)
    if not len(rows):
        return FeatureSet(np.zeros((0, width), np.float32), targets)
    images = dataset.load_images(split, plan.image, plan.compute.num_workers)
    extractor = cast_weights(FeatureExtractor(model, mirror), plan.compute.precision)
    extractor = SingleImages(extractor) if plan.model.head == "bank" else extractor
    files = FeatureFiles(run, plan, f"{split}{'-mirrored' * mirror}{name}", rows)
    stored = files.load()
    done = first = sum(map(len, stored))
    if done:
        yield Note(f"Going on after the features of {done:,} of {len(rows):,} {split} pictures.")
    fresh: list[np.ndarray] = []
    start_time = saved_time = time.perf_counter()
    for features, batch in _compute_portions(extractor, plan, images, rows[done:], len(rows), files.batch):
        if batch < files.batch:
            yield Note(f"The memory is full with {files.batch} pictures at once: features go on with {batch} at once.")
            files.batch = batch
        if plan.model.head == "bank":
            features = coreset.pack_patches(torch.from_numpy(features), plan.model).numpy()
        fresh.append(features)
        done += len(features)
        is_complete = done == len(rows)  # kept, for the next split may take long
        if (
            is_complete
            or signal_request
            or signal_request.save
            or time.perf_counter() - saved_time > SECONDS_BETWEEN_SAVES
        ):
            stored.append(files.save(fresh, done))
            if signal_request.save:
                where = f"the features of {done:,} of {len(rows):,} {split} pictures"
                yield Note(f"Saved after {where}, as a signal asked; it goes on.")
            fresh, signal_request.save, saved_time = [], False, time.perf_counter()
        if signal_request:
            where = f"{done:,} of {len(rows):,} {split} pictures"
            raise InterruptedRun(
                f"Interrupted in the features of {where}, saved. {resume_instructions(run.path)}",
                signal_request.exit_code,
            )
        seconds_left = (time.perf_counter() - start_time) / (done - first) * (len(rows) - done)
        yield TaskProgress(f"features of the {split} pictures", done, len(rows), seconds_left)
    image_weights = dataset.image_weights if split == "train" else None
    return FeatureSet(np.concatenate([*stored, *fresh]), targets, image_weights)


class FeatureFiles:
    """The saved features of one split, in files named by their last image."""

    def __init__(self, run: RunFolder, plan: Plan, name: str, rows: np.ndarray):
        self._folder, self._name = run.path / FEATURES_FOLDER, name
        start = dataclasses.replace(plan.finetune, head_patches=0)  # decided after them
        known = dataclasses.replace(plan, finetune=start, pretrain=PretrainSettings())  # a clock moves its steps
        made_of = config.to_toml(known, {}).encode()
        made_of += rows.astype(np.int64).tobytes()
        self._source_hash = hashlib.sha256(made_of).hexdigest()
        self.batch = FEATURE_BATCH
        """Batch size of the last loaded features, or of those to save."""

    def load(self) -> list[Float[np.ndarray, "n *N P"]]:
        """Load the features from the first image on, up to a damaged file or one of another plan or other images."""
        portions: list[np.ndarray] = []
        for path in sorted(self._folder.glob(f"{self._name}-*.safetensors")):
            try:
                header = safetensors_file.read_metadata(path)
                if header.get(SOURCE_KEY) != self._source_hash:
                    break
                part = safetensors_file.load_tensors(path)[FEATURES_FOLDER].numpy()
            except DamagedFileError:
                break
            if path != self._path(sum(map(len, portions)) + len(part)):
                break
            portions.append(part)
            self.batch = int(header.get(BATCH_KEY, FEATURE_BATCH))
        return portions

    def save(self, portions: list[np.ndarray], end: int) -> Float[np.ndarray, "n *N P"]:
        """Write new portions, up to image `end`; returns them in one array."""
        part = np.concatenate(portions)
        self._folder.mkdir(exist_ok=True)
        header = {SOURCE_KEY: self._source_hash, BATCH_KEY: str(self.batch)}
        safetensors_file.save_tensors(self._path(end), {FEATURES_FOLDER: torch.from_numpy(part)}, header, checksum=True)
        return part

    def _path(self, end: int) -> Path:
        return self._folder / f"{self._name}-{end:012d}.safetensors"


def _compute_portions(
    pooled: nn.Module, plan: Plan, images: ImageStore, rows: np.ndarray, count: int, batch: int
) -> Iterator[tuple[Float32[np.ndarray, "b *N P"], int]]:
    """Yield features in portions of whole batches, with the batch size of each.

    Args:
        count: images of the split, of which `rows` are left to compute.
        batch: the initial batch size.
    """
    portion = -(-max(count // PORTIONS, 1) // FEATURE_BATCH) * FEATURE_BATCH
    for start in range(0, len(rows), portion):
        features, batch = _compute_with_fitting_batch(pooled, plan, images, rows[start : start + portion], batch)
        yield features, batch


def _compute_with_fitting_batch(
    pooled: nn.Module, plan: Plan, images: ImageStore, rows: np.ndarray, batch: int
) -> tuple[Float32[np.ndarray, "b *N P"], int]:
    """The features of a portion, with the first batch size of batch, batch/2, batch/4, ... that fits."""
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
"""Of the keys in metrics.jsonl."""


def prepare_start_model(context: TrainContext) -> Generator[Event, None, tuple[Plan, ViT]]:
    """The model at step 0: from the run folder if it is there already, else with the best probe as its head.

    Returns it with the plan, in which the fit of a head to masks may have written how many patches its minutes allow.

    Raises:
        InterruptedRun: a signal asked to stop while features were computed; those are saved.
        UsageError, DamagedFileError, ResourceError: the checkpoint cannot be read, or is not the plan's.
        DataError: an image cannot be read.
    """
    run, plan = context.run, context.plan
    if run.start_file.is_file():
        return plan, load_start_model(run, plan)
    if plan.model.head == "bank":
        return plan, (yield from _prepare_bank(context))
    if plan.model.is_dense:
        return (yield from _prepare_patch_head(context))
    checkpoint = open_checkpoint(plan.finetune.weights)
    model = build_start_model(checkpoint, plan.model, plan.finetune).to(plan.compute.device)
    probed = yield from _probe_features(context, model)
    continued = None
    if plan.pretrain.steps:
        plan, model, probed, continued = yield from _continue_start(context, model, probed)
        context = dataclasses.replace(context, plan=plan)
    model = _keep_best_head(context, model, probed.result, probed.seconds, probed.num_images, continued)
    phase.remove_phase_checkpoints(run, pretraining.PHASE_NAME)
    return plan, model


class _ProbedModel(NamedTuple):
    """The probes of a model's features."""

    result: linear_probe.ProbeResult
    losses: Float[np.ndarray, " m *K"]
    """Of the chosen probe on the validation images."""
    num_images: int
    """Images that were read, and the seconds that this took, with the probes."""
    seconds: float


def _probe_features(context: TrainContext, model: ViT, name: str = "") -> Generator[Event, None, _ProbedModel]:
    """Compute the features of all images, and fit probes to them.

    Args:
        name: of the features in files, where they are not those of the checkpoint.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    start_time, extra = time.perf_counter(), ""
    with listen_for_signals() as signal_request:
        train = yield from extract_features(context, model, "train", signal_request, name=name)
        valid = yield from extract_features(context, model, "val", signal_request, name=name)
        if uses_mirror_images(plan, dataset):
            extra = " and mirror images"
            mirrored = yield from extract_features(context, model, "train", signal_request, mirror=True, name=name)
            features = np.concatenate([train.features, mirrored.features])
            image_weights = None if train.weights is None else np.tile(train.weights, 2)
            train = FeatureSet(features, np.concatenate([train.targets, mirrored.targets]), image_weights)
    if signal_request:  # with the last portion
        message = f"Interrupted after the features. {resume_instructions(run.path)}"
        raise InterruptedRun(message, signal_request.exit_code)
    count = len(train.features) + len(valid.features)
    title = "New features" if name else "Features"
    yield Note(f"{title} of {format_count(count, 'picture')}{extra}, computed once, in {_format_elapsed(start_time)}.")
    probes_time = time.perf_counter()
    task = dataset.source.task
    result = fit_probes(train, valid, task, plan.model.outputs, weights.list_feature_columns(plan.model), plan.seed)
    yield Note(f"Neighbours and linear probes on them, on the validation pictures ({_format_elapsed(probes_time)}):")
    yield from map(Note, linear_probe.format_candidates(result.candidates))
    losses = output_losses(task, result.best.predict_outputs(valid.features[:, result.columns]), valid.targets)
    return _ProbedModel(result, losses, count, time.perf_counter() - start_time)


def _continue_start(
    context: TrainContext, start: ViT, probed: _ProbedModel
) -> Generator[Event, None, tuple[Plan, ViT, _ProbedModel, linear_probe.ContinuedStart]]:
    """Let pre-training go on from the checkpoint, and keep what comes out if its probe gains beyond luck.

    Returns the plan with the steps that were made, the model that the run begins with, its probes, and the comparison.
    Test images are not read.
    """
    dataset, model = context.dataset, copy.deepcopy(start)
    plan = yield from continuing.continue_pretraining(context, model)
    context = dataclasses.replace(context, plan=plan)
    again = yield from _probe_features(context, model.eval().requires_grad_(True), "-continued")
    rows, groups = dataset.splits["val"], dataset.source.groups
    before, after = (
        (next(row for row in each.result.candidates if row.chosen), each.losses) for each in (probed, again)
    )
    own = None if groups is None else groups[rows]
    compared = linear_probe.compare_starts(plan.pretrain.steps, before, after, own, plan.seed)
    yield Note(str(compared))
    if compared.is_kept:
        phase.save_pretrained_bundle(context, pretraining.PHASE_NAME, model)
    kept, chosen = (model, again) if compared.is_kept else (start, probed)
    chosen = chosen._replace(num_images=probed.num_images + again.num_images, seconds=probed.seconds + again.seconds)
    return plan, kept, chosen, compared


def _prepare_bank(context: TrainContext) -> Generator[Event, None, ViT]:
    """The model of an anomaly run: a bank of the training images' patches, and the score of each image without it.

    Features are computed in float32, in which images are scored later. In bfloat16 the scores of the same cells were
    smaller by 0.0005 in the mean and up to 0.002, so that more good images than promised would be called defects.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    exact = dataclasses.replace(plan, compute=dataclasses.replace(plan.compute, precision="float32"))
    checkpoint = open_checkpoint(plan.finetune.weights)
    model = build_start_model(checkpoint, plan.model, plan.finetune).to(plan.compute.device)
    start_time = time.perf_counter()
    rows = coreset.sample_images(dataset.splits["train"], plan.model, plan.seed)
    if len(rows) < len(dataset.splits["train"]):
        of = f"of {format_count(len(dataset.splits['train']), 'good picture')}"
        yield Note(f"The bank is made of {len(rows):,} {of}, drawn by chance: the memory has no room for all patches.")
    sampled = dataclasses.replace(dataset, splits={**dataset.splits, "train": rows})
    with listen_for_signals() as signal_request:
        found = yield from extract_features(
            dataclasses.replace(context, plan=exact, dataset=sampled), model, "train", signal_request
        )
    if signal_request:  # with the last portion
        message = f"Interrupted after the features. {resume_instructions(run.path)}"
        raise InterruptedRun(message, signal_request.exit_code)
    yield Note(f"Patches of {format_count(len(rows), 'good picture')}, in {_format_elapsed(start_time)}.")
    images = dataset.load_rows(rows, plan.image, plan.compute.num_workers)
    ids, source_groups = [dataset.source.ids[row] for row in rows.tolist()], dataset.source.groups
    names = None if source_groups is None else list(map(str, source_groups[rows].tolist()))
    digests = [bank_store.hash_pixels(images.take(rows[k : k + 1])[0]) for k in range(len(rows))]
    good = bank_store.sort_pictures(ids, names, digests, torch.from_numpy(found.features))
    labels, device = good.number_groups(), torch.device(plan.compute.device)
    bank, scores = coreset.fill_bank(good.features, labels, plan.model, plan.seed, device)
    patches = good.features.shape[0] * good.features.shape[1]
    kept = "all" if len(bank) == patches else f"{len(bank):,} that lie farthest apart"
    yield Note(
        f"The bank holds {kept} of their {format_count(patches, 'patch', 'patches')}, "
        f"{bank.numel() * bank.element_size() / 1e6:.0f} MB. Every picture has a score from a bank without it, in "
        f"{_format_elapsed(start_time)} in all."
    )
    model = build_model(
        dataclasses.replace(plan.model, bank_size=len(bank)), {**model.cpu().state_dict(), BANK_ROWS: bank}
    )
    write_calibration(run.calibration_file, good.ids, labels, scores)
    bank_store.save_pictures(run.path, bank_store.TRAINING, good)
    _save_start(context, model, time.perf_counter() - start_time, len(rows))
    return model


def _prepare_patch_head(context: TrainContext) -> Generator[Event, None, tuple[Plan, ViT]]:
    """The model of a segmentation run: a linear head on the patches of frozen features, fitted to the masks."""
    run, plan, dataset = context.run, context.plan, context.dataset
    checkpoint = open_checkpoint(plan.finetune.weights)
    model = build_start_model(checkpoint, plan.model, plan.finetune).to(plan.compute.device)
    start_time, start_processor = time.perf_counter(), time.process_time()
    fraction = plan.finetune.head_fraction
    rows = {
        split: coreset.sample_images(dataset.splits[split], plan.model, plan.seed, fraction)
        for split in ("train", "val")
    }
    for split, kept in rows.items():
        if len(kept) < len(dataset.splits[split]):
            of = f"{len(kept):,} of {len(dataset.splits[split]):,} {split} pictures, drawn by chance"
            why = "the memory has no room for all patches" if fraction == 1 else f"finetune.head_fraction {fraction:g}"
            yield Note(f"The head is fitted to {of}: {why}.")
    sampled = dataclasses.replace(context, dataset=dataclasses.replace(dataset, splits={**dataset.splits, **rows}))
    sets: dict[str, patch_head.PatchSet] = {}
    with listen_for_signals() as signal_request:
        for split in ("train", "val"):
            computed = yield from extract_features(sampled, model, split, signal_request)
            sets[split] = _label_patches_of(sampled, rows[split], computed.features)
    if signal_request:  # with the last portion
        message = f"Interrupted after the features. {resume_instructions(run.path)}"
        raise InterruptedRun(message, signal_request.exit_code)
    count = sum(map(len, rows.values()))
    yield Note(f"Patches of {format_count(count, 'picture')}, in {_format_elapsed(start_time)}.")
    slowdown = measure_slowdown(plan, time.perf_counter() - start_time, time.process_time() - start_processor)
    fit_time, columns = time.perf_counter(), weights.list_feature_columns(plan.model)
    patches = len(sets["train"].features)
    plan = _limit_head_patches(run, plan, patches, columns, len(rows["val"]) > 0, slowdown)
    context, most = dataclasses.replace(context, plan=plan), plan.finetune.head_patches
    result = patch_head.fit_patch_head(sets["train"], sets["val"], columns, most, plan.seed)
    judged = "the validation pictures" if len(rows["val"]) else "training pictures that are left out in turn"
    which = f"{most:,} of " * (0 < most < patches) + format_count(patches, "patch", "patches")
    yield Note(f"Linear heads on {which}, by {judged} ({_format_elapsed(fit_time)}):")
    yield from map(Note, linear_probe.format_candidates(result.candidates))
    return plan, _keep_best_head(context, model, result, time.perf_counter() - start_time, count)


def measure_slowdown(plan: Plan, seconds: float, processor_seconds: float) -> float:
    """How many times as long work takes here as without other programs: the time of some of it, over that of the
    processors that it used; 1 at least, and where another device did the work.

    What is measured in milliseconds says nothing of other programs, which take their turns of the processor after it: a
    fit that was to take 11 s at a sixth of a core took 42 (EXPERIMENTS.md).
    """
    if torch.device(plan.compute.device).type != "cpu" or not processor_seconds:
        return 1.0
    return max(1.0, seconds * plan.compute.threads / processor_seconds)


def _limit_head_patches(
    run: RunFolder,
    plan: Plan,
    patches: int,
    columns: Mapping[str, linear_probe.FeatureColumns],
    has_validation: bool,
    slowdown: float,
) -> Plan:
    """The plan with as many patches as a part of the minutes left allows, by the pace of this moment, written into the
    run folder; as it is without minutes, with a number in it, or with time for all.

    Args:
        slowdown: as `measure_slowdown`.
    """
    if not plan.minutes or plan.finetune.head_patches:
        return plan
    seconds = patch_head.FIT_SHARE * (60 * plan.minutes - run.clock.elapsed())
    most = patch_head.measure_fit_pace(columns, plan.model.outputs, has_validation).limit(patches, seconds / slowdown)
    if not most:
        return plan
    why = f"of {patches:,} what a fit of {max(seconds, 0):.0f} s takes at the pace measured after the features"
    limited = dataclasses.replace(plan, finetune=dataclasses.replace(plan.finetune, head_patches=most))
    return limited if run.record_decision(limited, {"finetune.head_patches": why}) else plan


def _label_patches_of(
    context: TrainContext, rows: np.ndarray, features: Float32[np.ndarray, "n *N P"]
) -> patch_head.PatchSet:
    """The patches of images with the labels of their masks."""
    plan, source = context.plan, context.dataset.source
    fractions = [patch_head.label_patches(load_mask(source, row, plan.image), plan.model) for row in rows.tolist()]
    groups = rows if source.groups is None else number_groups(source.groups)[rows]
    shaped = features.reshape(len(rows), plan.model.input_grid.patches, plan.model.pooled_width)
    return patch_head.collect_patches(shaped, fractions, groups, plan.seed)


def _keep_best_head(
    context: TrainContext,
    model: ViT,
    result: linear_probe.ProbeResult,
    seconds: float,
    count: int,
    continued: linear_probe.ContinuedStart | None = None,
) -> ViT:
    """The model at step 0 with the best of the heads that were fitted, saved beside a table of all of them."""
    weights.set_head(model, result.best, result.columns)
    model = model.cpu()
    linear_probe.write_candidates(context.run.start_table, result.candidates, continued=continued)
    _save_start(context, model, seconds, count)
    return model


def _save_start(context: TrainContext, model: ViT, seconds: float, count: int) -> None:
    """Record the seconds of the features, and write the model at step 0, which a resume looks for."""
    run, plan = context.run, context.plan
    row = {"step": 1, "seconds": round(seconds, 4), "images": count}
    run.record({"step": 0} | {f"{METRICS_PREFIX}_{name}": value for name, value in row.items()})
    header = {"format": "pt", **plan_metadata(plan)}
    safetensors_file.save_tensors(run.start_file, model.state_dict(), header, checksum=True)
    shutil.rmtree(run.path / FEATURES_FOLDER, ignore_errors=True)


def load_start_model(run: RunFolder, plan: Plan) -> ViT:
    """The model at step 0 from the run folder.

    Raises:
        DamagedFileError: the file is damaged or of another shape.
    """
    tensors = safetensors_file.load_tensors(run.start_file)
    shape = plan.model
    if shape.head == "bank" and BANK_ROWS in tensors:  # the plan has the most that it may have
        shape = dataclasses.replace(shape, bank_size=len(tensors[BANK_ROWS]))
    try:
        return build_model(shape, tensors)
    except RuntimeError as error:
        raise DamagedFileError(
            f"{run.start_file} does not fit the plan of this run. Remove it, and it is made again from the checkpoint."
        ) from error


def uses_mirror_images(plan: Plan, dataset: Dataset) -> bool:
    """Whether the probe learns from mirror images too: with recipe.flip, and few images."""
    return plan.recipe.flip and len(dataset.splits["train"]) < FEW_IMAGES


def _format_elapsed(start_time: float) -> str:
    return f"{time.perf_counter() - start_time:.1f} s"
