"""Convert a model to the parts of the ViT paper's own design, which torchvision and Google's files have.

The function stays exactly the same. In that design every projection has a bias, and the position table is learned and
begins with the class token. What a model lacks is added as zeros, which change no output; a computed table is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig

StateDict = dict[str, Tensor]
ConfigAndState = tuple[ViTConfig, StateDict]
WEIGHTS_WITH_BIAS = {
    "patch_bias": ("tokens.patches.weight",),
    "qkv_bias": (".attention.qkv.weight",),
    "out_bias": (".attention.out.weight",),
    "mlp_bias": (".mlp.fc1.weight", ".mlp.gate.weight", ".mlp.fc2.weight"),
    "head_bias": ("head.linear.weight", "head.distillation.weight"),
}
"""Settings of ViTConfig -> the weights that they give a bias."""
BLOCK_BIASES = ("out_bias", "mlp_bias")


def export_plain(config: ViTConfig, state: StateDict, layout: str) -> ConfigAndState:
    """The same function at the model's own image size, in the parts of the paper's design."""
    later_parts = {
        "pad=true": config.pad and any(n % p for n, p in zip(config.image_size, config.patch, strict=True)),
        f'patches="{config.patches}"': config.patches not in ("conv", "linear"),
        "patch_norms=true": config.patch_norms,
        "distillation_token=true": config.distillation_token,
        f"registers={config.registers}": config.registers > 0,
        f'rotary="{config.rotary}"': config.rotary != "none",
        f"relative={config.relative}": config.relative > 0,
        "relative_bias=true": config.relative_bias,
        "attention_norm=true": config.attention_norm,
        "mlp_norm=true": config.mlp_norm,
        "post_norm=true": config.post_norm,
        "token_norm=true": config.token_norm,
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
    refuse_parts(f"The layout {layout}", later_parts)
    if config.positions == "none":
        weight = state["tokens.patches.weight"]
        state = {**state, "positions.table": weight.new_zeros(config.table_rows, config.width)}
    config = replace(config, positions="learned", pad=False, head_width=None, qk_scale=None)
    return add_zero_biases(*add_key_bias(*add_prefix_rows(config, state)), fields=tuple(WEIGHTS_WITH_BIAS))


# -- Steps shared with timm_export and hf_export


def refuse_parts(target: str, faults: Mapping[str, bool], advice: str = "Save the model as a bundle instead.") -> None:
    """Refuse a model with parts that a target has no place for.

    Args:
        target: for the message, which names every part.
        faults: name of a part -> whether the model has it.
    """
    if unsupported := [part for part, present in faults.items() if present]:
        raise UsageError(f"{target} has no place for {', nor for '.join(unsupported)}. {advice}")


def add_prefix_rows(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add zero rows for the class and the distillation token, where the position table has none."""
    if config.class_token and not config.class_position and "positions.table" in state:
        table = state["positions.table"]
        first = table.new_zeros(config.class_token + config.distillation_token, config.width)
        state = {**state, "positions.table": torch.cat([first, table])}
    return replace(config, class_position=True), state


def add_zero_biases(config: ViTConfig, state: StateDict, fields: tuple[str, ...]) -> ConfigAndState:
    """Add zeros as the biases that these settings (keys of `WEIGHTS_WITH_BIAS`) turn on and the model lacks."""
    ends = tuple(end for field in fields for end in WEIGHTS_WITH_BIAS[field])
    weights = {name: tensor for name, tensor in state.items() if name.endswith(ends) and "pool." not in name}
    zeros = {name.removesuffix("weight") + "bias": weight.new_zeros(len(weight)) for name, weight in weights.items()}
    enabled: dict[str, Any] = dict.fromkeys(fields, True)
    return replace(config, **enabled), {**zeros, **state}


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
