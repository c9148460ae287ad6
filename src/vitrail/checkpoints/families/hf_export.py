"""Convert a model to the parts that transformers' models have; the function stays exactly the same.

Their position tables have rows for the class and the distillation token, their keys a bias. DINOv2 has a LayerScale
factor at the end of every branch and a classifier on [class ; mean]. What a model lacks is added as zeros or ones,
which change no output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...model.config import ViTConfig
from .plain_export import ConfigAndState, StateDict, add_key_bias, pack_gate, split_gate

WEIGHTS_WITH_BIAS = {
    "patch_bias": ("tokens.patches.weight",),
    "qkv_bias": (".attention.qkv.weight",),
    "out_bias": (".attention.out.weight",),
    "mlp_bias": (".mlp.fc1.weight", ".mlp.gate.weight", ".mlp.fc2.weight"),
    "head_bias": ("head.linear.weight", "head.distillation.weight"),
}
"""Settings of ViTConfig -> the weights that they give a bias."""
BLOCK_BIASES = ("out_bias", "mlp_bias")


def export_vit(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For ViT, DeiT, MAE, MSN, I-JEPA: rows for every token, biases everywhere; those of qkv stay optional."""
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
    """For DINOv2 with or without registers: also LayerScale, a packed gate and a classifier on [class ; mean]."""
    return widen_classifier(*pack_gate(*add_unit_scales(*export_vit(config, state))))


def export_dinov3(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For DINOv3: a bias of the patch projection, LayerScale, and a separate gate."""
    return split_gate(*add_unit_scales(*add_zero_biases(*drop_size_settings(config, state), fields=("patch_bias",))))


def drop_size_settings(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Drop settings without effect at the model's own size: padding of whole patches, default head width and scale."""
    whole = all(pixels % patch == 0 for pixels, patch in zip(config.image_size, config.patch, strict=True))
    usual = config.head_width is not None and config.attention_width == config.width
    scale = None if config.qk_scale == config.head_dim**-0.5 else config.qk_scale
    pad = config.pad and not whole
    return replace(config, pad=pad, head_width=None if usual else config.head_width, qk_scale=scale), state


def add_prefix_rows(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add zero rows for the class and the distillation token, where the table has none."""
    if config.class_position or not config.class_token or "positions.table" not in state:
        return replace(config, class_position=True), state
    table = state["positions.table"]
    first = table.new_zeros(config.class_token + config.distillation_token, config.width)
    return replace(config, class_position=True), {**state, "positions.table": torch.cat([first, table])}


def add_zero_biases(config: ViTConfig, state: StateDict, fields: tuple[str, ...]) -> ConfigAndState:
    """Add zeros as the biases that these settings (keys of `WEIGHTS_WITH_BIAS`) turn on and the model lacks."""
    wanted = tuple(end for field in fields for end in WEIGHTS_WITH_BIAS[field])
    weights = {name: tensor for name, tensor in state.items() if name.endswith(wanted) and "pool." not in name}
    zeros = {name.removesuffix("weight") + "bias": weight.new_zeros(len(weight)) for name, weight in weights.items()}
    enabled: dict[str, Any] = dict.fromkeys(fields, True)
    return replace(config, **enabled), {**zeros, **state}


def add_unit_scales(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add a LayerScale of ones to every branch, where there is none."""
    if config.layer_scale is not None:
        return config, state
    ones = {
        f"encoder.blocks.{i}.scale{branch}": torch.ones_like(state[f"encoder.blocks.{i}.norm1.weight"])
        for i in range(config.depth)
        for branch in (1, 2)
    }
    return replace(config, layer_scale=1.0), {**state, **ones}


def widen_classifier(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Widen the classifier to [class ; mean], with zeros for the half that the model does not read."""
    if config.pool not in ("class", "mean") or not config.outputs or not config.class_token:
        return config, state
    weight = state["head.linear.weight"]
    halves = [weight, torch.zeros_like(weight)]
    wide = torch.cat(halves if config.pool == "class" else halves[::-1], dim=1)
    return replace(config, pool="class+mean"), {**state, "head.linear.weight": wide}
