"""Find and open the checkpoint that a training begins from: the named one, or a recommended local one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from ...checkpoints import bundle
from ...checkpoints.adapt import build_model
from ...checkpoints.bundle import BANK_ROWS
from ...checkpoints.load import LoadOptions, load_checkpoint
from ...errors import UsageError
from ...evaluate.probe import LinearProbe
from ...files import hub
from ...model.config import Pool, ViTConfig
from ...model.vit import ViT
from ...spec import ImageSpec
from ..plan import FinetuneSettings

WEIGHTS_FOLDER_VARIABLE = "VITRAIL_WEIGHTS"
"""The environment variable that names the folder of downloaded checkpoints; ~/.cache/vitrail/weights unless set."""
ADAPTABLE_FIELDS = {
    "image_size", "channels", "outputs", "pool", "pool_blocks", "pool_every", "bank_size", "tiles", "tile_overlap",
    "upsample", "queries", "query_blocks", "dropout", "attention_dropout", "mlp_dropout", "drop_path",
    "grad_checkpointing", "init", "attention",
}  # fmt: skip
"""Model fields in which a training may differ from its checkpoint."""
PROBE_HEAD: dict[str, Any] = {"head": "linear", "head_bias": True, "distillation_head": False}
"""The head of every training from a checkpoint, because a probe fits it; that of anomaly is a bank."""


@dataclass(frozen=True)
class RecommendedCheckpoint:
    """A published checkpoint that is good with few images."""

    name: str
    """The value of --weights, and the folder's name in the folder of downloaded checkpoints."""
    repository: str
    licence: str
    megabytes: int


RECOMMENDED_CHECKPOINTS = (
    RecommendedCheckpoint("dinov2-small", "facebook/dinov2-small", "Apache-2.0", 88),
    RecommendedCheckpoint("dinov2-base", "facebook/dinov2-base", "Apache-2.0", 346),
)
"""The smallest first."""


@dataclass(frozen=True, kw_only=True)
class StartCheckpoint:
    """Shape, preprocessing and hash of a checkpoint."""

    name: str
    """In a plan: the absolute path, or hf:OWNER/NAME@REVISION."""
    path: Path
    config: ViTConfig
    spec: ImageSpec
    digest: str
    notes: tuple[str, ...] = ()
    """Remarks for the user, without full stops."""


def open_checkpoint(weights: str) -> StartCheckpoint:
    """Read what --weights names.

    Raises:
        UsageError: nothing of that name exists, or it is no image encoder.
        DamagedFileError, ResourceError: see `checkpoints.load` and `files.hub`.
    """
    recommended = next(
        (one for one in RECOMMENDED_CHECKPOINTS if one.name == weights and not Path(weights).exists()), None
    )
    if recommended is not None:
        weights = str(find_downloaded(recommended) or f"{hub.HUB_PREFIX}{recommended.repository}")
    resolved = bundle.resolve_model(str(Path(weights).expanduser()) if not hub.is_hub_name(weights) else weights)
    if resolved is None:
        raise UsageError(
            f"There are no weights at {weights}. Give --weights a weights file, a folder, a run, hf:OWNER/NAME, "
            f"{', '.join(one.name for one in RECOMMENDED_CHECKPOINTS)}, auto or none."
        )
    path = bundle.find_bundle(resolved.path) or resolved.path
    loaded = load_checkpoint(path)
    if not loaded.config.depth:
        raise UsageError(f"{weights} holds a model without blocks, so there is nothing to begin from.")
    full_name = (
        f"{hub.HUB_PREFIX}{resolved.repository}@{resolved.revision}" if resolved.repository else str(path.resolve())
    )
    licence = (f"its licence is {resolved.licence or loaded.licence}",) if resolved.licence or loaded.licence else ()
    return StartCheckpoint(
        name=full_name, path=path, config=loaded.config, spec=loaded.spec, digest=_hash_tensors(loaded.model),
        notes=(*licence, *resolved.notes, *loaded.notes),
    )  # fmt: skip


def find_downloaded(recommended: RecommendedCheckpoint) -> Path | None:
    """Local path of a recommended checkpoint: in the folder of downloaded checkpoints, or in the Hub's cache."""
    folder = Path(os.environ.get(WEIGHTS_FOLDER_VARIABLE) or "~/.cache/vitrail/weights").expanduser() / recommended.name
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        return folder
    return hub.find_cached_model(f"{hub.HUB_PREFIX}{recommended.repository}")


def check_checkpoint(checkpoint: StartCheckpoint, shape: ViTConfig, settings: FinetuneSettings) -> None:
    """Check that a plan can begin from this checkpoint.

    Raises:
        UsageError: the file is not the plan's, or the shape differs in a field that may not differ.
    """
    if settings.weights_sha256 and settings.weights_sha256 != checkpoint.digest:
        raise UsageError(
            f"{checkpoint.path} is not the file that the plan was made with: its tensors have the hash "
            f"{checkpoint.digest}, expected {settings.weights_sha256}. Put that file back, or clear "
            f"finetune.weights_sha256 to take this one."
        )
    own, wanted = vars(checkpoint.config), vars(shape)
    expected_head = PROBE_HEAD | ({"head": "bank"} if shape.head == "bank" else {})
    if wrong_head := [name for name, value in expected_head.items() if wanted[name] != value]:
        raise UsageError(
            f"model.{wrong_head[0]} is {PROBE_HEAD[wrong_head[0]]} in a run from a checkpoint, which begins with the "
            f"head that its probe has fitted. Got {wanted[wrong_head[0]]}; leave it out."
        )
    fixed = [one.name for one in fields(ViTConfig) if one.name not in ADAPTABLE_FIELDS and one.name not in PROBE_HEAD]
    for name in fixed:
        if name == "depth" and shape.head == "bank" and shape.depth <= checkpoint.config.depth:
            continue  # the blocks above are left out
        if own[name] != wanted[name]:
            raise UsageError(
                f"model.{name} comes from the checkpoint, {own[name]}, and cannot be {wanted[name]}. "
                "Leave it out, or begin from random values with --weights none."
            )


def build_start_model(checkpoint: StartCheckpoint, shape: ViTConfig, settings: FinetuneSettings) -> ViT:
    """The checkpoint as a model of this shape, in evaluation mode, with a zero head or an empty bank.

    Raises:
        UsageError: as `check_checkpoint`.
    """
    check_checkpoint(checkpoint, shape, settings)
    own = checkpoint.config
    pool: Pool | None = shape.pool if shape.pool != own.pool else None
    policy = None if settings.channels_policy == "none" else settings.channels_policy
    channels = shape.channels if shape.channels != own.channels else None
    options = LoadOptions(image_size=shape.image_size, channels=channels, outputs=0, pool=pool, channels_policy=policy)
    values = load_checkpoint(checkpoint.path, options).model.state_dict()
    head = {
        "head.linear.weight": torch.zeros(shape.linear_outputs, shape.pooled_width),
        "head.linear.bias": torch.zeros(shape.linear_outputs),
    }
    if shape.queries:
        fresh = ViT(shape).head.queries
        assert fresh is not None
        for parameter in fresh.classes.parameters():  # equal, which changes no answer
            nn.init.zeros_(parameter)
        head |= {f"head.queries.{name}": tensor for name, tensor in fresh.state_dict().items()}
    if shape.head == "bank":
        head = {BANK_ROWS: torch.zeros(shape.bank_size, shape.pooled_width, dtype=torch.float16)}
    above = tuple(f"encoder.blocks.{i}." for i in range(shape.depth, own.depth))
    return build_model(shape, {name: tensor for name, tensor in values.items() if not name.startswith(above)} | head)


def _hash_tensors(model: ViT) -> str:
    """The first 16 hex digits of the SHA-256 over all tensors in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


# -- Linear probe as the initial head of the model


@torch.no_grad()
def set_head(model: ViT, probe: LinearProbe, columns: Int64[np.ndarray, " p"]) -> None:
    """Copy a probe into the head; features that the probe does not read, and outputs of parts of patches, get weight 0.

    Args:
        columns: the pooled features of the probe.
    """
    linear = model.head.linear
    assert isinstance(linear, nn.Linear) and linear.bias is not None
    weight: Float32[Tensor, "M P"] = torch.zeros_like(linear.weight)
    bias = torch.zeros_like(linear.bias)
    weight[: len(probe.weight), torch.from_numpy(columns)] = torch.from_numpy(probe.weight).to(weight)
    bias[: len(probe.bias)] = torch.from_numpy(probe.bias)
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


def list_feature_columns(config: ViTConfig) -> dict[str, Int64[np.ndarray, " _"]]:
    """Columns of the pooled features by name: of the last block, each pooling alone and all together; then, where the
    model pools several blocks, of all these blocks."""
    kinds = ("class", "mean") if config.pool == "class+mean" else (config.pool,)
    layout = np.arange(config.pooled_width).reshape(len(kinds), config.pool_blocks, config.width)
    last = layout[:, -1]
    columns = dict(zip(kinds, last, strict=True)) if len(kinds) > 1 else {}
    columns["+".join(kinds)] = last.ravel()
    if config.pool_blocks > 1:
        blocks = f"of {config.pool_blocks} blocks"
        columns |= {f"{kinds[0]} {blocks}": layout[0].ravel()}
        columns |= {f"{'+'.join(kinds)} {blocks}": layout.ravel()}
    return columns
