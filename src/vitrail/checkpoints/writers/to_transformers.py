"""Which architectures of transformers Vitrail writes, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from ..families.hf_export import ConfigAndState, StateDict, drop_size_settings
from ..image_spec import make_preprocessor_config
from ..rules import write_with_layout as write_names
from ..weight_files import make_origin_fields

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
    "relative": (0,),
    "pre_norm": (False,),
    "qk_norm": (False,),
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
"""Settings of ViTConfig -> the values that a ViT of transformers has. Biases that are lacking are written as zeros."""
PRESENCE_FIELDS = ("registers", "outputs", "layer_scale")
"""Of these only counts whether there are any."""
ABSENT, PRESENT, EITHER = (False,), (True,), (False, True)


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformersTarget:
    """One class of transformers."""

    model_type: str
    """Its word in config.json."""
    architecture: str
    """The class."""
    variant: str
    """The table of names of its files."""
    has: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Where it differs from the usual."""
    square: bool = False
    """It knows square pictures only."""
    ratio: bool = False
    """config.json says the MLP's width as a whole multiple of the width."""


_DEIT = {"distillation_token": PRESENT}
_IJEPA = {"class_token": ABSENT, "pool": ("mean",)}
_DINOV2 = {"layer_scale": EITHER, "mlp": ("plain", "gated", "gated-packed")}
_REGISTERS = {**_DINOV2, "registers": PRESENT}
_POOLS = {"pool": ("class", "mean", "class+mean")}
_CLIP = {"patch_bias": ABSENT, "pre_norm": PRESENT, "final_norm": ABSENT}
_FEATURES = {"outputs": ABSENT}
# fmt: off
TARGETS = (
    TransformersTarget(model_type="vit", architecture="ViTForImageClassification", variant="vit"),
    TransformersTarget(model_type="vit", architecture="ViTModel", variant="vit", has={**_FEATURES, "head": ("tanh",)}),
    TransformersTarget(model_type="vit_msn", architecture="ViTMSNModel", variant="vit", has=_FEATURES),
    TransformersTarget(model_type="deit", architecture="DeiTForImageClassification", variant="deit", has=_DEIT),
    TransformersTarget(model_type="deit", architecture="DeiTForImageClassificationWithTeacher", variant="deit-teacher",
           has={**_DEIT, "distillation_head": PRESENT}),
    TransformersTarget(model_type="deit", architecture="DeiTModel", variant="deit", has={**_DEIT, **_FEATURES, "head": ("tanh",)}),
    TransformersTarget(model_type="ijepa", architecture="IJepaForImageClassification", variant="ijepa", has=_IJEPA),
    TransformersTarget(model_type="ijepa", architecture="IJepaModel", variant="ijepa", has={**_IJEPA, **_FEATURES}),
    TransformersTarget(model_type="dinov2", architecture="Dinov2ForImageClassification", variant="dinov2",
           has={**_DINOV2, **_POOLS}, square=True, ratio=True),
    TransformersTarget(model_type="dinov2", architecture="Dinov2Model", variant="dinov2", has={**_DINOV2, **_FEATURES},
           square=True, ratio=True),
    TransformersTarget(model_type="dinov2_with_registers", architecture="Dinov2WithRegistersForImageClassification",
           variant="dinov2_with_registers", has={**_REGISTERS, **_POOLS}, square=True, ratio=True),
    TransformersTarget(model_type="dinov2_with_registers", architecture="Dinov2WithRegistersModel",
           variant="dinov2_with_registers", has={**_REGISTERS, **_FEATURES}, square=True, ratio=True),
    TransformersTarget(model_type="siglip_vision_model", architecture="SiglipVisionModel", variant="siglip",
           has={**_FEATURES, "class_token": ABSENT, "pool": ("attention",)}, square=True),
    TransformersTarget(model_type="clip_vision_model", architecture="CLIPVisionModelWithProjection", variant="clip",
           has={**_CLIP, "pooled_norm": PRESENT, "head_bias": ABSENT}, square=True),
    TransformersTarget(model_type="clip_vision_model", architecture="CLIPVisionModel", variant="clip",
           has={**_CLIP, **_FEATURES, "pooled_norm": PRESENT}, square=True),
    TransformersTarget(model_type="clip", architecture="CLIPForImageClassification", variant="clip-classifier",
           has={**_CLIP, "pool": ("mean",)}, square=True),
    TransformersTarget(model_type="dinov3_vit", architecture="DINOv3ViTModel", variant="dinov3",
           has={**_DINOV2, **_FEATURES, "registers": PRESENT, "positions": ("none",), "rotary": ("dinov3",)}),
)
# fmt: on
"""In the order in which they are tried."""


def find_misfits(target: TransformersTarget, config: ViTConfig) -> list[str]:
    """What of a model the architecture cannot express, in words."""
    settings: dict[str, Any] = {name: getattr(config, name) for name in {**USUAL_VALUES, **target.has}}
    found = {**settings, **{name: bool(settings[name]) for name in PRESENCE_FIELDS}}
    found["layer_scale"] = config.layer_scale is not None
    allowed = {**USUAL_VALUES, **target.has}
    words = [f"{name}={settings[name]!r}" for name, values in allowed.items() if found[name] not in values]
    if target.square and len({*config.image_size}) > 1:
        words.append(f"image_size={config.image_size}, which is not square")
    if target.square and not target.ratio and len({*config.patch}) > 1:
        words.append(f"patch={config.patch}, which is not square")
    if target.ratio and find_mlp_ratio(config) is None:
        words.append(f"mlp_width={config.mlp_width} beside width={config.width}")
    if target.ratio and config.mlp != "plain" and config.activation != "SiLU":
        words.append(f"activation={config.activation!r} of a gated MLP")
    return words


def uses_gated_table(target: TransformersTarget, config: ViTConfig) -> bool:
    """Whether the model goes to the table with a gated MLP."""
    return target.ratio and config.mlp != "plain"


def find_mlp_ratio(config: ViTConfig) -> int | None:
    """The whole number from which DINOv2's code computes the MLP's width, of a gated one two thirds and rounded up."""
    for ratio in range(1, 65):
        plain = config.width * ratio
        if config.mlp_width == (plain if config.mlp == "plain" else (int(plain * 2 / 3) + 7) // 8 * 8):
            return ratio
    return None


# A folder that transformers opens: config.json, model.safetensors in the names of its files,
# preprocessor_config.json.
#
# The architecture is the first of transformers' that holds the model: ViT, DeiT, I-JEPA, DINOv2, DINOv2 with
# registers, SigLIP, CLIP, DINOv3. Features without a head are a ViTMSNModel, which is a ViTModel without its tanh
# layer.

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
"""The tables of transformers' names."""


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
        info: licence and repository of the weights, where they are known, which config.json keeps.

    Raises:
        UsageError: transformers has no architecture for the model, or no processor for its pictures; the message names
            the part. Or the pictures or the names do not fit the model, or the folder exists.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    _check_transformers_fits(model, spec, classes)
    target, pictures = choose_target(model), make_processor_config(spec)
    config, state = drop_size_settings(model.config, model.state_dict())
    if config.patches == "linear":  # SigLIP's table would make it a NaFlex model
        config, state = _to_convolution(config, state)
    layout = TRANSFORMERS_LAYOUTS[target.variant + ("-gated" if uses_gated_table(target, config) else "")]
    stated = {"norm_eps": config.norm_eps, "activation": config.activation, "head": config.head}
    names = write_names(state, config, layout, stated)
    content = {**make_transformers_config(target, config, task, classes), **make_origin_fields(info)}
    with atomic.write_folder(Path(folder)) as inside:
        atomic.write_json(inside / "config.json", content)
        atomic.write_json(inside / "preprocessor_config.json", pictures)
        safetensors_file.save_tensors(inside / "model.safetensors", names, {"format": "pt"}, checksum=True)


def choose_target(model: ViT) -> TransformersTarget:
    """The architecture of transformers that holds the model.

    Raises:
        UsageError: there is none; the parts that the nearest one lacks are named.
    """
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


def _check_transformers_fits(model: ViT, spec: ImageSpec, classes: tuple[str, ...]) -> None:
    config = model.config
    if (spec.size, spec.channels) != (config.image_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.image_size} pixels and {config.channels} channels. "
            f"Got {spec.size} and {spec.channels}."
        )
    if classes and len(classes) != config.outputs:
        raise UsageError(f"Every one of the model's {config.outputs} outputs needs a name. Got {len(classes)} names.")


def _to_convolution(config: ViTConfig, state: StateDict) -> ConfigAndState:
    weight = state["tokens.patches.weight"].reshape(config.width, config.channels, *config.patch)
    return replace(config, patches="conv"), {**state, "tokens.patches.weight": weight}


# config.json of a model in transformers' words.

ACTIVATION_WORDS = {
    "GELU": "gelu",
    "GELUTanh": "gelu_pytorch_tanh",
    "QuickGELU": "quick_gelu",
    "ReLU": "relu",
    "LeakyReLU": "leaky_relu",
    "SiLU": "silu",
    "Mish": "mish",
    "Tanh": "tanh",
}
"""Our words for activations, and transformers'."""
PROBLEM_TYPES = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "number": "regression",
}
"""Our words for tasks, and transformers'."""


def make_transformers_config(
    target: TransformersTarget, config: ViTConfig, task: str, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The content of config.json."""
    model = {"model_type": target.model_type, **_size_fields(config), **_model_type_fields(target, config)}
    if target.model_type == "clip":
        model = {"model_type": "clip", "vision_config": {**model, "model_type": "clip_vision_model"}}
    return {"architectures": [target.architecture], "dtype": "float32", **model, **_label_fields(config, task, classes)}


def _size_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": ACTIVATION_WORDS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "image_size": _collapse_pair(config.image_size),
        "patch_size": _collapse_pair(config.patch),
        "num_channels": config.channels,
        "initializer_range": 0.02,
    }


def _model_type_fields(target: TransformersTarget, config: ViTConfig) -> dict[str, Any]:
    """What only this kind of model says."""
    mlp: dict[str, Any] = {"intermediate_size": config.mlp_width}
    match target.model_type:
        case "siglip_vision_model":
            return {**mlp, "attention_dropout": config.attention_dropout, "vision_use_head": True}
        case "clip" | "clip_vision_model":
            return {
                **mlp,
                "attention_dropout": config.attention_dropout,
                "projection_dim": config.outputs or config.width,
            }
        case "dinov3_vit":
            return {**mlp, **_dinov3_fields(config)}
        case "dinov2" | "dinov2_with_registers":
            mlp = {
                "mlp_ratio": find_mlp_ratio(config),
                "use_swiglu_ffn": config.mlp != "plain",
                "layerscale_value": 1.0,
            }
    registers = {"num_register_tokens": config.registers} if target.model_type == "dinov2_with_registers" else {}
    return {
        **mlp,
        **registers,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _dinov3_fields(config: ViTConfig) -> dict[str, Any]:
    return {
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


def _label_fields(config: ViTConfig, task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """The names of the outputs; transformers counts them from this list."""
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


# preprocessor_config.json of transformers that prepares pictures as an `ImageSpec` does.


def make_processor_config(spec: ImageSpec) -> dict[str, Any]:
    """The content of the file.

    squash is a resize to both sides, then the centre if only a fraction is kept; crop a resize of the short side, then
    the centre; pad a resize to what fits, then the centre of something larger, which transformers fills with black; it
    rounds the inner size down and we to the nearest, so that a row of pixels may differ. Stored ranges other than
    0..255 are a matter of decoding and stand in no processor.

    Raises:
        UsageError: a crop that is not square, which transformers cannot say.
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
