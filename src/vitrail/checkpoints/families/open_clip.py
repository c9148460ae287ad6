"""`open-clip`: picture towers of OpenCLIP, its own or those of timm under `visual.trunk.`, in a whole model or alone.

`open_clip_config.json` beside the file says what no tensor does: QuickGELU or GELU, the width of a head, the pooling.
Without it the activation must be told in `settings`: most models have GELU, those with "quickgelu" in their name and
the ones that continue OpenAI's weights QuickGELU, and the outputs of the two differ by 1e-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import Activation, Pool, ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout
from ..shapes import agree, given, has
from ..told import Told
from .clip_common import DECISIVE, VISUAL, check_outputs, rules, tower_settings
from .open_clip_timm import TIMM_LAYOUTS

POOLS: dict[str, Pool] = {"tok": "class", "avg": "mean"}
"""OpenCLIP's words for pooling, and ours."""
PUBLISHED = {384: 6, 512: 8, 640: 10, 768: 12, 896: 14, 1024: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
"""Heads of the published sizes by their width."""
Said = Mapping[str, Any]


def describe(prefix: str, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. The outputs are the vector that is compared with the words'.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or it and the
            configuration beside it disagree.
        UsageError: activation, heads or a size must be told, or an argument contradicts the file.
    """
    model, vision = _said(told)
    settings = tower_settings(prefix, tensors, _with_size(told, vision))
    check_outputs(told, settings["outputs"], f"{prefix}proj")
    late = bool(vision.get("final_ln_after_pool"))
    pool = vision.get("pool_type", "tok")
    if pool not in POOLS:
        raise UsageError(f"open_clip_config.json says pool_type={pool!r}. Known: {', '.join(POOLS)}.")
    if any(vision.get(part) for part in ("attentional_pool", "block_type", "qk_norm", "scaled_cosine_attn")):
        raise UsageError("open_clip_config.json asks for a block or a pooling that a plain Vision Transformer has not.")
    scaled = has(
        tensors, f"{prefix}transformer.resblocks.{{i}}.ls_1.gamma", f"{prefix}transformer.resblocks.{{i}}.ls_2.gamma"
    )
    config = ViTConfig(
        **settings,
        heads=_heads(told, vision, settings["width"]),
        pool=POOLS[pool],
        final_norm=not late,
        pooled_norm=late,
        layer_scale=(vision.get("ls_init_value") or 1e-5) if scaled else None,
        activation=_activation(told, model, vision),
    )
    config = replace(config, **told.numerics("open_clip"))
    eps = _option(vision, "norm_kwargs", "eps")
    return replace(config, norm_eps=eps) if isinstance(eps, float) and "norm_eps" not in told.settings else config


def _said(told: Told) -> tuple[Said, Said]:
    """The model's part of open_clip_config.json and the picture tower's part of that, or nothing."""
    model = told.foreign.get("model_cfg", {})
    vision = model.get("vision_cfg", {}) if isinstance(model, Mapping) else None
    if not isinstance(vision, Mapping):
        raise DamagedFileError("open_clip_config.json must hold model_cfg with vision_cfg in it. Use another copy.")
    return model, vision


def _with_size(told: Told, vision: Said) -> Told:
    """What is told, with the picture size of the configuration where the caller says none."""
    size = vision.get("image_size")
    if size is None or "image_size" in told.settings:
        return told
    both = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list) else ()
    if len(both) != 2 or not all(isinstance(side, int) for side in both):
        raise DamagedFileError(f"open_clip_config.json: image_size must be one or two whole numbers. Got {size!r}.")
    return replace(told, settings={**told.settings, "image_size": both})


def _heads(told: Told, vision: Said, width: int) -> int:
    if vision:
        per_head = vision.get("head_width", 64)
        if not isinstance(per_head, int) or per_head < 1 or width % per_head:
            raise DamagedFileError(
                f"open_clip_config.json: head_width must be a whole number that divides {width}. Got {per_head!r}."
            )
        return agree(told.heads, width // per_head, "heads", "open_clip_config.json")
    sizes = ", ".join(f"{width} wide {heads}" for width, heads in PUBLISHED.items())
    known = PUBLISHED.get(width) if told.heads is None else told.heads
    return given(known, "heads", "open-clip without open_clip_config.json", f"published sizes have: {sizes}")


def _option(vision: Said, group: str, name: str) -> object:
    """One of the keyword arguments that the configuration gives to a part of the tower; None if nothing."""
    arguments = vision.get(group) or {}
    if not isinstance(arguments, Mapping):
        raise DamagedFileError(f"open_clip_config.json: {group} must hold arguments by name. Got {arguments!r}.")
    return arguments.get(name)


def _activation(told: Told, model: Said, vision: Said) -> Activation:
    if "activation" in told.settings:
        activation: Activation = told.settings["activation"]
        return activation
    if not model:
        kind = "open-clip without open_clip_config.json"
        return given(None, "activation", kind, 'in settings: "GELU" for most models, "QuickGELU" for those named so')
    if model.get("quick_gelu"):
        return "QuickGELU"
    return "GELUTanh" if _option(vision, "act_kwargs", "approximate") == "tanh" else "GELU"


LAYOUTS = (
    *(
        Layout(
            name="open-clip",
            variant=variant,
            decisive=tuple(prefix + name for name in DECISIVE),
            absent=("input_resolution", "*attn_pool*"),
            model_types=("open_clip",),
            rules=rules(prefix),
            describe=partial(describe, prefix),
            card="open_clip",
            published=PUBLISHED_SIZES,
        )
        for variant, prefix in (("", VISUAL), ("tower", ""))
    ),
    *TIMM_LAYOUTS,
)
