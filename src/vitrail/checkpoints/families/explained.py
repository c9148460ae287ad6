"""`explained`: files of the walk-through for one-channel pictures that are not square (explained_vit_patch20_60x100).

The file does not say how many heads there are (the article's default is one, its example has four), nor how the patches
lie in rows and columns: both must be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ...model.positions import sinusoid_table
from ...model.registry import PRESETS
from ..layouts import Check, Layout, Name, Rule, names
from ..shapes import agree, blocks, given, need, vote
from ..steps import MATRIX
from ..told import Told


def _table(config: ViTConfig) -> Tensor:
    return sinusoid_table(config.tokens, config.width)[None]


def _compare(theirs: Tensor, config: ViTConfig) -> str:
    ours = _table(config)
    if theirs.shape != ours.shape:
        return f"is {list(theirs.shape)}, expected {list(ours.shape)}: one row for each of {config.tokens} tokens."
    gap = (theirs.float() - ours).abs().max().item()
    if gap <= max(1e-4, torch.finfo(theirs.dtype).eps):
        return ""
    return (
        "is another table than this design's fixed waves (sine in even columns, cosine in odd ones, the class token at "
        f"0): they differ by up to {gap:.3g}. A model with other positions needs another layout."
    )


# fmt: off
NAMES = {  # theirs                                 ours
    "patch_tokens.project.bias":                    "tokens.patches.bias",
    "backbone.cls_token":                           "tokens.cls",
    "backbone.blocks.{i}.norm1.{p}":                "encoder.blocks.{i}.norm1.{p}",
    "backbone.blocks.{i}.attn.qkv.{p}":             "encoder.blocks.{i}.attention.qkv.{p}",
    "backbone.blocks.{i}.attn.proj.{p}":            "encoder.blocks.{i}.attention.out.{p}",
    "backbone.blocks.{i}.norm2.{p}":                "encoder.blocks.{i}.norm2.{p}",
    "backbone.blocks.{i}.neuralnet.fc1.{p}":        "encoder.blocks.{i}.mlp.fc1.{p}",
    "backbone.blocks.{i}.neuralnet.fc2.{p}":        "encoder.blocks.{i}.mlp.fc2.{p}",
    "backbone.norm.{p}":                            "encoder.norm.{p}",
    "backbone.head.{p}":                            "head.linear.{p}",
}
# fmt: on
RULES: tuple[Rule, ...] = (
    *names(NAMES),
    Name("patch_tokens.project.weight", "tokens.patches.weight", MATRIX),
    Check("backbone.pos_embed", _table, _compare, reason="the fixed table of positions, computed anew"),
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. Heads and the picture's size must be given; channels follow from them.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads or image_size was not given, or an argument contradicts the file.
    """
    size = given(told.image_size, "image_size", "explained", "the article's example is (60, 100)")
    patches = need(tensors, "backbone.pos_embed", axes=3).shape[1] - 1
    side = _patch_side(size, patches)
    numbers = need(tensors, "patch_tokens.project.weight", axes=2).shape[1]
    if numbers % side**2:
        raise DamagedFileError(
            f"patch_tokens.project.weight must have a column for each pixel of a {side}x{side} patch and each channel. "
            f"Got {numbers} columns, not a multiple of {side**2}. Is image_size={size} right?"
        )
    return replace(
        PRESETS["explained_vit_patch20_60x100"],
        image_size=size,
        patch=(side, side),
        channels=agree(told.channels, numbers // side**2, "channels", "patch_tokens.project.weight"),
        width=vote(tensors, "width", *((f"backbone.blocks.{{i}}.{norm}.weight", 0) for norm in ("norm1", "norm2"))),
        depth=blocks(tensors, "backbone.blocks"),
        heads=given(told.heads, "heads", "explained", "the article's default is 1, its example has 4"),
        mlp_width=vote(
            tensors, "MLP width", *((f"backbone.blocks.{{i}}.neuralnet.fc1.{part}", 0) for part in ("weight", "bias"))
        ),
        outputs=vote(tensors, "number of outputs", ("backbone.head.weight", 0), ("backbone.head.bias", 0)),
        qkv_bias=any(name.endswith(".attn.qkv.bias") for name in tensors),
    )


def _patch_side(size: tuple[int, int], patches: int) -> int:
    """Pixels along a square patch, so that the picture holds exactly so many."""
    side = isqrt(size[0] * size[1] // patches) if patches > 0 else 0
    if not side or size[0] % side or size[1] % side or (size[0] // side) * (size[1] // side) != patches:
        raise UsageError(
            f"image_size={size} contradicts the file: it cannot be cut into {patches} square patches, and "
            f"backbone.pos_embed has rows for {patches}. Pass the (height, width) that the model was trained with."
        )
    return side


LAYOUTS = (
    Layout(
        name="explained",
        decisive=("patch_tokens.project.weight", "backbone.pos_embed"),
        rules=RULES,
        describe=describe,
    ),
)
