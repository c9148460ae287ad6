"""What is said about checkpoints while a run is saved: only what is so."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from vitrail.errors import ResourceError
from vitrail.files import atomic
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.train import checkpoint
from vitrail.train.checkpoint import CheckpointSaver
from vitrail.train.guards import Guards
from vitrail.train.loop import build_train_state
from vitrail.train.plan import Plan, Recipe
from vitrail.train.run_folder import RunFolder

PLAN = Plan(model=dataclasses.replace(config_from_name("vit_mu_patch8_16"), outputs=3), recipe=Recipe(steps=9))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def keeper(run: RunFolder) -> CheckpointSaver:
    return CheckpointSaver(run, PLAN, build_train_state(create_model(PLAN.model, seed=0), PLAN), Guards(PLAN.recipe))


def test_what_nothing_has_tried_to_delete_is_not_said_to_resist(run, keeper):
    assert keeper.save(2) == []
    oldest, hidden = run.checkpoints / "step-00000002", run.path / "hidden"
    shutil.copytree(oldest, hidden)
    assert keeper.save(4) == keeper.save(6) == []
    hidden.rename(oldest)  # as if the run had been killed before it could delete this
    assert keeper.save(6) == [] and not oldest.exists()


def test_A18_what_resists_is_told_once(run, keeper, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(atomic, "remove_folder", refuse)
    told = [keeper.save(step) for step in (2, 4, 6, 8)]
    assert [len(each) for each in told] == [0, 0, 1, 0]
    assert f"The old checkpoint {run.checkpoints / 'step-00000002'} cannot be deleted." in told[2][0]


def test_the_step_that_is_called_safe_is_that_of_a_whole_checkpoint(run, keeper, monkeypatch):
    keeper.save(2)
    keeper.save(4)
    (run.checkpoints / "step-00000004" / "model.safetensors").unlink()

    def full(*words: object) -> None:
        raise ResourceError("The disk is full.")

    monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    with pytest.raises(ResourceError, match=r"checkpoint of step 3 needs .* MiB; step 2 is still safe\. Make room"):
        keeper.save(3)
