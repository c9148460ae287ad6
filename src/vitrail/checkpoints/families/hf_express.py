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

State = dict[str, Tensor]
Expressed = tuple[ViTConfig, State]
WEIGHTS = {
    "patch_bias": ("tokens.patches.weight",),
    "qkv_bias": (".attention.qkv.weight",),
    "out_bias": (".attention.out.weight",),
    "mlp_bias": (".mlp.fc1.weight", ".mlp.gate.weight", ".mlp.fc2.weight"),
    "head_bias": ("head.linear.weight", "head.distillation.weight"),
}
"""Settings of ViTConfig -> the weights beside which they put a bias."""
INNER = ("out_bias", "mlp_bias")


def as_vit(config: ViTConfig, state: State) -> Expressed:
    """For ViT, DeiT, MAE, MSN, I-JEPA: rows for every token, biases everywhere but perhaps in the joint projection."""
    return full_key_bias(*biased(*whole_table(*own_size(config, state)), fields=("patch_bias", *INNER, "head_bias")))


def as_siglip(config: ViTConfig, state: State) -> Expressed:
    """For SigLIP: biases everywhere."""
    config, state = as_vit(config, state)
    return biased(config, state, fields=("qkv_bias",))


def as_clip(config: ViTConfig, state: State) -> Expressed:
    """For CLIP: biases inside the blocks."""
    config, state = full_key_bias(*whole_table(*own_size(config, state)))
    return biased(config, state, fields=("qkv_bias", *INNER))


def as_dinov2(config: ViTConfig, state: State) -> Expressed:
    """For DINOv2 with or without registers: also factors, a packed gate and a classifier on [class ; mean]."""
    return joint_pool(*packed_gate(*unit_scales(*as_vit(config, state))))


def as_dinov3(config: ViTConfig, state: State) -> Expressed:
    """For DINOv3: a bias of the patches, factors, and the gate apart."""
    return split_gate(*unit_scales(*biased(*own_size(config, state), fields=("patch_bias",))))


def own_size(config: ViTConfig, state: State) -> Expressed:
    """Drop what changes nothing at the model's own size: padding of whole patches, and widths that are the usual."""
    whole = all(pixels % patch == 0 for pixels, patch in zip(config.image_size, config.patch, strict=True))
    usual = config.head_width is not None and config.attention_width == config.width
    scale = None if config.qk_scale == config.head_numbers**-0.5 else config.qk_scale
    pad = config.pad and not whole
    return replace(config, pad=pad, head_width=None if usual else config.head_width, qk_scale=scale), state


def whole_table(config: ViTConfig, state: State) -> Expressed:
    """Zero rows for the class and the distillation token, where the table has none."""
    if config.class_position or not config.class_token or "positions.table" not in state:
        return replace(config, class_position=True), state
    table = state["positions.table"]
    first = table.new_zeros(config.class_token + config.distillation_token, config.width)
    return replace(config, class_position=True), {**state, "positions.table": torch.cat([first, table])}


def biased(config: ViTConfig, state: State, fields: tuple[str, ...]) -> Expressed:
    """Zeros as the biases that the model lacks and these settings would add."""
    wanted = tuple(end for field in fields for end in WEIGHTS[field])
    weights = {name: tensor for name, tensor in state.items() if name.endswith(wanted) and "pool." not in name}
    zeros = {name.removesuffix("weight") + "bias": weight.new_zeros(len(weight)) for name, weight in weights.items()}
    there: dict[str, Any] = dict.fromkeys(fields, True)
    return replace(config, **there), {**zeros, **state}


def full_key_bias(config: ViTConfig, state: State) -> Expressed:
    """Zeros as the keys' bias, where only queries and values have one."""
    if config.key_bias or not config.qkv_bias:
        return replace(config, key_bias=True), state
    changed = dict(state)
    for name in state:
        if name.endswith("attention.qv_bias"):
            q, v = changed.pop(name).chunk(2)
            changed[name.replace("qv_bias", "qkv.bias")] = torch.cat([q, torch.zeros_like(q), v])
    return replace(config, key_bias=True), changed


def unit_scales(config: ViTConfig, state: State) -> Expressed:
    """Ones as the factor of every branch, where there is none."""
    if config.layer_scale is not None:
        return config, state
    ones = {
        f"encoder.blocks.{i}.scale{branch}": torch.ones_like(state[f"encoder.blocks.{i}.norm1.weight"])
        for i in range(config.depth)
        for branch in (1, 2)
    }
    return replace(config, layer_scale=1.0), {**state, **ones}


def packed_gate(config: ViTConfig, state: State) -> Expressed:
    """Gate and value of the MLP in one matrix, gate first."""
    if config.mlp != "gated":
        return config, state
    changed = {name: tensor for name, tensor in state.items() if ".mlp.gate." not in name}
    for name in state:
        if ".mlp.gate." in name:
            value = name.replace(".gate.", ".fc1.")
            changed[value] = torch.cat([state[name], state[value]])
    return replace(config, mlp="gated-packed"), changed


def split_gate(config: ViTConfig, state: State) -> Expressed:
    """Gate and value of the MLP as two matrices."""
    if config.mlp != "gated-packed":
        return config, state
    changed = dict(state)
    for name in state:
        if ".blocks." in name and ".mlp.fc1." in name:
            changed[name.replace(".fc1.", ".gate.")], changed[name] = state[name].chunk(2)
    return replace(config, mlp="gated"), changed


def joint_pool(config: ViTConfig, state: State) -> Expressed:
    """A classifier on [class ; mean] with zeros for the half that the model does not look at."""
    if config.pool not in ("class", "mean") or not config.outputs or not config.class_token:
        return config, state
    weight = state["head.linear.weight"]
    halves = [weight, torch.zeros_like(weight)]
    wide = torch.cat(halves if config.pool == "class" else halves[::-1], dim=1)
    return replace(config, pool="class+mean"), {**state, "head.linear.weight": wide}
