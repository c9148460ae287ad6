"""Checkpoints of a learner that is split over processes: each writes its shares, by PyTorch's distributed checkpoints.

The shares are safetensors with their places in the header, no pickles, so any number of processes and any engine reads
them again; state.py builds the folder around them as around every checkpoint: whole with its hashes, or absent.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...errors import DamagedFileError, ResourceError
from .team import Team

PATTERN = "shard-*.safetensors"


class Shares:
    """One save of all processes: the leader opens the folder, everybody writes into it, the leader closes it."""

    def __init__(self, team: Team, tensors: Mapping[str, Tensor]):
        self._team, self._tensors = team, tensors
        self._asked = False

    def write(self, folder: Path) -> None:
        """On the leader: write its shares into this folder, while the others write theirs."""
        self._asked = True
        self._team.told(str(folder))
        _write(self._team, folder, self._tensors)

    def close(self) -> None:
        """On the leader: let the others go on if nothing was to be written."""
        if not self._asked:
            self._team.told("")

    def help_leader(self) -> None:
        """On the others: write their shares wherever the leader says."""
        folder = self._team.told()
        if folder:
            _write(self._team, Path(folder), self._tensors)


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole ones or shares, from the shards in a folder, without talking to anybody.

    Raises:
        DamagedFileError: a tensor is missing, left over, or of another shape, or cannot be read.
    """
    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    theirs = {name: facts.size for name, facts in found.items() if isinstance(facts, TensorStorageMetadata)}
    ours = _shaped(tensors)
    odd = sorted(theirs.keys() ^ ours.keys())
    odd += [name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name].shape]
    if odd:
        raise DamagedFileError(
            f"{folder} does not fit this run: {len(odd)} tensors are missing, left over or of another shape, "
            f"the first is {odd[0]}. The plan was changed, or the folder belongs to another run."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as asked: each reads by itself
        try:
            load(ours, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            raise DamagedFileError(f"{folder} cannot be read: {_cause(error)[1]}.") from error


def _write(team: Team, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this process's shares, all processes at once.

    Raises:
        ResourceError: a process could not write its own; every one raises it.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with team.noticing():
            save(_shaped(tensors), storage_writer=writer, process_group=team.messages)
    except CheckpointException as error:
        rank, said = _cause(error)
        raise ResourceError(
            f"Rank {rank} cannot write its part of the checkpoint in {folder.parent}: {said}."
        ) from error


def _cause(error: CheckpointException) -> tuple[int, str]:
    """The first rank that failed and why, in a line; what torch raises is all tracebacks, and no `Exception`."""
    rank, (cause, _) = min(error.failures.items())
    if not isinstance(cause, Exception):
        raise cause from error  # Ctrl-C
    said = cause.strerror if isinstance(cause, OSError) else None
    return rank, said or " ".join(f"{type(cause).__name__}: {cause}".split())[:200].rstrip(".: ")


def _shaped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers as rows of one, because a slice of safetensors has at least one dimension; the memory is the same."""
    return {name: tensor.detach().view(1) if tensor.ndim == 0 else tensor.detach() for name, tensor in tensors.items()}
