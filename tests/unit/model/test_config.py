"""Shapes that cannot be built are refused in one sentence, with their numbers."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.registry import PRESETS, SIZES, config_from_name, example_names
from vitrail.model.vit import parameter_count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": (225, 224)}, r"image height 225 is not a multiple of the patch height 16. Use 224 or 240"),
        ({"image_size": (224, 8)}, r"image width 8 is not a multiple of the patch width 16. Use 16, or pad=true"),
        ({"heads": 7}, r"width must be a multiple of heads. Got width=768, heads=7"),
        ({"patch": (0, 16)}, r"patch height must be at least 1. Got 0"),
        ({"depth": -1}, r"must not be negative. Got depth=-1, outputs=1000"),
        ({"dropout": 1.0}, r"dropout must lie in 0 <= rate < 1. Got 1.0"),
        ({"drop_path": -0.1}, r"drop_path must lie in 0 <= rate < 1. Got -0.1"),
        ({"class_token": False}, r'pool="class" needs class_token=true'),
        ({"rotary": "axial", "width": 768, "heads": 384}, r"multiple of 4. Got 2"),
        ({"positions": "sincos2d", "width": 6, "heads": 1}, r"sincos2d .* multiple of 4. Got 6"),
        ({"positions": "sinusoid", "width": 7, "heads": 1}, r"sinusoid .* even width. Got 7"),
    ],
)
def test_an_impossible_shape_is_refused_with_its_numbers(change, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(ViTConfig(), **change)


def test_padding_allows_any_size_and_counts_the_started_patches():
    config = dataclasses.replace(ViTConfig(), image_size=(225, 10), pad=True)
    assert config.grid == (15, 1)
    assert config.tokens == 16


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UsageError, match=r"no model named 'vit_tinny_patch16_224'.*Did you mean vit_tiny_patch16_224"):
        config_from_name("vit_tinny_patch16_224")


@pytest.mark.parametrize("name", example_names())
def test_every_example_name_is_a_model(name):
    assert parameter_count(config_from_name(name)) > 0


def test_names_give_patch_and_image_size():
    config = config_from_name("vit_tiny_patch8_96")
    assert (config.patch, config.image_size, config.width) == ((8, 8), (96, 96), SIZES["tiny"].width)


def test_every_preset_is_of_the_plain_config_class():
    assert all(type(config) is ViTConfig for config in PRESETS.values())
