"""Which architectures of transformers Vitrail writes, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model.config import FIXED_POSITIONS, ViTConfig
from ..families.hf_common import ACTIVATIONS

USUAL: Mapping[str, tuple[object, ...]] = {
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
COUNTS = ("registers", "outputs", "layer_scale")
"""Of these only counts whether there are any."""
NONE, SOME, EITHER = (False,), (True,), (False, True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
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


_DEIT = {"distillation_token": SOME}
_IJEPA = {"class_token": NONE, "pool": ("mean",)}
_DINOV2 = {"layer_scale": EITHER, "mlp": ("plain", "gated", "gated-packed")}
_REGISTERS = {**_DINOV2, "registers": SOME}
_POOLS = {"pool": ("class", "mean", "class+mean")}
_CLIP = {"patch_bias": NONE, "pre_norm": SOME, "final_norm": NONE}
_FEATURES = {"outputs": NONE}
# fmt: off
TARGETS = (
    Target(model_type="vit", architecture="ViTForImageClassification", variant="vit"),
    Target(model_type="vit", architecture="ViTModel", variant="vit", has={**_FEATURES, "head": ("tanh",)}),
    Target(model_type="vit_msn", architecture="ViTMSNModel", variant="vit", has=_FEATURES),
    Target(model_type="deit", architecture="DeiTForImageClassification", variant="deit", has=_DEIT),
    Target(model_type="deit", architecture="DeiTForImageClassificationWithTeacher", variant="deit-teacher",
           has={**_DEIT, "distillation_head": SOME}),
    Target(model_type="deit", architecture="DeiTModel", variant="deit", has={**_DEIT, **_FEATURES, "head": ("tanh",)}),
    Target(model_type="ijepa", architecture="IJepaForImageClassification", variant="ijepa", has=_IJEPA),
    Target(model_type="ijepa", architecture="IJepaModel", variant="ijepa", has={**_IJEPA, **_FEATURES}),
    Target(model_type="dinov2", architecture="Dinov2ForImageClassification", variant="dinov2",
           has={**_DINOV2, **_POOLS}, square=True, ratio=True),
    Target(model_type="dinov2", architecture="Dinov2Model", variant="dinov2", has={**_DINOV2, **_FEATURES},
           square=True, ratio=True),
    Target(model_type="dinov2_with_registers", architecture="Dinov2WithRegistersForImageClassification",
           variant="dinov2_with_registers", has={**_REGISTERS, **_POOLS}, square=True, ratio=True),
    Target(model_type="dinov2_with_registers", architecture="Dinov2WithRegistersModel",
           variant="dinov2_with_registers", has={**_REGISTERS, **_FEATURES}, square=True, ratio=True),
    Target(model_type="siglip_vision_model", architecture="SiglipVisionModel", variant="siglip",
           has={**_FEATURES, "class_token": NONE, "pool": ("attention",)}, square=True),
    Target(model_type="clip_vision_model", architecture="CLIPVisionModelWithProjection", variant="clip",
           has={**_CLIP, "pooled_norm": SOME, "head_bias": NONE}, square=True),
    Target(model_type="clip_vision_model", architecture="CLIPVisionModel", variant="clip",
           has={**_CLIP, **_FEATURES, "pooled_norm": SOME}, square=True),
    Target(model_type="clip", architecture="CLIPForImageClassification", variant="clip-classifier",
           has={**_CLIP, "pool": ("mean",)}, square=True),
    Target(model_type="dinov3_vit", architecture="DINOv3ViTModel", variant="dinov3",
           has={**_DINOV2, **_FEATURES, "registers": SOME, "positions": ("none",), "rotary": ("dinov3",)}),
)
# fmt: on
"""In the order in which they are tried."""


def misfits(target: Target, config: ViTConfig) -> list[str]:
    """What of a model the architecture cannot express, in words."""
    settings: dict[str, Any] = {name: getattr(config, name) for name in {**USUAL, **target.has}}
    found = {**settings, **{name: bool(settings[name]) for name in COUNTS}}
    found["layer_scale"] = config.layer_scale is not None
    allowed = {**USUAL, **target.has}
    words = [f"{name}={settings[name]!r}" for name, values in allowed.items() if found[name] not in values]
    if target.square and len({*config.image_size}) > 1:
        words.append(f"image_size={config.image_size}, which is not square")
    if target.square and not target.ratio and len({*config.patch}) > 1:
        words.append(f"patch={config.patch}, which is not square")
    if target.ratio and mlp_ratio(config) is None:
        words.append(f"mlp_width={config.mlp_width} beside width={config.width}")
    if target.ratio and config.mlp != "plain" and config.activation != "SiLU":
        words.append(f"activation={config.activation!r} of a gated MLP")
    return words


def gated(target: Target, config: ViTConfig) -> bool:
    """Whether the model goes to the table with a gated MLP."""
    return target.ratio and config.mlp != "plain"


def mlp_ratio(config: ViTConfig) -> int | None:
    """The whole number from which DINOv2's code computes the MLP's width, of a gated one two thirds and rounded up."""
    for ratio in range(1, 65):
        plain = config.width * ratio
        if config.mlp_width == (plain if config.mlp == "plain" else (int(plain * 2 / 3) + 7) // 8 * 8):
            return ratio
    return None
