"""Write a model as a folder that timm opens: `timm.create_model("local-dir:FOLDER", pretrained=True)`.

An architecture of timm is chosen for what JSON cannot express: the class of the norms with its epsilon, the kind of
MLP and of block. Everything else is overridden in `model_args` of config.json, so that any size fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.config import ViTConfig
from ...model.vit import ViT
from ...spec import ImageSpec
from ..families import deit, timm, timm_beit, timm_eva_naflex
from ..families.timm_config import TIMM_ACTIVATIONS, TIMM_POOLS, make_rope_arguments
from ..foreign_folder import make_origin_fields
from ..image_spec import CROP_MODES, check_model_fits, repeat_per_channel
from ..layouts import Layout
from ..rules import write_with_layout

TimmArguments = dict[str, Any]
ACTIVATION_WORDS = {ours: theirs for theirs, ours in reversed(TIMM_ACTIVATIONS.items())}
POOL_WORDS = {ours: theirs for theirs, ours in TIMM_POOLS.items()}


@dataclass(frozen=True)
class TimmArchitecture:
    """An architecture of timm, and how a model is written for it."""

    architecture: str
    """timm's name."""
    norm: str
    norm_eps: float
    norm_layer: str | None
    """timm's word that makes the architecture's norm this one; None where it is the default."""
    fits: Callable[[ViTConfig], bool]
    """Whether its blocks and tokens are those of a model."""
    arguments: Callable[[ViTConfig], TimmArguments]
    """Makes `model_args`."""
    layout: Callable[[ViTConfig], Layout]
    """Chooses the table of tensor names."""


def choose_architecture(config: ViTConfig) -> TimmArchitecture:
    """The first architecture that holds the model."""
    fitting = [target for target in TIMM_ARCHITECTURES if target.fits(config)]
    if not fitting:
        names = ("rotary", "mlp", "activation", "parallel", "pool", "final_norm", "pooled_norm", "distillation_head")
        parts = ", ".join(f"{name}={getattr(config, name)!r}" for name in names)
        raise UsageError(f"No architecture of timm combines {parts}. Save the model as a bundle instead.")
    for target in fitting:
        if (target.norm, target.norm_eps) == (config.norm, config.norm_eps):
            return target
    known = ", ".join(dict.fromkeys(f"{target.norm} with {target.norm_eps:g}" for target in fitting))
    raise UsageError(
        f"No architecture of timm has norm={config.norm!r} with norm_eps={config.norm_eps:g} for such blocks. It has "
        f'{known}; norm_eps can be set when the file is loaded (settings={{"norm_eps": ...}}).'
    )


def make_vit_arguments(config: ViTConfig) -> TimmArguments:
    """Arguments of timm's `VisionTransformer`, for a configuration after `prepare_export`."""
    hidden = 2 * config.mlp_width if config.mlp == "gated-packed" else config.mlp_width
    return {
        **_shared_arguments(config, hidden),
        "proj_bias": config.out_bias,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "reg_tokens": config.registers,
        "pre_norm": config.pre_norm,
        "final_norm": config.final_norm or config.pooled_norm,
        "fc_norm": config.pooled_norm,
        "pool_include_prefix": config.pool == "attention",
        "act_layer": ACTIVATION_WORDS[config.activation],
        **({"scale_attn_norm": True} if config.attention_norm else {}),
        **({"scale_mlp_norm": True} if config.mlp_norm else {}),
        **({"embed_norm_layer": config.norm.lower()} if config.token_norm and config.norm_eps == 1e-6 else {}),
    }


def make_eva_arguments(config: ViTConfig) -> TimmArguments:
    """Arguments of timm's `Eva`, for a configuration after `prepare_export`."""
    return {
        **_shared_arguments(config, config.mlp_width),
        "attn_type": "rope" if config.qkv_bias and config.key_bias else "eva",
        "qkv_fused": True,
        "swiglu_mlp": config.mlp != "plain",
        "swiglu_align_to": 1 if config.mlp == "gated" else 0,
        "scale_mlp": config.mlp_norm,
        "scale_attn_inner": config.attention_norm,
        "num_reg_tokens": config.registers,
        "use_abs_pos_emb": config.positions != "none",
        "use_pre_transformer_norm": config.pre_norm,
        "use_post_transformer_norm": config.final_norm,
        "use_fc_norm": config.pooled_norm,
        "attn_pool_num_heads": config.probe_heads,
        "attn_pool_mlp_ratio": _exact_mlp_ratio(config.width, config.probe_mlp_width),
        **make_rope_arguments(config.rotary, config.rotary_base, config.rotary_grid),
    }


def make_beit_arguments(config: ViTConfig) -> TimmArguments:
    """Arguments of timm's `Beit`, for a configuration after `prepare_export`."""
    shared = _shared_arguments(config, config.mlp_width)
    for name in ("qk_norm", "class_token", "no_embed_class", "dynamic_img_size", "dynamic_img_pad"):
        del shared[name]
    return {
        **shared,
        "scale_mlp": config.mlp_norm,
        "use_abs_pos_emb": config.positions != "none",
        "use_rel_pos_bias": True,
        "use_shared_rel_pos_bias": False,
        "use_fc_norm": config.pooled_norm,
    }


def _shared_arguments(config: ViTConfig, hidden: int) -> TimmArguments:
    """Arguments that both modules call by the same name."""
    return {
        "img_size": [side * patch for side, patch in zip(config.grid, config.patch, strict=True)],
        "patch_size": list(config.patch),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _exact_mlp_ratio(config.width, hidden),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": None if config.layer_scale is None else config.layer_scale or 1e-5,
        "class_token": config.class_token,
        "no_embed_class": config.table_prefix == 0,
        "global_pool": POOL_WORDS[config.pool],
        "dynamic_img_size": config.pad or config.positions == "none",
        "dynamic_img_pad": config.pad,
    }


def _exact_mlp_ratio(width: int, hidden: int) -> float:
    """The ratio from which timm computes exactly this hidden width: it multiplies and rounds down."""
    ratio = hidden / width
    while int(width * ratio) < hidden:
        ratio *= 1 + 2**-52
    return ratio


def _fits_vit(
    config: ViTConfig, gated: bool = False, parallel: bool = False, distilled: bool = False, post: bool = False
) -> bool:
    """Whether `VisionTransformer` holds the model, with these of the parts that decide the architecture."""
    plain = config.mlp == "plain"  # parallel blocks with another MLP are refused later, by name
    decisive = (not plain, config.parallel and plain, config.distillation_head, config.post_norm)
    norms = not (config.final_norm and config.pooled_norm)
    probe = config.probe_heads == config.heads and config.probe_mlp_width == config.mlp_width
    tokens = not config.token_norm or config.norm_eps == 1e-6 or gated
    fits = norms and probe and tokens and not (config.mlp_norm and parallel)
    fits = fits and not config.relative_bias
    return config.rotary == "none" and fits and decisive == (gated, parallel, distilled, post)


def _is_packed_vit(config: ViTConfig) -> bool:
    return _fits_vit(config, gated=True) and config.pool != "attention"  # its pool would have the packed width


def _fits_eva(config: ViTConfig) -> bool:
    activation = "GELU" if config.mlp == "plain" else "SiLU"
    pooled = config.pool != "attention" or config.mlp == "plain"  # its pool has GELU
    other = config.parallel or config.distillation_head or config.post_norm or config.token_norm
    other = other or config.relative_bias
    return config.activation == activation and pooled and not other


def _choose_eva_layout(config: ViTConfig) -> Layout:
    """By what the tensor names depend on: LayerScale, a position table, separate query and value biases, split gate."""
    split, qv_biases = config.mlp == "gated", config.qkv_bias and not config.key_bias
    if config.layer_scale is None and not qv_biases and config.rotary == "mixed":
        return timm_eva_naflex.EVA_MIXED_SPLIT if split else timm_eva_naflex.EVA_MIXED
    if config.layer_scale is None and not qv_biases:
        return timm.TIMM_SPLIT if split else timm.TIMM_PLAIN
    if config.layer_scale is None:
        return timm_eva_naflex.EVA_UNSCALED_SPLIT if split else timm_eva_naflex.EVA_UNSCALED
    if config.positions == "none":
        return timm_eva_naflex.DINOV3_SPLIT if split else timm_eva_naflex.DINOV3
    if split:
        return timm_eva_naflex.EVA_SPLIT
    return timm_eva_naflex.EVA if qv_biases else deit.DEIT3


_PLAIN = (_fits_vit, make_vit_arguments, lambda config: timm.TIMM_PLAIN)
_DISTILLED = (partial(_fits_vit, distilled=True), make_vit_arguments, lambda config: timm.TIMM_PLAIN)
_PACKED = (_is_packed_vit, make_vit_arguments, lambda config: timm.TIMM_PLAIN)
_POST_NORM = (partial(_fits_vit, post=True), make_vit_arguments, lambda config: timm.TIMM_PLAIN)
_GATED = (
    partial(_fits_vit, gated=True),
    lambda config: {
        **make_vit_arguments(config),
        **({} if config.token_norm else {"embed_norm_layer": None}),
    },  # AIMv2's
    lambda config: timm.TIMM_SPLIT,
)
_PARALLEL = (
    partial(_fits_vit, parallel=True),
    make_vit_arguments,
    lambda config: timm.TIMM_PARALLEL if config.qkv_bias else timm.TIMM_PARALLEL_WITHOUT_BIAS,
)
_EVA = (_fits_eva, make_eva_arguments, _choose_eva_layout)
_BEIT = (lambda config: config.relative_bias, make_beit_arguments, lambda config: timm_beit.BEIT)
# fmt: off
TIMM_ARCHITECTURES = (
    TimmArchitecture("vit_base_patch16_224",            "LayerNorm", 1e-6, None,        *_PLAIN),
    TimmArchitecture("vit_base_patch16_clip_224",       "LayerNorm", 1e-5, None,        *_PLAIN),
    TimmArchitecture("vit_base_patch16_224",            "RMSNorm",   1e-6, "rmsnorm",   *_PLAIN),
    TimmArchitecture("deit_base_distilled_patch16_224", "LayerNorm", 1e-6, None,        *_DISTILLED),
    TimmArchitecture("deit_base_distilled_patch16_224", "RMSNorm",   1e-6, "rmsnorm",   *_DISTILLED),
    TimmArchitecture("vit_giant_patch14_dinov2",        "LayerNorm", 1e-6, None,        *_PACKED),
    TimmArchitecture("vit_giant_patch14_dinov2",        "RMSNorm",   1e-6, "rmsnorm",   *_PACKED),
    TimmArchitecture("aimv2_large_patch14_224",         "RMSNorm",   1e-5, None,        *_GATED),
    TimmArchitecture("aimv2_large_patch14_224",         "LayerNorm", 1e-6, "layernorm", *_GATED),
    TimmArchitecture("aimv2_large_patch14_224",         "RMSNorm",   1e-6, "rmsnorm",   *_GATED),
    TimmArchitecture("vit_base_patch16_rpn_224",        "LayerNorm", 1e-6, None,        *_POST_NORM),
    TimmArchitecture("vit_base_patch16_xp_224",         "LayerNorm", 1e-6, "layernorm", *_PARALLEL),
    TimmArchitecture("vit_base_patch16_xp_224",         "RMSNorm",   1e-6, None,        *_PARALLEL),
    TimmArchitecture("vit_small_patch16_dinov3",        "LayerNorm", 1e-5, None,        *_EVA),
    TimmArchitecture("vit_base_patch16_rope_224",       "LayerNorm", 1e-6, None,        *_EVA),
    TimmArchitecture("beit_base_patch16_224",           "LayerNorm", 1e-6, None,        *_BEIT),
)
# fmt: on
"""The first that fits is taken; `Eva` and `Beit` come last, for what they alone have: rotary positions, norms around
the pooling, relative biases."""


# -- The folder: config.json and model.safetensors


def write_timm_folder(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    classes: tuple[str, ...],
    info: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write `model.safetensors` and `config.json`, whole or not at all.

    Args:
        info: metadata as in a bundle; licence and repository are taken from it.
    """
    check_model_fits(model.config, spec, classes or None)
    target = choose_architecture(model.config)
    layout = target.layout(model.config)
    state = dict(model.state_dict())
    assert layout.prepare_export is not None
    expressed, _ = layout.prepare_export(model.config, state)
    in_config = (
        "norm_eps", "activation", "image_size", "positions", "rotary", "rotary_base", "rotary_grid", "norm", "pad",
        "pool", "final_norm", "post_norm", "pool_heads",
    )  # fmt: skip
    settings = {name: getattr(expressed, name) for name in in_config}
    weights = write_with_layout(state, model.config, layout, settings)
    content = {**make_timm_config(expressed, target, spec, classes), **make_origin_fields(info)}
    with atomic.write_folder(Path(folder)) as inside:
        safetensors_file.save_tensors(inside / "model.safetensors", weights, {"format": "pt"}, checksum=True)
        atomic.write_json(inside / "config.json", content)


def make_timm_config(
    config: ViTConfig, target: TimmArchitecture, spec: ImageSpec, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The content of `config.json`."""
    arguments: TimmArguments = target.arguments(config)
    if target.norm_layer is not None:
        arguments["norm_layer"] = target.norm_layer
    named = {"label_names": list(classes)} if classes else {}
    return {
        "architecture": target.architecture,
        "num_classes": config.outputs,
        "num_features": config.width,
        "global_pool": POOL_WORDS[config.pool],
        **named,
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": not arguments.get("dynamic_img_size"),
            "interpolation": spec.interpolation,
            "crop_pct": convert_crop_fraction(spec),
            "crop_mode": CROP_MODES[spec.fit],
            "mean": repeat_per_channel(spec.mean, spec.channels),
            "std": repeat_per_channel(spec.std, spec.channels),
            "num_classes": config.outputs,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distillation_head else "head",
        },
    }


def convert_crop_fraction(spec: ImageSpec) -> float:
    """The crop fraction with which timm, which rounds down, resizes to the same size: 33 / (33 / 54) is below 54."""
    fraction = spec.crop_fraction
    return fraction if math.floor(spec.height / fraction) == spec.resize_size[0] else math.nextafter(fraction, 0)
