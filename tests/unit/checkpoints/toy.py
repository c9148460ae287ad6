"""A made-up family of files that uses every word of the rules, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.checkpoints.layouts import (
    KERNEL,
    SPLIT,
    STACK,
    DropRule,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    ZeroRule,
    make_name_rules,
)
from vitrail.checkpoints.validate import count_blocks, has_tensor, infer_image_size
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model

CONFIG = ViTConfig(
    image_size=(8, 8), patch=(2, 2), width=8, depth=2, heads=2, mlp_width=12, outputs=3, pool="attention"
)
RULES: tuple[Rule, ...] = (
    *make_name_rules(
        {
            "stem.bias": "tokens.patches.bias",
            "cls": "tokens.cls",
            "table": "positions.table",
            "layer.{i}.norm1.{p}": "encoder.blocks.{i}.norm1.{p}",
            "layer.{i}.out.{p}": "encoder.blocks.{i}.attention.out.{p}",
            "layer.{i}.norm2.{p}": "encoder.blocks.{i}.norm2.{p}",
            "layer.{i}.up.{p}": "encoder.blocks.{i}.mlp.fc1.{p}",
            "layer.{i}.down.{p}": "encoder.blocks.{i}.mlp.fc2.{p}",
            "norm.{p}": "encoder.norm.{p}",
            "map.probe": "pool.attention.probe",
            "map.out.{p}": "pool.attention.out.{p}",
            "map.norm.{p}": "pool.attention.norm.{p}",
            "map.up.{p}": "pool.attention.mlp.fc1.{p}",
            "map.down.{p}": "pool.attention.mlp.fc2.{p}",
            "classifier.{p}": "head.linear.{p}",
        }
    ),
    NameRule("stem.weight", "tokens.patches.weight", KERNEL),
    PartsRule(
        tuple(f"layer.{{i}}.{part}.{{p}}" for part in ("query", "key", "value")),
        ("encoder.blocks.{i}.attention.qkv.{p}",),
        STACK,
    ),
    PartsRule(("map.in_{p}",), ("pool.attention.q.{p}", "pool.attention.kv.{p}"), SPLIT),
    ZeroRule("mask", lambda config: (1, config.width), reason="only pre-training masks patches"),
    DropRule("layer.{i}.spare.{p}", "encoder.blocks.{i}.norm1.{p}", reason="a norm that is never called"),
    IgnoreRule("decoder.*", reason="the decoder is of no use after pre-training"),
    IgnoreRule("*.position_ids", reason="only counts positions"),
)


def describe(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    kernel = tensors["stem.weight"]
    return replace(
        CONFIG,
        patch=(kernel.shape[2], kernel.shape[3]),
        channels=kernel.shape[1],
        image_size=infer_image_size(tensors["table"].shape[0] - 1, (kernel.shape[2], kernel.shape[3]), hints, "table"),
        depth=count_blocks(tensors, "layer"),
        outputs=tensors["classifier.weight"].shape[0] if has_tensor(tensors, "classifier.weight") else 0,
        pool="attention" if has_tensor(tensors, "map.probe") else "class",
    )


TOY = Layout(
    name="toy",
    required_names=("stem.weight", "cls"),
    forbidden_names=("register*",),
    model_types=("toy",),
    rules=RULES,
    describe=describe,
    prefix="toy.",
    names_without_prefix=("classifier.{p}",),
)


def model(config: ViTConfig = CONFIG) -> ViT:
    """Every parameter random, so that nothing hides behind a 0 or a 1."""
    made = create_model(config, 1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made
