"""`dinov2` and `dinov3`: files of facebookresearch/dinov2 and facebookresearch/dinov3, plain or gated.

DINOv2 comes with or without registers, which stand between the class token and the patches and get no positions. Also
read are a teacher of its training (`backbone.` before the names, blocks numbered within chunks, two projection heads)
and a classifier on one layer (`linear_head`, on the class token and the mean of the patches).

Three details of DINOv3 matter: the periods of the rotation are read from the file, where training left them rounded; a
mask switches the keys' third of the qkv bias off, so that only queries and values have one; and eps is 1e-5. The file
holds no positions, so it does not give an image size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    PUBLISHED_SIZES,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    StorageStep,
    ZeroRule,
    concat_rows,
    make_name_rules,
)
from ..validate import count_outputs, has_tensor, reconcile, require_tensor
from .originals import (
    BLOCK_NAMES,
    ENCODER_RULES,
    KERNEL_NAME,
    PLAIN_MLP,
    POSITION_TABLE,
    STEM_RULES,
    read_common_fields,
    read_heads,
    read_image_size,
    read_mlp_width,
)

# -- dinov2

DINOV2_HEADS = {384: 6, 768: 12, 1024: 16, 1536: 24}
"""Heads by width."""
# fmt: off
DINOV2_GATED_MLP = {  # theirs ours
    "blocks.{i}.mlp.w12.{p}":  "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.w3.{p}":   "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on
MASK_TOKEN = ZeroRule(
    "mask_token", lambda config: (1, config.width), reason="stands for hidden patches in its training"
)
DINOV2_COMMON_RULES: tuple[Rule, ...] = (
    MASK_TOKEN,
    IgnoreRule("dino_head.*", reason="a projection head of its training"),
    IgnoreRule("ibot_head.*", reason="a projection head of its training"),
    NameRule("register_tokens", "tokens.registers"),
    *make_name_rules({"linear_head.{p}": "head.linear.{p}"}),
)
DINOV2_PLAIN_RULES: tuple[Rule, ...] = (*ENCODER_RULES, *DINOV2_COMMON_RULES)
DINOV2_GATED_RULES: tuple[Rule, ...] = (
    *(rule for rule in ENCODER_RULES if ".mlp.fc" not in rule.theirs),
    *make_name_rules(DINOV2_GATED_MLP),
    *DINOV2_COMMON_RULES,
)


def describe_dinov2(card: str, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of DINOv2. A head that reads the last four layers is refused."""
    fields = read_common_fields(tensors, hints, card)
    gated = has_tensor(tensors, "blocks.{i}.mlp.w12.{p}")
    head = tensors.get("linear_head.weight")
    if head is not None and head.ndim == 2 and head.shape[1] == 5 * fields["width"]:
        raise UsageError("linear_head reads the last four layers, which no model here does. Use the one-layer head.")
    registers = tensors.get("register_tokens")
    fields |= {
        "image_size": read_image_size(tensors, hints, fields["patch"]),
        "heads": read_heads(hints, fields["width"], DINOV2_HEADS),
        "registers": registers.shape[1] if registers is not None and registers.ndim == 3 else 0,
        "mlp": "gated-packed" if gated else "plain",
        "mlp_width": read_mlp_width(tensors, "w12") // 2 if gated else read_mlp_width(tensors, "fc1"),
        "outputs": count_outputs(tensors, "linear_head.{p}"),
    }
    fields |= {"activation": "SiLU"} if gated else {}
    if fields["outputs"] and (head is None or head.ndim != 2 or head.shape[1] != fields["width"]):
        fields["pool"] = "class+mean"  # the repository's own; a head in the place of its `head` reads the class token
    return ViTConfig(**fields)


def clean_dinov2(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the chunk's number from names such as blocks.1.7.norm1.weight: the second number counts all blocks.

    A head that was put in the place of the model's own `head`, which has no tensors, is called linear_head.
    """
    prefix = "backbone." if any(name.startswith("backbone.") for name in tensors) else ""
    if prefix and (beside := [name for name in tensors if name.startswith("head.")]):
        raise UsageError(
            f"The file holds a DINOv2 under backbone, beside it {', '.join(beside[:2])}: what becomes of these is in "
            "the code of the training, not in the file. network='backbone' reads the model without them."
        )
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part = name.removeprefix(prefix)
        name = f"linear_{part}" if part in ("head.weight", "head.bias") else name
        plain = re.sub(r"((?:backbone\.)?blocks)\.\d+\.(\d+)\.", r"\1.\2.", name)
        if plain in renamed:
            raise DamagedFileError(f"The file has {plain} in two chunks, the second time as {name}. Delete one.")
        renamed[plain] = tensor
    return renamed


DINOV2_LAYOUTS = tuple(
    Layout(
        name="dinov2",
        variant=" ".join(filter(None, (registers, gated))),
        required_names=(
            KERNEL_NAME,
            POSITION_TABLE,
            "mask_token",
            matrix,
            *(("register_tokens",) if registers else ()),
        ),
        forbidden_names=("decoder_*",) if registers else ("decoder_*", "register_tokens"),
        rules=DINOV2_GATED_RULES if gated else DINOV2_PLAIN_RULES,
        describe=partial(describe_dinov2, card),
        card=card,
        published=PUBLISHED_SIZES,
        prefix="backbone.",
        names_without_prefix=("linear_head.{p}", "dino_head.*", "ibot_head.*"),
        head="head",
        clean=clean_dinov2,
    )
    for registers, card in (("", "dinov2"), ("registers", "dinov2_registers"))
    for gated, matrix in (("", "blocks.*.mlp.fc1.weight"), ("gated", "blocks.*.mlp.w12.weight"))
)


# -- dinov3

PERIODS, REGISTERS = "rope_embed.periods", "storage_tokens"
# fmt: off
DINOV3_GATED_MLP = {  # theirs  ours
    "blocks.{i}.mlp.w1.{p}":  "encoder.blocks.{i}.mlp.gate.{p}",
    "blocks.{i}.mlp.w2.{p}":  "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.w3.{p}":  "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on


def _read_qv_bias(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    bias, mask = theirs
    of_q, of_k, of_v = (bias * mask).chunk(3)
    if of_k.any():
        raise DamagedFileError(
            "attn.qkv.bias_mask must switch off the bias of the keys, its middle third, as in every published file. "
            f"Of that, {int((of_k != 0).sum())} numbers stay on; take another copy."
        )
    return [concat_rows([of_q, of_v])]


def _write_masked_bias(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    of_q, of_v = ours[0].chunk(2)
    off = torch.zeros_like(of_q)
    return [concat_rows([of_q, off, of_v]), concat_rows([off + 1, off, off + 1])]


def _check_periods(theirs: Tensor, like: Tensor) -> Tensor:
    if not (theirs[0] > 0 and bool((theirs.diff() > 0).all())):
        raise DamagedFileError(f"{PERIODS} must hold periods above 0 that grow. Got {theirs.tolist()[:4]} ...")
    return theirs


QKV_BIAS, QKV_BIAS_MASK = "blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.qkv.bias_mask"
DINOV3_COMMON_RULES: tuple[Rule, ...] = (
    *STEM_RULES,
    *make_name_rules({REGISTERS: "tokens.registers", **BLOCK_NAMES}),
    NameRule(PERIODS, "rotary.periods", StorageStep(_check_periods, lambda ours, config: ours)),
    PartsRule(
        (QKV_BIAS, QKV_BIAS_MASK),
        ("encoder.blocks.{i}.attention.qv_bias",),
        StorageStep(_read_qv_bias, _write_masked_bias),
    ),
    MASK_TOKEN,
    IgnoreRule("local_cls_norm.*", reason="normalises the class token of small crops, in its training only"),
)


def describe_dinov3(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of DINOv3; the image size is 224, or 14 x 14 patches that do not divide it."""
    quarter = len(require_tensor(tensors, PERIODS, axes=1))
    fields = read_common_fields(tensors, hints, "dinov3")
    if not quarter or fields["width"] % (4 * quarter):
        raise DamagedFileError(
            f"{PERIODS} must hold a quarter of a head. It has {quarter} numbers, and heads of {4 * quarter} do not "
            f"divide the width {fields['width']}."
        )
    gated = has_tensor(tensors, "blocks.{i}.mlp.w1.{p}")
    side = 224 if 224 % fields["patch"][0] == 0 else 14 * fields["patch"][0]
    fields |= {
        "image_size": (side, side),
        "heads": reconcile(hints.heads, fields["width"] // (4 * quarter), "heads", PERIODS),
        "registers": require_tensor(tensors, REGISTERS, axes=3).shape[1],
        "positions": "none",
        "rotary": "dinov3",
        "key_bias": not has_tensor(tensors, QKV_BIAS_MASK),
        "mlp": "gated" if gated else "plain",
        "mlp_width": read_mlp_width(tensors, "w1" if gated else "fc1"),
    }
    fields |= {"activation": "SiLU"} if gated else {}
    return ViTConfig(**fields)


DINOV3_LAYOUTS = tuple(
    Layout(
        name="dinov3",
        variant=variant,
        required_names=(KERNEL_NAME, REGISTERS, PERIODS, matrix),
        rules=(*DINOV3_COMMON_RULES, *make_name_rules(mlp)),
        describe=describe_dinov3,
        card="dinov3",
    )
    for variant, matrix, mlp in (
        ("", "blocks.*.mlp.fc1.weight", PLAIN_MLP),
        ("gated", "blocks.*.mlp.w1.weight", DINOV3_GATED_MLP),
    )
)
