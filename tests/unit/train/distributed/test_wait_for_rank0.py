"""What rank 0 does alone while the others wait: a phase that can be saved, and signals to either process."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import partners
from vitrail.train.signals import forward_signal, listen_for_signals

pytestmark = [pytest.mark.wide, pytest.mark.serial]

GO_ON = "Continue with: vitrail train --resume run"


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each rank of awaiting.py has found, in one start of two processes."""
    processes = partners.start([str(Path(__file__).with_name("awaiting.py"))])
    answers = partners.ended(processes)
    assert [code for code, _, _ in answers] == [0, 0], answers
    assert not partners.orphans(processes)
    return [json.loads(out) for _, out, _ in answers]


def both(found: list[dict[str, Any]], case: str) -> list[Any]:
    return [rank[case] for rank in found]


def test_the_others_wait_and_go_on_when_the_work_is_done(found):
    assert both(found, "undisturbed") == [[["outcome"], ["step"] * 5], [[None], []]]


@pytest.mark.parametrize(
    ("case", "code"),
    [("SIGTERM to rank 1", 143), ("SIGTERM to rank 0", 143), ("SIGINT to both", 130), ("SIGHUP to rank 1", 129)],
)
def test_a_signal_to_any_rank_saves_once_and_ends_all_with_its_code(found, case, code):
    (error, saves), (other_error, other_saves) = both(found, case)
    assert error == other_error == ["InterruptedRun", f"Interrupted, saved. {GO_ON}", code]
    assert saves.count("saved") == 1 and other_saves == []


def test_a_signal_that_only_asks_to_save_is_passed_on_once_and_the_work_goes_on(found):
    (answer, done), (other_answer, other_done) = both(found, "SIGUSR1 to rank 1")
    assert (answer, other_answer, other_done) == (["outcome"], [None], [])
    assert done.count("saved") == 1 and done.count("step") == 200 and done[-1] == "step"


def test_a_request_to_save_what_cannot_be_saved_ends_nothing(found):
    assert both(found, "SIGUSR1 where nothing can be saved") == [[["outcome"], []], [[None], []]]


@pytest.mark.parametrize("case", ["where nothing can be saved", "after the last event"])
def test_a_signal_that_no_phase_could_follow_is_followed_before_the_first_step(found, case):
    (error, _), (other_error, _) = both(found, case)
    assert error == other_error == ["InterruptedRun", f"Interrupted before the first step. {GO_ON}", 143]


def test_an_error_of_rank_0_is_everybodys(found):
    (error, _), (other_error, _) = both(found, "diverged")
    assert error == other_error == ["DivergedError", "Not finite.", 6]


def test_a_request_that_comes_after_a_signal_is_no_second_signal():
    before = signal.getsignal(signal.SIGTERM)
    forward_signal(signal.SIGTERM)  # nobody listens
    with listen_for_signals() as wish:
        forward_signal(signal.SIGTERM)
        assert wish.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before
        forward_signal(signal.SIGINT)
        assert wish.exit_code == 143


def test_within_two_listenings_the_inner_one_hears_and_the_second_signal_ends_the_process():
    before = signal.getsignal(signal.SIGTERM)
    with listen_for_signals() as outer:
        with listen_for_signals() as inner:
            signal.raise_signal(signal.SIGTERM)
            assert inner and not outer
            assert signal.getsignal(signal.SIGTERM) is before
        signal.raise_signal(signal.SIGTERM)
        assert outer
