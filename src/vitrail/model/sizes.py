"""The table of named sizes: timm's names, sizes for small pictures, and the four teaching designs as presets."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from ..errors import UsageError
from .config import ViTConfig
from .designs import DESIGNS, T2T, Design, Size, sized

# Sources: the ViT paper's table 1 and big_vision's decode_variant; femto to micro are ours, for small pictures.
# fmt: off
SIZES = {
    "femto":   Size(64, 4, 128, 2),
    "pico":    Size(96, 4, 192, 3),
    "nano":    Size(128, 6, 512, 4),
    "micro":   Size(192, 9, 384, 6),
    "mu":      Size(32, 1, 128, 2),
    "tiny":    Size(192, 12, 768, 3),
    "small":   Size(384, 12, 1536, 6),
    "medium":  Size(512, 12, 2048, 8),
    "base":    Size(768, 12, 3072, 12),
    "large":   Size(1024, 24, 4096, 16),
    "so400m":  Size(1152, 27, 4304, 16),
    "huge":    Size(1280, 32, 5120, 16),
    "giant":   Size(1408, 40, 6144, 16),
    "giantopt": Size(1536, 40, 6144, 16),
    "gigantic": Size(1664, 48, 8192, 16),
    "giganticopt": Size(1536, 48, 8192, 16),
    "enormous": Size(1792, 56, 15360, 16),
}
# fmt: on

SMALL_PICTURES = ("femto", "pico", "nano", "micro")
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


def named(name: str) -> ViTConfig:
    """The configuration behind a name such as vit_tiny_patch16_224, vit_base_patch14_reg4_dinov2 or t2t_vit_14.

    Names are timm's. The small-picture sizes (femto, pico, nano, micro) pool over patches and turn queries and keys
    besides adding a learned table; a plain vit_SIZE_patchP_PIXELS is the paper's design with a class token and a
    learned table; what other parts of a name change stands in model/designs.py. `regR` adds R registers and leaves the
    class token without a position, as timm does.

    Raises:
        UsageError: no such name; the nearest ones are listed.
    """
    if name in PRESETS or name in T2T:
        return PRESETS[name] if name in PRESETS else T2T[name]
    config = _from_parts(name)
    if config is None:
        near = difflib.get_close_matches(name, examples(), n=3, cutoff=0.3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"There is no model named {name!r}. Names read vit_SIZE_patchP_PIXELS or ..._HEIGHTxWIDTH with SIZE one of "
            f"{', '.join(SIZES)}, and the families {', '.join(DESIGNS)} as timm writes them, or are one of "
            f"{', '.join([*T2T, *PRESETS])}.{hint}"
        )
    return config


def _from_parts(name: str) -> ViTConfig | None:
    """The configuration that the parts of a name add up to, if they do."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key = "_".join(filter(None, (match["family"], match["distilled"], match["design"])))
    design = DESIGNS.get(key)
    size = None if design is None else _size(match["size"], design)
    pixels = match["height"] or (design.pixels if design else None)
    if design is None or size is None or pixels is None:
        return None
    config = replace(
        sized(design.config, size),
        image_size=(int(pixels), int(match["width"] or pixels)), patch=(int(match["patch"]),) * 2,
        outputs=design.config.outputs if design.outputs is None else design.outputs[match["size"]],
    )  # fmt: skip
    if match["registers"]:
        config = replace(config, registers=int(match["registers"]), class_position=False, resample="bicubic-antialias")
    return small_picture_parts(config) if key == "vit" and match["size"] in SMALL_PICTURES else config


def _size(name: str, design: Design) -> Size | None:
    """A size by its name in a family."""
    if name in design.without or (design.outputs is not None and name not in design.outputs):
        return None
    return design.sizes.get(name) or SIZES.get(name)


def small_picture_parts(config: ViTConfig) -> ViTConfig:
    """The parts that learn fastest from few small pictures, on a given shape (EXPERIMENTS.md has the trials)."""
    return replace(
        config, patches="linear", class_token=False, positions="learned", rotary="axial", pool="mean", init="vitrail",
    )  # fmt: skip


def examples() -> tuple[str, ...]:
    """Names worth showing to a person: the usual sizes and every preset."""
    usual = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vit_base_patch32_224")
    large = ("vit_large_patch16_224", "vit_huge_patch14_224", "vit_giant_patch14_224", "vit_gigantic_patch14_224")
    small = (
        "vit_femto_patch2_8",
        "vit_pico_patch4_28",
        "vit_nano_patch4_28",
        "vit_nano_patch4_32",
        "vit_micro_patch4_32",
    )
    families = (
        "deit_base_distilled_patch16_224",
        "deit3_base_patch16_224",
        "vit_small_patch14_dinov2",
        "vit_base_patch14_reg4_dinov2",
        "vit_small_patch16_dinov3_qkvb",
        "vit_base_patch16_siglip_224",
        "vit_base_patch16_clip_224",
        "t2t_vit_14",
    )
    return usual + large + small + families + tuple(PRESETS)
