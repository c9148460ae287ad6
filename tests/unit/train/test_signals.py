"""What becomes of signals in the blocks that expect them, and how a stopped run is said to go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.train.signals import ignore_save_signals, listen_for_signals, resume_instructions


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that come to whoever had asked for them before; by itself this one ends a process."""
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_asks_to_save_ends_nothing_where_nothing_can_be_saved(heard):
    with ignore_save_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == []
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [signal.SIGUSR1]


def test_the_steps_inside_such_a_block_save_as_ever(heard):
    with ignore_save_signals():
        with listen_for_signals() as wish:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert wish.save
        os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == []


def test_signals_belong_to_somebody_else_outside_of_the_main_thread(heard):
    def elsewhere() -> None:
        with ignore_save_signals():
            seen.append(signal.getsignal(signal.SIGUSR1))

    seen: list[object] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGUSR1)]


def test_a_run_goes_on_by_its_own_folder_and_a_fold_by_that_of_all_folds(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert resume_instructions(Path("runs/one")) == "Continue with: vitrail train --resume runs/one"
    (tmp_path / "plan.toml").write_text('[data]\nsource = "memory"\n')
    objects = f'Continue in Python with the same objects: vitrail.open("{tmp_path}").resume(source)'
    assert resume_instructions(tmp_path) == objects
    (tmp_path / "folds.json").touch()
    assert resume_instructions(tmp_path / "fold-1") == f"Continue with: vitrail train --resume {tmp_path}"
