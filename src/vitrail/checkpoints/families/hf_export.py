"""Convert a model to the parts that transformers' models have; the function stays exactly the same.

Their position tables have rows for the class and the distillation token, their keys a bias. DINOv2 has a LayerScale
factor at the end of every branch and a classifier on [class ; mean]. What a model lacks is added as zeros or ones,
which change no output.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...model.config import ViTConfig
from .plain_export import (
    BLOCK_BIASES,
    ConfigAndState,
    StateDict,
    add_key_bias,
    add_prefix_rows,
    add_zero_biases,
    pack_gate,
    split_gate,
)


def export_vit(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For ViT, DeiT, MAE, MSN, I-JEPA: rows for every token, biases everywhere; those of qkv stay optional."""
    config, state = add_prefix_rows(*drop_size_settings(config, state))
    return add_key_bias(*add_zero_biases(config, state, fields=("patch_bias", *BLOCK_BIASES, "head_bias")))


def export_siglip(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For SigLIP: biases everywhere."""
    return add_zero_biases(*export_vit(config, state), fields=("qkv_bias",))


def export_clip(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For CLIP: biases inside the blocks."""
    config, state = add_key_bias(*add_prefix_rows(*drop_size_settings(config, state)))
    return add_zero_biases(config, state, fields=("qkv_bias", *BLOCK_BIASES))


def export_dinov2(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """For DINOv2 with or without registers: also LayerScale, a packed gate and a classifier on [class ; mean]."""
    config, state = pack_gate(*add_unit_scales(*export_vit(config, state)))
    if config.pool not in ("class", "mean") or not config.outputs or not config.class_token:
        return config, state
    weight = state["head.linear.weight"]  # zeros for the half of [class ; mean] that the model does not read
    halves = [weight, torch.zeros_like(weight)]
    wide = torch.cat(halves if config.pool == "class" else halves[::-1], dim=1)
    return replace(config, pool="class+mean"), {**state, "head.linear.weight": wide}


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


def add_unit_scales(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """Add a LayerScale of ones to every branch, where there is none."""
    if config.layer_scale is not None:
        return config, state
    state = dict(state)
    for i in range(config.depth):
        for branch in ("scale1", "scale2"):
            state[f"encoder.blocks.{i}.{branch}"] = torch.ones_like(state[f"encoder.blocks.{i}.norm1.weight"])
    return replace(config, layer_scale=1.0), state
