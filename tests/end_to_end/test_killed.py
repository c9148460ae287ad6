"""A run that is killed anywhere, again and again, ends with the bits of one that nobody stopped (part A, 1 to 4, 20).

A19 has no test: checkpoints are written before the training goes on, so there is no background save that could fail.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from killing import EVERYTHING, SHORT, differences, draw, left_behind, until_done
from nursery import Nursery
from vitrail.train import checkpoint

pytestmark = [pytest.mark.wide, pytest.mark.serial]

LINE = ("--steps", "12", "--recipe.save_every", "3", "--recipe.ema_decay", "0.9")
FILES = ("model.safetensors", "optimizer.safetensors", "average.safetensors", "state.json", "plan.toml")
PARTS = 17
CHECKPOINT = [
    *(f"{place} {name}" for name in (*FILES, "LATEST") for place in
      ("before", "made", "half-written", "written", "flushed", "renamed", "lasting")),
    *(f"flushed-again {name}" for name in (*FILES, "manifest.json", "folder")),
    *(f"{place} manifest.json" for place in ("before", "written")),
    *(f"{place} step" for place in ("before", "made", "filled", "listed", "renamed", "lasting")),
    *(f"{place} step" for place in ("before-removing", "out-of-sight", "half-removed", "removed")),
]  # fmt: skip
"""Every boundary of what is written when a checkpoint is."""
CONCLUSION = [
    "evaluated val", "made model", "filled model", "listed model", "renamed model", "half-written val.csv",
    "made test.csv", "renamed test.csv", "renamed metrics-test.json", "renamed thumbnails.npz",
    "half-written report.json", "renamed report.json", "half-written report.html", "flushed report.html",
]  # fmt: skip


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn") / "pictures.npz")


@pytest.fixture(scope="module")
def unbroken(nursery: Nursery, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that nobody stopped."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    assert nursery.run("train", pictures, *SHORT, *LINE, "--out", run).code == 0
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, 40])
def test_A1_and_A3_random_kills_with_everything_on_change_no_bit(kills, nursery, pictures, tmp_path):
    line = ["train", pictures, *EVERYTHING, "--steps", 20, "--recipe.save_every", 3]
    began = time.monotonic()
    assert nursery.run(*line, "--out", tmp_path / "whole").code == 0
    longest = time.monotonic() - began
    run = tmp_path / "killed"
    ends = until_done(nursery, run, [*line, "--out", run], kills, longest, seed=kills)
    assert ends[-1].code == 0, ends[-1].said
    assert differences(run, tmp_path / "whole") == []
    rows = left_behind(run)["metrics.jsonl"]
    assert isinstance(rows, list) and [row["step"] for row in rows if "lr" in row] == list(range(1, 21))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_A2_dying_at_every_boundary_of_a_checkpoint_changes_no_bit(part, nursery, pictures, unbroken, tmp_path):
    for number, place in enumerate(CHECKPOINT[part::PARTS]):
        run = tmp_path / f"run-{number}"
        third = f"{place} {4 if place.endswith('plan.toml') and 'again' not in place else 3}"  # the run has one, too
        third = place if "remov" in place or "sight" in place else third  # the third save removes the first one
        died = nursery.run("train", pictures, *SHORT, *LINE, "--out", run, VITRAIL_DIE_AT=third)
        assert died.code == -signal.SIGKILL, f"{place}: nobody came by\n{died.said}"
        kept, _ = checkpoint.find_newest_checkpoint(run / "checkpoints")
        assert kept is not None and kept.name in ("step-00000006", "step-00000009"), place
        resumed = nursery.run("train", "--resume", run)
        assert resumed.code == 0, f"{place}\n{resumed.said}"
        assert f"Going on after step {int(kept.name[5:])} of 12." in resumed.said
        assert differences(run, unbroken) == [], place
        assert not list(run.rglob(".tmp-*")), f"{place} left something behind"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_A4_dying_in_validation_goes_on_and_in_conclusion_redoes_only_that(part, nursery, pictures, unbroken, tmp_path):
    for number, place in enumerate(CONCLUSION[part::6]):
        run = tmp_path / f"run-{number}"
        last = f"{place} 10" if place.startswith("evaluated") else place
        died = nursery.run("train", pictures, *SHORT, *LINE, "--out", run, VITRAIL_DIE_AT=last)
        assert died.code == -signal.SIGKILL, f"{place}: nobody came by\n{died.said}"
        resumed = nursery.run("train", "--resume", run)
        assert resumed.code == 0, f"{place}\n{resumed.said}"
        if not place.startswith("evaluated"):
            assert "All steps were done before" in resumed.said
        assert differences(run, unbroken) == [], place
        assert (run / "report.html").is_file()
        assert not list(run.rglob(".tmp-*")), f"{place} left something behind"


@pytest.mark.slow
def test_A20_resumes_of_one_step_each_are_one_run(nursery, pictures, unbroken, tmp_path, request):
    steps = 50 if request.config.getoption("--all") else 6
    whole, run = tmp_path / "whole", tmp_path / "chain"
    line = ["train", pictures, *SHORT, "--steps", steps, "--recipe.save_every", 1, "--recipe.ema_decay", "0.9"]
    assert nursery.run(*line, "--out", whole).code == 0
    begin: list[object] = [*line, "--out", run]
    for _ in range(steps - 1):
        died = nursery.run(*begin, VITRAIL_DIE_AT="lasting LATEST")
        assert died.code == -signal.SIGKILL
        begin = ["train", "--resume", run]
    assert nursery.run(*begin).code == 0
    assert differences(run, whole) == []
    rows = left_behind(run)["metrics.jsonl"]
    assert isinstance(rows, list) and [row["step"] for row in rows if "lr" in row] == list(range(1, steps + 1))


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so(nursery, pictures, unbroken, tmp_path):
    run = tmp_path / "run"
    died = nursery.run("train", pictures, *SHORT, *LINE, "--out", run, VITRAIL_DIE_AT="listed step")
    assert died.code == -signal.SIGKILL and (run / ".lock").exists()
    resumed = nursery.run("train", "--resume", run)
    assert resumed.code == 0
    assert "The run stopped before its first checkpoint, so it begins again at step 0 of its plan." in resumed.said
    assert differences(run, unbroken) == []
