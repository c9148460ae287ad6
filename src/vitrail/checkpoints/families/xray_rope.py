"""`xray-rope`: files of the walk-through on chest films with two-dimensional rotary positions (xray_vit_patch16_224).

The rotary buffers, half a head wide, tell the number of heads, and their length the grid. A file saved without them
loads when `heads` and `image_size` are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isqrt

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ...model.registry import PRESETS
from ...spec import Grid
from ..layouts import Check, Layout, Name, Rule, names
from ..shapes import agree, blocks, given, need, square_grid, vote
from ..steps import MATRIX
from ..told import Told
from .xray_tables import TABLES, axis_width, compare_table, rotary_table


def _table(name: str, config: ViTConfig) -> Tensor:
    return rotary_table(name, config.grid, axis_width(config), class_row=True)


# fmt: off
NAMES = {  # theirs                              ours
    "patch_embedding.patch_embed.bias":          "tokens.patches.bias",
    "cls_token":                                 "tokens.cls",
    "transformer_blocks.{i}.norm1.{p}":          "encoder.blocks.{i}.norm1.{p}",
    "transformer_blocks.{i}.attn.qkv.{p}":       "encoder.blocks.{i}.attention.qkv.{p}",
    "transformer_blocks.{i}.attn.proj.{p}":      "encoder.blocks.{i}.attention.out.{p}",
    "transformer_blocks.{i}.norm2.{p}":          "encoder.blocks.{i}.norm2.{p}",
    "transformer_blocks.{i}.mlp.0.{p}":          "encoder.blocks.{i}.mlp.fc1.{p}",
    "transformer_blocks.{i}.mlp.2.{p}":          "encoder.blocks.{i}.mlp.fc2.{p}",
    "mlp_head.{p}":                              "head.linear.{p}",
}
# fmt: on
ROPE = "transformer_blocks.{i}.attn.rope."
RULES: tuple[Rule, ...] = (
    *names(NAMES),
    Name("patch_embedding.patch_embed.weight", "tokens.patches.weight", MATRIX),
    *(
        Check(ROPE + name, partial(_table, name), partial(compare_table, name), reason="a rotary table, computed anew")
        for name in TABLES
    ),
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. One channel and a square picture, as in the article, unless said otherwise.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: the file lacks its rotary tables and heads or image_size was not given, or an argument
            contradicts the file.
    """
    width = vote(tensors, "width", *((f"transformer_blocks.{{i}}.{norm}.weight", 0) for norm in ("norm1", "norm2")))
    numbers = need(tensors, "patch_embedding.patch_embed.weight", axes=2).shape[1]
    channels = 1 if told.channels is None else told.channels
    patch = isqrt(numbers // channels)
    if patch**2 * channels != numbers:
        raise UsageError(
            f"channels={channels} contradicts the file: patch_embedding.patch_embed.weight has {numbers} columns, "
            f"not {channels} times a square. Pass channels=, the count that the model was trained with."
        )
    return replace(
        PRESETS["xray_vit_patch16_224"],
        image_size=_image_size(tensors, patch, told.image_size),
        patch=(patch, patch),
        channels=channels,
        width=width,
        depth=blocks(tensors, "transformer_blocks"),
        heads=_heads(tensors, width, told.heads),
        mlp_width=vote(tensors, "MLP width", *((f"transformer_blocks.{{i}}.mlp.0.{p}", 0) for p in ("weight", "bias"))),
        outputs=vote(tensors, "number of outputs", ("mlp_head.weight", 0), ("mlp_head.bias", 0)),
    )


def _heads(tensors: Mapping[str, Tensor], width: int, heads: int | None) -> int:
    if not _has_tables(tensors):
        return given(heads, "heads", "xray-rope when it lacks its rotary tables", "the article's code has 8")
    half = vote(tensors, "width of a head", *((ROPE + name, -1) for name in TABLES))
    if width % (2 * half):
        raise DamagedFileError(
            f"The rotary tables must be half a head wide. They have {half} columns, and heads of {2 * half} do not "
            f"divide the width {width}."
        )
    return agree(heads, width // (2 * half), "heads", f"{ROPE.format(i=0)}x_cos, {half} wide (half a head),")


def _image_size(tensors: Mapping[str, Tensor], patch: int, image_size: tuple[int, int] | None) -> tuple[int, int]:
    if not _has_tables(tensors):
        return given(
            image_size, "image_size", "xray-rope when it lacks its rotary tables", "the article has (224, 224)"
        )
    rows = vote(tensors, "grid", *((ROPE + name, -2) for name in TABLES))  # with the class token's row or without
    if image_size is None:
        side = square_grid((rows - 1, rows), f"{ROPE.format(i=0)}x_cos")
        return side * patch, side * patch
    grid = Grid(image_size[0] // patch, image_size[1] // patch)
    if grid.patches not in (rows - 1, rows):
        raise UsageError(
            f"image_size={image_size} contradicts the file: it makes {grid.patches} patches of {patch}x{patch}, and "
            f"{ROPE.format(i=0)}x_cos has {rows} rows. Pass the size that the model was trained with."
        )
    return image_size


def _has_tables(tensors: Mapping[str, Tensor]) -> bool:
    return any(".attn.rope." in name for name in tensors)


LAYOUTS = (
    Layout(
        name="xray-rope",
        decisive=("patch_embedding.patch_embed.weight", "cls_token"),
        rules=RULES,
        describe=describe,
    ),
)
