"""Two gloo processes on a CPU against one alone: gradients, weights, checkpoints, words, and one rank's NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import partners

pytestmark = pytest.mark.wide

TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/together.py has found, in one start of two processes."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    processes = partners.start([str(TESTS / "together.py"), folder])
    answers = partners.ended(processes)
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert not partners.orphans(processes)
    return json.loads(answers[0][1])


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_the_gradients_of_two_processes_are_those_of_one(found, engine):
    assert found["equal"][f"{engine} gradients"] < 1e-5


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", ["adamw", "unknown cells", "own loss"])
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_weights_after_twenty_steps_are_those_of_one_process_with_micro_batches_or_without(found, engine, kind, parts):
    assert found["equal"][f"{engine} {kind}, {parts} parts"] < 1e-4
    assert found["equal"][f"{engine} {kind}, {parts} parts, losses"] < 1e-5


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_muon_sees_whole_matrices_under_every_engine(found, engine):
    """Its iteration may run in bfloat16, which turns the last bit of a gradient into the third digit of a step."""
    assert found["equal"][f"{engine} muon, 1 parts"] < 0.03
    assert found["equal"][f"{engine} muon, 1 parts, losses"] < 1e-3


def test_a_checkpoint_of_fsdp_is_gone_on_with_by_every_engine_and_by_one_process(found):
    assert found["resumed"]["resumed by fsdp"] == 0
    assert found["resumed"]["resumed by ddp"] < 1e-4
    assert found["resumed"]["resumed by auto"] < 1e-4


def test_the_leader_is_heard_by_all_and_its_errors_are_everybodys(found):
    words = found["words"]
    assert words["told"] == {"who": 0} and words["gathered"] == [["rank", 0], ["rank", 1]]
    assert words["most"] == [1, 5] and words["led"] == 0
    assert words["refused"] == "UsageError: Not here."


def test_H6_other_code_is_named_with_its_ranks(found):
    assert found["words"]["same"].startswith(
        "DataError: The processes of this training do not have the same to work with "
        "(code: version 0 on rank 0, version 1 on rank 1)"
    )


def test_H5_a_slow_rank_is_waited_for_and_no_longer_than_the_patience(found):
    """Five seconds under a patience of sixty: longer than a dead process would be waited for."""
    assert found["slow"] == "(1,)"
    assert found["too slow"].startswith(
        "PartnerError: Another process did not answer in time or closed its connection ("
    )


def test_F5_a_loss_of_one_rank_that_is_not_finite_makes_all_skip(found):
    assert found["poisoned"] == {"outcome": "DivergedError", "moved": 0.0}
