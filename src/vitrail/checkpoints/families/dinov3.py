"""`dinov3`: files of facebookresearch/dinov3, plain or gated.

Three things that look like details and are not: the periods of the rotation are read from the file, where training
left them rounded; a mask switches the keys' third of the qkv bias off, so that only queries and values have one; and
eps is 1e-5. The file holds no positions, so it does not tell a picture size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ..layouts import Ignore, Layout, Name, Parts, Rule, Zero, names
from ..shapes import agree, has, need
from ..steps import Step, joined
from ..told import Told
from .originals import BLOCKS, KERNEL_NAME, PLAIN_MLP, STEM_RULES, described, mlp_width

PERIODS, REGISTERS = "rope_embed.periods", "storage_tokens"
# fmt: off
GATED_MLP = {  # theirs                       ours
    "blocks.{i}.mlp.w1.{p}":                  "encoder.blocks.{i}.mlp.gate.{p}",
    "blocks.{i}.mlp.w2.{p}":                  "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.w3.{p}":                  "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on


def _unmask(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    bias, mask = theirs
    of_q, of_k, of_v = (bias * mask).chunk(3)
    if of_k.any():
        raise DamagedFileError(
            "attn.qkv.bias_mask must switch off the bias of the keys, its middle third, as in every published file. "
            f"Of that, {int((of_k != 0).sum())} numbers stay on; take another copy."
        )
    return [joined([of_q, of_v])]


def _mask(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    of_q, of_v = ours[0].chunk(2)
    off = torch.zeros_like(of_q)
    return [joined([of_q, off, of_v]), joined([off + 1, off, off + 1])]


def _rising(theirs: Tensor, like: Tensor) -> Tensor:
    if not (theirs[0] > 0 and bool((theirs.diff() > 0).all())):
        raise DamagedFileError(f"{PERIODS} must hold periods above 0 that grow. Got {theirs.tolist()[:4]} ...")
    return theirs


BIAS, MASK = "blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.qkv.bias_mask"
COMMON: tuple[Rule, ...] = (
    *STEM_RULES,
    *names({REGISTERS: "tokens.registers", **BLOCKS}),
    Name(PERIODS, "rotary.periods", Step(_rising, lambda ours, config: ours)),
    Parts((BIAS, MASK), ("encoder.blocks.{i}.attention.qv_bias",), Step(_unmask, _mask)),
    Zero("mask_token", lambda config: (1, config.width), reason="stands for hidden patches in its training"),
    Ignore("local_cls_norm.*", reason="normalises the class token of small crops, in its training only"),
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; the picture size is 224, or 14 x 14 patches that do not divide it.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads= contradicts the periods of the rotation, a quarter of a head.
    """
    quarter = len(need(tensors, PERIODS, axes=1))
    fields = described(tensors, told, "dinov3")
    if not quarter or fields["width"] % (4 * quarter):
        raise DamagedFileError(
            f"{PERIODS} must hold a quarter of a head. It has {quarter} numbers, and heads of {4 * quarter} do not "
            f"divide the width {fields['width']}."
        )
    gated = has(tensors, "blocks.{i}.mlp.w1.{p}")
    side = 224 if 224 % fields["patch"][0] == 0 else 14 * fields["patch"][0]
    fields |= {
        "image_size": (side, side),
        "heads": agree(told.heads, fields["width"] // (4 * quarter), "heads", PERIODS),
        "registers": need(tensors, REGISTERS, axes=3).shape[1],
        "positions": "none",
        "rotary": "dinov3",
        "key_bias": not has(tensors, MASK),
        "mlp": "gated" if gated else "plain",
        "mlp_width": mlp_width(tensors, "w1" if gated else "fc1"),
    }
    fields |= {"activation": "SiLU"} if gated else {}
    return ViTConfig(**fields)


LAYOUTS = tuple(
    Layout(
        name="dinov3",
        variant=variant,
        decisive=(KERNEL_NAME, REGISTERS, PERIODS, matrix),
        rules=(*COMMON, *names(mlp)),
        describe=describe,
        card="dinov3",
    )
    for variant, matrix, mlp in (
        ("", "blocks.*.mlp.fc1.weight", PLAIN_MLP),
        ("gated", "blocks.*.mlp.w1.weight", GATED_MLP),
    )
)
