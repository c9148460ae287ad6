"""Parameter counts of the published models, on the meta device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
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
    "deit_tiny_distilled_patch16_224": (5_524_800, 5_910_800),
    "deit_small_distilled_patch16_224": (21_666_432, 22_436_432),
    "deit_base_distilled_patch16_224": (85_800_192, 87_338_192),
    "deit3_small_patch16_224": (None, 22_059_496),
    "deit3_medium_patch16_224": (None, 38_849_512),
    "deit3_base_patch16_224": (None, 86_585_320),
    "deit3_large_patch16_224": (None, 304_374_760),
    "deit3_huge_patch14_224": (None, 632_126_440),
}
FEATURES = {  # families that are published without classes, under timm's names
    "vit_small_patch14_dinov2": 22_056_192,
    "vit_base_patch14_dinov2": 86_579_712,
    "vit_large_patch14_dinov2": 304_367_616,
    "vit_giant_patch14_dinov2": 1_136_479_232,
    "vit_small_patch14_reg4_dinov2": 22_057_344,
    "vit_base_patch14_reg4_dinov2": 86_582_016,
    "vit_large_patch14_reg4_dinov2": 304_370_688,
    "vit_giant_patch14_reg4_dinov2": 1_136_483_840,
    "vit_small_patch16_dinov3": 21_586_944,
    "vit_small_plus_patch16_dinov3": 28_683_264,
    "vit_base_patch16_dinov3": 85_641_216,
    "vit_large_patch16_dinov3": 303_079_424,
    "vit_huge_plus_patch16_dinov3": 840_509_440,
    "vit_7b_patch16_dinov3": 6_716_030_976,
    "vit_base_patch16_siglip_224": 92_884_224,
    "vit_large_patch16_siglip_256": 315_956_224,
    "vit_so400m_patch14_siglip_224": 427_680_704,
    "vit_so400m_patch14_siglip_378": 428_225_600,  # 384 pixels are cut to 27 patches of 14
    "vit_so400m_patch14_siglip_gap_378": 412_987_248,
    "vit_giantopt_patch16_siglip_256": 1_163_168_256,
}
CLIP = {  # with the projection, and the bias of zeros that timm gives it
    "vit_base_patch32_clip_224": 87_849_728,
    "vit_base_patch16_clip_quickgelu_224": 86_193_152,
    "vit_large_patch14_clip_224": 303_966_976,
    "vit_huge_patch14_clip_224": 632_077_824,
    "vit_gigantic_patch14_clip_224": 1_844_908_544,
}
MASKED = {  # with the mask token that transformers keeps, and where it has one, the class row of the positions
    "vit_small_patch14_dinov2": 22_056_576,
    "vit_base_patch14_dinov2": 86_580_480,
    "vit_large_patch14_dinov2": 304_368_640,
    "vit_giant_patch14_dinov2": 1_136_480_768,
    "vit_small_patch14_reg4_dinov2": 22_058_112,
    "vit_base_patch14_reg4_dinov2": 86_583_552,
    "vit_large_patch14_reg4_dinov2": 304_372_736,
    "vit_giant_patch14_reg4_dinov2": 1_136_486_912,
    "vit_small_patch16_dinov3_qkvb": 21_596_544,
    "vit_small_plus_patch16_dinov3_qkvb": 28_692_864,
    "vit_base_patch16_dinov3_qkvb": 85_660_416,
    "vit_large_patch16_dinov3_qkvb": 303_129_600,
    "vit_huge_plus_patch16_dinov3_qkvb": 840_592_640,
    "vit_7b_patch16_dinov3": 6_716_035_072,
}
TORCHVISION = {"vit_huge_patch14_518": 633_470_440, "vit_large_patch16_512": 305_174_504}
IN21K = {  # name: (21,843 classes, with the tanh layer before them)
    "vit_base_patch16_224": (102_595_923, 103_186_515),
    "vit_large_patch16_224": (325_690_707, 326_740_307),
    "vit_huge_patch14_224": (658_745_683, 660_385_363),
}
T2T = {  # name: (with fixed position table and frozen random features, what training moves)
    "t2t_vit_7": (4_310_222, 4_255_694),
    "t2t_vit_10": (5_889_230, 5_834_702),
    "t2t_vit_12": (6_941_902, 6_887_374),
    "t2t_vit_14": (21_545_550, 21_465_806),
    "t2t_vit_19": (39_177_422, 39_085_070),
    "t2t_vit_24": (64_105_934, 64_000_974),
    "t2t_vit_t_14": (21_541_070, 21_465_422),
    "t2t_vit_t_19": (39_172_942, 39_084_686),
    "t2t_vit_t_24": (64_101_454, 64_000_590),
}


@pytest.mark.parametrize("name", TEACHING)
def test_the_teaching_designs_have_the_parameters_of_their_articles(name: str) -> None:
    assert parameter_count(config_from_name(name)) == TEACHING[name]


def test_the_explained_design_counts_its_fixed_table_too() -> None:
    config = config_from_name("explained_vit_patch20_60x100")
    assert parameter_count(config, include_buffers=True) == 85_350_145
    assert parameter_count(config) == 85_350_145 - 16 * 768
    second = replace(config, image_size=(400, 100), patch=(50, 50))
    assert parameter_count(second, include_buffers=True) == 86_963_713


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_with_and_without_their_classes(name: str) -> None:
    features, classes = PUBLISHED[name]
    assert parameter_count(config_from_name(name)) == classes
    if features is not None:
        assert parameter_count(replace(config_from_name(name), outputs=0)) == features


@pytest.mark.parametrize("name", FEATURES)
def test_published_encoders(name: str) -> None:
    assert parameter_count(config_from_name(name)) == FEATURES[name]


@pytest.mark.parametrize("name", CLIP)
def test_the_towers_of_clip_project_without_a_bias(name: str) -> None:
    config = config_from_name(name)
    assert parameter_count(config) + config.outputs == CLIP[name]
    assert parameter_count(replace(config, head_bias=True)) == CLIP[name]


@pytest.mark.parametrize("name", MASKED)
def test_published_encoders_as_transformers_counts_them(name: str) -> None:
    config = replace(config_from_name(name), class_position=True)
    assert parameter_count(config) + config.width == MASKED[name]


@pytest.mark.parametrize("name", T2T)
def test_tokens_to_token_with_and_without_what_is_fixed(name: str) -> None:
    assert (
        parameter_count(config_from_name(name), include_buffers=True),
        parameter_count(config_from_name(name)),
    ) == T2T[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_large_pictures_of_torchvision(name: str) -> None:
    assert parameter_count(config_from_name(name)) == TORCHVISION[name]


@pytest.mark.parametrize("name", IN21K)
def test_the_heads_of_imagenet_21k_with_and_without_the_hidden_layer(name: str) -> None:
    plain, tanh = IN21K[name]
    config = replace(config_from_name(name), outputs=21_843)
    assert parameter_count(config) == plain
    assert parameter_count(replace(config, head="tanh")) == tanh


def test_a_deit_student_without_its_teacher_head_keeps_the_distillation_token() -> None:
    expected = {"tiny": 5_717_800, "small": 22_051_432, "base": 86_569_192}
    for size, parameters in expected.items():
        config = replace(config_from_name(f"deit_{size}_distilled_patch16_224"), distillation_head=False)
        assert parameter_count(config) == parameters


def test_the_ijepa_encoders_have_no_class_token() -> None:
    def ijepa(name: str) -> ViTConfig:
        return replace(config_from_name(name), outputs=0)

    assert parameter_count(ijepa("vit_huge_patch14_gap_224")) == 630_762_240
    assert parameter_count(ijepa("vit_huge_patch16_gap_448")) == 631_668_480
    assert parameter_count(ijepa("vit_giant_patch16_gap_224")) == 1_011_368_576


def test_the_mae_encoder_counts_its_fixed_table() -> None:
    expected = {"base_patch16": 85_798_656, "large_patch16": 303_301_632, "huge_patch14": 630_764_800}
    for size, parameters in expected.items():
        config = replace(config_from_name(f"vit_{size}_224"), outputs=0, positions="sincos2d")
        assert parameter_count(config, include_buffers=True) == parameters


def test_the_small_baseline_of_big_vision_moves_no_positions() -> None:
    config = replace(config_from_name("vit_small_patch16_gap_224"), positions="sincos2d-moco")
    assert parameter_count(config) == 21_974_632


def test_the_naflex_encoder_has_a_table_of_16_by_16_places() -> None:
    config = replace(config_from_name("vit_base_patch16_siglip_256"), patches="linear")
    assert parameter_count(config) == 92_930_304


def test_the_designs_of_vit_pytorch() -> None:
    parts = {"patches": "linear", "patch_norms": True, "qkv_bias": False, "norm_eps": 1e-5}
    assert parameter_count(replace(config_from_name("vit_base_patch16_224"), **parts)) == 86_543_080
    simple = replace(config_from_name("vit_base_patch16_gap_224"), **parts, positions="sincos2d-moco", out_bias=False)
    assert parameter_count(simple) == 86_381_800


def test_a_name_of_timm_is_timms_model_or_none() -> None:
    """Every name of timm that is a name here too has as many parameters there, with one block and ten classes."""
    import timm

    checked = 0
    for name in timm.list_models(["vit_*", "deit_*", "deit3_*"]):
        try:
            config = replace(config_from_name(name), outputs=10, head_bias=True, depth=1)
        except UsageError:
            continue
        with torch.device("meta"):
            theirs = timm.create_model(name, num_classes=10, depth=1)
        assert parameter_count(config) == sum(parameter.numel() for parameter in theirs.parameters()), name
        checked += 1
    assert checked > 100
