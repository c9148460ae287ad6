"""Every teaching design equals an independent restatement of it, on shared weights, to 1e-5."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitrail.checkpoints.identify import LAYOUTS
from vitrail.checkpoints.rules import write_with_layout
from vitrail.model.config import ViTConfig
from vitrail.model.registry import PRESETS
from vitrail.model.vit import ViT

from . import restatements
from .designs import BLOG, CIFAR, EXPLAINED, XRAY, furthest, random_images, random_model


@pytest.mark.parametrize("size", [(24, 24), (16, 40)])
@torch.no_grad()
def test_design_a_is_the_blog_model(size: tuple[int, int]) -> None:
    model = random_model(replace(BLOG, image_size=size))
    images = random_images(model.config)
    theirs = restatements.blog(_under_their_names(model, "blog-conv"), images, heads=3)
    assert furthest(model(images), theirs) < 1e-5


@pytest.mark.parametrize(
    "change", [{}, {"image_size": (16, 48)}, {"width": 48, "depth": 3, "heads": 12, "mlp_width": 96}]
)
@torch.no_grad()
def test_design_b_is_the_cifar_model(change: dict[str, int]) -> None:
    model = random_model(replace(CIFAR, **change))
    images = random_images(model.config)
    theirs = restatements.cifar(_cifar_names(model), images, heads=model.config.heads)
    assert furthest(model(images), theirs) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"image_size": (32, 8), "patch": (4, 4), "heads": 1},
        {"qkv_bias": True, "qk_scale": 0.3},
        {"channels": 2, "outputs": 3},
    ],
)
@torch.no_grad()
def test_design_c_is_the_explained_model(change: dict[str, int]) -> None:
    config = replace(EXPLAINED, **change)
    model = random_model(config)
    images = random_images(config)
    tensors = _under_their_names(random_model(config), "explained", means=replace(config, qk_scale=None))
    theirs = restatements.explained(tensors, images, config.heads, config.patch[0], config.qk_scale)
    assert furthest(model(images), theirs) < 1e-5


@pytest.mark.parametrize("change", [{}, {"image_size": (8, 28)}, {"heads": 4}, {"channels": 3, "depth": 1}])
@torch.no_grad()
def test_design_d_is_the_xray_model(change: dict[str, int]) -> None:
    model = random_model(replace(XRAY, **change))
    images = random_images(model.config)
    theirs = restatements.xray(_under_their_names(model, "xray-rope"), images, heads=model.config.heads)
    assert furthest(model(images), theirs) < 1e-5


@torch.no_grad()
def test_both_attention_paths_are_the_xray_model_at_the_width_of_its_heads_in_the_text() -> None:
    config = replace(XRAY, width=96, heads=12, image_size=(24, 12))
    for path in ("open", "fused"):
        model = random_model(replace(config, attention=path))
        images = random_images(config)
        theirs = restatements.xray(_under_their_names(model, "xray-rope"), images, heads=12)
        assert furthest(model(images), theirs) < 1e-5


@torch.no_grad()
def test_the_xray_preset_at_its_true_size_is_its_restatement() -> None:
    model = random_model(replace(PRESETS["xray_vit_patch16_224"], depth=1))
    images = random_images(model.config)
    theirs = restatements.xray(_under_their_names(model, "xray-rope"), images, heads=8)
    assert furthest(model(images), theirs) < 1e-5


@torch.no_grad()
def test_faint_tokens_where_the_eps_of_the_norms_shows_agree_too() -> None:
    model = random_model(BLOG)
    for faint in (model.tokens.cls, model.tokens.patches.weight, model.tokens.patches.bias, model.positions.table):
        faint *= 0.003
    images = random_images(BLOG)
    theirs = restatements.blog(_under_their_names(model, "blog-conv"), images, heads=3)
    assert furthest(model(images), theirs) < 1e-5
    other = ViT(replace(BLOG, norm_eps=1e-6))
    other.load_state_dict(model.state_dict())
    assert furthest(other.eval()(images), theirs) > 1e-3


def test_every_teaching_design_has_the_articles_eps() -> None:
    assert {config.norm_eps for config in PRESETS.values()} == {1e-5}


def _under_their_names(model: ViT, layout: str, means: ViTConfig | None = None) -> dict[str, Tensor]:
    return write_with_layout(model.state_dict(), means or model.config, LAYOUTS[layout])


def _cifar_names(model: ViT) -> dict[str, Tensor]:
    """Design B has no published layout: torch's module names, mapped by hand."""
    state = model.state_dict()
    tensors = {"positions.weight": state["positions.table"]}
    pairs = {"patches": "tokens.patches", "head": "head.linear"}
    for i in range(model.config.depth):
        ours = f"encoder.blocks.{i}"
        pairs |= {f"blocks.{i}.norm1": f"{ours}.norm1", f"blocks.{i}.norm2": f"{ours}.norm2"}
        pairs |= {f"blocks.{i}.attention.out_proj": f"{ours}.attention.out"}
        pairs |= {f"blocks.{i}.mlp.0": f"{ours}.mlp.fc1", f"blocks.{i}.mlp.3": f"{ours}.mlp.fc2"}
        for part in ("weight", "bias"):
            tensors[f"blocks.{i}.attention.in_proj_{part}"] = state[f"{ours}.attention.qkv.{part}"]
    for theirs, our in pairs.items():
        tensors |= {f"{theirs}.{part}": state[f"{our}.{part}"] for part in ("weight", "bias")}
    return tensors
