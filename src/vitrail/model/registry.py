"""The table of named models: timm's names, sizes for small images, and the designs of published tutorials."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import UsageError
from .config import MLPKind, ViTConfig


@dataclass(frozen=True)
class ModelSize:
    """One row of a table of sizes."""

    width: int
    depth: int
    mlp_width: int
    heads: int
    mlp: MLPKind = "plain"


@dataclass(frozen=True)
class ModelFamily:
    """What a published family changes in the plain design."""

    config: ViTConfig
    """Everything but the sizes."""
    pixels: int | None = None
    """Height and width where a name gives none."""
    sizes: Mapping[str, ModelSize] = field(default_factory=dict)
    """Sizes that only this family has, or that mean something else in it."""
    outputs: Mapping[str, int] | None = None
    """Outputs by size; where given, the family has no other sizes."""
    excluded_sizes: tuple[str, ...] = ()
    """Sizes that timm's models of this name build from other parts."""


_GAP = ViTConfig(class_token=False, pool="mean")
_DINOV2 = ViTConfig(outputs=0, layer_scale=1e-5, resample="bicubic-offset", init="dinov2")
_DINOV3 = ViTConfig(
    outputs=0, positions="none", rotary="dinov3", registers=4, qkv_bias=False, norm_eps=1e-5, layer_scale=1e-5,
    init="dinov2",
)  # fmt: skip
_SIGLIP = ViTConfig(
    outputs=0, class_token=False, pool="attention", activation="GELUTanh", resample="bilinear-corners", init="jax",
)  # fmt: skip
_CLIP = ViTConfig(pre_norm=True, patch_bias=False, head_bias=False, norm_eps=1e-5)
_DEIT = ViTConfig(resample="bicubic")
_T2T = ViTConfig(patches="t2t-performer", positions="sinusoid", qkv_bias=False, norm_eps=1e-5)

# Sources: facebookresearch/dinov3 `hub/backbones.py`, dinov2 and dinov3 `models/vision_transformer.py`.
# fmt: off
_DINOV2_SIZES = {"giant": ModelSize(1536, 40, 4096, 24, "gated-packed")}
_DINOV3_SIZES = {
    "small_plus": ModelSize(384, 12, 1536, 6, "gated"),
    "large_plus": ModelSize(1024, 24, 4096, 16, "gated"),
    "so400m":     ModelSize(1152, 27, 4352, 18),
    "huge_plus":  ModelSize(1280, 32, 5120, 20, "gated"),
    "giant2":     ModelSize(1536, 40, 6144, 24),
    "7b":         ModelSize(4096, 40, 8192, 32, "gated"),
}
_CLIP_OUTPUTS = {"base": 512, "large": 768, "huge": 1024, "giant": 1024, "gigantic": 1280}  # CLIP's common space

DESIGNS = {
    "vit":                ModelFamily(ViTConfig()),
    "vit_gap":            ModelFamily(_GAP, excluded_sizes=("medium",)),
    "vit_dinov2":         ModelFamily(_DINOV2, 518, _DINOV2_SIZES),
    "vit_dinov3":         ModelFamily(_DINOV3, 256, _DINOV3_SIZES),
    "vit_dinov3_qkvb":    ModelFamily(replace(_DINOV3, qkv_bias=True, key_bias=False), 256, _DINOV3_SIZES),
    "vit_siglip":         ModelFamily(_SIGLIP),
    "vit_siglip_gap":     ModelFamily(replace(_SIGLIP, pool="mean")),
    "vit_clip":           ModelFamily(_CLIP, outputs=_CLIP_OUTPUTS),
    "vit_clip_quickgelu": ModelFamily(replace(_CLIP, activation="QuickGELU"), outputs=_CLIP_OUTPUTS),
    "deit":               ModelFamily(_DEIT),
    "deit_distilled":     ModelFamily(replace(_DEIT, distillation_token=True, distillation_head=True)),
    "deit3":              ModelFamily(replace(_DEIT, class_position=False, layer_scale=1e-6)),
}
"""By timm's name without its sizes: vit_SIZE_patchP_clip_PIXELS is vit_clip, deit_SIZE_distilled_patchP_PIXELS is
deit_distilled."""

_T2T_SIZES = {
    7:  ModelSize(256, 7, 512, 4),
    10: ModelSize(256, 10, 512, 4),
    12: ModelSize(256, 12, 512, 4),
    14: ModelSize(384, 14, 1152, 6),
    19: ModelSize(448, 19, 1344, 7),
    24: ModelSize(512, 24, 1536, 8),
}
# fmt: on


def apply_size(config: ViTConfig, size: ModelSize) -> ViTConfig:
    """The design in a size; a gated MLP brings its own activation."""
    activation = config.activation if size.mlp == "plain" else "SiLU"
    return replace(
        config, width=size.width, depth=size.depth, heads=size.heads, mlp_width=size.mlp_width, mlp=size.mlp,
        activation=activation,
    )  # fmt: skip


T2T_MODELS = {f"t2t_vit_{depth}": apply_size(_T2T, size) for depth, size in _T2T_SIZES.items()} | {
    f"t2t_vit_t_{depth}": apply_size(replace(_T2T, patches="t2t-transformer"), _T2T_SIZES[depth])
    for depth in (14, 19, 24)
}
"""The nine published Tokens-to-Token architectures, performer and (t) transformer."""


# Sources: the ViT paper's table 1 and big_vision's decode_variant; femto to micro are ours, for small images.
# fmt: off
SIZES = {
    "femto":   ModelSize(64, 4, 128, 2),
    "pico":    ModelSize(96, 4, 192, 3),
    "nano":    ModelSize(128, 6, 512, 4),
    "micro":   ModelSize(192, 9, 384, 6),
    "mu":      ModelSize(32, 1, 128, 2),
    "tiny":    ModelSize(192, 12, 768, 3),
    "small":   ModelSize(384, 12, 1536, 6),
    "medium":  ModelSize(512, 12, 2048, 8),
    "base":    ModelSize(768, 12, 3072, 12),
    "large":   ModelSize(1024, 24, 4096, 16),
    "so400m":  ModelSize(1152, 27, 4304, 16),
    "huge":    ModelSize(1280, 32, 5120, 16),
    "giant":   ModelSize(1408, 40, 6144, 16),
    "giantopt": ModelSize(1536, 40, 6144, 16),
    "gigantic": ModelSize(1664, 48, 8192, 16),
    "giganticopt": ModelSize(1536, 48, 8192, 16),
    "enormous": ModelSize(1792, 56, 15360, 16),
}
# fmt: on

SMALL_IMAGE_SIZES = ("femto", "pico", "nano", "micro")
_NAME = re.compile(
    r"(?P<family>vit|deit|deit3)_(?P<size>[a-z0-9]+(_plus)?)(_(?P<distilled>distilled))?_patch(?P<patch>\d+)"
    r"(_reg(?P<registers>\d+))?(_(?P<design>[a-z][a-z0-9]*(_[a-z]+)?))?(_(?P<height>\d+)(x(?P<width>\d+))?)?"
)

_CIFAR = ViTConfig(
    image_size=(32, 32), patch=(8, 8), outputs=10, patches="linear", class_token=False, positions="indexed",
    norm_eps=1e-5, final_norm=False, pool="mean", attention_dropout=0.1, mlp_dropout=0.1, init="torch",
)  # fmt: skip

# The designs that the project began from, exactly; each published as an article with its own checkpoint layout.
PRESETS = {
    "blog_vit_base_patch16_224": ViTConfig(norm_eps=1e-5, dropout=0.1, mlp_dropout=0.1, init="torch"),
    "cifar_vit_small_patch8_32": replace(_CIFAR, width=256, depth=2, heads=2, mlp_width=256),
    "cifar_vit_base_patch8_32": _CIFAR,
    "explained_vit_patch20_60x100": ViTConfig(
        image_size=(60, 100), patch=(20, 20), channels=1, heads=1, outputs=1, patches="linear",
        positions="sinusoid", qkv_bias=False, norm_eps=1e-5,
    ),
    "xray_vit_patch16_224": ViTConfig(
        channels=1, depth=6, heads=8, mlp_width=1024, outputs=10, patches="linear", positions="none",
        rotary="from-one", norm_eps=1e-5, final_norm=False, init="torch",
    ),
}  # fmt: skip


def config_from_name(name: str) -> ViTConfig:
    """The configuration behind a name such as vit_tiny_patch16_224, vit_base_patch14_reg4_dinov2 or t2t_vit_14.

    Names are timm's. A plain vit_SIZE_patchP_PIXELS is the paper's design with a class token and a learned table; the
    sizes for small images (femto, pico, nano, micro) pool over patches and add rotary positions. `regR` adds R
    registers and leaves the class token without a position, as timm does. Other parts of a name: see `DESIGNS`.

    Raises:
        UsageError: no such name; the nearest ones are listed.
    """
    config = PRESETS.get(name) or T2T_MODELS.get(name) or _config_from_parts(name)
    if config is None:
        near = difflib.get_close_matches(name, example_names(), n=3, cutoff=0.3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"There is no model named {name!r}. Names read vit_SIZE_patchP_PIXELS or ..._HEIGHTxWIDTH with SIZE one of "
            f"{', '.join(SIZES)}, and the families {', '.join(DESIGNS)} as timm writes them, or are one of "
            f"{', '.join([*T2T_MODELS, *PRESETS])}.{hint}"
        )
    return config


def _config_from_parts(name: str) -> ViTConfig | None:
    """The configuration of a name by its parts; None if one of them is unknown."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key = "_".join(filter(None, (match["family"], match["distilled"], match["design"])))
    design = DESIGNS.get(key)
    if design is None or match["size"] in design.excluded_sizes:
        return None
    size = design.sizes.get(match["size"]) or SIZES.get(match["size"])
    pixels = match["height"] or design.pixels
    if size is None or pixels is None or (design.outputs is not None and match["size"] not in design.outputs):
        return None
    config = replace(
        apply_size(design.config, size),
        image_size=(int(pixels), int(match["width"] or pixels)), patch=(int(match["patch"]),) * 2,
        outputs=design.config.outputs if design.outputs is None else design.outputs[match["size"]],
    )  # fmt: skip
    if match["registers"]:
        config = replace(config, registers=int(match["registers"]), class_position=False, resample="bicubic-antialias")
    return apply_small_image_defaults(config) if key == "vit" and match["size"] in SMALL_IMAGE_SIZES else config


def apply_small_image_defaults(config: ViTConfig) -> ViTConfig:
    """The parts that learn fastest from few small images, for a given shape (trials: EXPERIMENTS.md)."""
    return replace(
        config, patches="linear", class_token=False, positions="learned", rotary="axial", pool="mean", init="vitrail",
    )  # fmt: skip


def example_names() -> tuple[str, ...]:
    """Names for help texts and suggestions: the usual sizes and every preset."""
    usual = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vit_base_patch32_224")
    large = ("vit_large_patch16_224", "vit_huge_patch14_224", "vit_giant_patch14_224", "vit_gigantic_patch14_224")
    small = (
        "vit_femto_patch2_8",
        "vit_pico_patch4_28",
        "vit_nano_patch4_28",
        "vit_nano_patch4_32",
        "vit_micro_patch4_32",
    )
    deit = ("deit_base_distilled_patch16_224", "deit3_base_patch16_224")
    dino = ("vit_small_patch14_dinov2", "vit_base_patch14_reg4_dinov2", "vit_small_patch16_dinov3_qkvb")
    other = ("vit_base_patch16_siglip_224", "vit_base_patch16_clip_224", "t2t_vit_14")
    return usual + large + small + deit + dino + other + tuple(PRESETS)
