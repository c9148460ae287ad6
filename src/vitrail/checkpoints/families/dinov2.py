"""`dinov2`: files of facebookresearch/dinov2, with or without registers, plain or gated (the giant size).

Also read are a teacher of its training (`backbone.` before the names, blocks numbered within chunks, two projection
heads) and a classifier on one layer (`linear_head`, which reads the class token beside the mean of the patches).
Registers stand between the class token and the patches and get no positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Ignore, Layout, Name, Rule, Zero, names
from ..shapes import has
from ..told import Told
from .originals import KERNEL_NAME, RULES, TABLE, described, heads, mlp_width, outputs, table_size

PUBLISHED = {384: 6, 768: 12, 1024: 16, 1536: 24}
"""Heads by width."""
# fmt: off
GATED = {  # theirs                           ours
    "blocks.{i}.mlp.w12.{p}":                 "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.w3.{p}":                  "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on
COMMON: tuple[Rule, ...] = (
    Zero("mask_token", lambda config: (1, config.width), reason="stands for hidden patches in its training"),
    Ignore("dino_head.*", reason="a projection head of its training"),
    Ignore("ibot_head.*", reason="a projection head of its training"),
    Name("register_tokens", "tokens.registers"),
    *names({"linear_head.{p}": "head.linear.{p}"}),
)
PLAIN_RULES: tuple[Rule, ...] = (*RULES, *COMMON)
GATED_RULES: tuple[Rule, ...] = (
    *(rule for rule in RULES if ".mlp.fc" not in rule.theirs),
    *names(GATED),
    *COMMON,
)


def describe(card: str, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads are needed and were not given, or the head reads four layers, which no model here does.
    """
    fields = described(tensors, told, card)
    gated = has(tensors, "blocks.{i}.mlp.w12.{p}")
    head = tensors.get("linear_head.weight")
    if head is not None and head.ndim == 2 and head.shape[1] == 5 * fields["width"]:
        raise UsageError("linear_head reads the last four layers, which no model here does. Use the one-layer head.")
    registers = tensors.get("register_tokens")
    fields |= {
        "image_size": table_size(tensors, told, fields["patch"]),
        "heads": heads(told, fields["width"], PUBLISHED),
        "registers": registers.shape[1] if registers is not None and registers.ndim == 3 else 0,
        "mlp": "gated-packed" if gated else "plain",
        "mlp_width": mlp_width(tensors, "w12") // 2 if gated else mlp_width(tensors, "fc1"),
        "outputs": outputs(tensors, "linear_head"),
    }
    fields |= {"activation": "SiLU"} if gated else {}
    fields |= {"pool": "class+mean"} if fields["outputs"] else {}
    return ViTConfig(**fields)


_CHUNKED = re.compile(r"((?:backbone\.)?blocks)\.\d+\.(\d+)\.")


def clean(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the chunk's number out of names such as blocks.1.7.norm1.weight: the second one counts all blocks.

    Raises:
        DamagedFileError: two tensors would have one name.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = _CHUNKED.sub(r"\1.\2.", name)
        if plain in found:
            raise DamagedFileError(f"The file has {plain} in two chunks, the second time as {name}. Delete one.")
        found[plain] = tensor
    return found


LAYOUTS = tuple(
    Layout(
        name="dinov2",
        variant=" ".join(filter(None, (registers, gated))),
        decisive=(KERNEL_NAME, TABLE, "mask_token", matrix, *(("register_tokens",) if registers else ())),
        absent=("decoder_*",) if registers else ("decoder_*", "register_tokens"),
        rules=GATED_RULES if gated else PLAIN_RULES,
        describe=partial(describe, card),
        card=card,
        published=PUBLISHED_SIZES,
        prefix="backbone.",
        outside=("linear_head.{p}", "dino_head.*", "ibot_head.*"),
        clean=clean,
    )
    for registers, card in (("", "dinov2"), ("registers", "dinov2_registers"))
    for gated, matrix in (("", "blocks.*.mlp.fc1.weight"), ("gated", "blocks.*.mlp.w12.weight"))
)
