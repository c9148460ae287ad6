"""Checkpoints: the order in which they reach the disk, room for them, readers beside the writer (A17, A18, G2, H2)."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors import torch as safetensors

from vitrail.errors import DamagedFileError, ResourceError
from vitrail.files import atomic, safetensors_file
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.train import checkpoint
from vitrail.train.loop import TrainState, build_train_state
from vitrail.train.plan import Plan, Recipe

CONFIG = dataclasses.replace(config_from_name("vit_mu_patch8_16"), outputs=3)
PLAN = Plan(model=CONFIG, recipe=Recipe(ema_decay=0.9))


def learner() -> TrainState:
    return build_train_state(create_model(CONFIG, seed=0), PLAN)


def stepped() -> TrainState:
    """One whose optimisers have their moments, as after a step."""
    found = learner()
    for optimizer in found.optimizers:
        checkpoint._init_optimizer_state(optimizer)
    return found


def damage(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"?")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def save(folder: Path, step: int, found: TrainState) -> Path:
    return checkpoint.save_checkpoint(folder, step, found.model, found.optimizers, found.ema)


def test_A17_every_file_is_flushed_before_its_name_and_the_names_before_the_pointer(tmp_path, monkeypatch):
    calls: list[tuple[str, str]] = []
    opened: dict[int, str] = {}
    real = {name: vars(os)[name] for name in ("open", "fsync", "rename", "replace")}

    def plain(path: object) -> str:
        """Without the random part of a temporary name."""
        name = Path(str(path)).name
        return name.split("-", 2)[2] if name.startswith(".tmp-") else name

    def open_(path: object, *words: object, **more: object) -> int:
        descriptor: int = real["open"](path, *words, **more)
        opened[descriptor] = plain(path)
        return descriptor

    def fsync(descriptor: int) -> None:
        calls.append(("fsync", opened[descriptor]))
        real["fsync"](descriptor)

    def moved(how: str):
        def move(old: object, new: object, **more: object) -> None:
            calls.append((how, plain(new)))
            real[how](old, new, **more)

        return move

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", fsync)
    for how in ("rename", "replace"):
        monkeypatch.setattr(os, how, moved(how))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    save(folder, 1, stepped())
    for file in ("model.safetensors", "optimizer.safetensors", "average.safetensors", "state.json"):
        assert calls.index(("fsync", file)) < calls.index(("replace", file)) < calls.index(("fsync", "manifest.json"))
    named_at = calls.index(("rename", "step-00000001"))
    assert calls.index(("fsync", "manifest.json")) < named_at
    assert calls[named_at - 1] == ("fsync", "step-00000001"), "the names inside last, before the folder has its own"
    assert calls[named_at + 1] == ("fsync", "checkpoints")
    assert calls[named_at + 2 :] == [("fsync", "LATEST"), ("replace", "LATEST"), ("fsync", "checkpoints")]


def test_A18_an_old_checkpoint_that_cannot_be_deleted_stays_and_is_listed(tmp_path, monkeypatch):
    found = learner()
    for step in (1, 2):
        save(tmp_path, step, found)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(atomic, "remove_folder", refuse)
    save(tmp_path, 3, found)
    assert [path.name for path in checkpoint.list_old_checkpoints(tmp_path, 3)] == ["step-00000001"]
    monkeypatch.undo()
    save(tmp_path, 4, found)
    assert checkpoint.list_old_checkpoints(tmp_path, 4) == [], "the next save tries again"


def test_A9_a_damaged_checkpoint_is_written_anew_when_its_step_is_done_again(tmp_path):
    found = stepped()
    older, newer = save(tmp_path, 4, found), save(tmp_path, 6, found)
    damage(newer)
    assert checkpoint.find_newest_checkpoint(tmp_path)[0] == older
    save(tmp_path, 6, found)
    assert checkpoint.find_newest_checkpoint(tmp_path) == (newer, [])
    assert names(tmp_path) == [older.name, newer.name]


def test_a_whole_checkpoint_of_the_same_step_is_kept_and_old_ones_are_forgotten_all_the_same(tmp_path):
    found = stepped()
    save(tmp_path, 2, found)
    shutil.copytree(tmp_path / "step-00000002", tmp_path / "crashed-before-it-was-deleted")
    save(tmp_path, 4, found)
    before = save(tmp_path, 6, found).stat().st_ino
    (tmp_path / "crashed-before-it-was-deleted").rename(tmp_path / "step-00000002")
    assert save(tmp_path, 6, found).stat().st_ino == before
    assert names(tmp_path) == ["step-00000004", "step-00000006"], "nobody says that step 2 cannot be deleted"


def test_damaged_checkpoints_of_later_steps_never_push_out_a_whole_one(tmp_path):
    found = stepped()
    older = save(tmp_path, 4, found)
    for step in (6, 8):
        shutil.copytree(older, tmp_path / f"step-{step:08d}")
        damage(tmp_path / f"step-{step:08d}")
    newer = save(tmp_path, 5, found)
    assert names(tmp_path) == [older.name, newer.name]
    assert checkpoint.find_newest_checkpoint(tmp_path) == (newer, [])


def test_a_damaged_checkpoint_that_cannot_be_removed_is_told_in_words(tmp_path, monkeypatch):
    damage(save(tmp_path, 6, stepped()))

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(atomic, "remove_folder", refuse)
    with pytest.raises(ResourceError, match=r"Cannot write .*step-00000006: permission is missing"):
        save(tmp_path, 6, stepped())


def test_G2_room_for_the_checkpoints_is_asked_for_before_the_first_step(tmp_path, monkeypatch):
    found = learner()
    needed = 3 * checkpoint.checkpoint_bytes(found)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2 * needed, needed, needed))
    checkpoint.check_disk_space(tmp_path, found)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2 * needed, needed, needed - 1))
    with pytest.raises(ResourceError, match=r"3 checkpoints of .* MiB must fit .* only .* MiB are free in .*--out"):
        checkpoint.check_disk_space(tmp_path, found)
    save(tmp_path, 1, found)
    checkpoint.check_disk_space(tmp_path, found)  # what is there already will be deleted on the way


def test_G2_the_size_foretold_is_that_of_a_real_checkpoint(tmp_path):
    found = learner()
    foretold = checkpoint.checkpoint_bytes(found)
    checkpoint._init_optimizer_state(found.optimizers[0])
    checkpoint._init_optimizer_state(found.optimizers[1])
    path = save(tmp_path, 1, found)
    real = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert foretold == pytest.approx(real, rel=0.1)


def test_a_folder_that_somebody_renamed_is_no_checkpoint_of_that_step(tmp_path):
    save(tmp_path, 3, learner()).rename(tmp_path / "step-00000007")
    with pytest.raises(DamagedFileError, match=r"step-00000007 holds step 3: somebody has renamed it"):
        checkpoint.find_newest_checkpoint(tmp_path)


READER = """
import sys
from pathlib import Path
from vitrail.train import checkpoint as state
folder, seen, reads = Path(sys.argv[1]), set(), 0
while not (folder / "stop").exists():
    path, complaints = state.find_newest_checkpoint(folder)
    assert complaints == [], complaints
    seen.add(path.name)
    reads += 1
print(len(seen), reads)
"""


@pytest.mark.wide
@pytest.mark.slow
def test_H2_a_reader_always_finds_a_whole_checkpoint_while_the_trainer_changes_them(tmp_path):
    found, step = learner(), 1
    save(tmp_path, step, found)
    with subprocess.Popen([sys.executable, "-c", READER, tmp_path], stdout=subprocess.PIPE, text=True) as reader:
        timer = threading.Timer(15, (tmp_path / "stop").touch)
        timer.start()
        while not (tmp_path / "stop").exists():
            step += 1
            save(tmp_path, step, found)
        said, _ = reader.communicate()
    assert reader.returncode == 0
    names, reads = map(int, said.split())
    assert names > 1 and reads > 10


def test_the_facts_of_a_checkpoint_are_what_it_was_given_and_the_machine(tmp_path):
    found = learner()
    path = checkpoint.save_checkpoint(
        tmp_path, 2, found.model, found.optimizers, found.ema, None, {"guards": {"skipped": 4}}
    )
    facts = checkpoint.read_checkpoint_facts(path)
    assert facts["step"] == 2 and facts["guards"] == {"skipped": 4} and facts["torch"] == torch.__version__
    assert checkpoint.read_checkpoint_plan(path) is None


def after_a_step(found: TrainState) -> dict[str, torch.Tensor]:
    """All of a learner, moved once by gradients that depend on nothing else."""
    generator = torch.Generator().manual_seed(1)
    for parameter in found.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for optimizer in found.optimizers:
        optimizer.step()
    return {
        name: each.clone() for name, each in checkpoint.collect_tensors(found.model, found.optimizers, None).items()
    }


@pytest.mark.parametrize("version", ["this", "older"])
def test_a_checkpoint_from_before_the_first_applied_step_goes_on_as_if_it_had_never_stopped(version, tmp_path):
    path = save(tmp_path, 1, learner())
    assert not (path / "optimizer.safetensors").exists(), "a safetensors file of nothing cannot be read"
    if version == "older":
        (path / "optimizer.safetensors").write_bytes(safetensors.save({}, {}))
    again = stepped()
    assert checkpoint.load_checkpoint(path, again.model, again.optimizers, again.ema) == 1
    ours, theirs = after_a_step(again), after_a_step(learner())
    assert any(name.endswith("/step") and number == 1 for name, number in ours.items()), "AdamW counts its steps"
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("applied", [False, True])
def test_shares_tell_whether_a_step_was_applied(applied, tmp_path):
    found = stepped() if applied else learner()
    parts = checkpoint.collect_tensors(found.model, found.optimizers, found.ema)
    safetensors_file.save_tensors(tmp_path / "shard-00001-model-00001-of-00001.safetensors", parts, {})
    assert checkpoint._has_moments(tmp_path) == applied
