"""The default map of a model: chosen by a check whose right result is known, withheld where nothing passes."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from kinds import TINY, images_for
from plain_sums import averaging, pictures, shuffled_values
from vitrail import config
from vitrail.errors import DamagedFileError
from vitrail.explain.faithfulness import map_choice
from vitrail.explain.faithfulness.map_choice import MAP_CHOICE_KEY, MapChoice, choose_map_method, read_map_choice
from vitrail.model.vit import create_model


def brightness(model, images, classes):
    """The true map of a model that averages brightness."""
    return images[:, 0, ::2, ::3]


def noise(model, images, classes):
    return torch.rand(len(images), 3, 4, generator=torch.Generator().manual_seed(7))


def chosen(monkeypatch, relevance, integrated, count=32, seconds=60.0, **more) -> MapChoice:
    """The choice for a model that averages brightness, with these maps in place of those of two methods."""
    maps = {"relevance": relevance, "integrated": integrated}
    monkeypatch.setattr(map_choice, "map_function", maps.__getitem__)
    images = pictures(shuffled_values(count, 12), 3, 4)
    outputs = np.stack([images.mean((1, 2, 3)).numpy(), -np.ones(count)], axis=1).astype(np.float32)
    return choose_map_method(averaging(3, 4), images, outputs, "regression", seconds, **more)


def test_the_method_that_orders_patches_rightly_is_chosen(monkeypatch):
    first = chosen(monkeypatch, brightness, noise)
    assert (first.method, first.passed, first.pictures) == ("relevance", ("relevance",), 32)
    gaps = {one.name: one.gap for one in first.gaps}
    assert set(gaps) == {"relevance", "integrated", "random", "centre", "edges"}
    assert gaps["relevance"] > 4 * max(abs(gaps[name]) for name in ("random", "integrated"))
    second = chosen(monkeypatch, noise, brightness)
    assert (second.method, second.passed, second.like_edges) == ("integrated", ("integrated",), ())
    assert second.describe().startswith("integrated orders patches better than edges, centre and noise do (")
    assert second.describe("relevance").startswith("relevance did not pass the check")


def test_no_map_is_shown_where_no_method_beats_edges_centre_and_noise(monkeypatch):
    found = chosen(monkeypatch, noise, lambda model, images, classes: -brightness(model, images, classes))
    assert found.method == "" and found.passed == () and found.pictures == 32
    assert found.describe().startswith("No map of this model passed the check against edges, centre and noise (")


def test_a_map_that_edges_equal_is_shown_and_one_that_edges_beat_is_not(monkeypatch):
    baselines = map_choice.baseline_methods(0) | {"edges": brightness}
    monkeypatch.setattr(map_choice, "baseline_methods", lambda seed: baselines)
    found = chosen(monkeypatch, lambda *given: brightness(*given) + 6 * noise(*given), brightness)
    assert (found.method, found.passed, found.like_edges) == ("integrated", ("integrated",), ("integrated",))
    said = "integrated orders patches better than centre and noise do, and edges in the pictures do it as well"
    assert found.describe().startswith(said)


def test_a_map_that_is_not_finite_cannot_pass(monkeypatch):
    found = chosen(monkeypatch, lambda *given: torch.full((8, 3, 4), torch.nan), brightness)
    assert found.method == "integrated" and "relevance" not in {one.name for one in found.gaps}


def test_few_pictures_or_little_time_leave_it_unchecked_and_say_so(monkeypatch):
    few = chosen(monkeypatch, brightness, noise, count=15)
    assert (few.method, few.pictures) == ("relevance", 0)
    assert few.describe().endswith("was not checked: it takes 16 validation pictures, and there are 15.")
    hasty = chosen(monkeypatch, brightness, noise, seconds=0.0)
    assert (
        hasty.pictures == 0
        and "longer than the 0 s that a training has for it, and vitrail explain RUN --faith" in hasty.describe()
    )


def test_a_method_that_takes_too_long_is_left_out_and_the_other_is_measured(monkeypatch):
    def slow(model, images, classes):
        time.sleep(1.0)
        return brightness(model, images, classes)

    found = chosen(monkeypatch, brightness, slow, seconds=1.5)
    assert (found.method, found.passed) == ("relevance", ("relevance",)) and found.pictures >= 16
    assert "integrated" not in {one.name for one in found.gaps}


def test_the_check_counts_groups(monkeypatch):
    assert chosen(monkeypatch, brightness, noise, groups=np.arange(32) // 2).method == "relevance"
    one = chosen(monkeypatch, lambda *given: brightness(*given) + 6 * noise(*given), noise, groups=np.zeros(32, int))
    assert one.pictures == 32


def test_maps_of_two_classes_that_are_alike_are_said_to_be(monkeypatch):
    monkeypatch.setattr(map_choice, "map_function", lambda name: brightness)
    images = pictures(shuffled_values(16, 12), 3, 4)
    outputs = np.tile(np.float32([1, 0]), (16, 1))
    found = choose_map_method(averaging(3, 4), images, outputs, "classification", 60.0)
    assert found.class_correlation == pytest.approx(1)
    assert "The maps of two classes of a picture are nearly the same (correlation 1.00)" in found.describe()


def test_a_real_model_is_measured_with_its_own_methods():
    model, images = create_model(TINY, seed=0), images_for(TINY, 16)
    outputs = np.zeros((16, TINY.outputs), np.float32)
    found = choose_map_method(model, images, outputs, "classification", 600.0)
    assert found.pictures == 16 and found.class_correlation is not None


def test_the_choice_survives_the_notes_of_a_bundle_and_a_damaged_one_is_refused(monkeypatch):
    found = chosen(monkeypatch, brightness, noise)
    assert read_map_choice({MAP_CHOICE_KEY: config.write(found)}, "config.json") == found
    assert read_map_choice({}, "config.json") is None
    for noted in ("relevance", {"method": "guessing", "pictures": 3}):
        with pytest.raises(DamagedFileError, match=r"Use another copy\."):
            read_map_choice({MAP_CHOICE_KEY: noted}, "config.json")
