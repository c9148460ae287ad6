"""What a recipe asks for is what the model is shown, again after a resume; what it does not ask for changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.augment import policies
from vitrail.data.augment.crops import crop_and_flip
from vitrail.data.augment.geometry import AFFINE_DRAWS, random_affine
from vitrail.data.augment.mixing import ERASING_DRAWS, random_erasing
from vitrail.data.loader import Batch, InMemoryImageStore
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.randomness import uniform
from vitrail.spec import ImageSpec
from vitrail.train import checkpoint
from vitrail.train.batch_augment import augment_batch, make_crop, mix_batch, resize_for_step, transpose_randomly
from vitrail.train.loop import TrainState, build_train_state, sample_patch_rows, train_steps
from vitrail.train.plan import Plan, Recipe

MODEL = ViTConfig(
    image_size=(8, 8),
    patch=(2, 2),
    channels=3,
    width=16,
    depth=1,
    heads=2,
    mlp_width=16,
    outputs=3,
    class_token=False,
    pool="mean",
    positions="none",
    rotary="axial",
    init="torch",
)
EVERYTHING = Recipe(
    steps=8,
    batch_size=8,
    patch_keep_rate=0.5,
    patch_keep_until=0.6,
    progressive_size=0.5,
    progressive_until=0.4,
    crop_padding=1,
    flip=True,
    flip_vertical=True,
    transpose=True,
    rotate=10,
    scale=0.1,
    translate=0.05,
    crop_scale=0.4,
    auto_augment="rand",
    random_erasing=0.5,
    mixup=0.8,
    cutmix=1.0,
    repeated_augmentation=2,
    label_smoothing=0.1,
)
PLAN = Plan(model=MODEL, image=ImageSpec(height=8, width=8, channels=3), recipe=EVERYTHING)
IMAGES = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TARGETS = np.arange(30) % 3
SOFT = np.full((30, 3), 0.1, np.float32) + np.eye(3, dtype=np.float32)[TARGETS] * 0.7


def batch_of(rows: list[int], copies: list[int] | None = None) -> Batch:
    indices = np.array(rows, np.int64)
    repeated = None if copies is None else np.array(copies, np.int64)
    return Batch(IMAGES[indices], torch.from_numpy(TARGETS[indices]), indices, repeated)


def run(targets: np.ndarray, stop: int, found: TrainState, plan: Plan, start: int = 0) -> list[float]:
    pictures = InMemoryImageStore(IMAGES, random_crop=make_crop(plan.recipe, plan.seed))
    return [step.loss for step in itertools.islice(train_steps(found, pictures, targets, plan, start), stop)]


def learner(plan: Plan) -> TrainState:
    return build_train_state(create_model(MODEL, seed=1), plan)


def test_a_recipe_without_wishes_shows_the_pictures_themselves():
    batch = batch_of([1, 2, 3])
    images = augment_batch(batch, Recipe(), 0, 0)
    assert images is batch.images
    shown, targets, _ = mix_batch(images, batch, Recipe(), 0, 0, 3)
    assert shown is images and targets is batch.targets
    assert make_crop(Recipe(), 0) is None


def test_views_are_made_in_the_order_that_is_promised():
    batch = batch_of([4, 9, 17, 23])
    recipe = Recipe(
        crop_padding=2, flip=True, rotate=9, scale=0.2, translate=0.1, auto_augment="three", random_erasing=0.7
    )
    by_hand = crop_and_flip(batch.images, uniform(5, "crop and flip", 2, batch.indices, 3), 2, True)
    by_hand = random_affine(by_hand, uniform(5, "wander", 2, batch.indices, AFFINE_DRAWS), 9, 0.2, 0.1)
    by_hand = policies.apply_operations(
        by_hand, policies.draw_three_augment(uniform(5, "three augment", 2, batch.indices, 6))
    )
    by_hand = random_erasing(by_hand, uniform(5, "erase", 2, batch.indices, ERASING_DRAWS), 0.7)
    assert torch.equal(augment_batch(batch, recipe, 5, 2), by_hand)


@pytest.mark.parametrize("policy", ["rand", "trivial", "three"])
def test_every_policy_changes_most_pictures(policy):
    shown = augment_batch(batch_of(list(range(30))), Recipe(auto_augment=policy), 0, 0)
    assert (shown != IMAGES).flatten(1).any(1).float().mean() > 0.7


def test_the_magnitude_and_the_count_of_rand_augment_are_the_recipes():
    batch = batch_of(list(range(30)))
    weak, strong = (
        augment_batch(batch, Recipe(auto_augment="rand", randaugment_magnitude=m), 0, 0) for m in (1.0, 10.0)
    )
    assert (strong.int() - IMAGES.int()).abs().float().mean() > (weak.int() - IMAGES.int()).abs().float().mean()
    assert not torch.equal(
        augment_batch(batch, Recipe(auto_augment="rand", randaugment_num_ops=3), 0, 0),
        augment_batch(batch, Recipe(auto_augment="rand"), 0, 0),
    )


def test_a_cut_keeps_to_the_recipes_smallest_area():
    assert make_crop(Recipe(crop_scale=0.35), 7) == RandomResizedCrop(7, scale=(0.35, 1.0))


def test_a_cut_mirrors_and_then_nothing_mirrors_again():
    recipe = Recipe(crop_scale=1.0, flip=True)
    assert make_crop(recipe, 7) == RandomResizedCrop(7, scale=(1.0, 1.0), mirror=True)
    batch = batch_of(list(range(30)))
    assert augment_batch(batch, recipe, 0, 0) is batch.images
    square = RandomResizedCrop(7, scale=(1.0, 1.0), ratio=(1.0, 1.0), mirror=True)
    shown = InMemoryImageStore(IMAGES, random_crop=square).take(batch.indices, 4)
    mirrored = torch.from_numpy(square.draw_flips(batch.indices, 4))
    assert 5 < mirrored.sum() < 25
    assert torch.equal(shown, torch.where(mirrored[:, None, None, None], IMAGES.flip(-1), IMAGES))


@pytest.mark.parametrize(("policy", "targets"), [("rand", TARGETS), ("three", SOFT)], ids=["numbers", "soft"])
def test_a_run_with_everything_on_goes_on_with_the_same_bits(policy, targets, tmp_path: Path):
    plan = dataclasses.replace(PLAN, recipe=dataclasses.replace(EVERYTHING, auto_augment=policy))
    whole = learner(plan)
    losses = run(targets, 8, whole, plan)
    assert len(losses) == 8 and np.isfinite(losses).all()
    first, second = learner(plan), learner(plan)
    seen = run(targets, 3, first, plan)
    path = checkpoint.save_checkpoint(tmp_path, 3, first.model, first.optimizers, first.ema)
    assert checkpoint.load_checkpoint(path, second.model, second.optimizers, second.ema) == 3
    assert seen + run(targets, 8, second, plan, start=3) == losses
    assert all(torch.equal(a, b) for a, b in zip(second.model.parameters(), whole.model.parameters(), strict=True))


def test_a_batch_that_lost_pictures_is_shown_and_kept_as_before():
    whole, left = batch_of([3, 8, 3, 8], [0, 0, 1, 1]), batch_of([3, 8, 8], [0, 0, 1])
    places = [0, 1, 3]
    recipe = dataclasses.replace(EVERYTHING, mixup=0.0, cutmix=0.0)
    assert torch.equal(augment_batch(left, recipe, 0, 1), augment_batch(whole, recipe, 0, 1)[places])
    rows, fewer = sample_patch_rows(whole, PLAN, 0, 1), sample_patch_rows(left, PLAN, 0, 1)
    assert rows is not None and fewer is not None
    assert torch.equal(fewer, rows[places])
    assert not torch.equal(rows[0], rows[2])
    shown, targets, _ = mix_batch(left.images, left, EVERYTHING, 0, 1, 3)
    assert shown.shape == (3, 3, 8, 8) and targets.shape == (3, 3)
    assert targets.sum(1).numpy() == pytest.approx(np.ones(3), abs=1e-6)


def test_epochs_count_different_pictures_and_steps_count_views():
    pictures = InMemoryImageStore(IMAGES, random_crop=make_crop(EVERYTHING, 0))
    steps = list(train_steps(learner(PLAN), pictures, TARGETS, PLAN))
    assert steps[-1].epoch == pytest.approx(8 * 4 / 30)
    assert all(step.num_images == 8 for step in steps)


def test_rows_and_columns_are_exchanged_where_the_key_says_so():
    shown = transpose_randomly(IMAGES[:3], np.array([0.1, 0.5, 0.49]))
    expected = [IMAGES[0].mT, IMAGES[1], IMAGES[2].mT]
    assert all(torch.equal(one, other) for one, other in zip(shown, expected, strict=True))


def test_both_flips_and_the_exchange_reach_all_eight_positions_of_a_square():
    recipe = Recipe(flip=True, flip_vertical=True, transpose=True)
    picture = torch.arange(12).reshape(1, 3, 2, 2).to(torch.uint8)
    seen = set()
    for epoch in range(60):
        batch = Batch(picture, torch.zeros(1, dtype=torch.int64), np.array([0]))
        seen.add(tuple(augment_batch(batch, recipe, 0, epoch).flatten().tolist()))
    assert len(seen) == 8


def test_early_steps_show_whole_patches_of_smaller_pictures_and_later_ones_the_same_tensor():
    recipe = dataclasses.replace(Recipe(), steps=10, progressive_size=0.75, progressive_until=0.5)
    plan = dataclasses.replace(PLAN, recipe=recipe)
    assert resize_for_step(IMAGES, plan, 0).shape == (30, 3, 6, 6)
    assert resize_for_step(IMAGES, plan, 5) is IMAGES


def test_a_model_learns_at_two_sizes_with_a_learned_table_and_dropped_patches():
    model = dataclasses.replace(MODEL, positions="learned")
    recipe = dataclasses.replace(EVERYTHING, crop_scale=0.0)
    plan = dataclasses.replace(PLAN, model=model, recipe=recipe)
    learner = build_train_state(create_model(model, 0), plan)
    before = learner.model.positions.table.detach().clone()
    losses = [step.loss for step in train_steps(learner, InMemoryImageStore(IMAGES), np.arange(30) % 3, plan)]
    assert len(losses) == 8 and np.isfinite(losses).all()
    assert not torch.equal(before, learner.model.positions.table)
