"""A picture's views do not depend on who else is in the batch, on its order or on the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment.crops import crop_and_flip, resized_crop
from vitrail.data.augment.mixing import ERASING_DRAWS, random_erasing
from vitrail.data.augment.policies import (
    OPERATION_FUNCTIONS,
    AugmentationOps,
    Operation,
    apply_operations,
    draw_three_augment,
)
from vitrail.data.loader import Batch
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.randomness import uniform
from vitrail.train.batch_augment import augment_batch
from vitrail.train.plan import Recipe

ROWS = 24
STRONG = {
    Operation.ROTATE: 23.0,
    Operation.SHEAR_X: 0.21,
    Operation.SHEAR_Y: -0.21,
    Operation.TRANSLATE_X: 3.0,
    Operation.TRANSLATE_Y: -2.0,
    Operation.POSTERIZE: 3.0,
    Operation.SOLARIZE: 99.5,
}


def pictures(channels: int, height: int, width: int) -> torch.Tensor:
    rng = np.random.default_rng(channels * 1000 + height * 10 + width)
    return torch.from_numpy(rng.integers(0, 256, (ROWS, channels, height, width), dtype=np.uint8))


@pytest.fixture(autouse=True)
def threads_of_the_house() -> Iterator[None]:
    yield
    torch.set_num_threads(2)


parts = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True)
shapes = st.tuples(st.sampled_from([1, 2, 3, 5]), st.integers(1, 40), st.integers(1, 40))


@pytest.mark.parametrize("operation", OPERATION_FUNCTIONS, ids=lambda operation: operation.name)
@settings(max_examples=12)
@given(parts, shapes, st.sampled_from([1, 2]))
def test_an_operation_sees_one_picture_at_a_time(operation, part, shape, threads):
    images = pictures(*shape)
    amounts = np.full((ROWS, 1), STRONG.get(operation, 1.37))
    amounts += np.arange(ROWS)[:, None] * 0.01
    moves = AugmentationOps(np.full((ROWS, 1), int(operation)), amounts)
    torch.set_num_threads(2)
    together = apply_operations(images, moves)
    torch.set_num_threads(threads)
    assert torch.equal(
        apply_operations(images[part], AugmentationOps(moves.operations[part], amounts[part])), together[part]
    )


@settings(max_examples=20)
@given(parts, shapes, st.integers(1, 30), st.sampled_from(["bicubic", "bilinear"]))
def test_a_resized_crop_sees_one_picture_at_a_time(part, shape, side, interpolation):
    images = pictures(*shape)
    boxes = RandomResizedCrop(0).boxes(np.arange(ROWS), 0, np.tile(shape[1:], (ROWS, 1)))
    together = resized_crop(images, boxes, (side, 9), interpolation)
    assert torch.equal(resized_crop(images[part], boxes[part], (side, 9), interpolation), together[part])


@settings(max_examples=20)
@given(parts, shapes)
def test_erasing_sees_one_picture_at_a_time(part, shape):
    images, keys = pictures(*shape), uniform(0, "erase", 0, np.arange(ROWS), ERASING_DRAWS)
    together = random_erasing(images, keys, 0.6)
    assert torch.equal(random_erasing(images[part], keys[part], 0.6), together[part])


@settings(max_examples=20)
@given(parts, shapes)
def test_moves_see_one_picture_at_a_time(part, shape):
    images, keys = pictures(*shape), uniform(0, "moves", 0, np.arange(ROWS), 4)
    together = crop_and_flip(images, keys, 3, True, True)
    assert torch.equal(crop_and_flip(images[part], keys[part], 3, True, True), together[part])


@settings(max_examples=20)
@given(parts, st.sampled_from(["none", "rand", "trivial", "three"]), st.integers(0, 3))
def test_the_whole_diet_of_a_picture_is_its_own(part, policy, epoch):
    images, rows = pictures(3, 18, 21), np.arange(ROWS) * 7
    recipe = Recipe(
        auto_augment=policy, crop_padding=2, flip=True, flip_vertical=True, rotate=9, scale=0.2, random_erasing=0.5
    )
    batch = Batch(images, torch.zeros(ROWS, dtype=torch.int64), rows)
    smaller = Batch(images[part], torch.zeros(len(part), dtype=torch.int64), rows[part])
    assert torch.equal(augment_batch(smaller, recipe, 1, epoch), augment_batch(batch, recipe, 1, epoch)[part])


def test_copies_and_epochs_are_augmented_differently_and_copy_zero_as_the_only_one():
    images, rows = pictures(3, 18, 21)[:1].repeat(8, 1, 1, 1), np.full(8, 5)
    recipe = Recipe(auto_augment="three", crop_padding=3, flip=True, batch_size=8, repeated_augmentation=8)
    targets = torch.zeros(8, dtype=torch.int64)
    found = augment_batch(Batch(images, targets, rows, np.arange(8)), recipe, 1, 0)
    assert len({view.numpy().tobytes() for view in found}) == 8
    alone = augment_batch(Batch(images[:1], targets[:1], rows[:1]), recipe, 1, 0)
    assert torch.equal(alone[0], found[0])
    assert not torch.equal(augment_batch(Batch(images[:1], targets[:1], rows[:1]), recipe, 1, 1)[0], found[0])


def test_three_augment_is_the_same_for_a_picture_in_any_batch():
    keys = uniform(0, "three augment", 0, np.arange(ROWS), 6)
    whole, half = draw_three_augment(keys), draw_three_augment(keys[::2])
    assert np.array_equal(whole.operations[::2], half.operations)
    assert np.array_equal(whole.amounts[::2], half.amounts)
