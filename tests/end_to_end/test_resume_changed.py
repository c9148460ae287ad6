"""A run goes on with what it finds: damaged checkpoints, another plan or machine, or nothing to do (A9 to A16, H1)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from killing import SHORT, differences, draw
from vitrail.files import atomic, lock, safetensors_file
from vitrail.train import checkpoint
from vitrail.train.run_folder import RunFolder

STEPS = 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn") / "pictures.npz")


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints of its steps 6 and 8."""
    from vitrail.cli.main import main

    before = torch.get_num_threads()
    run = tmp_path_factory.mktemp("runs") / "whole"
    words = ["train", pictures, *SHORT, "--steps", STEPS, "--recipe.save_every", 2, "--out", run]
    assert main([str(word) for word in words]) == 0
    torch.set_num_threads(before)
    return run


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The same run as if it had been killed after step 6, with checkpoints of its steps 4 and 6."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    for name in ("model", "predictions"):
        shutil.rmtree(run / name)
    for name in ("report.html", "report.json", "metrics-test.json"):
        (run / name).unlink()
    return run


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000006"


def damage(path: Path, how: str) -> None:
    if how == "empty":
        shutil.rmtree(path)
        path.mkdir()
    elif how == "missing":
        (path / "optimizer.safetensors").unlink()
    elif how == "truncated":
        data = (path / "optimizer.safetensors").read_bytes()
        (path / "optimizer.safetensors").write_bytes(data[:-7])
    elif how == "changed":
        data = bytearray((path / "optimizer.safetensors").read_bytes())
        data[-3] ^= 4
        (path / "optimizer.safetensors").write_bytes(data)
    else:
        path.rename(path.with_name("step-00000007"))


WORDS = {
    "empty": "has no manifest.json",
    "missing": "optimizer.safetensors is missing",
    "truncated": "it is shorter than when it was written",
    "changed": "Checksum mismatch in",
    "renamed": "step-00000007 holds step 6: somebody has renamed it.",
}


@pytest.mark.first(1)
@pytest.mark.parametrize("how", WORDS)
def test_A9_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_taken(how, vitrail, whole, stopped):
    older = stopped / "checkpoints" / "step-00000004"
    _copy_as(newest(stopped), older, 4)
    damage(newest(stopped), how)
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 0, answer.err
    assert WORDS[how] in answer.err and "Falling back to the checkpoint before it." in answer.err
    assert f"Going on after step 4 of {STEPS}." in answer.err


def _copy_as(path: Path, other: Path, step: int) -> None:
    """The same weights as a whole checkpoint of another step."""
    with atomic.write_folder(other) as new:
        for file in path.iterdir():
            if file.name not in ("manifest.json", "state.json"):
                shutil.copy(file, new)
        facts = json.loads((path / "state.json").read_text())
        atomic.write_json(new / "state.json", facts | {"step": step})


@pytest.mark.wide
def test_A9_what_dead_processes_left_unfinished_is_removed_and_what_is_younger_is_not(vitrail, stopped):
    left = [stopped / "checkpoints" / ".tmp-12345678-step-00000008", stopped / ".tmp-12345678-model"]
    for folder in left:
        folder.mkdir()
        os.utime(folder, (1, 1))
    young = stopped / ".tmp-87654321-report.html"
    young.write_text("")
    os.utime(young, (2**33, 2**33))
    assert vitrail("train", "--resume", stopped).code == 0
    assert not any(folder.exists() for folder in left) and young.exists()


def test_A10_with_all_checkpoints_damaged_nothing_begins_from_zero(vitrail, stopped):
    _copy_as(newest(stopped), stopped / "checkpoints" / "step-00000004", 4)
    damage(newest(stopped), "changed")
    damage(stopped / "checkpoints" / "step-00000004", "missing")
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 4
    assert "No checkpoint of this run is whole: " in answer.err
    assert "Checksum mismatch in" in answer.err and "is missing" in answer.err
    assert not (stopped / "model").exists()


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "plan.toml").read_text()
    assert text.count(f"\n{old}") == 1, old
    (run / "plan.toml").write_text(text.replace(f"\n{old}", f"\n{new}"))


def test_A11_changes_of_rates_and_batch_are_listed_and_followed(vitrail, stopped):
    edit(stopped, "batch_size = 8", "batch_size = 6")
    edit(stopped, "muon_lr = 0.02", "muon_lr = 0.01")
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 0
    assert (
        "Changed since the run was saved: recipe.batch_size 8 -> 6; recipe.muon_lr 0.02 -> 0.01. "
        "The results are no longer bit for bit those of the unbroken run."
    ) in answer.err


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("width = 32", "width = 64", "model.width 32 -> 64"),
        ("outputs = 3", "outputs = 4", "model.outputs 3 -> 4"),
        ("low = 0.0", "low = 1.0", "image.low 0.0 -> 1.0"),
        ("seed = 0", "seed = 1", "seed 0 -> 1"),
        ("val_fraction = 0.1", "val_fraction = 0.2", "data.val_fraction 0.1 -> 0.2"),
        ("steps = 8", "steps = 80", "recipe.steps 8 -> 80"),
        ('optimizer = "muon"', 'optimizer = "adamw"', "recipe.optimizer 'muon' -> 'adamw'"),
        ("ema_decay = 0.0", "ema_decay = 0.9", "recipe.ema_decay 0.0 -> 0.9"),
    ],
)
def test_A11_changes_that_break_the_meaning_are_refused_by_name(old, new, named, vitrail, stopped):
    edit(stopped, old, new)
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 2
    assert f"The plan was changed since this run was saved: {named}. That cannot be changed" in answer.err
    if "steps" in named:
        assert "train longer with --extend" in answer.err


@pytest.mark.wide
def test_A11_another_version_of_the_code_and_of_torch_is_told(vitrail, stopped, monkeypatch):
    true = checkpoint.describe_machine()
    monkeypatch.setattr(checkpoint, "describe_machine", lambda: true | {"threads": 1, "torch": "9.9", "vitrail": "8.8"})
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 0
    assert (
        f"Not as when the run was saved: vitrail '{true['vitrail']}' -> '8.8'; torch '{true['torch']}' -> '9.9'. "
        "The results are no longer bit for bit those of the unbroken run."
    ) in answer.err


@pytest.mark.wide
@pytest.mark.parametrize("workers", [0, 3])
def test_A12_another_number_of_workers_changes_no_bit(workers, vitrail, whole, stopped):
    answer = vitrail("train", "--resume", stopped, "--compute.num_workers", workers)
    assert answer.code == 0 and "The results stay the same bit for bit." in answer.err
    assert f"num_workers = {workers} " in (stopped / "plan.toml").read_text()
    assert differences(stopped, whole) == []


@pytest.mark.wide
def test_A12_another_number_of_threads_is_told_and_followed(vitrail, stopped):
    answer = vitrail("train", "--resume", stopped, "--compute.threads", 2)
    assert answer.code == 0 and "compute.threads 1 -> 2. The results are no longer bit for bit" in answer.err


@pytest.mark.wide
def test_A12_another_device_must_be_there(vitrail, stopped):
    answer = vitrail("train", "--resume", stopped, "--device", "mps")
    assert answer.code == 2 and "not usable with this torch" in answer.err
    assert vitrail("train", "--resume", stopped, "--device", "auto").code == 0


def test_A13_a_finished_run_is_complete_already_and_not_touched(vitrail, whole):
    before = {path: path.stat().st_mtime_ns for path in sorted(whole.rglob("*"))}
    answer = vitrail("train", "--resume", whole)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"{whole} is complete already; its report is {whole / 'report.html'}.\n"
    assert {path: path.stat().st_mtime_ns for path in sorted(whole.rglob("*"))} == before


def test_A14_a_tensor_that_is_missing_or_renamed_stops_the_resume_by_name(vitrail, stopped):
    path = newest(stopped)
    found = dict(safetensors_file.load_tensors(path / "model.safetensors"))
    found["head.wrong"] = found.pop("head.linear.bias").clone()
    shutil.copytree(path, path.with_name("old"))
    shutil.rmtree(path)
    with atomic.write_folder(path) as new:
        for file in ("optimizer.safetensors", "state.json", "plan.toml"):
            shutil.copy(path.with_name("old") / file, new)
        safetensors_file.save_tensors(
            new / "model.safetensors", {name: each.clone() for name, each in found.items()}, {}
        )
    answer = vitrail("train", "--resume", stopped)
    assert answer.code == 4
    assert "2 tensors are missing, left over or of another shape, the first is head.linear.bias" in answer.err


def test_A15_the_final_figures_are_those_of_the_bundle_to_the_last_digit(vitrail, whole):
    """No best model is kept beside the last one; what the run folder says must be true of the bundle in it."""
    answer = vitrail("evaluate", whole, "--json")
    logged = json.loads((whole / "metrics-test.json").read_text())
    found = json.loads(answer.out)["metrics"]
    assert found == logged


def test_A16_the_step_decides_and_no_clock(vitrail, stopped):
    _copy_as(newest(stopped), stopped / "checkpoints" / "step-00000004", 4)
    for file in (stopped / "checkpoints" / "step-00000004").rglob("*"):
        os.utime(file, (2**33, 2**33))
    os.utime(stopped / "checkpoints" / "step-00000004", (2**33, 2**33))
    for file in newest(stopped).rglob("*"):
        os.utime(file, (1, 1))
    assert f"Going on after step 6 of {STEPS}." in vitrail("train", "--resume", stopped).err


@pytest.mark.wide
def test_reasons_outlive_a_resume(vitrail, whole, stopped):
    assert vitrail("train", "--resume", stopped).code == 0
    reasons = [json.loads((run / "report.json").read_text())["reasons"] for run in (stopped, whole)]
    ours, theirs = ({each["name"]: each["text"] for each in found} for found in reasons)
    assert ours == theirs != {}
    assert RunFolder(stopped).read_reasons()["recipe.steps"] == "asked for"


@pytest.mark.wide
def test_H1_a_second_run_on_the_same_folder_stops_and_says_who_has_it(vitrail, stopped, monkeypatch):
    with lock.Lock(stopped):
        answer = vitrail("train", "--resume", stopped)
        holder = json.loads((stopped / ".lock").read_text())
    assert answer.code == 2
    assert f"{stopped} is in use by process {os.getpid()} on " in answer.err and " since 20" in answer.err
    (stopped / ".lock").write_text(json.dumps(holder | {"pid": 999_999_999, "started": "1"}))
    assert vitrail("train", "--resume", stopped).code == 0, "a dead process holds nothing"
    assert not (stopped / ".lock").exists()


@pytest.mark.first(1)
@pytest.mark.parametrize("lost", ["model", "predictions", "results.csv", "report.json"])
def test_what_was_deleted_of_a_finished_run_is_made_again_from_its_checkpoint(vitrail, whole, tmp_path, lost):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / lost) if (run / lost).is_dir() else (run / lost).unlink()
    if lost == "model":
        answer = vitrail("predict", run, run / "report.html")
        assert answer.code == 2
        assert f"has no model any more. Have it written again with: vitrail train --resume {run}" in answer.err
    answer = vitrail("train", "--resume", run)
    assert answer.code == 0 and f"{run} has its report and lacks {lost}" in answer.err
    assert differences(run, whole) == []
    assert "is complete already" in vitrail("train", "--resume", run).err


@pytest.mark.wide
def test_a_damaged_model_of_a_run_can_be_written_again(vitrail, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "model" / "model.safetensors").write_bytes(b"nothing")
    answer = vitrail("predict", run, run / "report.html")
    again = f"Or delete {run / 'model'}, and have it written again with: vitrail train --resume {run}"
    assert answer.code == 4 and again in answer.err


def test_pictures_that_were_moved_and_renamed_are_given_their_new_place_once(vitrail, whole, pictures, tmp_path):
    run, moved = tmp_path / "run", tmp_path / "elsewhere" / "other.npz"
    shutil.copytree(whole, run)
    moved.parent.mkdir()
    pictures.rename(moved)
    try:
        answer = vitrail("evaluate", run)
        advice = f"give their new place once: vitrail train --resume {run} --data.source NEW"
        assert answer.code == 3 and advice in answer.err
        answer = vitrail("train", "--resume", run, "--data.source", moved)
        assert answer.code == 0 and answer.err.splitlines() == [
            f"{run} reads its pictures from {moved} now; they are the same.",
            f"{run} is complete already; its report is {run / 'report.html'}.",
        ]
        answer = vitrail("evaluate", run)
        assert answer.code == 0 and "has changed" not in answer.err
        shutil.copytree(run, tmp_path / "stopped")
        shutil.rmtree(tmp_path / "stopped" / "model")
        answer = vitrail("train", "--resume", tmp_path / "stopped")
        assert answer.code == 0 and "The results stay the same bit for bit" in answer.err
        assert "no longer bit for bit" not in answer.err
    finally:
        moved.rename(pictures)


@pytest.mark.wide
def test_other_pictures_are_no_new_place(vitrail, whole, tmp_path):
    import numpy as np

    with np.load(RunFolder(whole).read_plan().data.source) as arrays:
        columns = {name: arrays[name].copy() for name in arrays.files}
    images = next(name for name, column in columns.items() if column.ndim > 1)
    columns[images] = 255 - columns[images]
    np.savez(tmp_path / "others.npz", **columns)
    before = (whole / "plan.toml").read_bytes()
    answer = vitrail("train", "--resume", whole, "--data.source", tmp_path / "others.npz")
    assert answer.code == 3 and f"others.npz does not hold the pictures of {whole}" in answer.err
    assert (whole / "plan.toml").read_bytes() == before
