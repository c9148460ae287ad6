"""Event files that TensorBoard itself reads back, also after a resume."""

from __future__ import annotations

import itertools
import types
from pathlib import Path

import pytest
from tensorboard.summary.writer import event_file_writer

from curves_of_tensorboard import curves, texts
from vitrail.train.trackers import TENSORBOARD_FOLDER, TensorBoardTracker, TrackedRun


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by between any two writers, as between a run and its resume: files are read in their order."""
    clock = itertools.count(1_795_000_000)
    monkeypatch.setattr(event_file_writer, "time", types.SimpleNamespace(time=lambda: float(next(clock))))


def opened(folder: Path) -> TensorBoardTracker:
    return TensorBoardTracker(
        TrackedRun(folder=folder, name="run", project="", settings={"seed": 3, "recipe.steps": 5})
    )


def test_curves_lie_in_the_run_folder_those_of_a_prelude_beside(tmp_path):
    writer = opened(tmp_path)
    writer.record("masked_step", 2, {"masked_loss": 0.5})
    for step in (1, 2, 3):
        writer.record("step", step, {"loss": 4.0 / step, "lr": 0.5})
    writer.record_final(3, {"final/test_accuracy": 0.75})
    writer.close(completed=True)
    assert curves(tmp_path / TENSORBOARD_FOLDER) == {
        "loss": [(1, 4.0), (2, 2.0), (3, 1.3333334)], "lr": [(1, 0.5), (2, 0.5), (3, 0.5)],
        "final/test_accuracy": [(3, 0.75)],
    }  # fmt: skip
    assert curves(tmp_path / TENSORBOARD_FOLDER / "masked") == {"masked_loss": [(2, 0.5)]}
    assert "| recipe.steps | 5 |" in texts(tmp_path / TENSORBOARD_FOLDER)["plan"]


def test_the_plan_is_there_once_whatever_step_is_recorded_first(tmp_path):
    for steps in ((20, 40), (60, 80)):  # of a long training only every so many steps are recorded
        writer = opened(tmp_path)
        for step in steps:
            writer.record("step", step, {"loss": 1.0})
        writer.close(completed=False)
    assert "| recipe.steps | 5 |" in texts(tmp_path / TENSORBOARD_FOLDER)["plan"]


def test_steps_that_a_resumed_run_does_again_are_there_once(tmp_path):
    first = opened(tmp_path)
    for step in (1, 2, 3, 4):
        first.record("step", step, {"loss": 1.0})
    first.close(completed=False)
    second = opened(tmp_path)
    for step in (3, 4, 5):
        second.record("step", step, {"loss": 2.0})
    second.close(completed=True)
    third = opened(tmp_path)  # nothing was missing but the figures
    third.record_final(5, {"final/test_accuracy": 0.5})
    third.close(completed=True)
    found = curves(tmp_path / TENSORBOARD_FOLDER)
    assert found["loss"] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert found["final/test_accuracy"] == [(5, 0.5)]
