"""Which architecture of timm holds a model, and with which arguments: timm's own names for our settings.

An architecture is chosen for what JSON cannot say: the class of the norms with its epsilon, the kind of MLP and of
block. All else is overridden in `model_args`, so that any size fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...model.config import ViTConfig
from ..families import deit, timm, timm_dinov3
from ..families.timm_told import ACTIVATIONS, POOLS, ROPES
from ..layouts import Layout

Arguments = dict[str, Any]
WORDS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
POOL_WORDS = {ours: theirs for theirs, ours in POOLS.items()}


@dataclass(frozen=True)
class Home:
    """An architecture of timm."""

    architecture: str
    norm: str
    norm_eps: float
    norm_layer: str | None
    """timm's word that makes the architecture's norm this one; None where it is its own."""
    fits: Callable[[ViTConfig], bool]
    """Whether its blocks and tokens are those of a model."""
    arguments: Callable[[ViTConfig], Arguments]
    layout: Callable[[ViTConfig], Layout]


def choose(config: ViTConfig) -> Home:
    """The first architecture that holds the model.

    Raises:
        UsageError: none does; the norm, or the combination of parts, is named.
    """
    fitting = [home for home in HOMES if home.fits(config)]
    if not fitting:
        raise UsageError(
            f"No architecture of timm combines {', '.join(_parts(config))}. Save the model as a bundle instead."
        )
    for home in fitting:
        if (home.norm, home.norm_eps) == (config.norm, config.norm_eps):
            return home
    known = ", ".join(dict.fromkeys(f"{home.norm} with {home.norm_eps:g}" for home in fitting))
    raise UsageError(
        f"No architecture of timm has norm={config.norm!r} with norm_eps={config.norm_eps:g} for such blocks. It has "
        f'{known}; norm_eps can be set when the file is loaded (settings={{"norm_eps": ...}}).'
    )


def vit_arguments(config: ViTConfig) -> Arguments:
    """Arguments of timm's `VisionTransformer`, for a model that was expressed in its values."""
    hidden = 2 * config.mlp_width if config.mlp == "gated-packed" else config.mlp_width
    return {
        **_shared(config, hidden),
        "proj_bias": config.out_bias,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "reg_tokens": config.registers,
        "pre_norm": config.pre_norm,
        "final_norm": config.final_norm or config.pooled_norm,
        "fc_norm": config.pooled_norm,
        "pool_include_prefix": config.pool == "attention",
        "act_layer": WORDS[config.activation],
    }


def aim_arguments(config: ViTConfig) -> Arguments:
    """The same for the architecture that has a norm behind its patches, which is taken out."""
    return {**vit_arguments(config), "embed_norm_layer": None}


def eva_arguments(config: ViTConfig) -> Arguments:
    """Arguments of timm's `Eva`, for a model that was expressed in its values."""
    return {
        **_shared(config, config.mlp_width),
        "attn_type": "rope" if config.qkv_bias and config.key_bias else "eva",
        "qkv_fused": True,
        "swiglu_mlp": config.mlp != "plain",
        "swiglu_align_to": 1 if config.mlp == "gated" else 0,
        "scale_mlp": False,
        "scale_attn_inner": False,
        "num_reg_tokens": config.registers,
        "use_abs_pos_emb": config.positions != "none",
        "use_rot_pos_emb": config.rotary != "none",
        "use_pre_transformer_norm": config.pre_norm,
        "use_post_transformer_norm": config.final_norm,
        "use_fc_norm": config.pooled_norm,
        **ROPES.get(config.rotary, {}),
    }


def _shared(config: ViTConfig, hidden: int) -> Arguments:
    """What both modules call by the same name."""
    return {
        "img_size": [side * patch for side, patch in zip(config.grid, config.patch, strict=True)],
        "patch_size": list(config.patch),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config.width, hidden),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": None if config.layer_scale is None else config.layer_scale or 1e-5,
        "class_token": config.class_token,
        "no_embed_class": config.table_prefix == 0,
        "global_pool": POOL_WORDS[config.pool],
        "dynamic_img_size": config.pad or config.positions == "none",
        "dynamic_img_pad": config.pad,
    }


def _ratio(width: int, hidden: int) -> float:
    """The ratio of which timm makes exactly this hidden width: it multiplies and drops what follows the point."""
    ratio = hidden / width
    while int(width * ratio) < hidden:
        ratio *= 1 + 2**-52
    return ratio


def _plain(config: ViTConfig) -> bool:
    return _in_vit(config) and config.mlp == "plain" and not config.parallel and not config.distillation_head


def _gated(config: ViTConfig) -> bool:
    return _in_vit(config) and config.mlp != "plain" and not config.distillation_head


def _packed(config: ViTConfig) -> bool:
    return _gated(config) and config.pool != "attention"  # its pool would have the packed width


def _parallel(config: ViTConfig) -> bool:
    return _in_vit(config) and config.parallel and config.mlp == "plain" and not config.distillation_head


def _distilled(config: ViTConfig) -> bool:
    return _in_vit(config) and config.distillation_head and config.mlp == "plain" and not config.parallel


def _in_vit(config: ViTConfig) -> bool:
    return config.rotary == "none" and not (config.final_norm and config.pooled_norm)


def _in_eva(config: ViTConfig) -> bool:
    activation = "GELU" if config.mlp == "plain" else "SiLU"
    pooled = config.pool != "attention" or config.mlp == "plain"  # its pool has GELU
    return config.activation == activation and pooled and not config.parallel and not config.distillation_head


def _parts(config: ViTConfig) -> list[str]:
    """The settings that decide about the architecture, in words."""
    names = ("rotary", "mlp", "activation", "parallel", "pool", "final_norm", "pooled_norm", "distillation_head")
    return [f"{name}={getattr(config, name)!r}" for name in names]


def _sequential(config: ViTConfig) -> Layout:
    return timm.LAYOUTS[0]


def _split_gate(config: ViTConfig) -> Layout:
    return timm.LAYOUTS[1]


def _side_by_side(config: ViTConfig) -> Layout:
    return timm.LAYOUTS[2 if config.qkv_bias else 3]


def _eva(config: ViTConfig) -> Layout:
    """By what the tensors are called: LayerScale, a table, biases of queries and values apart, the gate apart."""
    split, table = config.mlp == "gated", config.positions != "none"
    if config.layer_scale is None and (config.key_bias or not config.qkv_bias):
        return timm.LAYOUTS[1 if split else 0]
    if config.layer_scale is None:
        return timm_dinov3.UNSCALED_SPLIT if split else timm_dinov3.UNSCALED
    if not table:
        return timm_dinov3.DINOV3_SPLIT if split else timm_dinov3.DINOV3
    if split:
        return timm_dinov3.EVA_SPLIT
    apart = config.qkv_bias and not config.key_bias
    return timm_dinov3.EVA if apart else deit.DEIT3


# fmt: off
HOMES = (
    Home("vit_base_patch16_224",            "LayerNorm", 1e-6, None,        _plain,     vit_arguments, _sequential),
    Home("vit_base_patch16_clip_224",       "LayerNorm", 1e-5, None,        _plain,     vit_arguments, _sequential),
    Home("vit_base_patch16_224",            "RMSNorm",   1e-6, "rmsnorm",   _plain,     vit_arguments, _sequential),
    Home("deit_base_distilled_patch16_224", "LayerNorm", 1e-6, None,        _distilled, vit_arguments, _sequential),
    Home("deit_base_distilled_patch16_224", "RMSNorm",   1e-6, "rmsnorm",   _distilled, vit_arguments, _sequential),
    Home("vit_giant_patch14_dinov2",        "LayerNorm", 1e-6, None,        _packed,    vit_arguments, _sequential),
    Home("vit_giant_patch14_dinov2",        "RMSNorm",   1e-6, "rmsnorm",   _packed,    vit_arguments, _sequential),
    Home("aimv2_large_patch14_224",         "RMSNorm",   1e-5, None,        _gated,     aim_arguments, _split_gate),
    Home("aimv2_large_patch14_224",         "LayerNorm", 1e-6, "layernorm", _gated,     aim_arguments, _split_gate),
    Home("aimv2_large_patch14_224",         "RMSNorm",   1e-6, "rmsnorm",   _gated,     aim_arguments, _split_gate),
    Home("vit_base_patch16_xp_224",         "LayerNorm", 1e-6, "layernorm", _parallel,  vit_arguments, _side_by_side),
    Home("vit_base_patch16_xp_224",         "RMSNorm",   1e-6, None,        _parallel,  vit_arguments, _side_by_side),
    Home("vit_small_patch16_dinov3",        "LayerNorm", 1e-5, None,        _in_eva,    eva_arguments, _eva),
    Home("vit_base_patch16_rope_224",       "LayerNorm", 1e-6, None,        _in_eva,    eva_arguments, _eva),
)
# fmt: on
"""The first that fits is taken; `Eva` comes last, for what it alone has: rotary positions, norms around the pooling."""
