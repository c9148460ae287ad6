"""Adapters: nothing changes at first, only they and the head learn, and merged they are a plain model."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model import lora, vit
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model

TINY = ViTConfig(image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, outputs=3)
DESIGNS = [TINY, dataclasses.replace(TINY, key_bias=False), dataclasses.replace(TINY, qkv_bias=False, mlp="gated")]
IMAGES = torch.linspace(-1, 1, 2 * 64).view(2, 1, 8, 8)


def adapted(design: ViTConfig, mlp: bool = False) -> vit.ViT:
    model = create_model(design).eval()
    lora.add_adapters(model, 3, torch.Generator().manual_seed(0), mlp)
    return model


def moved(model: vit.ViT) -> None:
    """Give every adapter something to say."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=0.3)


@pytest.mark.parametrize("design", DESIGNS)
def test_at_first_an_adapter_changes_nothing(design):
    assert torch.equal(adapted(design, mlp=True)(IMAGES), create_model(design).eval()(IMAGES))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("mlp", [False, True])
def test_merged_adapters_are_a_plain_model_with_the_same_answers(design, mlp):
    model = adapted(design, mlp)
    moved(model)
    answers = model(IMAGES)
    lora.merge_adapters(model)
    assert model.state_dict().keys() == create_model(design).state_dict().keys()
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model(IMAGES), answers, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(answers, create_model(design).eval()(IMAGES))


def test_a_merged_matrix_is_the_old_one_and_the_product():
    linear = torch.nn.Linear(5, 7)
    low = lora.LoRALinear(linear, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        low.up.normal_()
    torch.testing.assert_close(low.to_linear().weight, linear.weight + low.up @ low.down)
    x = torch.randn(3, 5)
    torch.testing.assert_close(low(x), x @ linear.weight.T + linear.bias + (x @ low.down.T) @ low.up.T)


def test_only_adapters_and_head_learn():
    learning = {name for name, parameter in adapted(TINY).named_parameters() if parameter.requires_grad}
    ends = {f"encoder.blocks.{i}.attention.qkv.{part}" for i in (0, 1) for part in ("down", "up")}
    assert learning == ends | {"head.linear.weight", "head.linear.bias"}


def test_adapters_need_a_rank():
    with pytest.raises(UsageError, match=r"rank of at least 1.*Got rank 0"):
        lora.add_adapters(create_model(TINY), 0, torch.Generator())
