"""Convert a model to the parts that timm's modules have; the function stays exactly the same.

A missing bias becomes zeros, the position of a prefix token is added to that token, a gate is packed with its value or
split from it. A part that timm has no place for is an error that names it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import UsageError
from ...model.config import T2T_PATCHES, ViTConfig
from .plain_export import (
    BLOCK_BIASES,
    ConfigAndState,
    StateDict,
    add_key_bias,
    add_prefix_rows,
    add_zero_biases,
    pack_gate,
    refuse_parts,
    split_gate,
)


def export_timm(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with plain or packed MLPs."""
    return _match_block_biases(*pack_gate(*prepare_for_timm(config, state)))


def export_timm_split(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with the gate as a separate matrix."""
    return _match_block_biases(*split_gate(*prepare_for_timm(config, state)))


def export_timm_parallel(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For `VisionTransformer` with parallel attention and MLP, which share one LayerScale."""
    config, state = prepare_for_timm(config, state)
    for i in range(config.depth if config.layer_scale is not None else 0):
        if not torch.equal(state[f"encoder.blocks.{i}.scale1"], state[f"encoder.blocks.{i}.scale2"]):
            raise UsageError(
                f"timm's parallel block has one LayerScale for both branches, and in block {i} the two differ. "
                "Save the model as a bundle instead."
            )
    return add_zero_biases(*add_key_bias(config, state), fields=BLOCK_BIASES)


def prepare_for_timm(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Convert what all of timm's modules share: learned positions of patches, biases of head and patch projection."""
    unsupported = {
        f'patches="{config.patches}"': config.patches in T2T_PATCHES,
        "patch_norms=true": config.patch_norms,
        "patch_bias=true with pre_norm=true": config.patch_bias and config.pre_norm,
        f"relative={config.relative}": config.relative > 0,
        "relative_bias=true": config.relative_bias,
        "rotary_prefix=true": config.rotary_prefix,
        "qk_norm_joint=true": config.qk_norm_joint,
        "post_norm=true": config.post_norm and (config.rotary != "none" or config.layer_scale is not None),
        f'rotary="{config.rotary}"': config.rotary == "from-one",
        f'pool="{config.pool}"': config.pool in ("class+mean", "mean-all"),
        f"pool_blocks={config.pool_blocks}": config.pool_blocks > 1,
        f'head="{config.head}"': config.head != "linear",
        f"head_width={config.head_width}": config.head_dim * config.heads != config.width,
        f"qk_scale={config.qk_scale}": config.qk_scale not in (None, config.head_dim**-0.5),
        "parallel=true with a gated MLP": config.parallel and config.mlp != "plain",
        "registers beside a distillation head": config.distillation_head and config.registers > 0,
        'positions="none" with a distillation head': config.distillation_head and config.positions == "none",
    }
    refuse_parts("timm", unsupported)
    if config.positions != "none":
        config = replace(config, positions="learned", class_position=config.class_position or not config.class_token)
    config, state = _convert_prefix_positions(config, dict(state))
    missing = ("head_bias",) if config.pre_norm else ("patch_bias", "head_bias")
    config, state = add_zero_biases(config, state, fields=missing)
    patches = "conv" if config.patches == "linear" else config.patches
    return replace(config, patches=patches, resample="bicubic-antialias"), state


def _match_block_biases(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Biases as `VisionTransformer` has them: of queries, keys and values together, of both branches or of none."""
    config, state = add_key_bias(config, state)
    same = config.out_bias == config.mlp_bias
    return (config, state) if same else add_zero_biases(config, state, fields=BLOCK_BIASES)


def _convert_prefix_positions(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Convert positions of class, distillation and register tokens to those of timm's modules.

    A class token without other prefix tokens keeps its row. DeiT's two heads need rows for both tokens. Otherwise the
    rows are added to their tokens, and a distillation token without its own head becomes one more register.
    """
    if config.distillation_head:
        return add_prefix_rows(config, state)
    if not (config.registers or config.distillation_token):
        return config, state
    if config.positions != "none" and config.class_position and config.class_token:
        table, first = state["positions.table"], config.table_prefix
        for row, name in enumerate(("tokens.cls", "tokens.distillation")[:first]):
            state[name] = state[name] + table[row]
        state["positions.table"] = table[first:].clone()
        config = replace(config, class_position=False)
    if not config.distillation_token:
        return config, state
    tokens = [state.pop(name) for name in ("tokens.distillation", "tokens.registers") if name in state]
    state["tokens.registers"] = torch.cat(tokens, dim=1)
    return replace(config, distillation_token=False, registers=config.registers + 1), state
