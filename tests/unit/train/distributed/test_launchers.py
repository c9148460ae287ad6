"""The same function under torchrun, under SLURM's variables, and as a local Ray Train cluster of two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import partners

pytestmark = pytest.mark.wide

PROGRAM = str(Path(__file__).parents[3] / "started.py")


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What torchrun's two processes came to."""
    file = tmp_path_factory.mktemp("torchrun") / "found.json"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(partners.free_port())]
    return outcome(partners.start([*launcher, PROGRAM, str(file)], world=1), file)


def outcome(processes: partners.Processes, file: Path) -> dict[str, Any]:
    answers = partners.ended(processes, 240)
    assert not any(code for code, _, _ in answers), answers
    assert not partners.orphans(processes)
    return json.loads(file.read_text())


def test_torchrun_brings_two_processes_together(by_torchrun):
    assert by_torchrun["origin"] == "torchrun" and by_torchrun["world"] == 2


def test_the_variables_of_srun_give_the_same_weights(by_torchrun, tmp_path):
    file = tmp_path / "found.json"
    found = outcome(partners.start([PROGRAM, str(file)], kind="SLURM"), file)
    assert found == {**by_torchrun, "origin": "SLURM"}


def test_a_rank_that_never_ends_fails_its_own_test_and_says_where_it_stood():
    words = ["-c", "import os, time\nprint('here', flush=True)\ntime.sleep(100 * int(os.environ['RANK']))"]
    processes = partners.start(words)
    with pytest.raises(AssertionError, match=r"After 5 s ranks \[1\] were still there:") as failed:
        partners.ended(processes, 5)
    assert "rank 0, exit 0:\nhere" in str(failed.value) and "rank 1, exit -6:\nhere" in str(failed.value)
    assert 'File "<string>", line 3' in str(failed.value) and not partners.orphans(processes)


@pytest.mark.needs_ray
@pytest.mark.slow
def test_ray_train_gives_the_same_weights(by_torchrun, tmp_path):
    file = tmp_path / "found.json"
    found = outcome(partners.start([PROGRAM, str(file), "--ray"], world=1), file)
    assert found == {**by_torchrun, "origin": "program"}
