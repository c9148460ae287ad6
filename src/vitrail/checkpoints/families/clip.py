"""Layouts of CLIP image towers: `open-clip` (OpenCLIP's own towers and timm's) and `openai-clip`.

A tower may stand alone or in a whole model. There it lies under `visual.`, and the text tower lies beside it under the
same names without that prefix, so the prefix is part of every rule here.

`open_clip_config.json` beside the file gives what no tensor does: QuickGELU or GELU, the width of a head, the pooling.
Without it the activation must be given in `settings`. Most models have GELU; those with "quickgelu" in their name and
those that continue OpenAI's weights have QuickGELU. The outputs of the two differ by 1e-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import Activation, Pool, ViTConfig
from ..layouts import FLAT, KERNEL, PUBLISHED_SIZES, TRANSPOSED, IgnoreRule, Layout, LayoutHints, NameRule, Rule
from ..validate import (
    choose_heads,
    count_blocks,
    has_tensor,
    infer_image_size,
    majority_length,
    reconcile,
    require_argument,
    require_tensor,
)
from . import timm, timm_eva_naflex

# -- Shared by OpenAI's and OpenCLIP's own towers

VISUAL_PREFIX = "visual."
"""Prefix of every name of the image tower in a whole model."""
# fmt: off
CLIP_NAMES = {  # theirs                              ours
    "positional_embedding":                           "positions.table",
    "ln_pre.{p}":                                     "encoder.pre_norm.{p}",
    "transformer.resblocks.{i}.ln_1.{p}":             "encoder.blocks.{i}.norm1.{p}",
    "transformer.resblocks.{i}.attn.in_proj_weight":  "encoder.blocks.{i}.attention.qkv.weight",
    "transformer.resblocks.{i}.attn.in_proj_bias":    "encoder.blocks.{i}.attention.qkv.bias",
    "transformer.resblocks.{i}.attn.out_proj.{p}":    "encoder.blocks.{i}.attention.out.{p}",
    "transformer.resblocks.{i}.ls_1.gamma":           "encoder.blocks.{i}.scale1",
    "transformer.resblocks.{i}.ln_2.{p}":             "encoder.blocks.{i}.norm2.{p}",
    "transformer.resblocks.{i}.mlp.c_fc.{p}":         "encoder.blocks.{i}.mlp.fc1.{p}",
    "transformer.resblocks.{i}.mlp.c_proj.{p}":       "encoder.blocks.{i}.mlp.fc2.{p}",
    "transformer.resblocks.{i}.ls_2.gamma":           "encoder.blocks.{i}.scale2",
    "ln_post.{p}":                                    "encoder.norm.{p}",
}
# fmt: on
CLIP_REQUIRED_NAMES = ("conv1.weight", "class_embedding", "positional_embedding", "ln_post.weight")
TEXT_TOWER_NAMES = (
    "transformer.*",
    "token_embedding.weight",
    "positional_embedding",
    "ln_final.*",
    "text_projection*",
    "attn_mask",
    "text.*",
    "text_decoder.*",
)
TEXT_TOWER_RULES: tuple[Rule, ...] = (
    *(IgnoreRule(name, reason="the text tower") for name in TEXT_TOWER_NAMES),
    IgnoreRule("logit_*", reason="temperature and bias of the comparison of images and texts"),
    *(IgnoreRule(name, reason="a size of the model") for name in ("input_resolution", "context_length", "vocab_size")),
)
"""Rules for what a whole model holds beside the image tower."""


def make_clip_rules(prefix: str) -> tuple[Rule, ...]:
    """The table of a tower whose names all have this prefix."""
    return (
        NameRule(f"{prefix}conv1.weight", "tokens.patches.weight", KERNEL),
        NameRule(f"{prefix}class_embedding", "tokens.cls", FLAT),
        *(NameRule(prefix + theirs, ours) for theirs, ours in CLIP_NAMES.items()),
        NameRule(f"{prefix}ln_post.{{p}}", "pool.norm.{p}"),
        NameRule(f"{prefix}proj", "head.linear.weight", TRANSPOSED),
        *(TEXT_TOWER_RULES if prefix else ()),
    )


def read_tower_settings(prefix: str, tensors: Mapping[str, Tensor], hints: LayoutHints) -> dict[str, Any]:
    """Settings from the shapes of a tower: everything but heads, activation, epsilon and pooling."""
    block, table = f"{prefix}transformer.resblocks", f"{prefix}positional_embedding"
    kernel = require_tensor(tensors, f"{prefix}conv1.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    hidden = (f"{block}.{{i}}.mlp.c_fc.{{p}}", 0), (f"{block}.{{i}}.mlp.c_proj.weight", 1)
    norms = (f"{block}.{{i}}.ln_1.{{p}}", 0), (f"{block}.{{i}}.ln_2.{{p}}", 0)
    return {
        "image_size": infer_image_size(require_tensor(tensors, table, axes=2).shape[0] - 1, patch, hints, table),
        "patch": patch,
        "channels": reconcile(hints.channels, kernel.shape[1], "channels", f"{prefix}conv1.weight"),
        "patch_bias": False,
        "width": majority_length(tensors, "width", *norms),
        "depth": count_blocks(tensors, block),
        "mlp_width": majority_length(tensors, "MLP width", *hidden),
        "pre_norm": has_tensor(tensors, f"{prefix}ln_pre.{{p}}"),
        "outputs": require_tensor(tensors, f"{prefix}proj", axes=2).shape[1],
        "head_bias": False,
    }


def check_outputs(hints: LayoutHints, outputs: int, name: str) -> None:
    """Compare the number of outputs with `embed_dim` of open_clip_config.json, where it is given."""
    model = hints.foreign_config.get("model_cfg")
    expected = model.get("embed_dim") if isinstance(model, Mapping) else None
    if expected is not None and expected != outputs:
        raise DamagedFileError(
            f"{name} gives {outputs} numbers, but open_clip_config.json says embed_dim={expected!r}."
        )


# -- open-clip with a tower of timm: timm's tables under `visual.trunk.`
#
# SigLIP's and Perception Encoder's towers end with timm's pooling, most others with timm's head as the projection; some
# have one matrix of OpenCLIP's, `visual.head.proj`.

TRUNK_PREFIX = "visual.trunk."
PROJECTION_NAMES = ("visual.head.proj.weight", "visual.head.proj.bias")
TRUNKS = {"timm": timm.TIMM_PLAIN, "timm-eva": timm_eva_naflex.EVA_UNSCALED, "timm-eva02": timm_eva_naflex.EVA02}
"""Variants and the layouts of timm that they have as trunk: ViTs and Perception Encoder, EVA-01's and EVA-02's CLIP."""


def describe_open_clip_timm(trunk: Layout, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The outputs are the image embedding."""
    config = trunk.describe(tensors, to_timm_hints(hints))
    if not has_tensor(tensors, *PROJECTION_NAMES):
        if hints.foreign_config and _read_vision_config(hints).get("timm_proj", "linear") == "linear":
            raise DamagedFileError(
                f"The file has no tensor {PROJECTION_NAMES[0]}, the projection that its configuration says."
            )
        return config
    outputs = majority_length(tensors, "number of outputs", *((name, 0) for name in PROJECTION_NAMES))
    check_outputs(hints, outputs, PROJECTION_NAMES[0])
    return replace(config, outputs=outputs, head_bias=has_tensor(tensors, PROJECTION_NAMES[1]))


def to_timm_hints(hints: LayoutHints) -> LayoutHints:
    """The hints, with open_clip_config.json translated to timm's config.json."""
    if hints.match == "transformers":
        raise UsageError('match="transformers" is not known for OpenCLIP\'s towers of timm. Known: original, timm.')
    if not hints.foreign_config:
        return replace(hints, match="timm")
    vision = _read_vision_config(hints)
    name, pool, size = vision.get("timm_model_name"), vision.get("timm_pool", "avg"), vision.get("image_size")
    if not isinstance(name, str):
        raise DamagedFileError("open_clip_config.json must name timm_model_name, as the weights are those of timm.")
    if not pool and vision.get("timm_proj", "linear") != "linear":
        raise UsageError("open_clip_config.json asks for no pooling at all (timm_pool), which no model here has.")
    arguments = {"img_size": size} if isinstance(size, int | list) else {}
    translated = {"architecture": name, "model_args": arguments, "global_pool": pool or None}
    return replace(hints, match="timm", foreign_config=translated)


def _read_vision_config(hints: LayoutHints) -> Mapping[str, object]:
    """`vision_cfg` of open_clip_config.json; empty where it is missing."""
    model = hints.foreign_config.get("model_cfg", {})
    vision = model.get("vision_cfg", {}) if isinstance(model, Mapping) else {}
    return vision if isinstance(vision, Mapping) else {}


def _choose_trunk_card(trunk: Layout, config: ViTConfig, hints: LayoutHints) -> str:
    return trunk.card if isinstance(trunk.card, str) else trunk.card(config, to_timm_hints(hints))


def _make_trunk_layout(variant: str, trunk: Layout, projection: bool) -> Layout:
    """A trunk with timm's own head, or with OpenCLIP's projection in its place."""
    rules = tuple(rule for rule in trunk.rules if not (projection and rule.theirs == "head.{p}"))
    return Layout(
        name="open-clip",
        variant=variant + "-projection" * projection,
        required_names=(
            f"{TRUNK_PREFIX}patch_embed.proj.weight",
            *trunk.required_names,
            *(PROJECTION_NAMES[:1] if projection else ()),
        ),
        forbidden_names=trunk.forbidden_names if projection else (*trunk.forbidden_names, "visual.head.*"),
        model_types=("open_clip",),
        rules=(
            *rules,
            *((NameRule("visual.head.proj.{p}", "head.linear.{p}"),) if projection else ()),
            *TEXT_TOWER_RULES,
        ),
        describe=partial(describe_open_clip_timm, trunk),
        card=partial(_choose_trunk_card, trunk),
        prefix=TRUNK_PREFIX,
        names_without_prefix=("visual.head.proj.{p}",),
        warnings=trunk.warnings,
    )


OPEN_CLIP_TIMM_LAYOUTS = tuple(
    _make_trunk_layout(variant, trunk, projection) for variant, trunk in TRUNKS.items() for projection in (False, True)
)


# -- open-clip with its own tower

OPEN_CLIP_POOLS: dict[str, Pool] = {"tok": "class", "avg": "mean"}
"""OpenCLIP's words for pooling, and ours."""
OPEN_CLIP_HEADS = {384: 6, 512: 8, 640: 10, 768: 12, 896: 14, 1024: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
"""Heads of the published sizes by their width."""
OpenClipConfig = Mapping[str, Any]


def describe_open_clip(prefix: str, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The outputs are the image embedding."""
    model, vision = _read_config(hints)
    settings = read_tower_settings(prefix, tensors, _add_image_size(hints, vision))
    check_outputs(hints, settings["outputs"], f"{prefix}proj")
    late = bool(vision.get("final_ln_after_pool"))
    pool = vision.get("pool_type", "tok")
    if pool not in OPEN_CLIP_POOLS:
        raise UsageError(f"open_clip_config.json says pool_type={pool!r}. Known: {', '.join(OPEN_CLIP_POOLS)}.")
    if any(vision.get(part) for part in ("attentional_pool", "block_type", "qk_norm", "scaled_cosine_attn")):
        raise UsageError("open_clip_config.json asks for a block or a pooling that a plain Vision Transformer has not.")
    scaled = has_tensor(tensors, *(f"{prefix}transformer.resblocks.{{i}}.ls_{n}.gamma" for n in (1, 2)))
    config = ViTConfig(
        **settings,
        heads=_read_heads(hints, vision, settings["width"]),
        pool=OPEN_CLIP_POOLS[pool],
        final_norm=not late,
        pooled_norm=late,
        layer_scale=(vision.get("ls_init_value") or 1e-5) if scaled else None,
        activation=_read_activation(hints, model, vision),
    )
    config = replace(config, **hints.numerics("open_clip"))
    eps = _read_option(vision, "norm_kwargs", "eps")
    return replace(config, norm_eps=eps) if isinstance(eps, float) and "norm_eps" not in hints.settings else config


def _read_config(hints: LayoutHints) -> tuple[OpenClipConfig, OpenClipConfig]:
    """`model_cfg` of open_clip_config.json and `vision_cfg` inside it; empty without that file."""
    model = hints.foreign_config.get("model_cfg", {})
    vision = model.get("vision_cfg", {}) if isinstance(model, Mapping) else None
    if not isinstance(vision, Mapping):
        raise DamagedFileError("open_clip_config.json must hold model_cfg with vision_cfg in it. Use another copy.")
    return model, vision


def _add_image_size(hints: LayoutHints, vision: OpenClipConfig) -> LayoutHints:
    """The hints, with the image size of open_clip_config.json where the caller gives none."""
    size = vision.get("image_size")
    if size is None or "image_size" in hints.settings:
        return hints
    both = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list) else ()
    if len(both) != 2 or not all(isinstance(side, int) for side in both):
        raise DamagedFileError(f"open_clip_config.json: image_size must be one or two whole numbers. Got {size!r}.")
    return replace(hints, settings={**hints.settings, "image_size": both})


def _read_heads(hints: LayoutHints, vision: OpenClipConfig, width: int) -> int:
    if vision:
        per_head = vision.get("head_width", 64)
        if not isinstance(per_head, int) or per_head < 1 or width % per_head:
            raise DamagedFileError(
                f"open_clip_config.json: head_width must be a whole number that divides {width}. Got {per_head!r}."
            )
        return reconcile(hints.heads, width // per_head, "heads", "open_clip_config.json")
    return choose_heads(hints, width, OPEN_CLIP_HEADS, "open-clip without open_clip_config.json")


def _read_option(vision: OpenClipConfig, group: str, name: str) -> object:
    """One of the keyword arguments that open_clip_config.json lists for a part of the tower; None if it is missing."""
    arguments = vision.get(group) or {}
    if not isinstance(arguments, Mapping):
        raise DamagedFileError(f"open_clip_config.json: {group} must hold arguments by name. Got {arguments!r}.")
    return arguments.get(name)


def _read_activation(hints: LayoutHints, model: OpenClipConfig, vision: OpenClipConfig) -> Activation:
    if "activation" in hints.settings:
        activation: Activation = hints.settings["activation"]
        return activation
    if not model:
        kind = "open-clip without open_clip_config.json"
        return require_argument(
            None, "activation", kind, 'in settings: "GELU" for most models, "QuickGELU" for those named so'
        )
    if model.get("quick_gelu"):
        return "QuickGELU"
    return "GELUTanh" if _read_option(vision, "act_kwargs", "approximate") == "tanh" else "GELU"


OPEN_CLIP_LAYOUTS = (
    *(
        Layout(
            name="open-clip",
            variant=variant,
            required_names=tuple(prefix + name for name in CLIP_REQUIRED_NAMES),
            forbidden_names=("input_resolution", "*attn_pool*"),
            model_types=("open_clip",),
            rules=make_clip_rules(prefix),
            describe=partial(describe_open_clip, prefix),
            card="open_clip",
            published=PUBLISHED_SIZES,
        )
        for variant, prefix in (("", VISUAL_PREFIX), ("tower", ""))
    ),
    *OPEN_CLIP_TIMM_LAYOUTS,
)


# -- openai-clip: the image tower of OpenAI's CLIP
#
# The names are also those of OpenCLIP, whose models mostly have another activation. Only the sizes that OpenAI's
# archives hold beside the weights (`input_resolution`) distinguish the two, so other files need `layout=`.
# The published archives are TorchScript programs: their tensors are read, their code is never run.

OPENAI_HEAD_DIM = 64
"""Numbers per head in every tower that OpenAI published."""


def describe_openai_clip(prefix: str, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The outputs are the image embedding."""
    settings = read_tower_settings(prefix, tensors, hints)
    usual = None if settings["width"] % OPENAI_HEAD_DIM else settings["width"] // OPENAI_HEAD_DIM
    heads = require_argument(
        usual if hints.heads is None else hints.heads, "heads", "openai-clip", "OpenAI's have width / 64"
    )
    return replace(ViTConfig(heads=heads, **settings), **hints.numerics("openai_clip"))


OPENAI_CLIP_LAYOUTS = tuple(
    Layout(
        name="openai-clip",
        variant=variant,
        required_names=tuple(prefix + name for name in CLIP_REQUIRED_NAMES),
        forbidden_names=(f"{prefix}*.ls_[12].gamma", "*attn_pool*", "text.*", "logit_bias"),
        rules=make_clip_rules(prefix),
        describe=partial(describe_openai_clip, prefix),
        card="openai_clip",
    )
    for variant, prefix in (("", VISUAL_PREFIX), ("tower", ""))
)
