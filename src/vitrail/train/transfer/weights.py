"""The checkpoint that a training begins from: found where it was named, or a recommended one that is already here."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checkpoints import bundle
from ...checkpoints.adapt import build_model
from ...checkpoints.load import LoadedModel, load_checkpoint
from ...errors import UsageError
from ...files import hub
from ...model.config import Pool, ViTConfig
from ...model.vit import ViT
from ...spec import ImageSpec
from .settings import StartSettings

FOLDER = "VITRAIL_WEIGHTS"
"""The environment variable that names the folder of downloaded checkpoints; ~/.cache/vitrail/weights unless set."""
FREE = {
    "image_size", "channels", "outputs", "pool", "pool_blocks", "pool_every", "dropout", "attention_dropout",
    "mlp_dropout", "drop_path", "recompute", "init", "attention",
}  # fmt: skip
"""Fields of a model's shape in which a training may differ from its checkpoint."""
HEAD: dict[str, Any] = {"head": "linear", "head_bias": True, "distillation_head": False}
"""What a probe can fit, and so the head that every training from a checkpoint begins with."""


@dataclass(frozen=True)
class Recommended:
    """A published checkpoint that makes good use of few pictures."""

    name: str
    """Folder of that name under `FOLDER`, and what --weights takes."""
    repository: str
    licence: str
    megabytes: int


RECOMMENDED = (
    Recommended("dinov2-small", "facebook/dinov2-small", "Apache-2.0", 88),
    Recommended("dinov2-base", "facebook/dinov2-base", "Apache-2.0", 346),
)
"""The smallest first."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read once, to know its shape."""

    name: str
    """As a plan calls it: the full path, or hf:OWNER/NAME@REVISION."""
    path: Path
    config: ViTConfig
    spec: ImageSpec
    digest: str
    notes: tuple[str, ...] = ()
    """What a person should know about it, in sentences without a full stop."""


def open_checkpoint(given: str) -> Checkpoint:
    """Read what --weights names.

    Raises:
        UsageError: there is nothing of that name, or it is no encoder that pictures can be given to.
        DamagedFileError, ResourceError: see `checkpoints.load` and `files.hub`.
    """
    known = next((one for one in RECOMMENDED if one.name == given and not Path(given).exists()), None)
    if known is not None:
        given = str(downloaded(known) or f"{hub.HUB_PREFIX}{known.repository}")
    here = bundle.resolve_model(str(Path(given).expanduser()) if not hub.is_hub_name(given) else given)
    if here is None:
        raise UsageError(
            f"There are no weights at {given}. Give --weights a weights file, a folder, a run, hf:OWNER/NAME, "
            f"{', '.join(one.name for one in RECOMMENDED)}, auto or none."
        )
    path = bundle.find_bundle(here.path) or here.path
    loaded = load_checkpoint(path)
    if not loaded.config.depth:
        raise UsageError(f"{given} holds a model without blocks, so there is nothing to begin from.")
    named = f"{hub.HUB_PREFIX}{here.repository}@{here.revision}" if here.repository else str(path.resolve())
    licence = (f"its licence is {here.licence or loaded.licence}",) if here.licence or loaded.licence else ()
    return Checkpoint(
        name=named, path=path, config=loaded.config, spec=loaded.spec, digest=_digest(loaded.model),
        notes=(*licence, *here.notes, *loaded.notes),
    )  # fmt: skip


def downloaded(wanted: Recommended) -> Path | None:
    """Where a recommended checkpoint lies on this machine: in the folder of checkpoints, or in the Hub's own cache."""
    folder = Path(os.environ.get(FOLDER) or "~/.cache/vitrail/weights").expanduser() / wanted.name
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        return folder
    return hub.find_cached_model(f"{hub.HUB_PREFIX}{wanted.repository}")


def check(checkpoint: Checkpoint, shape: ViTConfig, start: StartSettings) -> None:
    """Refuse a plan that this checkpoint cannot begin.

    Raises:
        UsageError: the file is not the one that the plan was made with, or the shape differs from it where it may not.
    """
    if start.digest and start.digest != checkpoint.digest:
        raise UsageError(
            f"{checkpoint.path} is not the file that the plan was made with: its tensors have the hash "
            f"{checkpoint.digest}, expected {start.digest}. Put that file back, or clear start.digest to take this one."
        )
    own, wanted = vars(checkpoint.config), vars(shape)
    if other := [name for name, value in HEAD.items() if wanted[name] != value]:
        raise UsageError(
            f"model.{other[0]} is {HEAD[other[0]]} in a run from a checkpoint, which begins with the head that its "
            f"probe has fitted. Got {wanted[other[0]]}; leave it out."
        )
    bound = [one.name for one in fields(ViTConfig) if one.name not in FREE and one.name not in HEAD]
    if odd := [name for name in bound if own[name] != wanted[name]]:
        raise UsageError(
            f"model.{odd[0]} comes from the checkpoint, {own[odd[0]]}, and cannot be {wanted[odd[0]]}. "
            "Leave it out, or begin from random values with --weights none."
        )


def starting(checkpoint: Checkpoint, shape: ViTConfig, start: StartSettings) -> ViT:
    """The checkpoint as a model of this shape, in evaluation mode, with a head of zeros.

    Raises:
        UsageError: as `check`.
    """
    check(checkpoint, shape, start)
    return build_model(shape, adapted(checkpoint, shape, start).model.state_dict())


def adapted(checkpoint: Checkpoint, shape: ViTConfig, start: StartSettings) -> LoadedModel:
    """Read again for pictures, pooling and outputs of a shape; the head is new even where the count is the same."""
    own = checkpoint.config
    pool: Pool | None = shape.pool if shape.pool != own.pool else None
    policy = None if start.channels_policy == "none" else start.channels_policy
    channels = shape.channels if shape.channels != own.channels else None
    loaded = load_checkpoint(
        checkpoint.path, image_size=shape.image_size, channels=channels, outputs=0, pool=pool, channels_policy=policy
    )
    values = loaded.model.state_dict()
    whole = replace(
        loaded.config, outputs=shape.outputs, pool_blocks=shape.pool_blocks, pool_every=shape.pool_every, **HEAD,
    )  # fmt: skip
    return replace(loaded, model=build_model(whole, values | _zeros(whole)), config=whole)


def _zeros(config: ViTConfig) -> dict[str, Tensor]:
    """A head that answers 0."""
    width = config.pooled_width
    return {"head.linear.weight": torch.zeros(config.outputs, width), "head.linear.bias": torch.zeros(config.outputs)}


def _digest(model: ViT) -> str:
    """The first 16 digits of the SHA-256 of all tensors, by their names."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]
