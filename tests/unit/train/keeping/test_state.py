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

from vitrail.errors import DamagedFileError, ResourceError
from vitrail.model.sizes import named
from vitrail.model.vit import create
from vitrail.train.keeping import state
from vitrail.train.loop import Learner, prepare
from vitrail.train.plan import Plan
from vitrail.train.recipe import Recipe

CONFIG = dataclasses.replace(named("vit_mu_patch8_16"), outputs=3)
PLAN = Plan(model=CONFIG, recipe=Recipe(ema=0.9))


def learner() -> Learner:
    return prepare(create(CONFIG, seed=0), PLAN)


def save(folder: Path, step: int, found: Learner) -> Path:
    return state.save(folder, step, found.model, found.optimizers, found.average)


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
    save(folder, 1, learner())
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

    monkeypatch.setattr(state.atomic, "remove_folder", refuse)
    save(tmp_path, 3, found)
    assert [path.name for path in state.left_over(tmp_path)] == ["step-00000001"]
    monkeypatch.undo()
    save(tmp_path, 4, found)
    assert state.left_over(tmp_path) == [], "the next save tries again"


def test_G2_room_for_the_checkpoints_is_asked_for_before_the_first_step(tmp_path, monkeypatch):
    found = learner()
    needed = 3 * state.size(found)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2 * needed, needed, needed))
    state.check_room(tmp_path, found)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2 * needed, needed, needed - 1))
    with pytest.raises(ResourceError, match=r"3 checkpoints of .* MiB must fit .* only .* MiB are free in .*--out"):
        state.check_room(tmp_path, found)
    save(tmp_path, 1, found)
    state.check_room(tmp_path, found)  # what is there already will be deleted on the way


def test_G2_the_size_foretold_is_that_of_a_real_checkpoint(tmp_path):
    found = learner()
    foretold = state.size(found)
    state._prepare(found.optimizers[0])
    state._prepare(found.optimizers[1])
    path = save(tmp_path, 1, found)
    real = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert foretold == pytest.approx(real, rel=0.1)


def test_a_folder_that_somebody_renamed_is_no_checkpoint_of_that_step(tmp_path):
    save(tmp_path, 3, learner()).rename(tmp_path / "step-00000007")
    with pytest.raises(DamagedFileError, match=r"step-00000007 holds step 3: somebody has renamed it"):
        state.newest(tmp_path)


READER = """
import sys
from pathlib import Path
from vitrail.train.keeping import state
folder, seen, reads = Path(sys.argv[1]), set(), 0
while not (folder / "stop").exists():
    path, complaints = state.newest(folder)
    assert complaints == [], complaints
    seen.add(path.name)
    reads += 1
print(len(seen), reads)
"""


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
    path = state.save(tmp_path, 2, found.model, found.optimizers, found.average, None, {"guards": {"skipped": 4}})
    facts = state.facts(path)
    assert facts["step"] == 2 and facts["guards"] == {"skipped": 4} and facts["torch"] == torch.__version__
    assert state.saved_plan(path) is None
