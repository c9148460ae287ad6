"""Convert a model to the parts of the ViT paper's own design, which torchvision and Google's files have.

The function stays exactly the same. In that design every projection has a bias, and the position table is learned and
begins with the class token. What a model lacks is added as zeros, which change no output; a computed table is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig

StateDict = dict[str, Tensor]
ConfigAndState = tuple[ViTConfig, StateDict]


def export_plain(config: ViTConfig, state: StateDict, layout: str) -> ConfigAndState:
    """The same function at the model's own image size, in the parts of the paper's design.

    Args:
        layout: its name, for messages.

    Raises:
        UsageError: the paper's design has no such part; the message names all of them.
    """
    refuse_parts(layout, _list_later_parts(config))
    usual = replace(config, pad=False, head_width=None, qk_scale=None)
    return _add_all_biases(*add_key_bias(*_add_class_row(*_store_table(usual, state))))


def refuse_parts(layout: str, faults: Mapping[str, bool]) -> None:
    """Refuse a model with parts that a layout has no place for.

    Args:
        faults: name of a part, for the message -> whether the model has it.

    Raises:
        UsageError: the model has one of them.
    """
    if unsupported := [words for words, present in faults.items() if present]:
        parts = ", nor for ".join(unsupported)
        raise UsageError(f"The layout {layout} has no place for {parts}. Save the model as a bundle instead.")


def _list_later_parts(config: ViTConfig) -> dict[str, bool]:
    """Names of the parts that only later designs have -> whether the model has them."""
    return {
        "pad=true": config.pad and any(n % p for n, p in zip(config.image_size, config.patch, strict=True)),
        f'patches="{config.patches}"': config.patches not in ("conv", "linear"),
        "patch_norms=true": config.patch_norms,
        "distillation_token=true": config.distillation_token,
        f"registers={config.registers}": config.registers > 0,
        f'rotary="{config.rotary}"': config.rotary != "none",
        f"relative={config.relative}": config.relative > 0,
        f"head_width={config.head_width}": config.attention_width != config.width or config.width % config.heads > 0,
        "pre_norm=true": config.pre_norm,
        "qk_norm=true": config.qk_norm,
        f"qk_scale={config.qk_scale}": config.qk_scale not in (None, config.head_dim**-0.5),
        f'norm="{config.norm}"': config.norm != "LayerNorm",
        f'mlp="{config.mlp}"': config.mlp != "plain",
        "layer_scale": config.layer_scale is not None,
        "parallel=true": config.parallel,
        "final_norm=false": not config.final_norm,
        "pooled_norm=true": config.pooled_norm,
        f'pool="{config.pool}"': config.pool not in ("class", "mean"),
    }


def _store_table(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Store positions as a learned table: learned or computed as they are, zeros where there are none."""
    if config.positions == "none":
        weight = state["tokens.patches.weight"]
        state = {**state, "positions.table": weight.new_zeros(config.table_rows, config.width)}
    return replace(config, positions="learned"), state


def _add_class_row(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add a row of zeros for the class token, where the table begins with the first patch."""
    if config.class_token and not config.class_position:
        table = state["positions.table"]
        state = {**state, "positions.table": torch.cat([table.new_zeros(1, config.width), table])}
    return replace(config, class_position=True), state


def _add_all_biases(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add every missing bias as zeros."""
    lengths = {"tokens.patches.bias": config.width}
    if config.outputs:
        lengths["head.linear.bias"] = config.outputs
    for i in range(config.depth):
        block = f"encoder.blocks.{i}"
        lengths[f"{block}.attention.qkv.bias"] = 3 * config.width
        lengths[f"{block}.attention.out.bias"] = lengths[f"{block}.mlp.fc2.bias"] = config.width
        lengths[f"{block}.mlp.fc1.bias"] = config.mlp_width
    like = state["tokens.patches.weight"]
    zeros = {name: like.new_zeros(length) for name, length in lengths.items() if name not in state}
    full = replace(config, patch_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True)
    return full, {**state, **zeros}


# -- Steps shared with timm_export and hf_export


def add_key_bias(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add zeros as the bias of the keys, where only queries and values have one."""
    if config.key_bias or not config.qkv_bias:
        return replace(config, key_bias=True), state
    state = dict(state)
    for i in range(config.depth):
        of_q, of_v = state.pop(f"encoder.blocks.{i}.attention.qv_bias").chunk(2)
        state[f"encoder.blocks.{i}.attention.qkv.bias"] = torch.cat([of_q, torch.zeros_like(of_q), of_v])
    return replace(config, key_bias=True), state


def pack_gate(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Concatenate gate and value of a gated MLP into one matrix, gate rows first."""
    if config.mlp != "gated":
        return config, state
    state = dict(state)
    for i in range(config.depth):
        for part in ("weight", "bias")[: 1 + config.mlp_bias]:
            gate, value = (f"encoder.blocks.{i}.mlp.{name}.{part}" for name in ("gate", "fc1"))
            state[value] = torch.cat([state.pop(gate), state[value]])
    return replace(config, mlp="gated-packed"), state


def split_gate(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Split the packed matrix of a gated MLP into gate and value."""
    if config.mlp != "gated-packed":
        return config, state
    state = dict(state)
    for i in range(config.depth):
        for part in ("weight", "bias")[: 1 + config.mlp_bias]:
            gate, value = (f"encoder.blocks.{i}.mlp.{name}.{part}" for name in ("gate", "fc1"))
            state[gate], state[value] = (half.clone() for half in state[value].chunk(2))
    return replace(config, mlp="gated"), state
