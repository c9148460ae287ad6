"""`timm`: files of timm's `VisionTransformer`, plain, distilled, with registers, with an attention pool, or parallel.

The shapes give almost everything; the rest is read by `timm_config`. A position table may or may not have rows for the
class token, and for registers. Rows for registers are added to the registers when a file is read: the sum that timm
computes in every forward pass is the same number.

timm has one set of names for blocks and two modules that write them: `VisionTransformer` (LayerScale `ls1.gamma`, this
file) and `Eva` (`gamma_1`, separate query and value biases: `timm_eva_naflex`), besides NaFlex, whose patches and
tokens lie under `embeds.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import Pool, ViTConfig
from ...spec import Grid
from ..layouts import (
    BATCHED,
    KERNEL,
    SPLIT,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    StorageStep,
    make_name_rules,
)
from ..validate import (
    count_blocks,
    find_square_side,
    is_square,
    majority_length,
    nearest_name_hint,
    reconcile,
    require_tensor,
)
from . import timm_config
from .timm_export import export_timm, export_timm_parallel, export_timm_split

# -- Shared by all timm transformers: blocks, tokens, positions, norms and heads

# fmt: off
NORM_NAMES = {  # theirs     ours
    "blocks.{i}.norm1.{p}":  "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.norm2.{p}":  "encoder.blocks.{i}.norm2.{p}",
}
ATTENTION_NAMES = {
    "blocks.{i}.attn.qkv.{p}":     "encoder.blocks.{i}.attention.qkv.{p}",
    "blocks.{i}.attn.q_norm.{p}":  "encoder.blocks.{i}.attention.q_norm.{p}",
    "blocks.{i}.attn.k_norm.{p}":  "encoder.blocks.{i}.attention.k_norm.{p}",
    "blocks.{i}.attn.norm.{p}":    "encoder.blocks.{i}.attention.norm.{p}",
    "blocks.{i}.attn.proj.{p}":    "encoder.blocks.{i}.attention.out.{p}",
}
MLP_NAMES = {
    "blocks.{i}.mlp.fc1.{p}":   "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.norm.{p}":  "encoder.blocks.{i}.mlp.norm.{p}",
    "blocks.{i}.mlp.fc2.{p}":   "encoder.blocks.{i}.mlp.fc2.{p}",
}
SPLIT_MLP_NAMES = {
    "blocks.{i}.mlp.fc1_g.{p}":  "encoder.blocks.{i}.mlp.gate.{p}",
    "blocks.{i}.mlp.fc1_x.{p}":  "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.norm.{p}":   "encoder.blocks.{i}.mlp.norm.{p}",
    "blocks.{i}.mlp.fc2.{p}":    "encoder.blocks.{i}.mlp.fc2.{p}",
}
SCALE_NAMES = {
    "blocks.{i}.ls1.gamma":  "encoder.blocks.{i}.scale1",
    "blocks.{i}.ls2.gamma":  "encoder.blocks.{i}.scale2",
}
LAYER_SCALE_NAMES = {
    "blocks.{i}.gamma_1":  "encoder.blocks.{i}.scale1",
    "blocks.{i}.gamma_2":  "encoder.blocks.{i}.scale2",
}
END_NAMES = {
    "norm_pre.{p}":           "encoder.pre_norm.{p}",
    "norm.{p}":               "encoder.norm.{p}",
    "attn_pool.latent":       "pool.attention.probe",
    "attn_pool.q.{p}":        "pool.attention.q.{p}",
    "attn_pool.kv.{p}":       "pool.attention.kv.{p}",
    "attn_pool.proj.{p}":     "pool.attention.out.{p}",
    "attn_pool.norm.{p}":     "pool.attention.norm.{p}",
    "attn_pool.mlp.fc1.{p}":  "pool.attention.mlp.fc1.{p}",
    "attn_pool.mlp.fc2.{p}":  "pool.attention.mlp.fc2.{p}",
    "fc_norm.{p}":            "pool.norm.{p}",
    "head.{p}":               "head.linear.{p}",
}
# fmt: on
TIMM_BLOCK_NAMES = {**NORM_NAMES, **ATTENTION_NAMES, **MLP_NAMES, **SCALE_NAMES}
SPLIT_BLOCK_NAMES = {**NORM_NAMES, **ATTENTION_NAMES, **SPLIT_MLP_NAMES, **SCALE_NAMES}
ConfigFields = dict[str, Any]
"""Fields of ViTConfig by name."""


def has_matching(tensors: Mapping[str, Tensor], *patterns: str) -> bool:
    """Whether a tensor's name matches one of the glob patterns."""
    return any(fnmatchcase(name, pattern) for name in tensors for pattern in patterns)


def read_block_settings(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ConfigFields:
    """Settings of the blocks, heads included, from shapes and names."""
    width = majority_length(tensors, "width", ("blocks.{i}.norm1.{p}", 0), ("blocks.{i}.norm2.{p}", 0))
    depth = count_blocks(tensors, "blocks")
    mlp_width = majority_length(tensors, "MLP width", ("blocks.{i}.mlp.fc2.weight", 1))
    if has_matching(tensors, "blocks.*.mlp.fc1_[gx].*"):
        mlp = "gated"
    else:
        rows = majority_length(tensors, "MLP width", ("blocks.{i}.mlp.fc1.{p}", 0))
        mlp, mlp_width = ("gated-packed", mlp_width) if rows == 2 * mlp_width else ("plain", rows)
    qk_norm = has_matching(tensors, "blocks.*.attn.[qk]_norm.*")
    if qk_norm:
        norms = ("blocks.{i}.attn.q_norm.{p}", 0), ("blocks.{i}.attn.k_norm.{p}", 0)
        heads = width // majority_length(tensors, "width of a head", *norms)
    else:
        heads = timm_config.read_timm_heads(hints, width, depth, mlp_width, gated=mlp != "plain")
    scaled = has_matching(tensors, "blocks.*.ls[12].gamma", "blocks.*.gamma_[12]")
    return {
        "attention_norm": has_matching(tensors, "blocks.*.attn.norm.*"),
        "mlp_norm": has_matching(tensors, "blocks.*.mlp.norm.*"),
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp": mlp,
        "mlp_width": mlp_width,
        "qk_norm": qk_norm,
        "out_bias": has_matching(tensors, "blocks.*.attn.proj.bias"),
        "mlp_bias": has_matching(tensors, "blocks.*.mlp.fc*.bias"),
        "norm": "LayerNorm" if has_matching(tensors, "blocks.*.norm[12].bias") else "RMSNorm",
        "layer_scale": (timm_config.read_model_arg(hints, "init_values") or 1e-5) if scaled else None,
    }


def read_end_settings(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ConfigFields:
    """The norms around the blocks, and the head.

    A file without a norm after the blocks lacks one, unless config.json or the settings turn it off.
    """
    headed, pooled = has_matching(tensors, "head.*"), has_matching(tensors, "fc_norm.*")
    bare = not hints.foreign_config and "final_norm" not in hints.settings
    if bare and not pooled and not has_matching(tensors, "norm.*"):
        raise UsageError(
            "The file has no norm after its blocks, and no config.json says that it is meant to have none. Say which "
            "published model it is (vit_large_patch16_radio_v3, vit_intern300m_patch14_448 and the like), as "
            'network="NAME", or settings={"final_norm": false}; else take another copy.'
        )
    return {
        "pre_norm": has_matching(tensors, "norm_pre.*"),
        "final_norm": has_matching(tensors, "norm.*") or not (pooled or timm_config.lacks_final_norm(hints)),
        "pooled_norm": pooled,
        "outputs": majority_length(tensors, "number of outputs", ("head.{p}", 0)) if headed else 0,
    }


def read_table_size(
    tensors: Mapping[str, Tensor], prefixes: tuple[int, ...], patch: tuple[int, int], hints: LayoutHints
) -> tuple[tuple[int, int], int]:
    """The image size of the position table [1, rows, D], and how many of its first rows belong to prefix tokens.

    Args:
        prefixes: possible counts of such rows, the likeliest first.
    """
    rows = require_tensor(tensors, "pos_embed", axes=3).shape[1]
    for grid in list_hinted_grids(hints, patch):
        for prefix in prefixes:
            if grid.patches == rows - prefix:
                return (grid.rows * patch[0], grid.columns * patch[1]), prefix
    counts = tuple(rows - prefix for prefix in prefixes)
    if not any(map(is_square, counts)) and is_square(rows - 1):
        message = (
            f"pos_embed has {rows} rows, one more than a square of patches, which belongs to a class token. "
            f"The file has no tensor cls_token{nearest_name_hint('cls_token', tensors)}."
        )
        if hints.foreign_config:
            raise DamagedFileError(message)
        raise UsageError(f"{message} If its patches fill no square, pass image_size=(height, width).")
    side = find_square_side(counts, "pos_embed")
    return (side * patch[0], side * patch[1]), rows - side**2


def list_hinted_grids(hints: LayoutHints, patch: tuple[int, int]) -> list[Grid]:
    """Patch grids of the sizes that config.json and the caller give, config.json's first.

    timm either drops pixels beyond whole patches, or pads to whole patches: both grids are listed.
    """
    sizes = [size for size in (timm_config.read_timm_image_size(hints), hints.image_size) if size is not None]
    whole = [Grid(size[0] // patch[0], size[1] // patch[1]) for size in sizes]
    return [*whole, *(Grid(-(-size[0] // patch[0]), -(-size[1] // patch[1])) for size in sizes)]


def fold_registers(tensors: dict[str, Tensor], hints: LayoutHints) -> dict[str, Tensor]:
    """Add the registers' positions to the registers, where the table has rows for them after the class token's.

    Whether it has is decided by the image size that config.json or the caller gives, else by which count of patches
    fills a square.
    """
    registers, rows, kernel = (tensors.get(name) for name in ("reg_token", "pos_embed", "patch_embed.proj.weight"))
    if registers is None or rows is None or kernel is None or [t.ndim for t in (registers, rows, kernel)] != [3, 3, 4]:
        return tensors
    first, count, total = int("cls_token" in tensors), registers.shape[1], rows.shape[1]
    patches = total - first - count
    if patches < 1 or rows.shape[2] != registers.shape[2]:
        return tensors
    no_embed_class = timm_config.read_model_arg(hints, "no_embed_class")
    sizes = [grid.patches for grid in list_hinted_grids(hints, (kernel.shape[2], kernel.shape[3]))]
    if no_embed_class is not None:
        has_rows = not no_embed_class
    elif total in sizes or patches in sizes:
        has_rows = total not in sizes
    else:
        has_rows = is_square(patches) and not is_square(total)
    if not has_rows:
        return tensors
    of_class, of_registers, of_patches = rows.split([first, count, patches], dim=1)
    table = torch.cat([of_class, of_patches], dim=1)
    return {**tensors, "reg_token": registers + of_registers, "pos_embed": table}


def count_prefix_tokens(tensors: Mapping[str, Tensor], hints: LayoutHints, where: str = "") -> tuple[bool, int]:
    """Whether there is a class token, and how many registers."""
    reg_token = f"{where}reg_token"
    registers = require_tensor(tensors, reg_token, axes=3).shape[1] if reg_token in tensors else 0
    class_token = has_matching(tensors, f"{where}cls_token")
    timm_config.check_promised_tokens(hints, class_token, registers)
    return class_token, registers


def apply_numerics(config: ViTConfig, hints: LayoutHints, card: str) -> ViTConfig:
    """Epsilon, activation and resampling: as timm runs the architecture, or from the card, as `hints.match` asks."""
    if hints.match not in (None, "timm"):
        known = hints.numerics(card)
        if card == "timm_clip":
            known["activation"] = timm_config.choose_clip_activation(hints, config.pre_norm, config.mlp != "plain")
        return replace(config, **{name: known[name] for name in ("norm_eps", "activation", "resample")})
    return replace(
        config,
        norm_eps=timm_config.choose_norm_eps(hints, config.pre_norm, _has_larger_eps(config)),
        activation=timm_config.choose_activation(hints, config.pre_norm, config.mlp != "plain", _may_have_tanh(config)),
        resample="bicubic-antialias",
    )


def _has_larger_eps(config: ViTConfig) -> bool:
    """Whether a model without a name is of a design with an epsilon of 1e-5: DINOv3, AIMv2 or BEiT-3."""
    beit3 = config.attention_norm and config.rotary == "none"
    return config.rotary == "dinov3" or config.token_norm or beit3


def _may_have_tanh(config: ViTConfig) -> bool:
    """Whether a model has the sizes of a SigLIP that timm runs with the tanh form of GELU."""
    (rows, columns), width, patch = config.grid, config.width, config.patch
    sizes = (
        patch == (32, 32)
        or width == 1536
        or (width, patch) == (1152, (16, 16))
        or (width, rows, columns) == (1024, 32, 32)
    )
    tokens = config.class_token or config.registers or config.pooled_norm or config.rotary != "none"
    return sizes and not tokens and config.mlp == "plain" and config.positions == "learned"


# fmt: off
TIMM_STEM = {  # theirs       ours
    "patch_embed.proj.bias":  "tokens.patches.bias",
    "patch_embed.norm.{p}":   "tokens.patches.norm_out.{p}",
    "cls_token":              "tokens.cls",
    "dist_token":             "tokens.distillation",
    "reg_token":              "tokens.registers",
    "pre_logits.fc.{p}":      "head.hidden.{p}",
    "head_dist.{p}":          "head.distillation.{p}",
}
PARALLEL = {
    "blocks.{i}.in_norm.{p}":        "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.q_norm.{p}":         "encoder.blocks.{i}.attention.q_norm.{p}",
    "blocks.{i}.k_norm.{p}":         "encoder.blocks.{i}.attention.k_norm.{p}",
    "blocks.{i}.attn_out_proj.{p}":  "encoder.blocks.{i}.attention.out.{p}",
    "blocks.{i}.mlp_out_proj.{p}":   "encoder.blocks.{i}.mlp.fc2.{p}",
}
# fmt: on
DUPLICATE: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: [theirs[0], theirs[0].clone()], lambda ours, config: ours[:1]
)
"""One tensor of theirs is two equal ones of ours."""
FC1, QKV = "encoder.blocks.{i}.mlp.fc1", "encoder.blocks.{i}.attention.qkv"
STEM_AND_END_RULES: tuple[Rule, ...] = (
    *make_name_rules({**TIMM_STEM, **END_NAMES}),
    NameRule("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
    NameRule("pos_embed", "positions.table", BATCHED),
)
TIMM_RULES: tuple[Rule, ...] = (*STEM_AND_END_RULES, *make_name_rules(TIMM_BLOCK_NAMES))
PARALLEL_RULES: tuple[Rule, ...] = (
    *STEM_AND_END_RULES,
    *make_name_rules(PARALLEL),
    PartsRule(("blocks.{i}.in_proj.weight",), (f"{FC1}.weight", f"{QKV}.weight"), SPLIT),
    PartsRule(("blocks.{i}.ls.gamma",), ("encoder.blocks.{i}.scale1", "encoder.blocks.{i}.scale2"), DUPLICATE),
)
JOINT_BIAS: Rule = PartsRule(("blocks.{i}.in_proj.bias",), (f"{FC1}.bias", f"{QKV}.bias"), SPLIT)
MLP_BIAS: Rule = NameRule("blocks.{i}.mlp_bias", f"{FC1}.bias")
OTHER_FAMILIES = (
    "mask_token",
    "register_tokens",
    "storage_tokens",
    "decoder*",
    "tokens_to_token*",
    "rope*",
    "*relative_position*",
    "*rel_pos*",
    "blocks.*.gamma_[12]",
    "blocks.*.attn.[qkv]_bias",
    "blocks.*.attn.bias_mask",
    "blocks.*.mlp.w*",
)
"""Names by which similar files of other families are distinguished from those of this module."""
JOINED_FAMILIES = ("blocks.*.attns.*", "blocks.*.ffns.*")


def describe_timm(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file with sequential blocks."""
    settings = {**read_block_settings(tensors, hints), "qkv_bias": has_matching(tensors, "blocks.*.attn.qkv.bias")}
    return describe_config(tensors, hints, settings, eva=timm_config.is_eva(hints))


def describe_timm_joined(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file whose attentions and MLPs stood side by side and were joined.

    `heads` counts those of all attentions of a block together.
    """
    width = majority_length(tensors, "width", ("blocks.{i}.norm1.{p}", 0))
    mlp_width = majority_length(tensors, "MLP width", ("blocks.{i}.mlp.fc1.{p}", 0))
    branches = majority_length(tensors, "width of attention", ("blocks.{i}.attn.proj.weight", 1)) // width
    depth = count_blocks(tensors, "blocks")
    hints = replace(hints, heads=None if hints.heads is None else hints.heads // branches)
    heads = timm_config.read_timm_heads(  # as Ti, S and B
        hints, width, 12, mlp_width // branches, gated=False, branches=branches
    )
    settings: ConfigFields = {
        "width": width,
        "depth": depth,
        "heads": branches * heads,
        "head_width": width // heads,
        "mlp_width": mlp_width,
        "norm": "LayerNorm" if has_matching(tensors, "blocks.*.norm1.bias") else "RMSNorm",
        "qkv_bias": True,
    }
    return describe_config(tensors, hints, settings)


def describe_timm_parallel(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file with parallel attention and MLP, which share one joint input projection."""
    width = majority_length(tensors, "width", ("blocks.{i}.in_norm.weight", 0), ("blocks.{i}.attn_out_proj.weight", 0))
    depth = count_blocks(tensors, "blocks")
    mlp_width = majority_length(tensors, "MLP width", ("blocks.{i}.mlp_out_proj.weight", 1))
    qk_norm = has_matching(tensors, "blocks.*.[qk]_norm.*")
    if qk_norm:
        norms = ("blocks.{i}.q_norm.{p}", 0), ("blocks.{i}.k_norm.{p}", 0)
        heads = width // majority_length(tensors, "width of a head", *norms)
    else:
        heads = timm_config.read_timm_heads(hints, width, depth, mlp_width, gated=False)
    settings: ConfigFields = {
        "parallel": True,
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp_width": mlp_width,
        "qk_norm": qk_norm,
        "qkv_bias": has_matching(tensors, "blocks.*.in_proj.bias"),
        "out_bias": has_matching(tensors, "blocks.*.attn_out_proj.bias"),
        "norm": "LayerNorm" if has_matching(tensors, "blocks.*.in_norm.bias") else "RMSNorm",
        "layer_scale": 1e-5 if has_matching(tensors, "blocks.*.ls.gamma") else None,
    }
    return describe_config(tensors, hints, settings)


def choose_timm_card(config: ViTConfig, hints: LayoutHints) -> str:
    """The card that fits a timm model best: by its name, or by its design where there is no name."""
    name, tag = timm_config.read_architecture(hints), timm_config.read_weights_tag(hints)
    for word, card in _CARDS:
        if word in f"{name}.{tag}":
            return card
    if name and hints.match == "original":
        raise UsageError(f"The authors' numerics of {f'{name}.{tag}'.rstrip('.')} are not known. Leave match= out.")
    if name:
        return "timm_vit"
    if config.distillation_token:
        return "deit"
    if config.pre_norm:
        return "timm_clip"
    return "timm_siglip" if config.pool == "attention" else "timm_vit"


# Words of an architecture name with its tag -> card. The first match decides, so longer words stand first.
_CARDS = (
    ("deit3", "deit3"),
    ("deit", "deit"),
    ("dinov3", "timm_dinov3"),
    ("dinov2", "timm_dinov2"),
    ("siglip", "timm_siglip"),
    ("clip", "timm_clip"),
    ("augreg", "google_augreg"),
    ("ijepa", "ijepa"),
    ("mae", "mae"),
    ("dino", "dino"),
    ("orig_in", "google_augreg"),
    ("sam_in", "google_augreg"),
)


def describe_config(
    tensors: Mapping[str, Tensor],
    hints: LayoutHints,
    settings: ConfigFields,
    eva: bool = False,
    usual_pool: Pool | None = None,
) -> ViTConfig:
    """The architecture of a file, beyond the settings of its blocks.

    Args:
        eva: whether timm's `Eva` wrote it, which has other defaults of pooling and positions.
        usual_pool: the pooling of such a file, where nothing says it.
    """
    kernel = require_tensor(tensors, "patch_embed.proj.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    end = read_end_settings(tensors, hints)
    tokens = _read_tokens(tensors, hints, patch, eva)
    probe = has_matching(tensors, "attn_pool.*")
    if "rotary" not in settings:
        unlike_clip = end["pre_norm"] and (probe or not (end["final_norm"] or end["pooled_norm"]))
        names = '"vit_pe_core_base_patch16_224" or "vit_pe_spatial_base_patch16_512"'
        open_kind = unlike_clip or tokens["positions"] == "none"
        settings = settings | timm_config.choose_rotary(hints, None if open_kind else "none", names)
    includes_prefix = bool(timm_config.read_model_arg(hints, "pool_include_prefix"))
    default = usual_pool or (timm_config.default_eva_pool(hints) if eva else "class")
    pool = timm_config.choose_pool(hints, probe, tokens["class_token"], end["pooled_norm"], default)
    if probe and tokens["class_token"] + tokens["registers"] and not (eva or includes_prefix):
        check_probe(hints)
    bare_rpn = not (tokens["class_token"] or settings.get("layer_scale") or settings["qkv_bias"]) and end["pooled_norm"]
    config = ViTConfig(
        patch=patch,
        channels=reconcile(hints.channels, kernel.shape[1], "channels", "patch_embed.proj.weight"),
        patch_bias=not end["pre_norm"] or has_matching(tensors, "patch_embed.proj.bias"),
        token_norm=has_matching(tensors, "patch_embed.norm.*"),
        pad=bool(timm_config.read_model_arg(hints, "dynamic_img_pad")),
        pool="mean-all" if pool == "mean" and includes_prefix else pool,
        head="tanh" if has_matching(tensors, "pre_logits.fc.*") else "linear",
        distillation_head=tokens["distillation_token"],
        post_norm=timm_config.read_post_norm(
            hints, bare_rpn or settings["width"] == 1792, "vit_base_patch16_rpn_224 and eva02_enormous_patch14_clip_224"
        ),
        **_read_probe_settings(tensors, hints, settings),
        **settings,
        **end,
        **tokens,
    )
    card = "timm_dinov3" if config.rotary == "dinov3" else choose_timm_card(config, hints)
    config = apply_numerics(config, hints, card)
    _refuse_other_parts(tensors, hints, config, eva)
    return config


def _refuse_other_parts(tensors: Mapping[str, Tensor], hints: LayoutHints, config: ViTConfig, eva: bool) -> None:
    """Refuse a norm of patches or a probe that is unlike the blocks: here one norm and one activation are for all."""
    norm = "LayerNorm" if "patch_embed.norm.bias" in tensors else "RMSNorm"
    named = timm_config.read_model_arg(hints, "embed_norm_layer") is not None  # the class with its own default
    eps = 1e-6 if named else config.norm_eps
    if config.token_norm and (norm, eps) != (config.norm, config.norm_eps):
        raise UsageError(
            f"Its patches are normalised by {norm} with {eps:g}, its blocks by {config.norm} with {config.norm_eps:g}, "
            "and a model here has one norm for all. The file can be read by timm only."
        )
    if config.pool != "attention" or config.mlp == "plain":
        return
    if eva:
        raise UsageError(
            f"The MLP of its probe has GELU and those of its blocks {config.activation}, and a model here has one "
            "activation for all. The file can be read by timm only."
        )
    if not timm_config.read_architecture(hints) and "activation" not in hints.settings:
        raise UsageError(
            "The file does not say whether the MLP of its probe has the activation of its blocks. If it has, pass it: "
            f'settings={{"activation": "{config.activation}"}}; if it has GELU, only timm can run the model.'
        )


def _read_tokens(tensors: Mapping[str, Tensor], hints: LayoutHints, patch: tuple[int, int], eva: bool) -> ConfigFields:
    """Prefix tokens, positions and the image size."""
    class_token, registers = count_prefix_tokens(tensors, hints)
    distilled = has_matching(tensors, "dist_token", "head_dist.*")
    tokens: ConfigFields = {
        "class_token": class_token or distilled,
        "registers": registers,
        "distillation_token": distilled,
    }
    if distilled and registers:
        raise UsageError("timm's DeiT with a distillation token has no use for its reg_token. Only timm can run it.")
    without = timm_config.read_model_arg(hints, "pos_embed") in ("", "none") and not distilled  # which has one always
    without = without or (eva and "pos_embed" not in tensors and timm_config.lacks_table(hints))
    if without or lacks_positions(tensors, hints, "pos_embed"):
        usual = 16 if eva else 14
        grid = (list_hinted_grids(hints, patch) or [Grid(usual, usual)])[0]
        return {**tokens, "image_size": (grid.rows * patch[0], grid.columns * patch[1]), "positions": "none"}
    prefixes = (2,) if distilled else (0,) if not class_token else (0, 1) if registers else (1, 0)
    if timm_config.read_model_arg(hints, "no_embed_class"):
        prefixes = (0,)
    size, prefix = read_table_size(tensors, prefixes, patch, hints)
    return {**tokens, "positions": "learned", "image_size": size, "class_position": prefix > 0 or not class_token}


def lacks_positions(tensors: Mapping[str, Tensor], hints: LayoutHints, table: str) -> bool:
    """Whether the caller says that a file has no learned positions, in so many words or by rotary ones.

    Raises:
        UsageError: the file has no table of positions, and nothing says that it is meant to have none.
    """
    said = hints.settings.get("positions") == "none" or hints.settings.get("rotary", "none") != "none"
    where, dot, name = table.rpartition(".")
    renamed = nearest_name_hint(name, [other.removeprefix(where + dot) for other in tensors])
    if said or table in tensors or hints.foreign_config or renamed:
        return said and table not in tensors
    raise UsageError(
        f"The file has no tensor {table}, and no config.json says that it is meant to have none. If its model has no "
        'learned positions, pass settings={"positions": "none"}; else take another copy.'
    )


def _read_probe_settings(tensors: Mapping[str, Tensor], hints: LayoutHints, settings: ConfigFields) -> ConfigFields:
    """Heads and MLP width of an attention pool, where they are not those of the blocks."""
    if not has_matching(tensors, "attn_pool.mlp.fc1.*"):
        return {}
    hidden = majority_length(
        tensors, "MLP width of the pool", ("attn_pool.mlp.fc1.{p}", 0), ("attn_pool.mlp.fc2.weight", 1)
    )
    heads = timm_config.read_probe_heads(hints)
    return {
        "pool_heads": None if heads == settings["heads"] else heads,
        "pool_mlp_width": None if hidden == settings["mlp_width"] else hidden,
    }


def check_probe(hints: LayoutHints) -> None:
    """Refuse pooling by attention over the patches alone, which tensors do not show; ask where nothing says it."""
    if "attention" in (hints.pool, hints.settings.get("pool")):
        return
    if not hints.foreign_config:
        raise UsageError(
            "The file does not say whether its probe looks at its class and register tokens. If it does "
            'pass pool="attention"; if it looks at the patches alone, only timm can run the model.'
        )
    raise UsageError(
        "This timm model pools by attention over the patches alone, without its class and register tokens; "
        "Vitrail's probe looks at every token. The file can be read by timm only."
    )


# -- Attentions and MLPs side by side: one attention with the heads of all, one MLP with the hidden numbers of all


def join_branches(tensors: dict[str, Tensor], hints: LayoutHints) -> dict[str, Tensor]:
    """The blocks of `ParallelThingsBlock` (Touvron et al. 2022, "Three things everyone should know") as plain blocks.

    Each branch has a norm of its own: its weight and bias become part of the matrix that reads it, and its LayerScale
    part of the matrix that ends the branch. What is left is one norm for all, and matrices side by side: the same sum.
    """
    used: set[str] = set()

    def take(name: str, *shape: int) -> Tensor:
        used.add(name)
        found = require_tensor(tensors, name, axes=len(shape))
        if tuple(found.shape) != shape:
            raise DamagedFileError(f"{name} must have the shape {list(shape)}. Got {list(found.shape)}.")
        return found.double()

    def take_bias(name: str, like: str, length: int) -> Tensor:
        """A bias, which either every branch has or none."""
        return take(name, length) if has_matching(tensors, like) else torch.zeros(length, dtype=torch.float64)

    joined: dict[str, Tensor] = {}
    width = majority_length(tensors, "width", ("blocks.{i}.attns.0.norm.{p}", 0), ("blocks.{i}.ffns.0.norm.{p}", 0))
    hidden = majority_length(tensors, "MLP width", ("blocks.{i}.ffns.0.mlp.fc1.{p}", 0))
    for i in range(count_blocks(tensors, "blocks")):
        block = f"blocks.{i}"
        for kind, norm, first, last, parts, inner in (
            ("attns", "norm1", "attn.qkv", "attn.proj", 3, width), ("ffns", "norm2", "mlp.fc1", "mlp.fc2", 1, hidden),
        ):  # fmt: skip
            read: list[tuple[Tensor, Tensor]] = []
            written: list[tuple[Tensor, Tensor]] = []
            for j in range(count_blocks(tensors, f"{block}.{kind}")):
                branch = f"{block}.{kind}.{j}"
                factor = take(f"{branch}.norm.weight", width)
                shift = take_bias(f"{branch}.norm.bias", f"blocks.*.{kind}.*.norm.bias", width)
                matrix = take(f"{branch}.{first}.weight", parts * inner, width)
                bias = take_bias(f"{branch}.{first}.bias", f"blocks.*.{first}.bias", parts * inner)
                read.append((matrix * factor, bias + matrix @ shift))
                scale = take(f"{branch}.ls.gamma", width) if f"{branch}.ls.gamma" in tensors else factor.new_ones(width)
                end = take(f"{branch}.{last}.weight", width, inner)
                rest = take_bias(f"{branch}.{last}.bias", f"blocks.*.{last}.bias", width)
                written.append((scale[:, None] * end, scale * rest))
            if not read:
                raise DamagedFileError(f"The file has no tensor {block}.{kind}.0.norm.weight.")
            joined[f"{block}.{norm}.weight"] = torch.ones(width)
            if has_matching(tensors, f"blocks.*.{kind}.*.norm.bias"):
                joined[f"{block}.{norm}.bias"] = torch.zeros(width)
            thirds = [[rows.chunk(parts) for rows in column] for column in zip(*read, strict=True)]
            for part, chunks in zip(("weight", "bias"), thirds, strict=True):
                joined[f"{block}.{first}.{part}"] = torch.cat(
                    [rows[n] for n in range(parts) for rows in chunks]
                ).float()
            joined[f"{block}.{last}.weight"] = torch.cat([end for end, _ in written], dim=1).float()
            joined[f"{block}.{last}.bias"] = torch.stack([rest for _, rest in written]).sum(0).float()
    return {**{name: tensor for name, tensor in tensors.items() if name not in used}, **joined}


def refuse_joined(config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Refuse to write: what was joined is not taken apart again."""
    raise UsageError(
        "Attentions that stood side by side were joined when the model was read. Save it as a bundle instead."
    )


_timm_layout = partial(
    Layout,
    name="timm",
    forbidden_names=(*OTHER_FAMILIES, *JOINED_FAMILIES),
    model_types=("timm",),
    card=choose_timm_card,
    match="timm",
    head="head",
    clean_with_hints=fold_registers,
)
TIMM_PLAIN = _timm_layout(
    required_names=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", "blocks.*.mlp.fc1.*"),
    rules=TIMM_RULES,
    describe=describe_timm,
    prepare_export=export_timm,
)
TIMM_SPLIT = _timm_layout(
    variant="split-gate",
    required_names=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", "blocks.*.mlp.fc1_g.*"),
    rules=(*STEM_AND_END_RULES, *make_name_rules(SPLIT_BLOCK_NAMES)),
    describe=describe_timm,
    prepare_export=export_timm_split,
)
TIMM_PARALLEL, TIMM_PARALLEL_WITHOUT_BIAS = (
    _timm_layout(
        variant=variant,
        required_names=("patch_embed.proj.weight", "blocks.*.in_proj.weight", bias),
        rules=(*PARALLEL_RULES, rule),
        describe=describe_timm_parallel,
        prepare_export=export_timm_parallel,
    )
    for variant, bias, rule in (
        ("parallel", "blocks.*.in_proj.bias", JOINT_BIAS),
        ("parallel-without-bias", "blocks.*.mlp_bias", MLP_BIAS),
    )
)
TIMM_JOINED = _timm_layout(
    variant="side-by-side",
    required_names=("patch_embed.proj.weight", "blocks.*.attns.0.attn.qkv.weight", "blocks.*.ffns.0.mlp.fc1.weight"),
    forbidden_names=OTHER_FAMILIES,
    rules=TIMM_RULES,
    describe=describe_timm_joined,
    clean_with_hints=join_branches,
    prepare_export=refuse_joined,
)
TIMM_LAYOUTS = (TIMM_PLAIN, TIMM_SPLIT, TIMM_PARALLEL, TIMM_PARALLEL_WITHOUT_BIAS, TIMM_JOINED)
