"""Tiny models of every kind of part, for tests that must hold for all of them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vitrail.model.config import ViTConfig

TINY = ViTConfig(
    image_size=(12, 8),
    patch=(4, 2),
    channels=2,
    width=16,
    depth=2,
    heads=2,
    mlp_width=24,
    outputs=3,
    init="torch",
)
KINDS = {
    "class token, learned": TINY,
    "mean, indexed": dataclasses.replace(TINY, class_token=False, pool="mean", positions="indexed"),
    "sinusoid, tanh head": dataclasses.replace(TINY, positions="sinusoid", head="tanh", patches="linear"),
    "sincos2d": dataclasses.replace(TINY, positions="sincos2d", class_token=False, pool="mean"),
    "axial rotary, RMSNorm": dataclasses.replace(TINY, positions="none", rotary="axial", norm="RMSNorm"),
    "rotary from one": dataclasses.replace(TINY, positions="none", rotary="from-one", final_norm=False),
    "patches without a class row": dataclasses.replace(TINY, class_position=False),
    "registers, layer scale, packed gate": dataclasses.replace(
        TINY, registers=2, layer_scale=0.5, mlp="gated-packed", activation="SiLU", pool="class+mean"
    ),
    "two heads, recomputed": dataclasses.replace(
        TINY, distillation_token=True, distillation_head=True, grad_checkpointing=True, patch_bias=False
    ),
    "probe, no class token": dataclasses.replace(TINY, class_token=False, pool="attention", activation="GELUTanh"),
    "dinov3": dataclasses.replace(
        TINY, positions="none", rotary="dinov3", registers=1, key_bias=False, layer_scale=1.0, mlp="gated"
    ),
    "parallel, normed queries and keys": dataclasses.replace(
        TINY, parallel=True, qk_norm=True, head_width=12, out_bias=False, mlp_bias=False, pre_norm=True
    ),
    "soft splits": dataclasses.replace(TINY, image_size=(32, 48), patch=(16, 16), patches="t2t-performer"),
    "relative, normed patches": dataclasses.replace(
        TINY, positions="none", relative=2, patches="linear", patch_norms=True, qkv_bias=False, pooled_norm=True
    ),
    "queries and keys normed over all heads": dataclasses.replace(
        TINY, qk_norm=True, qk_norm_joint=True, norm="RMSNorm", layer_scale=1.0, final_norm=False
    ),
    "relative bias, inner norms": dataclasses.replace(
        TINY, positions="none", relative_bias=True, attention_norm=True, mlp_norm=True, key_bias=False, layer_scale=1.0
    ),
    "mixed rotary, norms behind": dataclasses.replace(
        TINY, positions="none", rotary="mixed", post_norm=True, token_norm=True, registers=1, mlp="gated", mlp_norm=True
    ),
    "rotary of a reference grid, probe": dataclasses.replace(
        TINY,
        rotary="pe",
        rotary_grid=(6, 6),
        rotary_prefix=True,
        pre_norm=True,
        pool="attention",
        pool_heads=1,
        pool_mlp_width=20,
    ),
}


def images_for(config: ViTConfig, batch: int = 3) -> Tensor:
    return torch.randn(batch, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))
