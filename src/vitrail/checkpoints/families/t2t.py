"""`t2t`: files of yitu-opensource/T2T-ViT with transformer or performer blocks between the cuts.

The file's table of waves is read as a learned one: the repository, too, keeps it as a parameter, stretches it by
bicubic interpolation for another size, and does not compute it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import Patches, ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout, Name, Rule, names
from ..shapes import blocks, has, vote
from ..steps import Step, joined
from ..told import Told
from .originals import BLOCKS, PLAIN_MLP, TABLE, TABLE_RULE, heads, mlp_width, outputs, table_size

PUBLISHED = {256: 4, 384: 6, 448: 7, 512: 8, 768: 12}
"""Heads by width."""
THEIRS, OURS = "tokens_to_token.", "tokens.patches."
# fmt: off
STEM = {  # theirs                            ours
    "cls_token":                              "tokens.cls",
    THEIRS + "project.{p}":                   OURS + "project.{p}",
    "norm.{p}":                               "encoder.norm.{p}",
    "head.{p}":                               "head.linear.{p}",
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


def _query_first(theirs: Tensor, like: Tensor) -> Tensor:
    k, q, v = theirs.chunk(3)
    return joined([q, k, v])


def _key_first(ours: Tensor, config: ViTConfig) -> Tensor:
    q, k, v = ours.chunk(3)
    return joined([k, q, v])


KEY_FIRST: Step[Tensor] = Step(_query_first, _key_first)
"""The performer's joint projection has the rows of the keys first, then those of the queries and the values."""


def _rules(inside: Mapping[str, str], performer: bool) -> tuple[Rule, ...]:
    places = ("attention1.", "attention2.")
    cuts = {THEIRS + place + name: OURS + place + ours for place in places for name, ours in inside.items()}
    joint = (Name(f"{THEIRS}{place}kqv.{{p}}", f"{OURS}{place}qkv.{{p}}", KEY_FIRST) for place in places if performer)
    return (*names({**STEM, **cuts, **BLOCKS, **PLAIN_MLP}), TABLE_RULE, *joint)


def describe(patches: Patches, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads or a size are needed and were not given.
    """
    width = vote(tensors, "width", *((f"blocks.{{i}}.{norm}.weight", 0) for norm in ("norm1", "norm2")))
    fields = {
        "image_size": table_size(tensors, told, (16, 16)),
        "patch": (16, 16),
        "channels": _channels(tensors),
        "width": width,
        "depth": blocks(tensors, "blocks"),
        "heads": heads(told, width, PUBLISHED),
        "mlp_width": mlp_width(tensors, "fc1"),
        "outputs": outputs(tensors, "head"),
        "patches": patches,
        "qkv_bias": has(tensors, "blocks.{i}.attn.qkv.bias"),
        **told.numerics("t2t"),
    }
    return ViTConfig(**fields)


def _channels(tensors: Mapping[str, Tensor]) -> int:
    """A first window has 7 x 7 numbers per channel.

    Raises:
        DamagedFileError: its norm has another length.
    """
    numbers = vote(tensors, "first window", *((f"{THEIRS}attention1.norm1.{part}", 0) for part in ("weight", "bias")))
    if not numbers or numbers % 49:
        raise DamagedFileError(
            f"{THEIRS}attention1.norm1.weight must have 49 numbers for each channel of the picture. Got {numbers}."
        )
    return numbers // 49


def express(config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Fixed waves are written as the table that they are."""
    if config.positions != "sinusoid":
        return config, state
    return replace(config, positions="learned", resample="bicubic"), state


VARIANTS: tuple[tuple[str, Patches, str, Mapping[str, str]], ...] = (
    ("performer", "t2t-performer", "attention1.kqv.weight", PERFORMER),
    ("transformer", "t2t-transformer", "attention1.attn.qkv.weight", TRANSFORMER),
)
LAYOUTS = tuple(
    Layout(
        name="t2t",
        variant=variant,
        decisive=(THEIRS + "project.weight", TABLE, THEIRS + decisive),
        rules=_rules(inside, performer=variant == "performer"),
        describe=partial(describe, patches),
        card="t2t",
        published=PUBLISHED_SIZES,
        express=express,
    )
    for variant, patches, decisive, inside in VARIANTS
)
