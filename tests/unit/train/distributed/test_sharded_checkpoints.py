"""Shares of a checkpoint that cannot be written or read: a sentence and an error of ours, on every rank."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save

import partners
from vitrail.errors import DamagedFileError
from vitrail.train.distributed import fsdp

FULL_ON_RANK_1 = """
import resource, sys
from pathlib import Path

import torch

from vitrail.cli.main import describe_failure
from vitrail.train.distributed.fsdp import ShardedSave
from vitrail.train.distributed.collectives import join_group

with join_group("cpu", 60) as team:
    if team.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    shares = ShardedSave(team, {f"model/{team.rank}": torch.zeros(1000)})
    try:
        shares.write(Path(sys.argv[1])) if team.is_rank0 else shares.help_rank0()
    except Exception as error:
        print(*describe_failure(error), sep="\\n")
"""


@pytest.mark.wide
def test_G1_a_disk_that_is_full_on_one_rank_is_said_by_all_with_exit_code_5(tmp_path):
    folder = tmp_path / "checkpoints" / ".tmp-step-00000004"
    folder.mkdir(parents=True)
    answers = partners.ended(partners.start(["-c", FULL_ON_RANK_1, str(folder)]))
    said = f"Rank 1 cannot write its part of the checkpoint in {tmp_path / 'checkpoints'}: File too large."
    assert [out.splitlines() for _, out, _ in answers] == [[said, "5"]] * 2, answers


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """One tensor in a shard."""
    writer = HuggingFaceStorageWriter(str(tmp_path), save_distributed=True)
    save({"model/x": torch.ones(3)}, storage_writer=writer, no_dist=True)
    return tmp_path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_that_cannot_be_read_are_called_damaged(written, monkeypatch):
    found = torch.zeros(3)
    fsdp.read_shards(written, {"model/x": found})
    assert found.tolist() == [1, 1, 1]

    def failing(*words: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(HuggingFaceStorageReader, "read_data", failing)
    with pytest.raises(DamagedFileError, match=rf"^{written} cannot be read: Input/output error\.$"):
        fsdp.read_shards(written, {"model/x": found})
