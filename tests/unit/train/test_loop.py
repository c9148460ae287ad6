"""The loop: exact resume, guards, and randomness that depends on seed, epoch and sample only."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.loader import Batch, InMemoryImageStore
from vitrail.errors import DamagedFileError, DivergedError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.spec import ImageSpec
from vitrail.train import checkpoint
from vitrail.train.batch_augment import augment_batch
from vitrail.train.loop import TrainState, build_train_state, sample_patch_rows, train_steps
from vitrail.train.plan import Plan, Recipe

MODEL = ViTConfig(
    image_size=(8, 8),
    patch=(2, 2),
    channels=1,
    width=16,
    depth=2,
    heads=2,
    mlp_width=16,
    outputs=3,
    class_token=False,
    pool="mean",
    positions="none",
    rotary="axial",
    dropout=0.1,
    attention_dropout=0.1,
    mlp_dropout=0.1,
    drop_path=0.1,
    init="torch",
)
PLAN = Plan(
    model=MODEL,
    image=ImageSpec(height=8, width=8, channels=1),
    recipe=Recipe(
        steps=9, batch_size=8, ema_decay=0.9, patch_keep_rate=0.5, patch_keep_until=0.6, crop_padding=1, flip=True
    ),
)
IMAGES = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TARGETS = np.arange(30) % 3


def learner() -> TrainState:
    return build_train_state(create_model(MODEL, seed=1), PLAN)


def weights(found: TrainState) -> list[torch.Tensor]:
    assert found.ema is not None
    return [p.detach().clone() for p in found.model.parameters()] + list(found.ema.weights.values())


def test_a_run_that_stops_anywhere_and_goes_on_ends_with_the_same_bits(tmp_path: Path):
    whole = learner()
    losses = [step.loss for step in train_steps(whole, InMemoryImageStore(IMAGES), TARGETS, PLAN)]
    for stop in (1, 4, 6, 8):
        first, second = learner(), learner()
        seen = [
            step.loss for step in itertools.islice(train_steps(first, InMemoryImageStore(IMAGES), TARGETS, PLAN), stop)
        ]
        path = checkpoint.save_checkpoint(tmp_path / str(stop), stop, first.model, first.optimizers, first.ema)
        assert checkpoint.load_checkpoint(path, second.model, second.optimizers, second.ema) == stop
        seen += [step.loss for step in train_steps(second, InMemoryImageStore(IMAGES), TARGETS, PLAN, start=stop)]
        assert seen == losses
        assert all(torch.equal(a, b) for a, b in zip(weights(second), weights(whole), strict=True))


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_labels_and_numbers_go_on_with_the_same_bits_and_batches_of_unknown_ones_do_no_harm(task, tmp_path: Path):
    targets = np.random.default_rng(0).integers(0, 2, (30, 3)).astype(np.float32)
    targets[np.random.default_rng(1).random((30, 3)) < 0.5] = np.nan
    whole = learner()
    losses = [step.loss for step in train_steps(whole, InMemoryImageStore(IMAGES), targets, PLAN, task=task)]
    assert np.isfinite(losses).all() and min(losses) > 0
    first, second = learner(), learner()
    seen = [
        step.loss
        for step in itertools.islice(train_steps(first, InMemoryImageStore(IMAGES), targets, PLAN, task=task), 4)
    ]
    path = checkpoint.save_checkpoint(tmp_path, 4, first.model, first.optimizers, first.ema)
    checkpoint.load_checkpoint(path, second.model, second.optimizers, second.ema)
    seen += [step.loss for step in train_steps(second, InMemoryImageStore(IMAGES), targets, PLAN, start=4, task=task)]
    assert seen == losses
    assert all(torch.equal(a, b) for a, b in zip(weights(second), weights(whole), strict=True))
    unknown = learner()
    nothing = train_steps(unknown, InMemoryImageStore(IMAGES), np.full_like(targets, np.nan), PLAN, task=task)
    assert [step.loss for step in nothing] == [0] * 9
    assert all(torch.isfinite(weight).all() for weight in weights(unknown))


def test_a_finished_run_has_nothing_left_to_do():
    assert list(train_steps(learner(), InMemoryImageStore(IMAGES), TARGETS, PLAN, start=9)) == []


def test_steps_tell_what_they_did():
    steps = list(train_steps(learner(), InMemoryImageStore(IMAGES), TARGETS, PLAN))
    assert [step.step for step in steps] == list(range(1, 10))
    assert steps[-1].epoch == pytest.approx(9 * 8 / 30)
    assert all(step.num_images == 8 and step.seconds > 0 for step in steps)


def test_a_loss_that_is_not_finite_is_not_applied_and_three_in_a_row_stop_the_run():
    found = learner()
    with torch.no_grad():
        found.model.head.linear.bias.fill_(float("nan"))
    before = weights(found)
    with pytest.raises(DivergedError, match=r"not finite in steps 1 to 3.*--recipe.muon_lr 0.0067"):
        list(train_steps(found, InMemoryImageStore(IMAGES), TARGETS, PLAN))
    after = weights(found)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))


def batch_of(rows: list[int]) -> Batch:
    indices = np.array(rows, np.int64)
    return Batch(IMAGES[indices], torch.from_numpy(TARGETS[indices]), indices)


def test_dropped_patches_and_augmentation_of_a_picture_do_not_depend_on_its_batch():
    together, alone = batch_of([3, 7, 11]), batch_of([7])
    rows, row = sample_patch_rows(together, PLAN, 0, 2), sample_patch_rows(alone, PLAN, 0, 2)
    assert rows is not None and row is not None
    assert torch.equal(rows[1:2], row)
    pictures, picture = augment_batch(together, PLAN.recipe, 0, 2), augment_batch(alone, PLAN.recipe, 0, 2)
    assert torch.equal(pictures[1:2], picture)


def test_kept_patches_are_distinct_and_change_with_the_epoch():
    batch = batch_of(list(range(30)))
    first, second = sample_patch_rows(batch, PLAN, 0, 0), sample_patch_rows(batch, PLAN, 0, 1)
    assert first is not None and second is not None
    assert first.shape == (30, 8)
    assert all(len(set(row)) == 8 for row in first.tolist())
    assert not torch.equal(first, second)
    assert sample_patch_rows(batch, PLAN, 8, 0) is None


def test_a_checkpoint_of_another_shape_is_refused_by_name(tmp_path: Path):
    small = learner()
    path = checkpoint.save_checkpoint(tmp_path, 1, small.model, small.optimizers, small.ema)
    large = build_train_state(create_model(dataclasses.replace(MODEL, mlp_width=32)), PLAN)
    with pytest.raises(DamagedFileError, match=r"does not fit this run: 6 tensors.*encoder.blocks"):
        checkpoint.load_checkpoint(path, large.model, large.optimizers, large.ema)


def test_the_newest_whole_checkpoint_is_found_and_damaged_ones_are_named(tmp_path: Path):
    assert checkpoint.find_newest_checkpoint(tmp_path) == (None, [])
    found = learner()
    for step in (1, 2, 3):
        checkpoint.save_checkpoint(tmp_path, step, found.model, found.optimizers, found.ema)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002", "step-00000003"]
    weights_file = tmp_path / "step-00000003" / "model.safetensors"
    data = bytearray(weights_file.read_bytes())
    data[-1] ^= 1
    weights_file.write_bytes(data)
    path, complaints = checkpoint.find_newest_checkpoint(tmp_path)
    assert path == tmp_path / "step-00000002"
    assert len(complaints) == 1 and "model.safetensors" in complaints[0]
    (tmp_path / "step-00000002" / "state.json").unlink()
    with pytest.raises(DamagedFileError, match="No checkpoint of this run is whole"):
        checkpoint.find_newest_checkpoint(tmp_path)
