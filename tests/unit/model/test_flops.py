"""The operations of every kind of model, against what torch counts while it computes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kinds import KINDS, images_for
from vitrail.model import flops
from vitrail.model.config import ViTConfig
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model

T2T = dataclasses.replace(KINDS["soft splits"], patches="t2t-transformer")
SIZES = {"vit_small_patch16_224": 9.2, "vit_base_patch16_224": 35.1, "vit_small_patch14_dinov2": 93.4}
"""Published thousands of millions of operations, twice the multiply-adds that timm lists (4.6, 17.6 and 46.7)."""


def counted(config: ViTConfig, kept: int | None = None, training: bool = False) -> int:
    """Operations that torch sees for one picture."""
    model, images = create_model(config), images_for(config, 2)
    visible = None if kept is None else torch.arange(kept).expand(2, kept)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        answer = model(images, visible)
        if training:
            answer.sum().backward()
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("kind", KINDS)
def test_operations_are_those_that_torch_counts(kind):
    assert flops.forward_flops(KINDS[kind]) == counted(KINDS[kind])


def test_soft_splits_with_attention_are_counted():
    assert flops.forward_flops(T2T) == counted(T2T)


@pytest.mark.parametrize("kind", ["class token, learned", "sinusoid, tanh head", "soft splits"])
def test_dropped_patches_cost_nothing_behind_the_projection(kind):
    assert flops.forward_flops(KINDS[kind], 3) == counted(KINDS[kind], 3) < flops.forward_flops(KINDS[kind])


@pytest.mark.parametrize("kind", ["class token, learned", "two heads, recomputed", "with layer scale"])
def test_a_training_step_is_three_forward_passes_but_for_the_gradient_of_the_pictures(kind):
    again = dataclasses.replace(KINDS["two heads, recomputed"], layer_scale=0.1)
    config = (KINDS | {"with layer scale": again})[kind]
    found = counted(config, training=True)
    assert flops.training_flops(config) - flops.flops_by_part(config)["patches"] == found


@pytest.mark.parametrize(("name", "published"), SIZES.items())
def test_published_sizes_cost_what_is_published(name, published):
    assert flops.forward_flops(config_from_name(name), all_tokens=True) / 1e9 == pytest.approx(published, rel=0.02)


def test_the_last_block_is_cheaper_where_only_the_class_token_is_read():
    config = config_from_name("vit_base_patch16_224")
    saved = flops.forward_flops(config, all_tokens=True) - flops.forward_flops(config)
    D, tokens = 768, 197
    assert saved == 2 * (tokens - 1) * (9 * D * D + 2 * tokens * D)
    assert saved / flops.forward_flops(config, all_tokens=True) == pytest.approx(0.062, abs=0.001)


def test_the_parts_of_a_size_are_told_apart():
    found = flops.flops_by_part(config_from_name("vit_base_patch16_224"))
    assert list(found) == list(flops.MODEL_PARTS)
    assert found["mlp"] == (11 * 197 + 1) * 2 * 2 * 768 * 3072 and found["head"] == 2 * 768 * 1000
