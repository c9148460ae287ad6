"""Who this process is: from the variables of torchrun, of SLURM, or of nobody."""

from __future__ import annotations

import pytest

from vitrail.errors import UsageError
from vitrail.train.distributed.collectives import GroupInfo, first_host, group_from_env

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "4121", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[07-08,12],big1", "SLURM_STEP_TASKS_PER_NODE": "4,3",
}  # fmt: skip


def test_without_variables_a_process_is_alone():
    assert group_from_env({}) == GroupInfo()
    assert group_from_env({"RANK": "0", "WORLD_SIZE": "1"}) == GroupInfo()


def test_torchrun_says_who_it_is_and_where_the_others_are():
    assert group_from_env(TORCHRUN) == GroupInfo(
        rank=5, world_size=8, local_rank=1, local_world_size=4, address="node1:29500", launcher="torchrun"
    )


def test_slurm_says_it_by_its_own_names_with_a_port_from_the_job():
    assert group_from_env(SLURM) == GroupInfo(
        rank=5, world_size=7, local_rank=1, local_world_size=3, address="gpu07:24121", launcher="SLURM"
    )
    assert group_from_env({**SLURM, "SLURM_JOB_ID": "24121"}).address == "gpu07:24121"


def test_the_script_of_a_slurm_job_is_alone_though_it_knows_how_many_tasks_there_could_be():
    assert group_from_env({name: text for name, text in SLURM.items() if name != "SLURM_STEP_ID"}) == GroupInfo()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("n1,n2", "n1"),
        ("node[003-010,012],gpu5", "node003"),
        ("a[7,9]", "a7"),
        ("rack[1-2]node[5-9].local", "rack1node5.local"),
    ],
)
def test_the_first_host_of_a_list_of_nodes(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "eight"}, r"RANK must be a number from 0\. Got 'eight'"),
        ({"RANK": "8"}, r"contradict each other: rank 8 of 8"),
        ({"LOCAL_RANK": "4"}, r"on this machine 4 of 4"),
    ],
)
def test_variables_that_cannot_be_are_refused(change, words):
    with pytest.raises(UsageError, match=words):
        group_from_env({**TORCHRUN, **change})


def test_ranks_that_do_not_know_where_to_meet_are_refused():
    with pytest.raises(UsageError, match=r"not MASTER_ADDR and MASTER_PORT.*unset RANK and WORLD_SIZE to train alone"):
        group_from_env({"RANK": "0", "WORLD_SIZE": "2"})
