"""`vit-pytorch`: files of its `ViT` and `SimpleViT`, whose patches are normalised before and after their projection.

Neither gives its heads, which may have any width. `ViT` learns its positions and has a class token if it pools by it.
Attention with a single head as wide as a token has no output matrix, which is read as the identity. `SimpleViT`
computes its positions, which are in no file, and takes the mean. Files from before version 1.0, without norms of
patches or with `fn` in their names, are of another design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    CHANNELS_LAST_VECTOR,
    MATRIX_CHANNELS_LAST,
    UNBATCHED,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    Rule,
    make_name_rules,
)
from ..validate import (
    count_blocks,
    count_outputs,
    has_tensor,
    infer_image_size,
    is_square,
    majority_length,
    nearest_name_hint,
    reconcile,
    require_argument,
    require_tensor,
)

BLOCK, OUR_BLOCK = "transformer.layers.{i}", "encoder.blocks.{i}"
# fmt: off
COMMON_NAMES = {  # theirs        ours
    "to_patch_embedding.2.bias":  "tokens.patches.bias",
    "to_patch_embedding.3.{p}":   "tokens.patches.norm_out.{p}",
    f"{BLOCK}.0.norm.{{p}}":      f"{OUR_BLOCK}.norm1.{{p}}",
    f"{BLOCK}.0.to_qkv.weight":   f"{OUR_BLOCK}.attention.qkv.weight",
    f"{BLOCK}.1.net.0.{{p}}":     f"{OUR_BLOCK}.norm2.{{p}}",
    f"{BLOCK}.1.net.1.{{p}}":     f"{OUR_BLOCK}.mlp.fc1.{{p}}",
    "transformer.norm.{p}":       "encoder.norm.{p}",
}
VIT_NAMES = {
    "pos_embedding":              "positions.table",
    f"{BLOCK}.0.to_out.0.{{p}}":  f"{OUR_BLOCK}.attention.out.{{p}}",
    f"{BLOCK}.1.net.4.{{p}}":     f"{OUR_BLOCK}.mlp.fc2.{{p}}",
    "mlp_head.{p}":               "head.linear.{p}",
}
SIMPLE_VIT_NAMES = {
    f"{BLOCK}.0.to_out.weight":  f"{OUR_BLOCK}.attention.out.weight",
    f"{BLOCK}.1.net.3.{{p}}":    f"{OUR_BLOCK}.mlp.fc2.{{p}}",
    "linear_head.{p}":           "head.linear.{p}",
}
# fmt: on
PATCH_RULES: tuple[Rule, ...] = (
    NameRule("to_patch_embedding.1.weight", "tokens.patches.norm_in.weight", CHANNELS_LAST_VECTOR),
    NameRule("to_patch_embedding.1.bias", "tokens.patches.norm_in.bias", CHANNELS_LAST_VECTOR),
    NameRule("to_patch_embedding.2.weight", "tokens.patches.weight", MATRIX_CHANNELS_LAST),
)
CLASS_TOKEN_RULES: tuple[Rule, ...] = (
    IgnoreRule("cls_token", reason="no class token: a tensor without numbers"),  # with mean pooling
    NameRule("cls_token", "tokens.cls", UNBATCHED),
)
QKV, OUT = f"{BLOCK}.0.to_qkv.weight", f"{BLOCK}.0.to_out.0.weight"


def clean_vit_pytorch(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the identity as output matrix where attention of a single head has none."""
    if has_tensor(tensors, f"{BLOCK}.0.to_out.0.{{p}}"):
        return tensors
    added: dict[str, Tensor] = {}
    for i in range(count_blocks(tensors, "transformer.layers")):
        qkv = tensors.get(QKV.format(i=i))
        if qkv is not None and qkv.ndim == 2 and qkv.shape[0] == 3 * qkv.shape[1]:
            added[OUT.format(i=i)] = torch.eye(qkv.shape[1]).to(qkv.dtype)
            added[OUT.format(i=i).replace("weight", "bias")] = qkv.new_zeros(qkv.shape[1])
    return {**tensors, **added}


def describe_vit(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of `ViT`; a file without mlp_head gives features."""
    rows = require_tensor(tensors, "pos_embedding", axes=2).shape[0]
    class_token = "cls_token" in tensors and tensors["cls_token"].numel() > 0
    if not class_token and not is_square(rows) and is_square(rows - 1):
        near = nearest_name_hint("cls_token", tensors)
        raise DamagedFileError(f"The file has no cls_token{near}, to which the first of the {rows} positions belongs.")
    settings = _read_common_settings(tensors, hints, "mlp_head")
    config = ViTConfig(
        image_size=infer_image_size(rows - class_token, settings["patch"], hints, "pos_embedding"),
        class_token=class_token,
        class_position=class_token,
        pool="class" if class_token else "mean",
        **settings,
    )
    return replace(config, **hints.numerics("vit_pytorch"))


def describe_simple_vit(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of `SimpleViT`, which does not give the image size."""
    config = ViTConfig(
        image_size=require_argument(
            hints.image_size, "image_size", "vit-pytorch:simple", "the one it was trained with"
        ),
        class_token=False,
        class_position=False,
        positions="sincos2d-moco",
        pool="mean",
        out_bias=False,
        **_read_common_settings(tensors, hints, "linear_head"),
    )
    return replace(config, **hints.numerics("vit_pytorch"))


def _read_common_settings(tensors: Mapping[str, Tensor], hints: LayoutHints, head: str) -> dict[str, Any]:
    """Settings that both designs give alike."""
    norms = (f"{BLOCK}.0.norm.{{p}}", 0), (f"{BLOCK}.1.net.0.{{p}}", 0)
    width = majority_length(tensors, "width", *norms)
    heads, head_width = _read_heads(tensors, hints, width)
    patch, channels = _read_patch(require_tensor(tensors, "to_patch_embedding.2.weight", axes=2).shape[1], hints)
    return {
        "patch": patch,
        "channels": channels,
        "patches": "linear",
        "patch_norms": True,
        "width": width,
        "depth": count_blocks(tensors, "transformer.layers"),
        "heads": heads,
        "head_width": head_width,
        "mlp_width": majority_length(tensors, "MLP width", (f"{BLOCK}.1.net.1.{{p}}", 0)),
        "outputs": count_outputs(tensors, f"{head}.{{p}}"),
        "qkv_bias": False,
    }


def _read_heads(tensors: Mapping[str, Tensor], hints: LayoutHints, width: int) -> tuple[int, int | None]:
    """Heads, and their width where it is not width / heads."""
    inner, rest = divmod(majority_length(tensors, "width of queries, keys and values", (QKV, 0)), 3)
    out = tensors.get(OUT.format(i=0))
    if out is not None and out.shape == (inner, inner) and torch.equal(out.float(), torch.eye(inner)):
        return reconcile(hints.heads, 1, "heads", "attention without a matrix after it"), None
    heads = require_argument(
        hints.heads, "heads", "vit-pytorch", f"heads of its usual 64 numbers would be {max(inner // 64, 1)}"
    )
    if rest or inner % heads:
        raise UsageError(f"heads={heads} contradicts the file: queries are {inner} wide, not a multiple of it.")
    return heads, None if inner == width else inner // heads


def _read_patch(numbers: int, hints: LayoutHints) -> tuple[tuple[int, int], int]:
    """Patch and channels, of which the file gives only the product: a square patch and RGB unless given."""
    channels = hints.channels or 3
    side = isqrt(numbers // channels)
    patch: tuple[int, int] = hints.settings.get("patch", (side, side))
    if patch[0] * patch[1] * channels != numbers:
        raise UsageError(
            f"to_patch_embedding.2.weight has {numbers} columns, no {patch[0]}x{patch[1]} patch of {channels} channels."
            " Pass channels=, or patch in settings if it is not square."
        )
    return patch, channels


VIT_PYTORCH_LAYOUTS = (
    Layout(
        name="vit-pytorch",
        required_names=("to_patch_embedding.2.weight", "pos_embedding"),
        forbidden_names=("linear_head.*", "*.fn.*"),
        rules=(*CLASS_TOKEN_RULES, *PATCH_RULES, *make_name_rules({**COMMON_NAMES, **VIT_NAMES})),
        describe=describe_vit,
        card="vit_pytorch",
        clean=clean_vit_pytorch,
    ),
    Layout(
        name="vit-pytorch",
        variant="simple",
        required_names=("to_patch_embedding.2.weight", "linear_head.weight"),
        forbidden_names=("pos_embedding", "cls_token", "*.fn.*"),
        rules=(*PATCH_RULES, *make_name_rules({**COMMON_NAMES, **SIMPLE_VIT_NAMES})),
        describe=describe_simple_vit,
        card="vit_pytorch",
    ),
)
