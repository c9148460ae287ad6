"""Parameter counts of the published models that these parts can build, on the meta device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.model.config import ViTConfig
from vitrail.model.sizes import named
from vitrail.model.vit import parameter_count

TEACHING = {
    "blog_vit_base_patch16_224": 86_567_656,
    "cifar_vit_small_patch8_32": 847_626,
    "cifar_vit_base_patch8_32": 85_222_666,
    "xray_vit_patch16_224": 23_846_410,
}
PUBLISHED: dict[str, tuple[int | None, int]] = {  # name: (features only, with 1000 classes)
    "vit_tiny_patch16_224": (5_524_416, 5_717_416),
    "vit_tiny_patch16_384": (None, 5_790_376),
    "vit_small_patch16_224": (21_665_664, 22_050_664),
    "vit_small_patch32_224": (None, 22_878_952),
    "vit_base_patch16_224": (85_798_656, 86_567_656),
    "vit_base_patch16_384": (None, 86_859_496),
    "vit_base_patch32_224": (87_455_232, 88_224_232),
    "vit_base_patch8_224": (85_807_872, 86_576_872),
    "vit_large_patch16_224": (303_301_632, 304_326_632),
    "vit_large_patch32_224": (305_510_400, 306_535_400),
    "vit_huge_patch14_224": (630_764_800, 632_045_800),
    "vit_giant_patch14_224": (1_011_202_432, 1_012_611_432),
    "vit_gigantic_patch14_224": (1_842_775_680, 1_844_440_680),
}
TORCHVISION = {"vit_huge_patch14_518": 633_470_440, "vit_large_patch16_512": 305_174_504}
IN21K = {  # name: (21,843 classes, with the tanh layer before them)
    "vit_base_patch16_224": (102_595_923, 103_186_515),
    "vit_large_patch16_224": (325_690_707, 326_740_307),
    "vit_huge_patch14_224": (658_745_683, 660_385_363),
}


@pytest.mark.parametrize("name", TEACHING)
def test_the_teaching_designs_have_the_parameters_of_their_articles(name: str) -> None:
    assert parameter_count(named(name)) == TEACHING[name]


def test_the_explained_design_counts_its_fixed_table_too() -> None:
    config = named("explained_vit_patch20_60x100")
    assert parameter_count(config, fixed_tables=True) == 85_350_145
    assert parameter_count(config) == 85_350_145 - 16 * 768
    second = replace(config, image_size=(400, 100), patch=(50, 50))
    assert parameter_count(second, fixed_tables=True) == 86_963_713


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_with_and_without_their_classes(name: str) -> None:
    features, classes = PUBLISHED[name]
    assert parameter_count(named(name)) == classes
    if features is not None:
        assert parameter_count(replace(named(name), outputs=0)) == features


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_large_pictures_of_torchvision(name: str) -> None:
    assert parameter_count(named(name)) == TORCHVISION[name]


@pytest.mark.parametrize("name", IN21K)
def test_the_heads_of_imagenet_21k_with_and_without_the_hidden_layer(name: str) -> None:
    plain, tanh = IN21K[name]
    config = replace(named(name), outputs=21_843)
    assert parameter_count(config) == plain
    assert parameter_count(replace(config, head="tanh")) == tanh


def test_the_ijepa_encoders_have_no_class_token() -> None:
    def ijepa(name: str) -> ViTConfig:
        return replace(named(name), outputs=0, class_token=False, pool="mean")

    assert parameter_count(ijepa("vit_huge_patch14_224")) == 630_762_240
    assert parameter_count(ijepa("vit_huge_patch16_448")) == 631_668_480
    assert parameter_count(ijepa("vit_giant_patch16_224")) == 1_011_368_576


def test_the_mae_encoder_counts_its_fixed_table() -> None:
    expected = {"base_patch16": 85_798_656, "large_patch16": 303_301_632, "huge_patch14": 630_764_800}
    for size, parameters in expected.items():
        config = replace(named(f"vit_{size}_224"), outputs=0, positions="sincos2d")
        assert parameter_count(config, fixed_tables=True) == parameters


def test_mean_pooled_sizes_without_a_class_token() -> None:
    def gap(name: str) -> ViTConfig:
        return replace(named(name), class_token=False, pool="mean")

    assert parameter_count(replace(gap("vit_so400m_patch14_378"), outputs=0)) == 412_987_248
    assert parameter_count(replace(gap("vit_small_patch16_224"), positions="sincos2d")) == 21_974_632


def test_deit_iii_has_no_position_for_its_class_token_and_two_scales_a_block() -> None:
    """LayerScale is not among these parts yet; all other parameters are counted by the model."""
    sizes = {"small": 22_059_496, "medium": 38_849_512, "base": 86_585_320, "large": 304_374_760, "huge": 632_126_440}
    for size, parameters in sizes.items():
        config = replace(named(f"vit_{size}_patch{14 if size == 'huge' else 16}_224"), class_position=False)
        assert parameter_count(config) == parameters - config.depth * 2 * config.width
