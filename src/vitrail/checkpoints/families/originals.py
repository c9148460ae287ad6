"""Layouts of original repositories: `mae`, `dino` and `ijepa`, and what they share with DINOv2, DINOv3 and DeiT.

All of these repositories descend from the same first port of the Vision Transformer to torch, and name stem and blocks
alike. No file but DINOv3's gives the number of heads: published sizes are known by their width, others need `heads`.
Encoders alone have the names of many other files, so they are read only where `layout=` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import BATCHED, KERNEL, PUBLISHED_SIZES, IgnoreRule, Layout, LayoutHints, NameRule, Rule, make_name_rules
from ..validate import (
    choose_heads,
    count_blocks,
    count_outputs,
    has_tensor,
    infer_image_size,
    majority_length,
    require_tensor,
)

# fmt: off
BLOCK_NAMES = {  # theirs        ours
    "blocks.{i}.norm1.{p}":      "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.attn.qkv.{p}":   "encoder.blocks.{i}.attention.qkv.{p}",
    "blocks.{i}.attn.proj.{p}":  "encoder.blocks.{i}.attention.out.{p}",
    "blocks.{i}.ls1.gamma":      "encoder.blocks.{i}.scale1",
    "blocks.{i}.norm2.{p}":      "encoder.blocks.{i}.norm2.{p}",
    "blocks.{i}.ls2.gamma":      "encoder.blocks.{i}.scale2",
}
PLAIN_MLP = {
    "blocks.{i}.mlp.fc1.{p}":  "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.fc2.{p}":  "encoder.blocks.{i}.mlp.fc2.{p}",
}
STEM_NAMES = {
    "cls_token":              "tokens.cls",
    "patch_embed.proj.bias":  "tokens.patches.bias",
    "norm.{p}":               "encoder.norm.{p}",
}
# fmt: on
KERNEL_NAME, POSITION_TABLE = "patch_embed.proj.weight", "pos_embed"
STEM_RULES: tuple[Rule, ...] = (*make_name_rules(STEM_NAMES), NameRule(KERNEL_NAME, "tokens.patches.weight", KERNEL))
"""Patches, class token and final norm."""
TABLE_RULE = NameRule(POSITION_TABLE, "positions.table", BATCHED)
"""Learned positions, with a first row for the class token."""
ENCODER_RULES: tuple[Rule, ...] = (*STEM_RULES, TABLE_RULE, *make_name_rules({**BLOCK_NAMES, **PLAIN_MLP}))
"""A whole encoder with a plain MLP."""


def read_common_fields(tensors: Mapping[str, Tensor], hints: LayoutHints, card: str) -> dict[str, Any]:
    """Fields of ViTConfig that all these files give alike; image size, heads and MLP are not among them.

    Args:
        card: the family's numerics card, for what no tensor gives.
    """
    kernel = require_tensor(tensors, KERNEL_NAME, axes=4)
    return {
        "patch": (kernel.shape[2], kernel.shape[3]),
        "channels": kernel.shape[1],
        "width": majority_length(tensors, "width", ("blocks.{i}.norm1.weight", 0), ("blocks.{i}.norm2.weight", 0)),
        "depth": count_blocks(tensors, "blocks"),
        "outputs": count_outputs(tensors, "head.{p}"),
        "qkv_bias": has_tensor(tensors, "blocks.{i}.attn.qkv.bias"),
        "layer_scale": 1e-5 if has_tensor(tensors, "blocks.{i}.ls1.gamma", "blocks.{i}.ls2.gamma") else None,
        **hints.numerics(card),
    }


def read_heads(hints: LayoutHints, width: int, published: Mapping[int, int]) -> int:
    """Heads from the caller, else those of the published model of that width."""
    return choose_heads(hints, width, published, "an original repository")


def read_mlp_width(tensors: Mapping[str, Tensor], matrix: str) -> int:
    """Rows of that matrix in the blocks."""
    return majority_length(tensors, "MLP width", (f"blocks.{{i}}.mlp.{matrix}.{{p}}", 0))


def read_image_size(
    tensors: Mapping[str, Tensor], hints: LayoutHints, patch: tuple[int, int], prefix: int = 1
) -> tuple[int, int]:
    """The image size of the position table, whose first `prefix` rows belong to prefix tokens."""
    rows = require_tensor(tensors, POSITION_TABLE, axes=3).shape[1]
    return infer_image_size(rows - prefix, patch, hints, POSITION_TABLE)


def describe_plain(
    tensors: Mapping[str, Tensor], hints: LayoutHints, card: str, published: Mapping[int, int], class_token: bool = True
) -> ViTConfig:
    """The architecture of a file with a position table and a plain MLP; `published` has the heads by width."""
    fields = read_common_fields(tensors, hints, card)
    fields["heads"] = read_heads(hints, fields["width"], published)
    fields["image_size"] = read_image_size(tensors, hints, fields["patch"], prefix=int(class_token))
    fields["class_token"] = class_token
    fields["mlp_width"] = read_mlp_width(tensors, "fc1")
    return ViTConfig(**fields)


# -- mae: facebookresearch/mae, the encoder, the whole autoencoder, or a classifier fine-tuned from it
#
# The fixed sine table of pre-training is read as the learned table that fine-tuning makes of it, and resampled by the
# rule of the repository.

MAE_HEADS = {768: 12, 1024: 16, 1280: 16}
"""Heads by width."""
# fmt: off
MAE_CLASSIFIER = {  # theirs  ours
    "fc_norm.{p}":  "pool.norm.{p}",
    "head.{p}":     "head.linear.{p}",
}
# fmt: on
MAE_RULES: tuple[Rule, ...] = (*ENCODER_RULES, *make_name_rules(MAE_CLASSIFIER))
DECODER_REASON = "a decoder, which its pre-training alone uses"


def describe_mae(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file; with `fc_norm` the mean of the patches is normalised, not the tokens."""
    config = describe_plain(tensors, hints, "mae", MAE_HEADS)
    if has_tensor(tensors, "fc_norm.{p}"):
        return replace(config, pool="mean", final_norm=False, pooled_norm=True)
    return config


_mae_layout = partial(Layout, name="mae", describe=describe_mae, card="mae", published=PUBLISHED_SIZES)
MAE_LAYOUTS = (
    _mae_layout(
        required_names=(KERNEL_NAME, POSITION_TABLE),
        forbidden_names=("decoder_*",),
        named_only=True,
        rules=MAE_RULES,
        head="head",
    ),
    _mae_layout(
        variant="autoencoder",
        required_names=(KERNEL_NAME, POSITION_TABLE, "decoder_embed.weight", "decoder_pos_embed"),
        rules=(
            *ENCODER_RULES,
            IgnoreRule("decoder_*", reason=DECODER_REASON),
            IgnoreRule("mask_token", reason=DECODER_REASON),
        ),
    ),
)


# -- dino: facebookresearch/dino, the backbone alone or a training file with teacher, student and head
#
# Of a training file the teacher is read, as the repository's own evaluations do.

DINO_HEADS = {192: 3, 384: 6, 768: 12}
"""Heads by width."""
PROJECTION = "head.last_layer.*"


def describe_dino(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, without the projection head of its training."""
    backbone = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    return describe_plain(backbone, hints, "dino", DINO_HEADS)


_dino_layout = partial(Layout, name="dino", describe=describe_dino, card="dino", published=PUBLISHED_SIZES)
DINO_LAYOUTS = (
    _dino_layout(
        required_names=(KERNEL_NAME, POSITION_TABLE), forbidden_names=("head.*",), named_only=True, rules=ENCODER_RULES
    ),
    _dino_layout(
        variant="training",
        required_names=(KERNEL_NAME, POSITION_TABLE, PROJECTION),
        rules=(
            *ENCODER_RULES,
            IgnoreRule("head.mlp.*", reason="the projection head of its training"),
            IgnoreRule(PROJECTION, reason="the projection head of its training"),
        ),
        prefix="backbone.",
        names_without_prefix=("head.mlp.*", PROJECTION),
    ),
)


# -- ijepa: training files of facebookresearch/ijepa with encoder, target encoder and predictor
#
# The target encoder is read: it is what the paper evaluates. There is no class token; the mean of the normalised tokens
# is pooled. The fixed sine table is read as a learned one and resampled by bicubic interpolation: the repository's own
# function for other sizes takes the first patch for a class token.

IJEPA_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
"""Heads by width."""


IJEPA_LAYOUTS = (
    Layout(
        name="ijepa",
        required_names=(KERNEL_NAME, POSITION_TABLE),
        forbidden_names=("cls_token", "head.*"),
        named_only=True,
        rules=ENCODER_RULES,
        describe=partial(describe_plain, card="ijepa", published=IJEPA_HEADS, class_token=False),
        card="ijepa",
        published=PUBLISHED_SIZES,
    ),
)
