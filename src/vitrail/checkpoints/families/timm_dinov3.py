"""`timm`: files of timm's `Eva` module, in which it keeps DINOv3, and into which our own rotary models fit.

They have `gamma_1` and `gamma_2` for LayerScale, and biases of queries and values without one for keys. The angles
stand in no file: config.json says them, or the design that the tensors tell (no position table is DINOv3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ...model.positions import dinov3_periods
from ...spec import Grid
from ..layouts import Layout, Name, Parts, Rule, names
from ..shapes import agree, need
from ..steps import BATCHED, KERNEL, STACK
from ..told import Told
from . import timm_told
from .timm_express import Expressed, State, common, output_biases, packed
from .timm_parts import (
    ATTENTION,
    END,
    GAMMAS,
    MLP,
    NORMS,
    SPLIT_MLP,
    Settings,
    block_settings,
    end_settings,
    fold_registers,
    has,
    table,
    token_counts,
    told_grids,
    with_numerics,
)

# fmt: off
STEM = {  # theirs                           ours
    "patch_embed.proj.bias":                 "tokens.patches.bias",
    "cls_token":                             "tokens.cls",
    "reg_token":                             "tokens.registers",
}
# fmt: on
QV_BIAS: Rule = Parts(
    ("blocks.{i}.attn.q_bias", "blocks.{i}.attn.v_bias"), ("encoder.blocks.{i}.attention.qv_bias",), STACK
)
PLACES: tuple[Rule, ...] = (
    *names({**STEM, **NORMS, **ATTENTION, **GAMMAS, **END}),
    Name("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
    Name("pos_embed", "positions.table", BATCHED),
    QV_BIAS,
)
RULES: tuple[Rule, ...] = (*PLACES, *names(MLP))
SPLIT_RULES: tuple[Rule, ...] = (*PLACES, *names(SPLIT_MLP))
OTHER_FAMILIES = (
    "mask_token",
    "storage_tokens",
    "rope*",
    "*relative_position*",
    "blocks.*.mlp.w*",
    "blocks.*.attn.[qkv]_proj*",
)
"""Names that no file of this module has, and that look-alikes do."""


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads, the picture's size or the angles must be told, or are none of Vitrail's.
    """
    kernel = need(tensors, "patch_embed.proj.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    end, (class_token, registers) = end_settings(tensors, told), token_counts(tensors, told)
    apart = has(tensors, "blocks.*.attn.[qv]_bias")
    turned = timm_told.rotary(told, bare=None if has(tensors, "pos_embed") else "dinov3")
    config = ViTConfig(
        patch=patch,
        channels=agree(told.channels, kernel.shape[1], "channels", "patch_embed.proj.weight"),
        patch_bias=not end["pre_norm"] or has(tensors, "patch_embed.proj.bias"),
        class_token=class_token,
        registers=registers,
        rotary=turned,
        qkv_bias=apart or has(tensors, "blocks.*.attn.qkv.bias"),
        key_bias=not apart,
        pool=timm_told.pool(told, has(tensors, "attn_pool.*"), class_token, end["pooled_norm"], default="mean"),
        **_places(tensors, told, patch, class_token, registers, turned == "dinov3"),
        **block_settings(tensors, told),
        **end,
    )
    return with_numerics(config, told, "timm_dinov3")


def express(config: ViTConfig, state: State) -> Expressed:
    """The model in values that `Eva` can hold.

    Raises:
        UsageError: it has no such part; the message names all of them.
    """
    if missing := without_place(config, state):
        raise UsageError(f"timm has no place for {', nor for '.join(missing)}. Save the model as a bundle instead.")
    config, state = common(config, state)
    return output_biases(config, state)


def express_packed(config: ViTConfig, state: State) -> Expressed:
    """As `express`, with the gate packed."""
    return packed(*express(config, state))


def without_place(config: ViTConfig, state: State) -> list[str]:
    """Words for every part that `Eva` lacks beside what all of timm lacks."""
    wanted = "GELU" if config.mlp == "plain" else "SiLU"
    rounded = config.rotary == "dinov3" and not torch.equal(
        state["rotary.periods"].float(), dinov3_periods(config.head_numbers)
    )
    faults = {
        f'norm="{config.norm}" with rotary positions': config.norm != "LayerNorm",
        f'activation="{config.activation}" with rotary positions': config.activation != wanted,
        "parallel=true with rotary positions": config.parallel,
        "a distillation head with rotary positions": config.distillation_head,
        "rotary periods that are not 100^(4i/d) in float32, which timm computes": rounded,
    }
    return [words for words, there in faults.items() if there]


def _places(
    tensors: Mapping[str, Tensor],
    told: Told,
    patch: tuple[int, int],
    class_token: bool,
    registers: int,
    turned: bool,
) -> Settings:
    """Positions that are added, and the picture size. Angles of DINOv3 (`turned`) stand alone."""
    promised = timm_told.architecture(told) and timm_told.argument(told, "use_abs_pos_emb") is not False
    if not has(tensors, "pos_embed") and (turned or not promised):
        grid = (told_grids(told, patch) or [Grid(16, 16)])[0]
        return {"image_size": (grid.rows * patch[0], grid.columns * patch[1]), "positions": "none"}
    need(tensors, "pos_embed", axes=3)
    prefixes = (0,) if not class_token else (0, 1) if registers else (1, 0)
    size, prefix = table(tensors, "pos_embed", prefixes, patch, told)
    return {"image_size": size, "class_position": prefix > 0 or not class_token}


def _layout(variant: str, decisive: tuple[str, ...], absent: tuple[str, ...], split: bool) -> Layout:
    first = "blocks.*.mlp.fc1_g.*" if split else "blocks.*.mlp.fc1.*"
    return Layout(
        name="timm",
        variant=variant + "-split-gate" * split,
        decisive=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", first, *decisive),
        absent=(*OTHER_FAMILIES, *absent),
        model_types=("timm",),
        rules=SPLIT_RULES if split else RULES,
        describe=describe,
        card="timm_dinov3",
        match="timm",
        settle=fold_registers,
        express=express if split else express_packed,
    )


GAMMA, Q_BIAS, TABLE = "blocks.*.gamma_[12]", "blocks.*.attn.[qv]_bias", "pos_embed"
DINOV3, DINOV3_SPLIT = (_layout("dinov3", (GAMMA,), (TABLE,), split) for split in (False, True))
EVA = _layout("eva", (GAMMA, TABLE, Q_BIAS), (), split=False)
EVA_SPLIT = _layout("eva", (GAMMA, TABLE), (), split=True)
UNSCALED, UNSCALED_SPLIT = (
    _layout("eva-unscaled", (Q_BIAS,), ("blocks.*.gamma_[12]",), split) for split in (False, True)
)
LAYOUTS = (DINOV3, DINOV3_SPLIT, EVA, EVA_SPLIT, UNSCALED, UNSCALED_SPLIT)
"""A table, LayerScale and biases of keys too are the names of DeiT-III, whose layout reads and writes those."""
