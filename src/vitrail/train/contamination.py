"""Contamination: held-out images of this run on which its initial weights or its teacher were trained.

Splits depend on the seed, so a run of another seed or fold was trained on images that are held out here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..checkpoints import bundle
from ..checkpoints.bundle import find_bundle, resolve_model
from ..checkpoints.model_card import UNLABELED_KEY
from ..data import split_files
from ..files import atomic
from . import dataset as dataset_module
from .context import TrainContext
from .dataset import Dataset
from .events import Note
from .plan import CNN_TEACHER
from .run_folder import RunFolder

CONTAMINATION_FILE = "learnt-before.json"
"""In a run folder: the warnings, for the report; the other run may be deleted by then."""
HELD_OUT = {"val": "validation", "test": "test"}


def report_contamination(context: TrainContext) -> Iterator[Note]:
    """Warn once about held-out images that the start or the teacher was trained on, and keep the warnings."""
    run, plan, dataset = context.run, context.plan, context.dataset
    if (run.path / CONTAMINATION_FILE).is_file():
        return
    models = {
        "weights": plan.finetune.weights if plan.finetune.from_checkpoint else "",
        "teacher": plan.distill.teacher,
    }
    paths = {role: Path(name) for role, name in models.items() if name not in ("", CNN_TEACHER) and Path(name).exists()}
    if not paths:
        return
    warnings = [text for role, path in paths.items() if (text := describe_contamination(role, path, dataset))]
    # Written even without warnings: at a resume another model may be at that path.
    atomic.write_json(run.path / CONTAMINATION_FILE, warnings)
    yield from map(Note, warnings)


def read_contamination(run: RunFolder) -> tuple[str, ...]:
    """The warnings that were written when this run began."""
    path = run.path / CONTAMINATION_FILE
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ()


def describe_contamination(role: str, path: Path, dataset: Dataset) -> str:
    """A warning about held-out images that a model was trained on; empty if there are none.

    Args:
        role: "weights" or "teacher".
        path: a run folder, its bundle, another bundle, or a weights file, whose training data is unknown.
    """
    folder = find_bundle(resolved.path) if (resolved := resolve_model(str(path))) is not None else None
    if folder is None:
        return ""
    run = RunFolder(folder.parent)
    if folder == run.bundle and run.splits_file.is_file():
        return _describe_shared_images(role, run, dataset)
    info = bundle.read_bundle_info(folder).info
    data = info.get("data")
    if UNLABELED_KEY in info or not isinstance(data, dict):
        return ""
    if not dataset.source.has_fingerprint(data.get("fingerprint")):
        return ""
    return (
        f"The model at {path} was trained on {dataset.source.name} too, and which of its pictures it learnt is not "
        "known there: metrics on those are too good. Name the run folder to have them counted."
    )


def _describe_shared_images(role: str, run: RunFolder, dataset: Dataset) -> str:
    if not dataset_module.is_same_source(run.data_file, dataset.source):
        return ""
    learnt = split_files.read_split_rows(run.splits_file, dataset.source, "train")
    shared = {split: len(np.intersect1d(dataset.splits[split], learnt)) for split in HELD_OUT}
    if not any(shared.values()):
        return ""
    counted = " and ".join(
        f"{count:,} of the {len(dataset.splits[split]):,} {HELD_OUT[split]} pictures"
        for split, count in shared.items()
        if count
    )
    return (
        f"The {role} of {run.path} learnt {counted} with their answers, so metrics on them are too good. Hold out the "
        f"same pictures as that run (its seed is {run.read_plan().seed}), or take a model that has not seen them."
    )
