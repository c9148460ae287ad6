"""Whether pictures have an up and a down."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.data.loader import InMemoryImageStore
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.train.dataset import Dataset
from vitrail.train.plan import Plan, Recipe
from vitrail.train.planning import flip_invariance
from vitrail.train.planning.flip_invariance import choose_flips, measure_flip_detectability
from vitrail.train.request import TrainRequest

COUNT = 600


def noise(side: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(40, 200, (COUNT, side, side)).astype(np.uint8)


def with_sky(images: np.ndarray) -> np.ndarray:
    brighter = images.copy()
    brighter[:, : images.shape[1] // 3] += 30
    return brighter


def settled(images: np.ndarray, classes: int = 2, overrides: dict[str, str] | None = None, flip: bool = True):
    targets = np.arange(len(images)) % classes
    names = tuple(f"c{number}" for number in range(classes))
    ids = tuple(map(str, range(len(images))))
    source = Source(name="drawn", classes=names, images=images, targets=targets, ids=ids)
    plan = Plan(recipe=Recipe(flip=flip), image=dataclasses.replace(Plan().image, height=16, width=16))
    pictures, reasons = InMemoryImageStore(torch.from_numpy(images)[:, None]), {}
    wishes = TrainRequest(data=DataSettings(), overrides=overrides or {})
    dataset = Dataset(source, {"train": np.arange(len(images))})
    plan, new = choose_flips(plan, pictures, dataset, wishes)
    return plan.recipe, reasons | new


def test_textures_are_turned_every_way():
    recipe, reasons = settled(noise())
    assert recipe.flip_vertical and recipe.transpose
    assert "they look the same" in reasons["recipe.transpose"]


def test_pictures_with_a_sky_keep_it_above():
    recipe, reasons = settled(with_sky(noise()))
    assert not recipe.flip_vertical and not recipe.transpose
    assert "they have a way up" in reasons["recipe.flip_vertical"]


def test_horizontal_stripes_may_stand_on_their_head_but_not_on_their_side():
    stripes = noise()
    stripes[:, [4, 11]] += 50
    recipe, _ = settled(stripes)
    assert recipe.flip_vertical and not recipe.transpose


def test_a_class_that_stands_on_its_head_in_another_is_noticed():
    signs = noise()
    signs[::2, :5] += 50
    signs[1::2, 11:] += 50  # as sixes and nines: all together they have no way up, each alone has
    small = torch.from_numpy(signs).float()
    upright = measure_flip_detectability(small, lambda images: images.flip(-2), np.zeros(COUNT, np.int64))
    assert upright is not None and upright < 0.57
    assert not settled(signs)[0].flip_vertical


def test_few_pictures_say_nothing_and_nothing_is_turned():
    recipe, reasons = settled(noise(), classes=6)
    assert not recipe.flip_vertical and "too few pictures" in reasons["recipe.flip_vertical"]


def test_classes_that_a_sample_of_all_hardly_holds_have_their_own(monkeypatch):
    monkeypatch.setattr(flip_invariance, "SAMPLE", 100)
    monkeypatch.setattr(flip_invariance, "MIN_GROUP_SIZE", 200)
    recipe, reasons = settled(noise(), classes=3)
    assert recipe.flip_vertical and "they look the same" in reasons["recipe.flip_vertical"]
    signs = noise()
    signs[2::3, :5] += 50
    assert not settled(signs, classes=3)[0].flip_vertical


def test_of_many_classes_the_rarest_are_asked_and_of_two_the_sample_of_all():
    groups = np.repeat(np.arange(30), np.arange(30) + 250)
    places = flip_invariance._sample_places(groups, 0)
    names, counts = np.unique(groups[places], return_counts=True)
    assert list(names) == list(range(10)) and counts.min() >= 200
    two = np.arange(9000) % 2
    assert len(flip_invariance._sample_places(two, 0)) == 2000


@pytest.mark.parametrize("field", ["flip_vertical", "transpose"])
def test_what_was_asked_for_stays(field):
    recipe, reasons = settled(noise(), overrides={f"recipe.{field}": "false"})
    assert vars(recipe)[field] is False and f"recipe.{field}" not in reasons


def test_signs_that_no_mirror_may_touch_are_not_turned_either():
    recipe, reasons = settled(noise(), flip=False)
    assert not recipe.flip_vertical and reasons == {}
