"""FSDP2 sharding and checkpoints: each rank writes its shards by PyTorch's distributed checkpoints.

The shards are safetensors with their offsets in the header, no pickles, so any number of ranks and any strategy can
read them. checkpoint.py makes the folder around them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ...errors import DamagedFileError, ResourceError
from ...formatting import format_count
from ...model.vit import ViT
from .collectives import RankGroup


class ShardedSave:
    """One checkpoint of all ranks: rank 0 makes the folder, every rank writes its shards, rank 0 completes it."""

    def __init__(self, group: RankGroup, tensors: Mapping[str, Tensor]):
        self._group, self._tensors = group, tensors
        self._announced = False

    def write(self, folder: Path) -> None:
        """On rank 0: write its shards into this folder, while the others write theirs."""
        self._announced = True
        self._group.broadcast_object(str(folder))
        _write_shards(self._group, folder, self._tensors)

    def close(self) -> None:
        """On rank 0: release the others if nothing was written."""
        if not self._announced:
            self._group.broadcast_object("")

    def help_rank0(self) -> None:
        """On the other ranks: write their shards into rank 0's folder."""
        folder = self._group.broadcast_object()
        if folder:
            _write_shards(self._group, Path(folder), self._tensors)


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill whole or sharded tensors from the shards in a folder, without communication.

    Raises:
        DamagedFileError: a tensor is missing, left over, or of another shape, or cannot be read.
    """
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    stored = {name: facts.size for name, facts in metadata.items() if isinstance(facts, TensorStorageMetadata)}
    vectors = _as_vectors(tensors)
    mismatched = sorted(stored.keys() ^ vectors.keys())
    mismatched += [name for name in stored.keys() & vectors.keys() if stored[name] != vectors[name].shape]
    if mismatched:
        raise DamagedFileError(
            f"{folder} does not fit this run: {format_count(len(mismatched), 'tensor is', 'tensors are')} missing, "
            f"left over or of another shape, the first is {mismatched[0]}. The plan was changed, or the folder belongs "
            "to another run."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads by itself
        try:
            load(vectors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise DamagedFileError(f"{folder} cannot be read: {_find_first_failure(error)[1]}.") from error


def _write_shards(group: RankGroup, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this rank's shards; all ranks call it together.

    Raises:
        ResourceError: a rank could not write its shards; every rank raises it.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with group.translate_errors():
            save(_as_vectors(tensors), storage_writer=writer, process_group=group.cpu_group)
    except CheckpointException as error:
        rank, reason = _find_first_failure(error)
        raise ResourceError(
            f"Rank {rank} cannot write its part of the checkpoint in {folder.parent}: {reason}."
        ) from error


def _find_first_failure(error: CheckpointException) -> tuple[int, str]:
    """The first rank that failed and why, in a line; torch's error holds tracebacks and is no `Exception`."""
    rank, (cause, _) = min(error.failures.items())
    if not isinstance(cause, Exception):
        raise cause from error  # Ctrl-C
    reason = cause.strerror if isinstance(cause, OSError) else None
    return rank, reason or " ".join(f"{type(cause).__name__}: {cause}".split())[:200].rstrip(".: ")


def _as_vectors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scalars as views [1], because slices of safetensors need a dimension."""
    return {name: tensor.detach().view(1) if tensor.ndim == 0 else tensor.detach() for name, tensor in tensors.items()}


# -- FSDP2 (each rank keeps a shard of every parameter): gathering whole tensors


def shard_model(model: nn.Module, group: RankGroup, device: str) -> None:
    """Shard the parameters over the ranks, in place; each block is gathered for its forward and backward pass."""
    mesh = init_device_mesh(device, (group.world_size,))
    assert isinstance(model, ViT)
    for block in model.encoder.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def set_gradient_sync(model: nn.Module, enabled: bool) -> None:
    """Whether the next backward pass reduces gradients over ranks; if not, they accumulate locally."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(enabled)


def to_full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on every rank, which all must call; others are returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Shard a full tensor, equal on every rank, like `reference`; without communication."""
    if not isinstance(reference, DTensor):
        return tensor
    return distribute_tensor(tensor, reference.device_mesh, reference.placements, src_data_rank=None)


@torch.no_grad()
def copy_into_shard(full: Tensor, into: Tensor) -> None:
    """Copy a full tensor, equal on every rank, into one that may be sharded."""
    into.copy_(shard_like(full.to(into.device), into))
