"""Names: what their parts mean, and which are refused."""

from __future__ import annotations

import pytest

from vitrail.errors import UsageError
from vitrail.model.registry import T2T_MODELS, config_from_name


def test_registers_and_families_add_up():
    config = config_from_name("vit_base_patch14_reg4_dinov2")
    assert (config.registers, config.layer_scale, config.image_size, config.outputs) == (4, 1e-5, (518, 518), 0)
    assert (config.class_position, config.resample) == (False, "bicubic-antialias")
    assert config_from_name("vit_base_patch14_dinov2").resample == "bicubic-offset"
    assert config_from_name("vit_base_patch14_dinov2_224x336").image_size == (224, 336)


def test_giant_means_another_shape_in_dinov2():
    plain, dinov2 = config_from_name("vit_giant_patch14_224"), config_from_name("vit_giant_patch14_dinov2")
    assert (plain.width, plain.heads, plain.mlp) == (1408, 16, "plain")
    assert (dinov2.width, dinov2.heads, dinov2.mlp, dinov2.activation) == (1536, 24, "gated-packed", "SiLU")


def test_dinov3_turns_and_its_plus_sizes_are_gated():
    config = config_from_name("vit_huge_plus_patch16_dinov3_qkvb")
    assert (config.rotary, config.positions, config.registers, config.norm_eps) == ("dinov3", "none", 4, 1e-5)
    assert (config.mlp, config.activation, config.key_bias) == ("gated", "SiLU", False)
    assert not config_from_name("vit_huge_plus_patch16_dinov3").qkv_bias


def test_siglip_attends_and_clip_projects():
    siglip, clip = (
        config_from_name("vit_so400m_patch14_siglip_224"),
        config_from_name("vit_large_patch14_clip_quickgelu_336"),
    )
    assert (siglip.pool, siglip.class_token, siglip.mlp_width) == ("attention", False, 4304)
    assert (clip.outputs, clip.pre_norm, clip.patch_bias, clip.activation) == (768, True, False, "QuickGELU")


def test_deit_names_and_t2t_names():
    config = config_from_name("deit_base_distilled_patch16_384")
    assert config.distillation_token and config.distillation_head and config.tokens == 2 + 24 * 24
    assert config_from_name("deit3_small_patch16_224").layer_scale == 1e-6
    assert config_from_name("t2t_vit_t_19").patches == "t2t-transformer" and len(T2T_MODELS) == 9


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch14_reg4",  # no size of pictures
        "vit_huge_plus_patch16_224",  # a size of another family
        "vit_tiny_patch16_clip_224",  # CLIP has no tower of that size
        "vit_medium_patch16_gap_256",  # timm's has other parts
        "vit_base_distilled_patch16_224",
        "deit_base_patch16_clip_224",
        "t2t_vit_t_7",
    ],
)
def test_names_that_stand_for_nothing_are_refused(name):
    with pytest.raises(UsageError, match=rf"no model named '{name}'.*vit_clip_quickgelu.*t2t_vit_24.*Did you mean"):
        config_from_name(name)
