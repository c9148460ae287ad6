"""What the files of the original repositories share: one naming of stem and blocks, and how their shapes are read.

DINO, DINOv2, DINOv3, MAE and I-JEPA all descend from the same first port of the Vision Transformer to torch. All but
DINOv3's files keep silent about heads: published sizes are known by their width, others must be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import Name, Rule, names
from ..shapes import blocks, given, has, need, picture_size, vote
from ..steps import BATCHED, KERNEL
from ..told import Told

# fmt: off
BLOCKS = {  # theirs                          ours
    "blocks.{i}.norm1.{p}":                   "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.attn.qkv.{p}":                "encoder.blocks.{i}.attention.qkv.{p}",
    "blocks.{i}.attn.proj.{p}":               "encoder.blocks.{i}.attention.out.{p}",
    "blocks.{i}.ls1.gamma":                   "encoder.blocks.{i}.scale1",
    "blocks.{i}.norm2.{p}":                   "encoder.blocks.{i}.norm2.{p}",
    "blocks.{i}.ls2.gamma":                   "encoder.blocks.{i}.scale2",
}
PLAIN_MLP = {
    "blocks.{i}.mlp.fc1.{p}":                 "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.fc2.{p}":                 "encoder.blocks.{i}.mlp.fc2.{p}",
}
STEM = {
    "cls_token":                              "tokens.cls",
    "patch_embed.proj.bias":                  "tokens.patches.bias",
    "norm.{p}":                               "encoder.norm.{p}",
}
# fmt: on
KERNEL_NAME, TABLE = "patch_embed.proj.weight", "pos_embed"
STEM_RULES: tuple[Rule, ...] = (*names(STEM), Name(KERNEL_NAME, "tokens.patches.weight", KERNEL))
"""Patches, class token and final norm."""
TABLE_RULE = Name(TABLE, "positions.table", BATCHED)
"""Learned positions, with a first row for the class token."""
RULES: tuple[Rule, ...] = (*STEM_RULES, TABLE_RULE, *names({**BLOCKS, **PLAIN_MLP}))
"""A whole encoder with a plain MLP."""


def described(tensors: Mapping[str, Tensor], told: Told, card: str) -> dict[str, Any]:
    """Fields of ViTConfig that are found alike in all these files; size, heads and MLP are not among them.

    Args:
        card: the family's, for what no tensor says.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
    """
    kernel = need(tensors, KERNEL_NAME, axes=4)
    width = vote(tensors, "width", *((f"blocks.{{i}}.{norm}.weight", 0) for norm in ("norm1", "norm2")))
    return {
        "patch": (kernel.shape[2], kernel.shape[3]),
        "channels": kernel.shape[1],
        "width": width,
        "depth": blocks(tensors, "blocks"),
        "outputs": outputs(tensors, "head"),
        "qkv_bias": has(tensors, "blocks.{i}.attn.qkv.bias"),
        "layer_scale": 1e-5 if has(tensors, "blocks.{i}.ls1.gamma", "blocks.{i}.ls2.gamma") else None,
        **told.numerics(card),
    }


def heads(told: Told, width: int, published: Mapping[int, int]) -> int:
    """As the caller says, or those of the published model of that width.

    Raises:
        UsageError: nobody says them.
    """
    sizes = ", ".join(f"{width} wide {count}" for width, count in published.items())
    known = published.get(width) if told.heads is None else told.heads
    return given(known, "heads", "an original repository", f"published models have: {sizes}")


def outputs(tensors: Mapping[str, Tensor], head: str) -> int:
    """Rows of the head, or 0 if the file has none."""
    if not has(tensors, f"{head}.{{p}}"):
        return 0
    return vote(tensors, "number of outputs", (f"{head}.weight", 0), (f"{head}.bias", 0))


def mlp_width(tensors: Mapping[str, Tensor], matrix: str) -> int:
    """Rows of that matrix in the blocks."""
    return vote(tensors, "MLP width", *((f"blocks.{{i}}.mlp.{matrix}.{part}", 0) for part in ("weight", "bias")))


def table_size(tensors: Mapping[str, Tensor], told: Told, patch: tuple[int, int], prefix: int = 1) -> tuple[int, int]:
    """Height and width that the position table was made for: a square, unless the caller's size has as many patches.

    Args:
        prefix: rows of the table that belong to no patch.

    Raises:
        DamagedFileError: there is no table, or it has other axes.
        UsageError: the rows fill no square.
    """
    return picture_size(need(tensors, TABLE, axes=3).shape[1] - prefix, patch, told, TABLE)


def plain(
    tensors: Mapping[str, Tensor], told: Told, card: str, published: Mapping[int, int], class_token: bool = True
) -> ViTConfig:
    """The architecture of a file with a position table and a plain MLP.

    Args:
        published: heads by width.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads or a size are needed and were not given.
    """
    fields = described(tensors, told, card)
    fields["heads"] = heads(told, fields["width"], published)
    fields["image_size"] = table_size(tensors, told, fields["patch"], prefix=int(class_token))
    fields["class_token"] = class_token
    fields["mlp_width"] = mlp_width(tensors, "fc1")
    return ViTConfig(**fields)
