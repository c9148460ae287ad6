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
from ..validate import count_blocks, has_tensor, majority_length
from .originals import (
    BLOCK_NAMES,
    PLAIN_MLP,
    POSITION_TABLE,
    TABLE_RULE,
    count_outputs,
    read_heads,
    read_image_size,
    read_mlp_width,
)

T2T_HEADS = {256: 4, 384: 6, 448: 7, 512: 8, 768: 12}
"""Heads by width."""
THEIR_SPLIT, OUR_SPLIT = "tokens_to_token.", "tokens.patches."
# fmt: off
STEM = {  # theirs                ours
    "cls_token":                  "tokens.cls",
    THEIR_SPLIT + "project.{p}":  OUR_SPLIT + "project.{p}",
    "norm.{p}":                   "encoder.norm.{p}",
    "head.{p}":                   "head.linear.{p}",
}
PERFORMER = {  # inside attention1 and attention2
    "w":                                      "features",
    "norm1.{p}":                              "norm1.{p}",
    "proj.{p}":                               "out.{p}",
    "norm2.{p}":                              "norm2.{p}",
    "mlp.0.{p}":                              "mlp.fc1.{p}",
    "mlp.2.{p}":                              "mlp.fc2.{p}",
}
TRANSFORMER = {
    "norm1.{p}":                              "norm1.{p}",
    "attn.qkv.weight":                        "qkv.weight",
    "attn.proj.{p}":                          "out.{p}",
    "norm2.{p}":                              "norm2.{p}",
    "mlp.fc1.{p}":                            "mlp.fc1.{p}",
    "mlp.fc2.{p}":                            "mlp.fc2.{p}",
}
# fmt: on


def _read_key_first(theirs: Tensor, like: Tensor) -> Tensor:
    k, q, v = theirs.chunk(3)
    return concat_rows([q, k, v])


def _write_key_first(ours: Tensor, config: ViTConfig) -> Tensor:
    q, k, v = ours.chunk(3)
    return concat_rows([k, q, v])


KEY_FIRST: StorageStep[Tensor] = StorageStep(_read_key_first, _write_key_first)
"""The performer's joint projection has the rows of keys first, then queries, then values."""


def _make_t2t_rules(inner_names: Mapping[str, str], performer: bool) -> tuple[Rule, ...]:
    places = ("attention1.", "attention2.")
    cuts = {
        THEIR_SPLIT + place + name: OUR_SPLIT + place + ours for place in places for name, ours in inner_names.items()
    }
    joint = (
        NameRule(f"{THEIR_SPLIT}{place}kqv.{{p}}", f"{OUR_SPLIT}{place}qkv.{{p}}", KEY_FIRST)
        for place in places
        if performer
    )
    return (*make_name_rules({**STEM, **cuts, **BLOCK_NAMES, **PLAIN_MLP}), TABLE_RULE, *joint)


def describe_t2t(patches: Patches, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that gives the architecture is missing or has other axes.
        UsageError: heads or a size are needed and were not given.
    """
    width = majority_length(tensors, "width", *((f"blocks.{{i}}.{norm}.weight", 0) for norm in ("norm1", "norm2")))
    fields = {
        "image_size": read_image_size(tensors, hints, (16, 16)),
        "patch": (16, 16),
        "channels": _count_channels(tensors),
        "width": width,
        "depth": count_blocks(tensors, "blocks"),
        "heads": read_heads(hints, width, T2T_HEADS),
        "mlp_width": read_mlp_width(tensors, "fc1"),
        "outputs": count_outputs(tensors, "head"),
        "patches": patches,
        "qkv_bias": has_tensor(tensors, "blocks.{i}.attn.qkv.bias"),
        **hints.numerics("t2t"),
    }
    return ViTConfig(**fields)


def _count_channels(tensors: Mapping[str, Tensor]) -> int:
    """Channels of the images: a first window has 7 x 7 numbers per channel.

    Raises:
        DamagedFileError: its norm has another length.
    """
    numbers = majority_length(
        tensors, "first window", *((f"{THEIR_SPLIT}attention1.norm1.{part}", 0) for part in ("weight", "bias"))
    )
    if not numbers or numbers % 49:
        raise DamagedFileError(
            f"{THEIR_SPLIT}attention1.norm1.weight must have 49 numbers for each channel of the picture. Got {numbers}."
        )
    return numbers // 49


def export_t2t(config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Store a fixed sine table as a learned one."""
    if config.positions != "sinusoid":
        return config, state
    return replace(config, positions="learned", resample="bicubic"), state


T2T_VARIANTS: tuple[tuple[str, Patches, str, Mapping[str, str]], ...] = (
    ("performer", "t2t-performer", "attention1.kqv.weight", PERFORMER),
    ("transformer", "t2t-transformer", "attention1.attn.qkv.weight", TRANSFORMER),
)
T2T_LAYOUTS = tuple(
    Layout(
        name="t2t",
        variant=variant,
        required_names=(THEIR_SPLIT + "project.weight", POSITION_TABLE, THEIR_SPLIT + decisive),
        rules=_make_t2t_rules(inside, performer=variant == "performer"),
        describe=partial(describe_t2t, patches),
        card="t2t",
        published=PUBLISHED_SIZES,
        prepare_export=export_t2t,
    )
    for variant, patches, decisive, inside in T2T_VARIANTS
)
