"""What lies in the run folder when everything before the training is done: the weights that it begins with."""

from __future__ import annotations

import tomllib

from ... import config
from ...checkpoints import bundle
from ...checkpoints.model_card import UNLABELED_KEY
from ...files import atomic, safetensors_file
from ...model.vit import ViT
from ..dataset import Dataset
from ..plan import Plan
from ..prelude import PRELUDES
from ..run import RunFolder

START = "start.safetensors"
BUNDLE = "pretrained"
"""The same weights as a bundle, which can be probed, embedded with, and begun from by --weights."""
TEACHER = "teacher.safetensors"
"""A CNN that was trained first."""
AFTER, PLAN = "vitrail_after", "vitrail_plan"


def has_done(run: RunFolder, name: str) -> bool:
    """Whether the weights in the run folder are those after a prelude, or after one that follows it."""
    path = run.path / START
    after = safetensors_file.read_metadata(path).get(AFTER, "") if path.is_file() else ""
    return after in PRELUDES and PRELUDES.index(after) >= PRELUDES.index(name)


def keep(run: RunFolder, name: str, model: ViT, plan: Plan, dataset: Dataset) -> None:
    """Write a model's weights after a prelude, in one step; the bundle comes first, for a resume asks for the other."""
    folder, source = run.path / BUNDLE, dataset.source
    if folder.exists():  # of the prelude before this one, or of this one before a kill
        atomic.remove_folder(folder)
    info = {UNLABELED_KEY: name, "data": {"source": source.name, "fingerprint": source.fingerprint()}}
    bundle.save_bundle(folder, model, plan.image, source.task, source.classes, info)
    safetensors_file.save_tensors(
        run.path / START, model.state_dict(), {AFTER: name, **plan_facts(plan)}, checksum=True
    )


def plan_facts(plan: Plan) -> dict[str, str]:
    """What to note in the header of the weights that a training begins with: the plan that was followed until there."""
    return {PLAN: config.to_toml(plan, {})}


def saved_plan(run: RunFolder) -> Plan | None:
    """The plan that was followed before the first step; None where nothing came before it, or by an older version.

    Raises:
        UsageError: it was saved by a version with other settings.
    """
    for path in (run.path / TEACHER, run.path / START):
        text = safetensors_file.read_metadata(path).get(PLAN) if path.is_file() else None
        if text is not None:
            return config.read(Plan, tomllib.loads(text), str(path))
    return None
