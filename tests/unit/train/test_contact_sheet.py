"""The sheet shows the training's own views, in a grid that a person can read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.loader import Batch, InMemoryImageStore
from vitrail.data.preprocess import preprocess_image
from vitrail.data.source import Source
from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.report.page import CONTACT_SHEET_FILE
from vitrail.spec import ImageSpec
from vitrail.train import contact_sheet
from vitrail.train.batch_augment import augment_batch, make_crop
from vitrail.train.plan import Plan, Recipe

PICTURES = np.random.default_rng(0).integers(0, 256, (20, 14, 16, 3), dtype=np.uint8)
SOURCE = Source(
    name="drawn",
    classes=("cat", "dög\nand pony", "猫"),
    images=PICTURES,
    targets=np.arange(20) % 3,
    ids=[str(i) for i in range(20)],
)


def plan_of(recipe: Recipe) -> Plan:
    return Plan(model=ViTConfig(image_size=(12, 12), patch=(4, 4)), image=ImageSpec(height=12, width=12), recipe=recipe)


def held(plan: Plan, rows: np.ndarray) -> InMemoryImageStore:
    images = torch.stack([preprocess_image(SOURCE.images[row], plan.image) for row in rows.tolist()])
    return InMemoryImageStore(images, rows, make_crop(plan.recipe, plan.seed))


@pytest.mark.parametrize(
    ("task", "captions"), [("multilabel", ["a, b", "b", ""]), ("regression", ["1, 1", "0, 1", "not known, 0"])]
)
def test_labels_and_numbers_have_captions_too(task, captions):
    targets = np.tile(np.array([[1, 1], [0, 1], [np.nan, 0]], np.float32), (7, 1))[:20]
    source = dataclasses.replace(SOURCE, task=task, classes=("a", "b"), targets=targets)
    plan, rows = plan_of(Recipe(mixup=0.5)), np.arange(3)
    images, told = contact_sheet.render_views(source, held(plan, np.arange(20)), rows, plan, epochs=1)
    assert images.shape == (6, 3, 12, 12) and told[::2] == captions


def test_views_are_those_of_the_training():
    plan, rows = (
        plan_of(Recipe(auto_augment="three", random_erasing=0.5, flip=True, crop_padding=1, crop_scale=0.5)),
        np.array([3, 7, 11]),
    )
    pictures = held(plan, np.arange(20))
    images, captions = contact_sheet.render_views(SOURCE, pictures, rows, plan, epochs=2)
    assert images.shape == (9, 3, 12, 12)
    assert captions[:6] == ["cat", "epoch 1", "epoch 2", "dög\nand pony", "epoch 1", "epoch 2"]
    assert torch.equal(images[3], preprocess_image(SOURCE.images[7], plan.image))
    batch = Batch(pictures.take(np.array([11, 7]), 1), torch.zeros(2, dtype=torch.int64), np.array([11, 7]))
    assert torch.equal(images[[8, 5]], augment_batch(batch, plan.recipe, plan.seed, 1))


def test_mixed_views_show_another_picture_of_the_sheet():
    plan, rows = plan_of(Recipe(cutmix=1.0)), np.arange(8)
    images, _ = contact_sheet.render_views(SOURCE, held(plan, rows), rows, plan)
    prepared, first = images[0::8], images[1::8]
    own = (first == prepared).all(1).flatten(1)
    other = torch.stack([(first[row][None] == prepared).all(1).flatten(1).float().mean(1) for row in range(8)])
    assert (~own).any() and (other.sum(1) >= 1 - 1e-6).all()


def test_a_sheet_is_written_for_a_run(tmp_path: Path):
    plan = plan_of(Recipe(auto_augment="trivial", mixup=0.2))
    path = tmp_path / CONTACT_SHEET_FILE
    contact_sheet.write_contact_sheet(path, SOURCE, held(plan, np.arange(2, 20)), plan)
    with Image.open(path) as image:
        assert image.size == (8 * (96 + 4) + 4, 8 * (96 + 16 + 4) + 4)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("channels", "side", "shown"), [(1, 28, 112), (2, 300, 160), (3, 224, 160), (5, 100, 100)])
def test_pictures_of_any_channels_and_size_are_drawn_large_enough_to_see(channels, side, shown, tmp_path: Path):
    images = torch.randint(0, 256, (3, channels, side, side), dtype=torch.uint8)
    contact_sheet.draw_image_grid(tmp_path / "sheet.png", images, ["one", "two" * 99, ""])
    with Image.open(tmp_path / "sheet.png") as image:
        drawn = np.array(image)
    assert drawn.shape == (shown + 16 + 8, 3 * (shown + 4) + 4, 3)
    if side == 28:
        assert np.array_equal(drawn[20:-4:4, 4:116:4, 0], images[0, 0].numpy())
    if channels != 3:
        assert (drawn[..., 0] == drawn[..., 1])[20:].all()


@pytest.mark.parametrize(("n", "captions"), [(0, 0), (65, 65), (3, 2)])
def test_what_no_sheet_can_hold_is_refused(n, captions, tmp_path: Path):
    with pytest.raises(UsageError, match=rf"1 to 64 pictures with a caption each. Got {n} and {captions}"):
        contact_sheet.draw_image_grid(
            tmp_path / "sheet.png", torch.zeros(n, 1, 4, 4, dtype=torch.uint8), ["x"] * captions
        )
