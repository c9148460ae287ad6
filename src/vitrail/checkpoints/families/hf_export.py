"""The same function in the parts that transformers' models have, exact by value.

Its tables have rows for the class and the distillation token, its keys a bias, DINOv2 a factor at the end of every
branch and a classifier on [class ; mean]: what ours lacks is added as zeros or ones, which change no output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

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
"""Settings of ViTConfig -> the weights beside which they put a bias."""
BLOCK_BIASES = ("out_bias", "mlp_bias")


def export_vit(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For ViT, DeiT, MAE, MSN, I-JEPA: rows for every token, biases everywhere but perhaps in the joint projection."""
    return add_key_bias(
        *add_zero_biases(
            *add_prefix_rows(*drop_size_settings(config, state)), fields=("patch_bias", *BLOCK_BIASES, "head_bias")
        )
    )


def export_siglip(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For SigLIP: biases everywhere."""
    config, state = export_vit(config, state)
    return add_zero_biases(config, state, fields=("qkv_bias",))


def export_clip(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For CLIP: biases inside the blocks."""
    config, state = add_key_bias(*add_prefix_rows(*drop_size_settings(config, state)))
    return add_zero_biases(config, state, fields=("qkv_bias", *BLOCK_BIASES))


def export_dinov2(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For DINOv2 with or without registers: also factors, a packed gate and a classifier on [class ; mean]."""
    return widen_classifier(*pack_gate(*add_unit_scales(*export_vit(config, state))))


def export_dinov3(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For DINOv3: a bias of the patches, factors, and the gate apart."""
    return split_gate(*add_unit_scales(*add_zero_biases(*drop_size_settings(config, state), fields=("patch_bias",))))


def drop_size_settings(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Drop what changes nothing at the model's own size: padding of whole patches, and widths that are the usual."""
    whole = all(pixels % patch == 0 for pixels, patch in zip(config.image_size, config.patch, strict=True))
    usual = config.head_width is not None and config.attention_width == config.width
    scale = None if config.qk_scale == config.head_dim**-0.5 else config.qk_scale
    pad = config.pad and not whole
    return replace(config, pad=pad, head_width=None if usual else config.head_width, qk_scale=scale), state


def add_prefix_rows(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Zero rows for the class and the distillation token, where the table has none."""
    if config.class_position or not config.class_token or "positions.table" not in state:
        return replace(config, class_position=True), state
    table = state["positions.table"]
    first = table.new_zeros(config.class_token + config.distillation_token, config.width)
    return replace(config, class_position=True), {**state, "positions.table": torch.cat([first, table])}


def add_zero_biases(config: ViTConfig, state: StateDict, fields: tuple[str, ...]) -> ConfigAndState:
    """Zeros as the biases that the model lacks and these settings would add."""
    wanted = tuple(end for field in fields for end in WEIGHTS_WITH_BIAS[field])
    weights = {name: tensor for name, tensor in state.items() if name.endswith(wanted) and "pool." not in name}
    zeros = {name.removesuffix("weight") + "bias": weight.new_zeros(len(weight)) for name, weight in weights.items()}
    there: dict[str, Any] = dict.fromkeys(fields, True)
    return replace(config, **there), {**zeros, **state}


def add_key_bias(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Zeros as the keys' bias, where only queries and values have one."""
    if config.key_bias or not config.qkv_bias:
        return replace(config, key_bias=True), state
    changed = dict(state)
    for name in state:
        if name.endswith("attention.qv_bias"):
            q, v = changed.pop(name).chunk(2)
            changed[name.replace("qv_bias", "qkv.bias")] = torch.cat([q, torch.zeros_like(q), v])
    return replace(config, key_bias=True), changed


def add_unit_scales(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Ones as the factor of every branch, where there is none."""
    if config.layer_scale is not None:
        return config, state
    ones = {
        f"encoder.blocks.{i}.scale{branch}": torch.ones_like(state[f"encoder.blocks.{i}.norm1.weight"])
        for i in range(config.depth)
        for branch in (1, 2)
    }
    return replace(config, layer_scale=1.0), {**state, **ones}


def pack_gate(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Gate and value of the MLP in one matrix, gate first."""
    if config.mlp != "gated":
        return config, state
    changed = {name: tensor for name, tensor in state.items() if ".mlp.gate." not in name}
    for name in state:
        if ".mlp.gate." in name:
            value = name.replace(".gate.", ".fc1.")
            changed[value] = torch.cat([state[name], state[value]])
    return replace(config, mlp="gated-packed"), changed


def split_gate(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Gate and value of the MLP as two matrices."""
    if config.mlp != "gated-packed":
        return config, state
    changed = dict(state)
    for name in state:
        if ".blocks." in name and ".mlp.fc1." in name:
            changed[name.replace(".fc1.", ".gate.")], changed[name] = state[name].chunk(2)
    return replace(config, mlp="gated"), changed


def widen_classifier(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """A classifier on [class ; mean] with zeros for the half that the model does not look at."""
    if config.pool not in ("class", "mean") or not config.outputs or not config.class_token:
        return config, state
    weight = state["head.linear.weight"]
    halves = [weight, torch.zeros_like(weight)]
    wide = torch.cat(halves if config.pool == "class" else halves[::-1], dim=1)
    return replace(config, pool="class+mean"), {**state, "head.linear.weight": wide}
