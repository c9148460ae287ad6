"""`t2t`: files of yitu-opensource/T2T-ViT with transformer or performer blocks in the tokens-to-token module.

The file's sine table is read as a learned one: the repository, too, keeps it as a parameter and resamples it by bicubic
interpolation for another size, instead of computing it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import Patches, ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout, LayoutHints, NameRule, Rule, StorageStep, concat_rows, make_name_rules
from ..validate import count_blocks, count_outputs, has_tensor, majority_length
from .originals import (
    BLOCK_NAMES,
    PLAIN_MLP,
    POSITION_TABLE,
    TABLE_RULE,
    read_heads,
    read_image_size,
    read_mlp_width,
)
from .plain_export import ConfigAndState, StateDict

T2T_HEADS = {256: 4, 384: 6, 448: 7, 512: 8, 768: 12}
"""Heads by width."""
THEIR_SPLIT, OUR_SPLIT = "tokens_to_token.", "tokens.patches."
# fmt: off
STEM = {  # theirs               ours
    "cls_token":                 "tokens.cls",
    THEIR_SPLIT + "project.{p}": OUR_SPLIT + "project.{p}",
    "norm.{p}":                  "encoder.norm.{p}",
    "head.{p}":                  "head.linear.{p}",
}
PERFORMER = {  # inside attention1 and attention2
    "w":          "features",
    "norm1.{p}":  "norm1.{p}",
    "proj.{p}":   "out.{p}",
    "norm2.{p}":  "norm2.{p}",
    "mlp.0.{p}":  "mlp.fc1.{p}",
    "mlp.2.{p}":  "mlp.fc2.{p}",
}
TRANSFORMER = {
    "norm1.{p}":        "norm1.{p}",
    "attn.qkv.weight":  "qkv.weight",
    "attn.proj.{p}":    "out.{p}",
    "norm2.{p}":        "norm2.{p}",
    "mlp.fc1.{p}":      "mlp.fc1.{p}",
    "mlp.fc2.{p}":      "mlp.fc2.{p}",
}
# fmt: on


def _write_key_first(ours: Tensor, config: ViTConfig) -> Tensor:
    q, k, v = ours.chunk(3)
    return concat_rows([k, q, v])


KEY_FIRST: StorageStep[Tensor] = StorageStep(None, _write_key_first)
"""The performer's joint projection has the rows of keys first, then queries, then values."""


def _make_t2t_rules(inner_names: Mapping[str, str], performer: bool) -> tuple[Rule, ...]:
    names = dict(STEM)
    joint: list[Rule] = []
    for place in ("attention1.", "attention2."):
        names |= {THEIR_SPLIT + place + theirs: OUR_SPLIT + place + ours for theirs, ours in inner_names.items()}
        if performer:
            joint.append(NameRule(f"{THEIR_SPLIT}{place}kqv.{{p}}", f"{OUR_SPLIT}{place}qkv.{{p}}", KEY_FIRST))
    return (*make_name_rules({**names, **BLOCK_NAMES, **PLAIN_MLP}), TABLE_RULE, *joint)


def describe_t2t(patches: Patches, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. A first window has 7 x 7 numbers for each channel."""
    width = majority_length(tensors, "width", ("blocks.{i}.norm1.weight", 0), ("blocks.{i}.norm2.weight", 0))
    image_size = read_image_size(tensors, hints, (16, 16))
    numbers = majority_length(tensors, "first window", (f"{THEIR_SPLIT}attention1.norm1.{{p}}", 0))
    if not numbers or numbers % 49:
        raise DamagedFileError(
            f"{THEIR_SPLIT}attention1.norm1.weight must have 49 numbers for each channel of the picture. Got {numbers}."
        )
    fields = {
        "image_size": image_size,
        "patch": (16, 16),
        "channels": numbers // 49,
        "width": width,
        "depth": count_blocks(tensors, "blocks"),
        "heads": read_heads(hints, width, T2T_HEADS),
        "mlp_width": read_mlp_width(tensors, "fc1"),
        "outputs": count_outputs(tensors, "head.{p}"),
        "patches": patches,
        "qkv_bias": has_tensor(tensors, "blocks.{i}.attn.qkv.bias"),
        **hints.numerics("t2t"),
    }
    return ViTConfig(**fields)


def export_t2t(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Store a fixed sine table as a learned one."""
    if config.positions != "sinusoid":
        return config, state
    return replace(config, positions="learned", resample="bicubic"), state


T2T_LAYOUTS = tuple(
    Layout(
        name="t2t",
        variant="performer" if performer else "transformer",
        required_names=(THEIR_SPLIT + "project.weight", POSITION_TABLE, THEIR_SPLIT + decisive),
        rules=_make_t2t_rules(inside, performer),
        describe=partial(describe_t2t, "t2t-performer" if performer else "t2t-transformer"),
        card="t2t",
        published=PUBLISHED_SIZES,
        prepare_export=export_t2t,
    )
    for performer, decisive, inside in (
        (True, "attention1.kqv.weight", PERFORMER),
        (False, "attention1.attn.qkv.weight", TRANSFORMER),
    )
)
