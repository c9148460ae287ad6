"""Write a model as a folder that transformers opens: config.json, model.safetensors, preprocessor_config.json.

The architecture is the first of `TARGETS` that holds the model: ViT, DeiT, I-JEPA, DINOv2 with or without registers,
SigLIP, CLIP, DINOv3. Features without a head become a ViTMSNModel, which is a ViTModel without its tanh layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.config import FIXED_POSITIONS, ViTConfig
from ...model.positions import dinov3_periods
from ...model.vit import ViT
from ...spec import ImageSpec
from ..families import hf, hf_clip_siglip, hf_dino
from ..families.hf import ACTIVATIONS
from ..families.hf_export import drop_size_settings
from ..foreign_folder import make_origin_fields
from ..image_spec import PROBLEM_TYPES, check_model_fits, make_preprocessor_config
from ..rules import write_with_layout

USUAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "patches": ("conv", "linear"),
    "patch_norms": (False,),
    "pad": (False,),
    "class_token": (True,),
    "distillation_token": (False,),
    "distillation_head": (False,),
    "registers": (False,),
    "positions": ("learned", "indexed", *FIXED_POSITIONS),
    "rotary": ("none",),
    "rotary_prefix": (False,),
    "relative": (0,),
    "relative_bias": (False,),
    "attention_norm": (False,),
    "mlp_norm": (False,),
    "post_norm": (False,),
    "token_norm": (False,),
    "pool_heads": (None,),
    "pool_mlp_width": (None,),
    "pre_norm": (False,),
    "qk_norm": (False,),
    "qk_norm_joint": (False,),
    "qk_scale": (None,),
    "head_width": (None,),
    "norm": ("LayerNorm",),
    "mlp": ("plain",),
    "activation": tuple(ACTIVATIONS.values()),
    "layer_scale": (False,),
    "parallel": (False,),
    "final_norm": (True,),
    "pooled_norm": (False,),
    "pool": ("class",),
    "pool_blocks": (1,),
    "head": ("linear",),
    "outputs": (True,),
}
"""Settings of ViTConfig -> the values that a ViT of transformers has. Missing biases are written as zeros."""
ABSENT, PRESENT = (False,), (True,)


@dataclass(frozen=True, eq=False)
class TransformersTarget:
    """One class of transformers that a model can be written for."""

    model_type: str
    """Its word in config.json."""
    architecture: str
    """Name of the class."""
    variant: str
    """Variant of the layout that holds the tensor names of its files."""
    _: KW_ONLY
    has: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Allowed values where they differ from `USUAL_VALUES`."""
    square: bool = False
    """It takes square images only."""
    ratio: bool = False
    """config.json gives the MLP's width as a whole multiple of the width."""


def _dinov2(name: str, architecture: str, has: Mapping[str, tuple[object, ...]]) -> TransformersTarget:
    return TransformersTarget(name, architecture, name, has=has, square=True, ratio=True)


_FEATURES = {"outputs": ABSENT}
_DEIT = {"distillation_token": PRESENT}
_TEACHER = {**_DEIT, "distillation_head": PRESENT}
_IJEPA = {"class_token": ABSENT, "pool": ("mean",)}
_DINOV2 = {"layer_scale": (False, True), "mlp": ("plain", "gated", "gated-packed")}
_REGISTERS = {**_DINOV2, "registers": PRESENT}
_POOLS = {"pool": ("class", "mean", "class+mean")}
_SIGLIP = {**_FEATURES, "class_token": ABSENT, "pool": ("attention",)}
_CLIP = {"patch_bias": ABSENT, "pre_norm": PRESENT, "final_norm": ABSENT}
_CLIP_PROJECTION = {**_CLIP, "pooled_norm": PRESENT, "head_bias": ABSENT}
_CLIP_FEATURES = {**_CLIP, **_FEATURES, "pooled_norm": PRESENT}
_CLIP_CLASSIFIER = {**_CLIP, "pool": ("mean",)}
_DINOV3 = {**_REGISTERS, **_FEATURES, "positions": ("none",), "rotary": ("dinov3",)}
TARGETS = (
    TransformersTarget("vit", "ViTForImageClassification", "vit"),
    TransformersTarget("vit", "ViTModel", "vit", has={**_FEATURES, "head": ("tanh",)}),
    TransformersTarget("vit_msn", "ViTMSNModel", "vit", has=_FEATURES),
    TransformersTarget("deit", "DeiTForImageClassification", "deit", has=_DEIT),
    TransformersTarget("deit", "DeiTForImageClassificationWithTeacher", "deit-teacher", has=_TEACHER),
    TransformersTarget("deit", "DeiTModel", "deit", has={**_DEIT, **_FEATURES, "head": ("tanh",)}),
    TransformersTarget("ijepa", "IJepaForImageClassification", "ijepa", has=_IJEPA),
    TransformersTarget("ijepa", "IJepaModel", "ijepa", has={**_IJEPA, **_FEATURES}),
    _dinov2("dinov2", "Dinov2ForImageClassification", has={**_DINOV2, **_POOLS}),
    _dinov2("dinov2", "Dinov2Model", has={**_DINOV2, **_FEATURES}),
    _dinov2("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", has={**_REGISTERS, **_POOLS}),
    _dinov2("dinov2_with_registers", "Dinov2WithRegistersModel", has={**_REGISTERS, **_FEATURES}),
    TransformersTarget("siglip_vision_model", "SiglipVisionModel", "siglip", has=_SIGLIP, square=True),
    TransformersTarget("clip_vision_model", "CLIPVisionModelWithProjection", "clip", has=_CLIP_PROJECTION, square=True),
    TransformersTarget("clip_vision_model", "CLIPVisionModel", "clip", has=_CLIP_FEATURES, square=True),
    TransformersTarget("clip", "CLIPForImageClassification", "clip-classifier", has=_CLIP_CLASSIFIER, square=True),
    TransformersTarget("dinov3_vit", "DINOv3ViTModel", "dinov3", has=_DINOV3),
)
"""In the order in which they are tried."""


def find_misfits(target: TransformersTarget, config: ViTConfig) -> list[str]:
    """Settings of a model that the architecture cannot express, for a message."""
    presence = {  # settings that are compared by presence, not by value
        "registers": config.registers > 0,
        "outputs": config.outputs > 0,
        "layer_scale": config.layer_scale is not None,
    }
    words = []
    for name, allowed in {**USUAL_VALUES, **target.has}.items():
        setting = getattr(config, name)
        if presence.get(name, setting) not in allowed:
            words.append(f"{name}={setting!r}")
    if target.square and len({*config.image_size}) > 1:
        words.append(f"image_size={config.image_size}, which is not square")
    if target.square and not target.ratio and len({*config.patch}) > 1:
        words.append(f"patch={config.patch}, which is not square")
    if target.ratio and find_mlp_ratio(config) is None:
        words.append(f"mlp_width={config.mlp_width} beside width={config.width}")
    if target.ratio and config.mlp != "plain" and config.activation != "SiLU":
        words.append(f"activation={config.activation!r} of a gated MLP")
    return words


def find_mlp_ratio(config: ViTConfig) -> int | None:
    """The integer ratio from which DINOv2's code computes this MLP width (for a gated MLP two thirds of it, rounded up
    to a multiple of 8); None where no ratio gives it.
    """
    for ratio in range(1, 65):
        plain = config.width * ratio
        if config.mlp_width == (plain if config.mlp == "plain" else (int(plain * 2 / 3) + 7) // 8 * 8):
            return ratio
    return None


# -- The folder

TRANSFORMERS_LAYOUTS = {
    layout.variant: layout
    for layouts in (
        hf.HF_VIT_LAYOUTS,
        hf_dino.HF_DINOV2_LAYOUTS,
        hf_dino.HF_DINOV3_LAYOUTS,
        hf_clip_siglip.HF_SIGLIP_LAYOUTS,
        hf_clip_siglip.HF_CLIP_LAYOUTS,
    )
    for layout in layouts
}
"""transformers' layouts by their variants."""


def write_transformers_folder(
    folder: Path,
    model: ViT,
    spec: ImageSpec,
    task: str,
    classes: tuple[str, ...],
    info: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write the folder whole or not at all.

    Args:
        info: metadata as in a bundle; config.json keeps licence and repository of the weights.
    """
    check_model_fits(model.config, spec, classes or None)
    target, processor = choose_target(model), make_processor_config(spec)
    config, state = drop_size_settings(model.config, model.state_dict())
    if config.patches == "linear":  # SigLIP's table would make it a NaFlex model
        weight = state["tokens.patches.weight"].reshape(config.width, config.channels, *config.patch)
        config, state = replace(config, patches="conv"), {**state, "tokens.patches.weight": weight}
    gated = target.ratio and config.mlp != "plain"
    layout = TRANSFORMERS_LAYOUTS[target.variant + ("-gated" if gated else "")]
    in_config = {"norm_eps": config.norm_eps, "activation": config.activation, "head": config.head}
    tensors = write_with_layout(state, config, layout, in_config)
    content = {**make_transformers_config(target, config, task, classes), **make_origin_fields(info)}
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / "config.json", content)
        atomic.write_json(inside / "preprocessor_config.json", processor)
        safetensors_file.save_tensors(inside / "model.safetensors", tensors, {"format": "pt"}, checksum=True)


def choose_target(model: ViT) -> TransformersTarget:
    """The architecture of transformers that holds the model."""
    config, _ = drop_size_settings(model.config, {})
    faults = [(target, find_misfits(target, config)) for target in TARGETS]
    target, words = min(faults, key=lambda fault: len(fault[1]))
    if config.rotary == "dinov3" and not torch.equal(model.rotary.periods, dinov3_periods(config.head_dim)):
        words = [*words, "rotary periods that are not 100^(4i/d)"]
    if words:
        raise UsageError(
            f"No architecture of transformers holds this model. The nearest, {target.architecture}, cannot express "
            f"{' nor '.join(words)}. Save the model as a bundle instead."
        )
    return target


# -- config.json

ACTIVATION_WORDS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""Our words for activations, and the first of transformers'."""


def make_transformers_config(
    target: TransformersTarget, config: ViTConfig, task: str, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The content of config.json."""
    model = {
        "model_type": target.model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": ACTIVATION_WORDS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": _collapse_pair(config.image_size),
        "patch_size": _collapse_pair(config.patch),
        "num_channels": config.channels,
        "initializer_range": 0.02,
        **_model_type_fields(target, config),
    }
    if target.model_type == "clip":
        model = {"model_type": "clip", "vision_config": {**model, "model_type": "clip_vision_model"}}
    return {"architectures": [target.architecture], "dtype": "float32", **model, **_label_fields(config, task, classes)}


def _model_type_fields(target: TransformersTarget, config: ViTConfig) -> dict[str, Any]:
    """Fields that depend on the model type."""
    mlp: dict[str, Any] = {"intermediate_size": config.mlp_width}
    match target.model_type:
        case "siglip_vision_model":
            return {**mlp, "attention_dropout": config.attention_dropout, "vision_use_head": True}
        case "clip" | "clip_vision_model":
            projection = config.outputs or config.width
            return {**mlp, "attention_dropout": config.attention_dropout, "projection_dim": projection}
        case "dinov3_vit":
            return {
                **mlp,
                "num_register_tokens": config.registers,
                "use_gated_mlp": config.mlp != "plain",
                "rope_theta": 100.0,
                "query_bias": config.qkv_bias,
                "key_bias": config.qkv_bias and config.key_bias,
                "value_bias": config.qkv_bias,
                "proj_bias": config.out_bias,
                "mlp_bias": config.mlp_bias,
                "attention_dropout": config.attention_dropout,
                "layerscale_value": 1.0,
            }
        case "dinov2" | "dinov2_with_registers":
            gated = config.mlp != "plain"
            mlp = {"mlp_ratio": find_mlp_ratio(config), "use_swiglu_ffn": gated, "layerscale_value": 1.0}
    registers = {"num_register_tokens": config.registers} if target.model_type == "dinov2_with_registers" else {}
    return {
        **mlp,
        **registers,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _label_fields(config: ViTConfig, task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """The names of the outputs; transformers derives their count from them."""
    if not config.outputs:
        return {}
    names = classes or tuple(f"LABEL_{number}" for number in range(config.outputs))
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": PROBLEM_TYPES[task],
    }


def _collapse_pair(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


# -- preprocessor_config.json


def make_processor_config(spec: ImageSpec) -> dict[str, Any]:
    """The content of preprocessor_config.json: an image processor that prepares images as the spec does.

    - squash: resize to both sides, then a centre crop if only a fraction is kept.
    - crop: resize the short side, then a centre crop.
    - pad: resize to fit inside, then a centre crop that is larger than the image, which transformers fills with black.
      It rounds the inner size down and Vitrail rounds to nearest, so one row of pixels may differ.

    Stored ranges other than 0..255 (or 0..65535, in 16 bits) belong to decoding; no processor has a field for them.
    """
    height, width = spec.size
    content = make_preprocessor_config(spec)
    del content["do_pad"]
    if spec.fit == "squash" and spec.crop_fraction < 1:
        content["image_processor_type"] = "DeiTImageProcessor"  # ViT's own cuts nothing out before version 5
    elif spec.fit == "squash":
        del content["crop_size"]
    elif spec.fit == "pad":
        content |= {"size": {"max_height": height, "max_width": width}, "do_center_crop": True}
    elif height != width:
        raise UsageError(
            f"transformers' processors cannot cut {height}x{width} out of the middle: they resize the short side to "
            'one number first. Train with fit="squash" or fit="pad", or save the model as a bundle.'
        )
    else:
        content["image_processor_type"] = "CLIPImageProcessor"  # also before version 5 it resizes the short side
    return {**content, "do_convert_rgb": spec.channels == 3}
