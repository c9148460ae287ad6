"""The memory or the disk is full in the middle of a run: what is saved, and what would fit (A8, F10, G1, G4)."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from killing import SHORT, draw
from vitrail.data import preprocess
from vitrail.files import atomic, safetensors_file
from vitrail.model.vit import create_model
from vitrail.train import batch_augment, checkpoint, dataset, loop, optim, trainer
from vitrail.train.plan import Plan, Recipe
from vitrail.train.run_folder import RunFolder

STEPS = 7


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn") / "pictures.npz")


def begin(vitrail, pictures: Path, run: Path):
    return vitrail("train", pictures, *SHORT, "--steps", STEPS, "--recipe.save_every", 2, "--out", run)


def full_from(count: int, true, error: Exception):
    """`true`, which raises from its n-th call on."""
    seen = 0

    def watched(*words: object, **more: object) -> object:
        nonlocal seen
        seen += 1
        if seen >= count:
            raise error
        return true(*words, **more)

    return watched


@pytest.mark.first(1)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_F10_a_full_memory_saves_the_run_and_says_which_batch_fits(error, vitrail, pictures, tmp_path, monkeypatch):
    run, true = tmp_path / "run", loop.try_step

    def fits_two(*words: object) -> None:
        if words[2] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        true(*words)

    monkeypatch.setattr(loop, "augment_batch", full_from(4, batch_augment.augment_batch, error))
    monkeypatch.setattr(loop, "try_step", fits_two)
    answer = begin(vitrail, pictures, run)
    assert answer.code == 5
    assert answer.err.splitlines()[-1] == (
        "vitrail: The memory is full at step 4: 8 pictures at once do not fit; step-00000003 is saved. 2 at once do "
        "(tried just now). Take the same batches in 4 parts each: "
        f"vitrail train --resume {run} --recipe.grad_accum_steps 4"
    )
    monkeypatch.undo()
    resumed = vitrail("train", "--resume", run, "--recipe.grad_accum_steps", 4)
    assert resumed.code == 0 and f"Going on after step 3 of {STEPS}." in resumed.err
    assert "recipe.grad_accum_steps 1 -> 4" in resumed.err


@pytest.mark.parametrize("words", [("--minutes", 0.2), ("--steps", 9, "--dry-run")])
def test_F10_memory_that_the_first_measured_steps_fill_is_told_with_the_batch_that_fits(
    words, vitrail, pictures, tmp_path, monkeypatch
):
    true = loop.try_step

    def fits_two(*given: object) -> None:
        if given[2] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        true(*given)

    monkeypatch.setattr(
        loop, "augment_batch", full_from(1, batch_augment.augment_batch, torch.OutOfMemoryError("CUDA out of memory."))
    )
    monkeypatch.setattr(loop, "try_step", fits_two)
    answer = vitrail("train", pictures, *SHORT, *words, "--out", tmp_path / "run")
    assert answer.code == 5 and not (tmp_path / "run").exists()
    assert answer.err.splitlines()[-1] == (
        "vitrail: The memory is full in the first steps: 8 pictures at once do not fit. 2 at once do (tried just now). "
        "Take the same batches in 4 parts each: the same with --recipe.grad_accum_steps 4"
    )


def test_F10_of_several_processes_none_tries_alone_what_would_fit(monkeypatch):
    monkeypatch.setattr(loop, "try_step", lambda *_: pytest.fail("the others would wait"))
    plan = Plan(recipe=Recipe(batch_size=64, grad_accum_steps=2))
    assert loop.images_per_forward(plan, world_size=4) == 8
    told = loop.advise_smaller_batch(
        loop.build_train_state(create_model(plan.model), plan), plan, "vitrail train --resume runs/a", world_size=4
    )
    assert told == "Take the same batches in 4 parts each: vitrail train --resume runs/a --recipe.grad_accum_steps 4"


def test_F10_an_evaluation_without_memory_saves_only_what_is_all_here(tmp_path):
    sharded = checkpoint.CheckpointSaver.__new__(
        checkpoint.CheckpointSaver
    )  # which would wait in `save` for processes that evaluate nothing
    sharded.can_save_alone = False
    run = RunFolder(tmp_path / "run")
    told = str(trainer._evaluation_error(run, sharded, 7, torch.OutOfMemoryError("CUDA out of memory.")))
    assert told.startswith("The memory is full in the evaluation after step 7. Close other programs.")


@pytest.mark.wide
def test_F10_half_applied_weights_are_not_saved(vitrail, pictures, tmp_path, monkeypatch):
    def full(*words: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    true = optim.set_learning_rates

    def until_three(*words: object) -> None:
        if words[2] == 3:
            monkeypatch.setattr(torch.optim.AdamW, "step", full)
        true(*words)

    monkeypatch.setattr(optim, "set_learning_rates", until_three)
    answer = begin(vitrail, pictures, tmp_path / "run")
    assert answer.code == 5 and "step-00000002 is saved" in answer.err


def test_F10_the_largest_batch_is_found_by_halving():
    tried = []

    def fits(limit: int):
        def one(size: int) -> None:
            tried.append(size)
            if size > limit:
                raise MemoryError

        return one

    assert loop.find_largest_batch(fits(40), 256) == 32 and tried == [128, 64, 32]
    assert loop.find_largest_batch(fits(0), 4) == 0
    with pytest.raises(RuntimeError, match="else"):
        loop.find_largest_batch(full_from(1, None, RuntimeError("something else")), 4)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("training", "said"), [(True, "The memory is full at step"), (False, "in the evaluation after step")]
)
def test_A8_a_decoding_thread_that_runs_out_of_memory_ends_the_run_saved(
    training, said, vitrail, pictures, tmp_path, monkeypatch
):
    """There are no loader processes that could be killed: pictures are decoded by threads of the one process."""
    run = tmp_path / "run"
    monkeypatch.setattr(dataset, "RESIDENT_BYTES", 0)
    fill = preprocess.Preprocessor.fill_batch

    def broken(self: preprocess.Preprocessor, *words: object):
        saved = (run / "checkpoints" / "LATEST").exists()
        if saved and self._training == training and threading.current_thread() is not threading.main_thread():
            raise MemoryError
        return fill(self, *words)

    monkeypatch.setattr(preprocess.Preprocessor, "fill_batch", broken)
    answer = begin(vitrail, pictures, run)
    assert answer.code == 5 and said in answer.err and "is saved. " in answer.err
    monkeypatch.undo()
    assert vitrail("train", "--resume", run).code == 0


def test_G1_a_disk_that_is_full_names_what_is_needed_and_what_is_safe(vitrail, pictures, tmp_path, monkeypatch):
    run, true = tmp_path / "run", safetensors_file.save_tensors

    def full(path: Path, *words: object) -> None:
        if "optimizer" in path.name and (run / "checkpoints" / "LATEST").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true(path, *words)

    monkeypatch.setattr(safetensors_file, "save_tensors", full)
    answer = begin(vitrail, pictures, run)
    assert answer.code == 5
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"vitrail: Cannot write {run}/checkpoints/step-00000004: the disk is full (")
    assert "The checkpoint of step 4 needs 0.2 MiB; step 2 is still safe. Make room. Continue with: vitrail" in last
    assert not list((run / "checkpoints").glob(".tmp-*")), "nothing half done is left"
    monkeypatch.undo()
    assert vitrail("train", "--resume", run).code == 0


@pytest.mark.wide
def test_G4_a_log_that_cannot_be_written_stops_nothing_and_is_told_once(vitrail, pictures, tmp_path, monkeypatch):
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(atomic, "append_line", full)
    answer = begin(vitrail, pictures, tmp_path / "run")
    assert answer.code == 0, answer.err
    assert answer.err.count("The training goes on without these lines.") == 1
    RunFolder(tmp_path / "run").log("nobody hears this")


@pytest.mark.wide
def test_A18_an_old_checkpoint_that_cannot_be_deleted_is_told_once(vitrail, pictures, tmp_path, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(atomic, "remove_folder", refuse)
    run = tmp_path / "run"
    answer = begin(vitrail, pictures, run)
    assert answer.code == 0 and answer.err.count("cannot be deleted. The training goes on;") == 1
    assert f"The old checkpoint {run}/checkpoints/step-00000002 cannot be deleted." in answer.err
