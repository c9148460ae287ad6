"""What each published family changes in the plain design: one configuration each, whose sizes a name fills in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .config import MLPKind, ViTConfig


@dataclass(frozen=True)
class Size:
    """One row of a table of sizes: what a size's name stands for."""

    width: int
    depth: int
    mlp_width: int
    heads: int
    mlp: MLPKind = "plain"


@dataclass(frozen=True)
class Design:
    """A family of models."""

    config: ViTConfig
    """Everything but the sizes."""
    pixels: int | None = None
    """Height and width where a name gives none."""
    sizes: Mapping[str, Size] = field(default_factory=dict)
    """Sizes that only this family has, or that mean something else in it."""
    outputs: Mapping[str, int] | None = None
    """Outputs by size, and with them the only sizes there are."""
    without: tuple[str, ...] = ()
    """Sizes whose models of this name have other parts."""


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
_DINOV2_SIZES = {"giant": Size(1536, 40, 4096, 24, "gated-packed")}
_DINOV3_SIZES = {
    "small_plus": Size(384, 12, 1536, 6, "gated"),
    "large_plus": Size(1024, 24, 4096, 16, "gated"),
    "so400m":     Size(1152, 27, 4352, 18),
    "huge_plus":  Size(1280, 32, 5120, 20, "gated"),
    "giant2":     Size(1536, 40, 6144, 24),
    "7b":         Size(4096, 40, 8192, 32, "gated"),
}
_PROJECTED = {"base": 512, "large": 768, "huge": 1024, "giant": 1024, "gigantic": 1280}  # CLIP's common space

DESIGNS = {
    "vit":                Design(ViTConfig()),
    "vit_gap":            Design(_GAP, without=("medium",)),
    "vit_dinov2":         Design(_DINOV2, 518, _DINOV2_SIZES),
    "vit_dinov3":         Design(_DINOV3, 256, _DINOV3_SIZES),
    "vit_dinov3_qkvb":    Design(replace(_DINOV3, qkv_bias=True, key_bias=False), 256, _DINOV3_SIZES),
    "vit_siglip":         Design(_SIGLIP),
    "vit_siglip_gap":     Design(replace(_SIGLIP, pool="mean")),
    "vit_clip":           Design(_CLIP, outputs=_PROJECTED),
    "vit_clip_quickgelu": Design(replace(_CLIP, activation="QuickGELU"), outputs=_PROJECTED),
    "deit":               Design(_DEIT),
    "deit_distilled":     Design(replace(_DEIT, distillation_token=True, distillation_head=True)),
    "deit3":              Design(replace(_DEIT, class_position=False, layer_scale=1e-6)),
}
"""By timm's name without its sizes: vit_SIZE_patchP_clip_PIXELS is vit_clip, deit_SIZE_distilled_patchP_PIXELS is
deit_distilled."""

_T2T_SIZES = {
    7:  Size(256, 7, 512, 4),
    10: Size(256, 10, 512, 4),
    12: Size(256, 12, 512, 4),
    14: Size(384, 14, 1152, 6),
    19: Size(448, 19, 1344, 7),
    24: Size(512, 24, 1536, 8),
}
# fmt: on


def sized(config: ViTConfig, size: Size) -> ViTConfig:
    """The design in a size; a gated MLP brings its own activation."""
    activation = config.activation if size.mlp == "plain" else "SiLU"
    return replace(
        config, width=size.width, depth=size.depth, heads=size.heads, mlp_width=size.mlp_width, mlp=size.mlp,
        activation=activation,
    )  # fmt: skip


T2T = {f"t2t_vit_{depth}": sized(_T2T, size) for depth, size in _T2T_SIZES.items()} | {
    f"t2t_vit_t_{depth}": sized(replace(_T2T, patches="t2t-transformer"), _T2T_SIZES[depth]) for depth in (14, 19, 24)
}
"""The nine published Tokens-to-Token architectures, performer and (t) transformer."""
