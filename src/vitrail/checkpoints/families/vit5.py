"""`vit5`: files of ViT-5 (wangf3014/ViT-5), and those of vit-pytorch's class of that name.

Learned positions of the patches, and queries and keys that are normalised by RMSNorm and rotated: those of a patch by
its row and column, those of the registers by their places in a square of their own (in vit-pytorch's class by their
number). The frequencies lie in the file; those of the patches must be the ones that Vitrail computes, those of the
registers make their angles. The class token is not rotated. Registers stand behind the patches, which makes no
difference to attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ..layouts import (
    MATRIX_CHANNELS_LAST,
    UNBATCHED,
    CheckRule,
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
    majority_length,
    reconcile,
    require_tensor,
)
from .timm_eva_naflex import EVA_RULES
from .vit_pytorch import read_flat_patch

REGISTER_ANGLES = "register_angles"
"""Name under which the angles of the prefix tokens, computed from the frequencies, are loaded."""
ANGLES_RULE = NameRule(REGISTER_ANGLES, "rotary.prefix_angles")


def make_frequencies(base: float, count: int) -> Tensor:
    """The frequencies base^(-i / count), i = 0 .. count - 1."""
    return 1.0 / base ** (torch.arange(count) / count)


def _check_frequencies(name: str, whose: str, base: float, share: int = 4) -> Rule:
    """Frequencies in a file, which must be those of that base; there are a head's width / `share`."""

    def table(config: ViTConfig) -> Tensor:
        return make_frequencies(base, config.head_dim // share)

    def compare(theirs: Tensor, config: ViTConfig) -> str:
        ours = table(config)
        if theirs.shape == ours.shape and torch.allclose(theirs.float(), ours, rtol=1e-2, atol=0):
            return ""
        return f"must hold {len(ours)} frequencies that fall from 1 by the base {base:g}. Got {theirs.tolist()[:4]} ..."

    return CheckRule(name, table, compare, reason=f"computed frequencies of the {whose}")


# -- vit5: the authors' own files, whose other names are timm's

PATCH_FREQUENCIES, REGISTER_FREQUENCIES = "blocks.{i}.attn.rope.freqs", "blocks.{i}.attn.rope_reg.freqs"
PATCH_BASE, REGISTER_BASE = 10000.0, 100.0
VIT5_RULES: tuple[Rule, ...] = (
    *EVA_RULES,
    ANGLES_RULE,
    _check_frequencies(PATCH_FREQUENCIES, "patches", PATCH_BASE),
    _check_frequencies(REGISTER_FREQUENCIES, "registers", REGISTER_BASE),
)


def describe_vit5(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `add_register_angles`."""
    kernel = require_tensor(tensors, "patch_embed.proj.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = majority_length(tensors, "width", ("blocks.{i}.norm1.weight", 0), ("blocks.{i}.norm2.weight", 0))
    head = 4 * majority_length(tensors, "quarter of a head", (PATCH_FREQUENCIES, 0))
    if has_tensor(tensors, REGISTER_FREQUENCIES):
        require_tensor(tensors, "reg_token", axes=3)
    elif "reg_token" in tensors:
        require_tensor(tensors, REGISTER_FREQUENCIES.replace("{i}", "0"), axes=1)
    size = infer_image_size(require_tensor(tensors, "pos_embed", axes=3).shape[1], patch, hints, "pos_embed")
    config = ViTConfig(
        image_size=size,
        patch=patch,
        channels=kernel.shape[1],
        depth=count_blocks(tensors, "blocks"),
        mlp_width=majority_length(tensors, "MLP width", ("blocks.{i}.mlp.fc1.{p}", 0)),
        outputs=count_outputs(tensors, "head.{p}"),
        class_position=False,
        qkv_bias=has_tensor(tensors, "blocks.{i}.attn.qkv.bias"),
        rotary_grid=(size[0] // patch[0], size[1] // patch[1]),
        layer_scale=1e-4 if has_tensor(tensors, "blocks.{i}.gamma_1", "blocks.{i}.gamma_2") else None,
        **_read_rotated_design(tensors, hints, width, head, "reg_token"),
    )
    return replace(config, **hints.numerics("vit5"))


def _read_rotated_design(
    tensors: Mapping[str, Tensor], hints: LayoutHints, width: int, head: int, registers: str
) -> dict[str, Any]:
    """Fields that both kinds of file have alike."""
    if not head or width % head:
        raise DamagedFileError(f"The frequencies are those of heads of {head} numbers, which do not divide {width}.")
    tokens = tensors.get(registers)
    return {
        "width": width,
        "heads": reconcile(hints.heads, width // head, "heads", "the number of frequencies"),
        "registers": 0 if tokens is None else tokens.shape[-2],
        "rotary": "eva02",
        "rotary_prefix": REGISTER_ANGLES in tensors,
        "norm": "RMSNorm",
        "qk_norm": True,
    }


def add_register_angles(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the angles of the prefix tokens: none for the class token, rows and columns of a square for the registers."""
    names = ("reg_token", *(name.replace("{i}", "0") for name in (REGISTER_FREQUENCIES, PATCH_FREQUENCIES)))
    if not all(name in tensors for name in names):
        return tensors
    tokens, frequencies, of_patches = (tensors[name] for name in names)
    if tokens.ndim != 3 or frequencies.ndim != 1 or frequencies.shape != of_patches.shape:
        return tensors
    side = isqrt(tokens.shape[1])
    if side**2 != tokens.shape[1]:
        raise DamagedFileError(f"reg_token must hold a square number of registers. Got {tokens.shape[1]}.")
    places = torch.arange(side, dtype=torch.float32)
    rows, columns = (axis.flatten()[:, None] for axis in torch.meshgrid(places, places, indexing="ij"))
    angles = torch.cat([rows * frequencies.float(), columns * frequencies.float()], dim=1)  # [R, d / 2]
    return {**tensors, REGISTER_ANGLES: torch.cat([angles.new_zeros(1, angles.shape[1]), angles])}


VIT5 = Layout(
    name="vit5",
    required_names=("patch_embed.proj.weight", "pos_embed", "blocks.*.attn.rope.freqs", "blocks.*.attn.q_norm.weight"),
    rules=VIT5_RULES,
    describe=describe_vit5,
    card="vit5",
    head="head",
    clean=add_register_angles,
)


# -- vit-pytorch's class ViT of vit_5

# fmt: off
VIT_PYTORCH_NAMES = {  # theirs                   ours
    "to_patch_embedding.1.bias":                  "tokens.patches.bias",
    "pos_embedding":                              "positions.table",
    "transformer.layers.{i}.0.norm.g":            "encoder.blocks.{i}.norm1.weight",
    "transformer.layers.{i}.0.to_qkv.weight":     "encoder.blocks.{i}.attention.qkv.weight",
    "transformer.layers.{i}.0.q_norm.g":          "encoder.blocks.{i}.attention.q_norm.weight",
    "transformer.layers.{i}.0.k_norm.g":          "encoder.blocks.{i}.attention.k_norm.weight",
    "transformer.layers.{i}.0.to_out.0.{p}":      "encoder.blocks.{i}.attention.out.{p}",
    "transformer.ls1.{i}":                        "encoder.blocks.{i}.scale1",
    "transformer.layers.{i}.1.net.0.g":           "encoder.blocks.{i}.norm2.weight",
    "transformer.layers.{i}.1.net.1.{p}":         "encoder.blocks.{i}.mlp.fc1.{p}",
    "transformer.layers.{i}.1.net.4.{p}":         "encoder.blocks.{i}.mlp.fc2.{p}",
    "transformer.ls2.{i}":                        "encoder.blocks.{i}.scale2",
    "transformer.norm.g":                         "encoder.norm.weight",
    "mlp_head.{p}":                               "head.linear.{p}",
}
# fmt: on
PROJECTION, OWN_FREQUENCIES = "to_patch_embedding.1.weight", "rotary_emb.patch_inv_freq"
NUMBER_FREQUENCIES, NUMBER_BASE, OWN_BASE = "rotary_emb.reg_inv_freq", 100.0, 100000.0


VIT_PYTORCH_5_RULES: tuple[Rule, ...] = (
    *make_name_rules(VIT_PYTORCH_NAMES),
    NameRule(PROJECTION, "tokens.patches.weight", MATRIX_CHANNELS_LAST),
    NameRule("cls_token", "tokens.cls", UNBATCHED),
    NameRule("register_tokens", "tokens.registers", UNBATCHED),
    ANGLES_RULE,
    _check_frequencies(OWN_FREQUENCIES, "patches", OWN_BASE),
    _check_frequencies(NUMBER_FREQUENCIES, "registers", NUMBER_BASE, share=2),
)


def describe_vit_pytorch_5(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `fold_register_positions`."""
    block = "transformer.layers.{i}."
    width = majority_length(tensors, "width", (f"{block}0.norm.g", 0), (f"{block}1.net.0.g", 0))
    head = 4 * len(require_tensor(tensors, OWN_FREQUENCIES, axes=1))
    inner = majority_length(tensors, "width of queries, keys and values", (f"{block}0.to_qkv.weight", 0)) // 3
    patch, channels = read_flat_patch(require_tensor(tensors, PROJECTION, axes=2).shape[1], PROJECTION, hints)
    rows = require_tensor(tensors, "pos_embedding", axes=2).shape[0]
    config = ViTConfig(
        image_size=infer_image_size(rows - 1, patch, hints, "pos_embedding"),
        patch=patch,
        channels=channels,
        patches="linear",
        depth=count_blocks(tensors, "transformer.layers"),
        mlp_width=majority_length(tensors, "MLP width", (f"{block}1.net.1.{{p}}", 0)),
        outputs=count_outputs(tensors, "mlp_head.{p}"),
        qkv_bias=False,
        rotary_base=OWN_BASE,
        layer_scale=1e-4,
        **{
            **_read_rotated_design(tensors, replace(hints, heads=None), inner, head, "register_tokens"),
            "width": width,
            "head_width": None if inner == width else head,
        },
    )
    reconcile(hints.heads, config.heads, "heads", "the number of frequencies")
    return replace(config, **{**hints.numerics("vit_pytorch"), "norm_eps": hints.settings.get("norm_eps", 1e-24)})


def fold_register_positions(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the positions of the registers to these, and the angles of all prefix tokens, by number from the first."""
    tokens, table = tensors.get("register_tokens"), tensors.get("pos_embedding")
    frequencies = tensors.get(NUMBER_FREQUENCIES)
    if (
        tokens is None
        or table is None
        or frequencies is None
        or [tokens.ndim, table.ndim, frequencies.ndim] != [2, 2, 1]
    ):
        return tensors
    count = len(tokens)
    if len(table) < count + 2 or table.shape[1] != tokens.shape[1]:
        return tensors
    angles = torch.arange(count, dtype=torch.float32)[:, None] * frequencies.float()  # [R, d / 2]
    return {
        **tensors,
        "register_tokens": tokens + table[1 : 1 + count],
        "pos_embedding": torch.cat([table[:1], table[1 + count :]]),
        REGISTER_ANGLES: torch.cat([angles.new_zeros(1, angles.shape[1]), angles]),
    }


VIT_PYTORCH_5 = Layout(
    name="vit-pytorch",
    variant="vit-5",
    required_names=(PROJECTION, "pos_embedding", OWN_FREQUENCIES),
    rules=VIT_PYTORCH_5_RULES,
    describe=describe_vit_pytorch_5,
    card="vit_pytorch",
    head="mlp_head",
    clean=fold_register_positions,
)
VIT5_LAYOUTS = (VIT5, VIT_PYTORCH_5)
