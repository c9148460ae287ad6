"""What lies in the run folder when everything before the training is done: the weights that it begins with."""

from __future__ import annotations

from ...checkpoints import bundle
from ...files import tensors
from ...model.vit import ViT
from ..dataset import Dataset
from ..plan import Plan
from ..prelude import PRELUDES
from ..run import RunFolder

START = "start.safetensors"
BUNDLE = "pretrained"
"""The same weights as a bundle, which can be probed, embedded with, and begun from by --weights."""
AFTER = "vitrail_after"


def has_done(run: RunFolder, name: str) -> bool:
    """Whether the weights in the run folder are those after a prelude, or after one that follows it."""
    path = run.path / START
    after = tensors.metadata(path).get(AFTER, "") if path.is_file() else ""
    return after in PRELUDES and PRELUDES.index(after) >= PRELUDES.index(name)


def keep(run: RunFolder, name: str, model: ViT, plan: Plan, dataset: Dataset) -> None:
    """Write a model's weights after a prelude, in one step; the bundle comes first, for a resume asks for the other."""
    folder = run.path / BUNDLE
    if not folder.exists():
        source = dataset.source
        info = {"trained": name, "data": {"source": source.name, "fingerprint": source.fingerprint()}}
        bundle.save(folder, model, plan.image, source.task, source.classes, info)
    tensors.save(run.path / START, model.state_dict(), {AFTER: name}, checksum=True)
