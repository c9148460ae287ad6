"""Files of timm's `Beit` module, BEiT and BEiT v2, and of microsoft/unilm, whose names they keep.

They have no position table: every block adds learned numbers for offsets between patches to its products of attention,
or one table does so for all blocks (as in pre-training), which is copied into each here. The rows of the table give the
grid and its columns the heads. Original files also hold the index of every pair, which follows from the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    BATCHED,
    KERNEL,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    StorageStep,
    make_name_rules,
)
from ..validate import has_tensor, reconcile, require_tensor
from . import timm_config
from .plain_export import (
    BLOCK_BIASES,
    ConfigAndState,
    StateDict,
    add_prefix_rows,
    add_zero_biases,
    refuse_parts,
)
from .timm import (
    ATTENTION_NAMES,
    END_NAMES,
    LAYER_SCALE_NAMES,
    MLP_NAMES,
    NORM_NAMES,
    apply_numerics,
    choose_timm_card,
    list_hinted_grids,
    read_block_settings,
    read_end_settings,
)
from .timm_eva_naflex import EVA_STEM, QV_BIAS
from .timm_export import prepare_for_timm

BLOCK_TABLE = "blocks.{i}.attn.relative_position_bias_table"
SHARED_TABLE = "rel_pos_bias.relative_position_bias_table"
OUR_TABLE = "encoder.blocks.{i}.attention.relative_bias.table"
CLASS_ROWS = 3
"""Last rows of a table: from the class token to a patch, from a patch to it, from it to itself."""
COPIED: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: [theirs[0].clone() for _ in likes], lambda ours, config: ours[:1]
)
"""One tensor of theirs is an equal one of ours in every block."""
BEIT_COMMON_RULES: tuple[Rule, ...] = (
    *make_name_rules({**EVA_STEM, **NORM_NAMES, **ATTENTION_NAMES, **MLP_NAMES, **LAYER_SCALE_NAMES, **END_NAMES}),
    NameRule("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
    NameRule("pos_embed", "positions.table", BATCHED),
    QV_BIAS,
    IgnoreRule("*relative_position_index", reason="the table's row of every pair of tokens, which the grid gives"),
    IgnoreRule("mask_token", reason="stands for hidden patches in its training"),
    IgnoreRule("lm_head.*", reason="the head of its training, which names hidden patches"),
)


def add_shared_table(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the table of all blocks to those of the single ones, where a file has both."""
    shared = tensors.get(SHARED_TABLE)
    own = {name for name in tensors if name.endswith(BLOCK_TABLE.rpartition("}.")[2])}
    if shared is None or not own or any(tensors[name].shape != shared.shape for name in own):
        return tensors
    rest = {name: tensor for name, tensor in tensors.items() if name != SHARED_TABLE}
    return {name: tensor + shared if name in own else tensor for name, tensor in rest.items()}


def describe_beit(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file."""
    kernel = require_tensor(tensors, "patch_embed.proj.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    name = SHARED_TABLE if SHARED_TABLE in tensors else BLOCK_TABLE.format(i=0)
    rows, heads = require_tensor(tensors, name, axes=2).shape
    heads = reconcile(hints.heads, heads, "heads", name)
    end, has_table = read_end_settings(tensors, hints), "pos_embed" in tensors
    qkv_bias = has_tensor(tensors, "blocks.{i}.attn.q_bias", "blocks.{i}.attn.v_bias")
    config = ViTConfig(
        image_size=_find_image_size(rows, name, patch, hints),
        patch=patch,
        channels=reconcile(hints.channels, kernel.shape[1], "channels", "patch_embed.proj.weight"),
        positions="learned" if has_table else "none",
        relative_bias=True,
        qkv_bias=qkv_bias,
        key_bias=not qkv_bias,
        pool=timm_config.choose_pool(hints, False, True, end["pooled_norm"], default="mean"),
        **read_block_settings(tensors, replace(hints, heads=heads)),
        **end,
    )
    config = apply_numerics(config, hints, choose_timm_card(config, hints))
    config = replace(config, heads=reconcile(config.heads, heads, "heads", name))
    return config if has_table else replace(config, resample="geometric")


def _find_image_size(rows: int, name: str, patch: tuple[int, int], hints: LayoutHints) -> tuple[int, int]:
    """The image size for which a table has these rows."""
    offsets = rows - CLASS_ROWS
    for grid in list_hinted_grids(hints, patch):
        if (2 * grid.rows - 1) * (2 * grid.columns - 1) == offsets:
            return grid.rows * patch[0], grid.columns * patch[1]
    side = isqrt(max(offsets, 0))
    if side**2 != offsets:
        raise UsageError(
            f"{name} has {rows} rows, three for the class token and {offsets} for offsets, which are those of no "
            "square of patches. Pass image_size=(height, width)."
        )
    if side % 2 == 0:
        raise DamagedFileError(f"{name} must have a row for every offset of a grid and {CLASS_ROWS}. Got {rows} rows.")
    return (side + 1) // 2 * patch[0], (side + 1) // 2 * patch[1]


def export_beit(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """The same function in the parts that timm's `Beit` has.

    It has no bias of keys. One would add the same number to all products of a query, which its softmax takes away.
    """
    unsupported = {
        "class_token=false with relative_bias=true": not config.class_token,
        "norms both before and after the pooling, or neither": config.final_norm == config.pooled_norm,
        f'norm="{config.norm}" with relative_bias=true': config.norm != "LayerNorm",
        f'mlp="{config.mlp}" with relative_bias=true': config.mlp != "plain",
        f'activation="{config.activation}" with relative_bias=true': config.activation != "GELU",
        f'pool="{config.pool}" with relative_bias=true': config.pool not in ("class", "mean"),
        f'rotary="{config.rotary}" with relative_bias=true': config.rotary != "none",
        **{
            f"{name}=true with relative_bias=true": bool(getattr(config, name))
            for name in ("pad", "pre_norm", "token_norm", "qk_norm", "attention_norm", "parallel", "post_norm")
        },
    }
    refuse_parts("timm", unsupported)
    plain, state = prepare_for_timm(replace(config, relative_bias=False), state)
    plain, state = add_zero_biases(*add_prefix_rows(plain, state), fields=BLOCK_BIASES)
    for name in [name for name in state if name.endswith(".attention.qkv.bias")]:
        of_q, _, of_v = state.pop(name).chunk(3)
        state[name.replace("qkv.bias", "qv_bias")] = torch.cat([of_q, of_v])
    return replace(plain, relative_bias=True, key_bias=not config.qkv_bias), state


def refuse_relative(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Refuse to write: the table that all blocks share, or the network behind it, is not made again."""
    raise UsageError("Tables of relative biases are written as those of single blocks: layout timm:beit.")


BEIT, BEIT_SHARED = (
    Layout(
        name="timm",
        variant=variant,
        required_names=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", "blocks.*.mlp.fc1.*", name),
        forbidden_names=(*absent, "storage_tokens", "reg_token", "blocks.*.attn.qkv.bias"),
        model_types=("timm",),
        rules=(*BEIT_COMMON_RULES, rule),
        describe=describe_beit,
        card=choose_timm_card,
        head="head",
        match="timm",
        clean=add_shared_table,
        prepare_export=export,
    )
    for variant, name, absent, rule, export in (
        ("beit", BLOCK_TABLE.replace("{i}", "*"), (), NameRule(BLOCK_TABLE, OUR_TABLE), export_beit),
        (
            "beit-shared",
            SHARED_TABLE,
            (f"{BLOCK_TABLE.replace('{i}', '*')}*",),
            PartsRule((SHARED_TABLE,), (OUR_TABLE,), COPIED),
            refuse_relative,
        ),
    )
)
BEIT_LAYOUTS = (BEIT, BEIT_SHARED)
