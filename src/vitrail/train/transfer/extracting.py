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
from ...data.loader import ImageStore
from ...errors import DamagedFileError, InterruptedRun, ResourceError
from ...evaluate.collect import collect, made_ready
from ...evaluate.pooled import Pooled
from ...files import safetensors_file
from ...model.vit import ViT
from ...runtime import memory_is_full
from ..dataset import Dataset, class_of
from ..events import Event, Note, Worked
from ..keeping.keeper import SECONDS_BETWEEN_SAVES
from ..keeping.signals import Wish, go_on
from ..plan import Plan
from ..run import RunFolder
from .probing import Seen

BATCH = 64
"""Pictures at once, where the memory has room for them; a power of two."""
PORTIONS = 100
FOLDER = "features"
"""Of a run, while its features are not all there."""
OF = "of"
"""In a file's header: what its numbers were computed with and from."""
AT_ONCE = "batch"
"""In a file's header: how many pictures at once gave its last numbers."""


def seen(
    run: RunFolder, model: ViT, plan: Plan, dataset: Dataset, split: str, wish: Wish, mirrored: bool = False
) -> Generator[Event, None, Seen]:
    """All pictures of a split, or their mirror images, as features, in the split's order, with their targets.

    Args:
        wish: signals; after the portion at hand they are followed.

    Raises:
        InterruptedRun: a signal asked to stop; what is computed is saved.
        DataError: a picture cannot be read.
        ResourceError: the memory has no room for a single picture.
    """
    rows, width = dataset.splits[split], plan.model.pooled_width
    targets = class_of(dataset.source, rows) if split == "val" and dataset.source.soft else dataset.learnt(split)
    if not len(rows):
        return Seen(np.zeros((0, width), np.float32), targets)
    pictures = dataset.pictures(split, plan.image, plan.compute.workers)
    pooled = made_ready(Pooled(model, mirrored), plan.compute.number_format)
    parts = Parts(run, plan, f"{split}{'-mirrored' * mirrored}", rows)
    kept = parts.kept()
    done = first = sum(map(len, kept))
    if done:
        yield Note(f"Going on after the features of {done:,} of {len(rows):,} {split} pictures.")
    fresh: list[np.ndarray] = []
    began = saved = time.perf_counter()
    for features, batch in _computed(pooled, plan, pictures, rows[done:], len(rows), parts.batch):
        if batch < parts.batch:
            yield Note(f"The memory is full with {parts.batch} pictures at once: features go on with {batch} at once.")
            parts.batch = batch
        fresh.append(features)
        done += len(features)
        whole = done == len(rows)  # kept, for the next split may take long
        if whole or wish or wish.save or time.perf_counter() - saved > SECONDS_BETWEEN_SAVES:
            kept.append(parts.keep(fresh, done))
            if wish.save:
                where = f"the features of {done:,} of {len(rows):,} {split} pictures"
                yield Note(f"Saved after {where}, as a signal asked; it goes on.")
            fresh, wish.save, saved = [], False, time.perf_counter()
        if wish:
            where = f"{done:,} of {len(rows):,} {split} pictures"
            raise InterruptedRun(f"Interrupted in the features of {where}, saved. {go_on(run.path)}", wish.exit_code)
        left = (time.perf_counter() - began) / (done - first) * (len(rows) - done)
        yield Worked(f"features of the {split} pictures", done, len(rows), left)
    return Seen(np.concatenate([*kept, *fresh]), targets)


class Parts:
    """The features of one split on the disk, in files that are named by where they end."""

    def __init__(self, run: RunFolder, plan: Plan, name: str, rows: np.ndarray):
        self._folder, self._name = run.path / FOLDER, name
        made_of = config.to_toml(plan, {}).encode() + rows.astype(np.int64).tobytes()
        self._of = hashlib.sha256(made_of).hexdigest()
        self.batch = BATCH
        """How many pictures at once gave the last numbers that were found or will be kept."""

    def kept(self) -> list[Float32[np.ndarray, "n P"]]:
        """What is there from the first picture on; nothing of another plan or other pictures, nor what is damaged."""
        found: list[np.ndarray] = []
        for path in sorted(self._folder.glob(f"{self._name}-*.safetensors")):
            try:
                header = safetensors_file.read_metadata(path)
                if header.get(OF) != self._of:
                    break
                part = safetensors_file.load_tensors(path)[FOLDER].numpy()
            except DamagedFileError:
                break
            if path != self._path(sum(map(len, found)) + len(part)):
                break
            found.append(part)
            self.batch = int(header.get(AT_ONCE, BATCH))
        return found

    def keep(self, portions: list[np.ndarray], end: int) -> Float32[np.ndarray, "n P"]:
        """Write what came since the last time, up to picture `end`; it in one piece."""
        part = np.concatenate(portions)
        self._folder.mkdir(exist_ok=True)
        header = {OF: self._of, AT_ONCE: str(self.batch)}
        safetensors_file.save_tensors(self._path(end), {FOLDER: torch.from_numpy(part)}, header, checksum=True)
        return part

    def _path(self, end: int) -> Path:
        return self._folder / f"{self._name}-{end:012d}.safetensors"


def forget(run: RunFolder) -> None:
    """Remove the features of a run whose probes are done."""
    shutil.rmtree(run.path / FOLDER, ignore_errors=True)


def _computed(
    pooled: nn.Module, plan: Plan, pictures: ImageStore, rows: np.ndarray, count: int, batch: int
) -> Iterator[tuple[Float32[np.ndarray, "b P"], int]]:
    """Portions of whole batches, so that somebody can watch, and how many pictures at once each took.

    Args:
        count: pictures of the split, of which `rows` are left to compute.
        batch: pictures at once, at first.
    """
    portion = -(-max(count // PORTIONS, 1) // BATCH) * BATCH
    for start in range(0, len(rows), portion):
        features, batch = _fitting(pooled, plan, pictures, rows[start : start + portion], batch)
        yield features, batch


def _fitting(
    pooled: nn.Module, plan: Plan, pictures: ImageStore, rows: np.ndarray, batch: int
) -> tuple[Float32[np.ndarray, "b P"], int]:
    """The features of a portion, with the first of batch, batch/2, batch/4, ... for which there is memory."""
    while batch:
        try:
            features = collect(
                pooled, pictures, rows, plan.image, batch, plan.compute.device, plan.compute.number_format
            )
        except (MemoryError, RuntimeError) as error:
            if not memory_is_full(error):
                raise
        else:
            return features, batch
        batch //= 2  # outside of the handler: the exception holds the frames that hold the memory
    raise ResourceError(
        "The memory is full: not even one picture at once leaves room for its features. Begin with a smaller "
        "--image-size or model, or on another --device."
    )
