"""Layouts of three published tutorials: `explained`, `blog-conv` and `xray-rope`.

Each has a preset of the same design in `model/registry.py`, from which it takes what no tensor gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ...model.positions import sinusoid_table
from ...model.registry import PRESETS
from ...spec import Grid
from ..layouts import (
    BATCHED,
    KERNEL,
    MATRIX,
    CheckRule,
    CopyRule,
    DropRule,
    Layout,
    LayoutHints,
    NameRule,
    Rule,
    make_name_rules,
)
from ..validate import (
    count_blocks,
    count_patches,
    find_square_side,
    majority_length,
    reconcile,
    require_argument,
    require_tensor,
)

# -- explained: a tutorial on one-channel images that are not square (explained_vit_patch20_60x100)
#
# The file gives neither the number of heads (the article's default is one, its example has four) nor the grid of
# patches: heads and image_size are required arguments.


def _explained_table(config: ViTConfig) -> Tensor:
    return sinusoid_table(config.tokens, config.width)[None]


def _compare_positions(theirs: Tensor, config: ViTConfig) -> str:
    ours = _explained_table(config)
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
EXPLAINED_NAMES = {  # theirs                 ours
    "patch_tokens.project.bias":              "tokens.patches.bias",
    "backbone.cls_token":                     "tokens.cls",
    "backbone.blocks.{i}.norm1.{p}":          "encoder.blocks.{i}.norm1.{p}",
    "backbone.blocks.{i}.attn.qkv.{p}":       "encoder.blocks.{i}.attention.qkv.{p}",
    "backbone.blocks.{i}.attn.proj.{p}":      "encoder.blocks.{i}.attention.out.{p}",
    "backbone.blocks.{i}.norm2.{p}":          "encoder.blocks.{i}.norm2.{p}",
    "backbone.blocks.{i}.neuralnet.fc1.{p}":  "encoder.blocks.{i}.mlp.fc1.{p}",
    "backbone.blocks.{i}.neuralnet.fc2.{p}":  "encoder.blocks.{i}.mlp.fc2.{p}",
    "backbone.norm.{p}":                      "encoder.norm.{p}",
    "backbone.head.{p}":                      "head.linear.{p}",
}
# fmt: on
EXPLAINED_RULES: tuple[Rule, ...] = (
    *make_name_rules(EXPLAINED_NAMES),
    NameRule("patch_tokens.project.weight", "tokens.patches.weight", MATRIX),
    CheckRule(
        "backbone.pos_embed", _explained_table, _compare_positions, reason="the fixed table of positions, computed anew"
    ),
)


def describe_explained(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. Heads and image_size are required; patch and channels follow from them."""
    size = require_argument(hints.image_size, "image_size", "explained", "the article's example is (60, 100)")
    patches = require_tensor(tensors, "backbone.pos_embed", axes=3).shape[1] - 1
    side = isqrt(size[0] * size[1] // patches) if patches > 0 else 0  # of square patches that fill the image
    if not side or size[0] % side or size[1] % side or (size[0] // side) * (size[1] // side) != patches:
        raise UsageError(
            f"image_size={size} contradicts the file: it cannot be cut into {patches} square patches, and "
            f"backbone.pos_embed has rows for {patches}. Pass the (height, width) that the model was trained with."
        )
    numbers = require_tensor(tensors, "patch_tokens.project.weight", axes=2).shape[1]
    if numbers % side**2:
        raise DamagedFileError(
            f"patch_tokens.project.weight must have a column for each pixel of a {side}x{side} patch and each channel. "
            f"Got {numbers} columns, not a multiple of {side**2}. Is image_size={size} right?"
        )
    norms = ("backbone.blocks.{i}.norm1.weight", 0), ("backbone.blocks.{i}.norm2.weight", 0)
    return replace(
        PRESETS["explained_vit_patch20_60x100"],
        image_size=size,
        patch=(side, side),
        channels=reconcile(hints.channels, numbers // side**2, "channels", "patch_tokens.project.weight"),
        width=majority_length(tensors, "width", *norms),
        depth=count_blocks(tensors, "backbone.blocks"),
        heads=require_argument(hints.heads, "heads", "explained", "the article's default is 1, its example has 4"),
        mlp_width=majority_length(tensors, "MLP width", ("backbone.blocks.{i}.neuralnet.fc1.{p}", 0)),
        outputs=majority_length(tensors, "number of outputs", ("backbone.head.{p}", 0)),
        qkv_bias=any(name.endswith(".attn.qkv.bias") for name in tensors),
    )


EXPLAINED_LAYOUTS = (
    Layout(
        name="explained",
        required_names=("patch_tokens.project.weight", "backbone.pos_embed"),
        rules=EXPLAINED_RULES,
        describe=describe_explained,
    ),
)


# -- blog-conv: a tutorial that rebuilds ViT-Base with torch's own layers (blog_vit_base_patch16_224)

# fmt: off
BLOG_CONV_NAMES = {  # theirs                    ours
    "class_embedding":                           "tokens.cls",
    "patch_embedding.conv.bias":                 "tokens.patches.bias",
    "vit.{i}.attention.layer.{p}":               "encoder.blocks.{i}.norm1.{p}",
    "vit.{i}.attention.attention.in_proj_{p}":   "encoder.blocks.{i}.attention.qkv.{p}",
    "vit.{i}.attention.attention.out_proj.{p}":  "encoder.blocks.{i}.attention.out.{p}",
    "vit.{i}.mlp.norm.{p}":                      "encoder.blocks.{i}.norm2.{p}",
    "vit.{i}.mlp.linear1.{p}":                   "encoder.blocks.{i}.mlp.fc1.{p}",
    "vit.{i}.mlp.linear2.{p}":                   "encoder.blocks.{i}.mlp.fc2.{p}",
    "classifier.0.{p}":                          "encoder.norm.{p}",
    "classifier.1.{p}":                          "head.linear.{p}",
}
# fmt: on
BLOG_CONV_RULES: tuple[Rule, ...] = (
    *make_name_rules(BLOG_CONV_NAMES),
    NameRule("patch_embedding.conv.weight", "tokens.patches.weight", KERNEL),
    NameRule("position_embedding", "positions.table", BATCHED),
    CopyRule("vit.{i}.mlp.seq.0.{p}", "vit.{i}.mlp.linear1.{p}"),
    CopyRule("vit.{i}.mlp.seq.3.{p}", "vit.{i}.mlp.linear2.{p}"),
    DropRule(
        "vit.{i}.norm.{p}", "encoder.blocks.{i}.norm1.{p}", reason="a norm that the article declares and never calls"
    ),
)


def describe_blog_conv(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. Heads are required; images are square unless `image_size` is given."""
    kernel = require_tensor(tensors, "patch_embedding.conv.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    rows = require_tensor(tensors, "position_embedding", axes=3).shape[1] - 1
    width = majority_length(tensors, "width", ("vit.{i}.attention.layer.weight", 0), ("vit.{i}.mlp.norm.weight", 0))
    if hints.image_size is None:
        side = find_square_side((rows,), "position_embedding")
        size = side * patch[0], side * patch[1]
    else:
        size = hints.image_size
        if (patches := count_patches(size, patch)) != rows:
            raise UsageError(
                f"image_size={size} contradicts the file: it makes {patches} patches of {patch[0]}x{patch[1]}, "
                f"and position_embedding has rows for {rows}. Pass the size that the model was trained with."
            )
    return replace(
        PRESETS["blog_vit_base_patch16_224"],
        image_size=size,
        patch=patch,
        channels=reconcile(hints.channels, kernel.shape[1], "channels", "patch_embedding.conv.weight"),
        width=width,
        depth=count_blocks(tensors, "vit"),
        heads=require_argument(hints.heads, "heads", "blog-conv", "the article's ViT-Base has 12"),
        mlp_width=majority_length(tensors, "MLP width", ("vit.{i}.mlp.linear1.{p}", 0)),
        outputs=majority_length(tensors, "number of outputs", ("classifier.1.{p}", 0)),
    )


BLOG_CONV_LAYOUTS = (
    Layout(
        name="blog-conv",
        required_names=("class_embedding", "patch_embedding.conv.weight"),
        rules=BLOG_CONV_RULES,
        describe=describe_blog_conv,
    ),
)


# -- xray-rope: a tutorial on chest films with two-dimensional rotary positions (xray_vit_patch16_224)
#
# The file carries its rotary tables, whose width gives the number of heads and whose length the grid. A file saved
# without them loads if `heads` and `image_size` are given. A table holds the cosine or sine of one axis for every
# token: [N, e], or [N + 1, e] with the class token (angle 0) in front; e is half a head's width.
# angle = place * 10000^(-2i/e), i = 1 .. e/2, each used twice.

ROTARY_TABLE_NAMES = ("x_cos", "x_sin", "y_cos", "y_sin")


class RotaryConvention(NamedTuple):
    """Choices in which implementations of rotary tables differ; the defaults are those of this design."""

    first_exponent: int = 1
    first_place: int = 1
    swap_axes: bool = False
    half_split: bool = False

    def describe_differences(self) -> str:
        """The differences from this design, for a message."""
        differences = (
            (self.first_exponent != 1, "exponents i counted from 0"),
            (self.first_place != 1, "places counted from 0"),
            (self.swap_axes, "rows and columns swapped"),
            (self.half_split, "each angle used again half a table later (half-split), not twice in a row"),
        )
        return " and ".join(words for differs, words in differences if differs)


DESIGN_CONVENTION = RotaryConvention()


def make_rotary_table(
    name: str, grid: Grid, width: int, class_row: bool, convention: RotaryConvention = DESIGN_CONVENTION
) -> Tensor:
    """The table called `name` (one of ROTARY_TABLE_NAMES) for a grid, [N (+ 1), width]."""
    along_columns = name.startswith("x") != convention.swap_axes
    rows, columns = (torch.arange(side, dtype=torch.float64) + convention.first_place for side in grid)
    places = columns.repeat(grid.rows) if along_columns else rows.repeat_interleave(grid.columns)  # [N]
    exponents = torch.arange(width // 2, dtype=torch.float64) + convention.first_exponent
    angles = places[:, None] * 10000 ** (-2 * exponents / width)  # [N, e / 2]
    angles = torch.cat([angles, angles], dim=1) if convention.half_split else angles.repeat_interleave(2, dim=1)
    if class_row:
        angles = torch.cat([angles.new_zeros(1, width), angles])
    return (angles.cos() if name.endswith("cos") else angles.sin()).float()


def axis_width(config: ViTConfig) -> int:
    """Numbers of a head that follow one axis (e)."""
    return config.width // config.heads // 2


def compare_rotary_table(name: str, theirs: Tensor, config: ViTConfig) -> str:
    """Empty if the file's table called `name` is that of the design, else a message that follows the name."""
    grid, width = config.grid, axis_width(config)
    flat = theirs.reshape(-1, theirs.shape[-1]) if theirs.ndim else theirs.reshape(1, 1)
    if flat.shape not in ((grid.patches, width), (grid.patches + 1, width)):
        return (
            f"is {list(theirs.shape)}, expected {[grid.patches + 1, width]}, or {[grid.patches, width]} without the "
            f"class token, for a grid of {grid.rows}x{grid.columns} and {config.heads} heads."
        )
    tolerance = max(1e-4, torch.finfo(theirs.dtype).eps)
    for convention in _CONVENTIONS:
        ours = make_rotary_table(name, grid, width, len(flat) > grid.patches, convention)
        if not torch.allclose(flat.float(), ours, rtol=0, atol=tolerance):
            continue
        if convention == DESIGN_CONVENTION:
            return ""
        return (
            f"is a rotary table of another convention: it looks like one with {convention.describe_differences()}. "
            "The model would rotate by other angles than the one that was trained."
        )
    return "is a rotary table of no convention known here. The design counts places and exponents i from 1."


# Sorted by the number of differences from the design.
_CONVENTIONS = sorted(
    (RotaryConvention(*parts) for parts in product((1, 0), (1, 0), (False, True), (False, True))),
    key=lambda convention: sum(a != b for a, b in zip(convention, DESIGN_CONVENTION, strict=True)),
)


def _xray_table(name: str, config: ViTConfig) -> Tensor:
    return make_rotary_table(name, config.grid, axis_width(config), class_row=True)


# fmt: off
XRAY_NAMES = {  # theirs                     ours
    "patch_embedding.patch_embed.bias":      "tokens.patches.bias",
    "cls_token":                             "tokens.cls",
    "transformer_blocks.{i}.norm1.{p}":      "encoder.blocks.{i}.norm1.{p}",
    "transformer_blocks.{i}.attn.qkv.{p}":   "encoder.blocks.{i}.attention.qkv.{p}",
    "transformer_blocks.{i}.attn.proj.{p}":  "encoder.blocks.{i}.attention.out.{p}",
    "transformer_blocks.{i}.norm2.{p}":      "encoder.blocks.{i}.norm2.{p}",
    "transformer_blocks.{i}.mlp.0.{p}":      "encoder.blocks.{i}.mlp.fc1.{p}",
    "transformer_blocks.{i}.mlp.2.{p}":      "encoder.blocks.{i}.mlp.fc2.{p}",
    "mlp_head.{p}":                          "head.linear.{p}",
}
# fmt: on
ROPE_PREFIX = "transformer_blocks.{i}.attn.rope."
FIRST_ROTARY_TABLE = "transformer_blocks.0.attn.rope.x_cos"
XRAY_RULES: tuple[Rule, ...] = (
    *make_name_rules(XRAY_NAMES),
    NameRule("patch_embedding.patch_embed.weight", "tokens.patches.weight", MATRIX),
    *(
        CheckRule(
            ROPE_PREFIX + name,
            partial(_xray_table, name),
            partial(compare_rotary_table, name),
            reason="a rotary table, computed anew",
        )
        for name in ROTARY_TABLE_NAMES
    ),
)


def describe_xray(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. One channel and a square image, as in the article, unless given."""
    norms = ("transformer_blocks.{i}.norm1.weight", 0), ("transformer_blocks.{i}.norm2.weight", 0)
    width = majority_length(tensors, "width", *norms)
    numbers = require_tensor(tensors, "patch_embedding.patch_embed.weight", axes=2).shape[1]
    channels = 1 if hints.channels is None else hints.channels
    patch = isqrt(numbers // channels)
    if patch**2 * channels != numbers:
        raise UsageError(
            f"channels={channels} contradicts the file: patch_embedding.patch_embed.weight has {numbers} columns, "
            f"not {channels} times a square. Pass channels=, the count that the model was trained with."
        )
    depth = count_blocks(tensors, "transformer_blocks")
    if any(".attn.rope." in name for name in tensors):
        # rows, with the class token's or without
        rows = majority_length(tensors, "grid", *((ROPE_PREFIX + name, -2) for name in ROTARY_TABLE_NAMES))
        if hints.image_size is None:
            side = find_square_side((rows - 1, rows), FIRST_ROTARY_TABLE)
            size = side * patch, side * patch
        else:
            size = hints.image_size
            if (patches := count_patches(size, (patch, patch))) not in (rows - 1, rows):
                raise UsageError(
                    f"image_size={size} contradicts the file: it makes {patches} patches of {patch}x{patch}, and "
                    f"{FIRST_ROTARY_TABLE} has {rows} rows. Pass the size that the model was trained with."
                )
        half = majority_length(tensors, "width of a head", *((ROPE_PREFIX + name, -1) for name in ROTARY_TABLE_NAMES))
        if width % (2 * half):
            raise DamagedFileError(
                f"The rotary tables must be half a head wide. They have {half} columns, and heads of {2 * half} do not "
                f"divide the width {width}."
            )
        source = f"{FIRST_ROTARY_TABLE}, {half} wide (half a head),"
        heads = reconcile(hints.heads, width // (2 * half), "heads", source)
    else:
        kind = "xray-rope when it lacks its rotary tables"
        size = require_argument(hints.image_size, "image_size", kind, "the article has (224, 224)")
        heads = require_argument(hints.heads, "heads", kind, "the article's code has 8")
    return replace(
        PRESETS["xray_vit_patch16_224"],
        image_size=size,
        patch=(patch, patch),
        channels=channels,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=majority_length(tensors, "MLP width", ("transformer_blocks.{i}.mlp.0.{p}", 0)),
        outputs=majority_length(tensors, "number of outputs", ("mlp_head.{p}", 0)),
    )


XRAY_LAYOUTS = (
    Layout(
        name="xray-rope",
        required_names=("patch_embedding.patch_embed.weight", "cls_token"),
        rules=XRAY_RULES,
        describe=describe_xray,
    ),
)
