"""Layouts of timm's `Eva` module (DINOv3, EVA, EVA-02, RoPE-ViT, rotary models of ours) and of its NaFlex model.

`Eva` has `gamma_1` and `gamma_2` for LayerScale, and biases of queries and values without one for keys. The kind of
rotary positions is in no tensor but learned frequencies: config.json gives it, or a design that only one published
family has (class token, registers and no table: DINOv3; queries, keys and values apart: EVA-02). Else it is asked for.

NaFlex (`timm-naflex`) projects flattened patches by a matrix over row, column, channel. Its table [1, rows, columns, D]
holds patches alone; blocks and end have the names of `timm`. It takes any image size; the file's own is that of its
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...formatting import format_count
from ...model.config import Pool, Resample, RotaryKind, ViTConfig
from ...model.positions import dinov3_periods
from ..layouts import (
    BATCHED,
    BLOCKS_ON_SECOND_AXIS,
    GRID_TABLE,
    KERNEL,
    MATRIX_CHANNELS_LAST,
    STACK,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    make_name_rules,
)
from ..validate import reconcile, require_argument, require_tensor
from . import timm_config
from .plain_export import BLOCK_BIASES, ConfigAndState, StateDict, add_zero_biases, pack_gate, refuse_parts
from .timm import (
    ATTENTION_NAMES,
    END_NAMES,
    LAYER_SCALE_NAMES,
    MLP_NAMES,
    NORM_NAMES,
    SPLIT_MLP_NAMES,
    TIMM_BLOCK_NAMES,
    ConfigFields,
    apply_numerics,
    check_probe,
    choose_timm_card,
    count_prefix_tokens,
    describe_config,
    fold_registers,
    has_matching,
    lacks_positions,
    read_block_settings,
    read_end_settings,
)
from .timm_export import export_timm, prepare_for_timm

# -- Eva

# fmt: off
EVA_STEM = {  # theirs        ours
    "patch_embed.proj.bias":  "tokens.patches.bias",
    "cls_token":              "tokens.cls",
    "reg_token":              "tokens.registers",
}
# fmt: on
ROPE_FREQUENCIES = "rope.freqs"
EVA02_GRID = (16, 16)
"""Reference grid of every published EVA-02."""
ROPE_NAMES = '"vit_small_patch16_rope_224"'
ROPE_REGISTER_NAMES = '"vit_base_patch16_rope_reg1_gap_256" or "vit_small_patch16_dinov3"'
EVA_NAMES = '"eva_giant_patch14_224" or "eva02_tiny_patch14_224"'
QV_BIAS: Rule = PartsRule(
    ("blocks.{i}.attn.q_bias", "blocks.{i}.attn.v_bias"), ("encoder.blocks.{i}.attention.qv_bias",), STACK
)
EVA_COMMON_RULES: tuple[Rule, ...] = (
    *make_name_rules({**EVA_STEM, **NORM_NAMES, **ATTENTION_NAMES, **LAYER_SCALE_NAMES, **END_NAMES}),
    NameRule("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
    NameRule("pos_embed", "positions.table", BATCHED),
    PartsRule((ROPE_FREQUENCIES,), ("encoder.blocks.{i}.attention.rotary.frequencies",), BLOCKS_ON_SECOND_AXIS),
)
EVA_RULES: tuple[Rule, ...] = (*EVA_COMMON_RULES, QV_BIAS, *make_name_rules(MLP_NAMES))
EVA_SPLIT_RULES: tuple[Rule, ...] = (*EVA_COMMON_RULES, QV_BIAS, *make_name_rules(SPLIT_MLP_NAMES))
APART_RULES: tuple[Rule, ...] = (
    *(rule for rule in EVA_COMMON_RULES if rule.theirs != "blocks.{i}.attn.qkv.{p}"),
    PartsRule(
        tuple(f"blocks.{{i}}.attn.{part}_proj.weight" for part in "qkv"),
        ("encoder.blocks.{i}.attention.qkv.weight",),
        STACK,
    ),
    PartsRule(
        tuple(f"blocks.{{i}}.attn.{part}_proj.bias" for part in "qkv"),
        ("encoder.blocks.{i}.attention.qkv.bias",),
        STACK,
    ),
    PartsRule(
        ("blocks.{i}.attn.q_proj.bias", "blocks.{i}.attn.v_proj.bias"),
        ("encoder.blocks.{i}.attention.qv_bias",),
        STACK,
    ),
)
EVA02_RULES: tuple[Rule, ...] = (*APART_RULES, *make_name_rules(SPLIT_MLP_NAMES))
NOT_EVA_NAMES = (
    "mask_token",
    "storage_tokens",
    "rope_embed*",
    "*relative_position*",
    "blocks.*.mlp.w*",
    "blocks.*.attn.[qkv]_proj*",
)
"""Names by which similar files of other families are distinguished from those of this module."""


def describe_eva(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of `Eva`."""
    _refuse_sapiens(tensors, hints)
    parted = has_matching(tensors, QV_BIASES, "blocks.*.attn.[qv]_proj.bias")
    frequencies = tensors.get(ROPE_FREQUENCIES)
    if frequencies is not None and frequencies.ndim == 4:
        hints = replace(hints, heads=reconcile(hints.heads, frequencies.shape[2], "heads", ROPE_FREQUENCIES))
    settings: ConfigFields = {
        "qkv_bias": parted or has_matching(tensors, "blocks.*.attn.qkv.bias"),
        "key_bias": not parted or has_matching(tensors, "blocks.*.attn.k_proj.bias"),
        **_choose_rotary(tensors, hints),
        **read_block_settings(tensors, hints),
    }
    usual = None if timm_config.read_architecture(hints) else _choose_usual_pool(tensors, hints, settings)
    return describe_config(tensors, hints, settings, eva=True, usual_pool=usual)


def _refuse_sapiens(tensors: Mapping[str, Tensor], hints: LayoutHints) -> None:
    """Refuse what Sapiens2 has alone: fewer keys and values than queries, LayerScale of attention and not of MLPs."""
    keys = [name for name in tensors if name.endswith(".attn.k_proj.weight")]
    queries = [tensors.get(name.replace("k_proj", "q_proj"), tensors[name]) for name in keys]
    shared = any(query.shape != tensors[name].shape for name, query in zip(keys, queries, strict=True))
    alone = has_matching(tensors, "blocks.*.gamma_1") and not has_matching(tensors, "blocks.*.gamma_2")
    parts = ("queries that share keys and values" * shared, "a LayerScale of attention alone" * alone)
    if found := " and ".join(filter(None, parts)):
        name = timm_config.read_architecture(hints) or "it"
        raise UsageError(f"It is no plain Vision Transformer that Vitrail reads: {name} has {found}, as Sapiens2.")


def _choose_usual_pool(tensors: Mapping[str, Tensor], hints: LayoutHints, settings: ConfigFields) -> Pool:
    """The pooling of a file without config.json, which timm has in the name of the architecture alone."""
    lingbot = settings["width"] == 1536 or (settings["qkv_bias"] and not settings["key_bias"])
    if settings["rotary"] == "dinov3" and lingbot:
        hint = (
            '"class" for vit_small_patch16_lingbot and the like, "mean" for vit_small_patch16_dinov3_qkvb and the like'
        )
        return require_argument(hints.pool or hints.settings.get("pool"), "pool", "timm with DINOv3's tensors", hint)
    return "mean" if settings["rotary"] in ("dinov3", "axial", "pe") else "class"


def _choose_rotary(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ConfigFields:
    """Rotary positions by config.json; without it by the tensors, where they fit one published design alone."""
    bare: RotaryKind | None = None
    registers, names = has_matching(tensors, "reg_token"), EVA_NAMES
    if ROPE_FREQUENCIES in tensors:
        bare = "mixed"
    elif has_matching(tensors, "blocks.*.attn.q_proj.weight") and has_matching(tensors, "blocks.*.mlp.fc1_g.*"):
        if timm_config.read_architecture(hints) or "rotary" in hints.settings:
            return timm_config.choose_rotary(hints, None)
        return {"rotary": "eva02", "rotary_grid": EVA02_GRID}
    elif not has_matching(tensors, "pos_embed"):
        dinov3 = (
            has_matching(tensors, "cls_token") and registers and not has_matching(tensors, "blocks.*.attn.qkv.bias")
        )
        bare = "dinov3" if dinov3 else None
        names = ROPE_REGISTER_NAMES if registers else ROPE_NAMES
    return timm_config.choose_rotary(hints, bare, names)


def choose_eva_card(config: ViTConfig, hints: LayoutHints) -> str:
    """DINOv3's numerics card for its rotary positions; else by the name, or timm's own."""
    return "timm_dinov3" if config.rotary == "dinov3" else choose_timm_card(config, hints)


def export_eva(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """The same function in the parts that `Eva` has."""
    activation = "GELU" if config.mlp == "plain" else "SiLU"
    rounded = config.rotary == "dinov3" and not torch.equal(
        state["rotary.periods"].float(), dinov3_periods(config.head_dim)
    )
    unsupported = {
        f'norm="{config.norm}" with rotary positions': config.norm != "LayerNorm",
        f'activation="{config.activation}" with rotary positions': config.activation != activation,
        "parallel=true with rotary positions": config.parallel,
        "token_norm=true with rotary positions": config.token_norm,
        "mlp_norm=true with a packed gate": config.mlp_norm and config.mlp == "gated-packed",
        "a distillation head with rotary positions": config.distillation_head,
        "rotary periods that are not 100^(4i/d) in float32, which timm computes": rounded,
    }
    refuse_parts("timm", unsupported)
    return add_zero_biases(*prepare_for_timm(config, state), fields=BLOCK_BIASES)


def export_eva_packed(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """As `export_eva`, with the gate packed."""
    return pack_gate(*export_eva(config, state))


def _make_eva_layout(
    variant: str, decisive: tuple[str, ...], absent: tuple[str, ...] = (), split: bool = False
) -> Layout:
    first = "blocks.*.mlp.fc1_g.*" if split else "blocks.*.mlp.fc1.*"
    return Layout(
        name="timm",
        variant=variant + "-split-gate" * split,
        required_names=("patch_embed.proj.weight", "blocks.*.attn.qkv.weight", first, *decisive),
        forbidden_names=(*NOT_EVA_NAMES, *absent),
        model_types=("timm",),
        rules=EVA_SPLIT_RULES if split else EVA_RULES,
        describe=describe_eva,
        card=choose_eva_card,
        head="head",
        match="timm",
        clean_with_hints=fold_registers,
        prepare_export=export_eva if split else export_eva_packed,
    )


GAMMAS, QV_BIASES, EVA_TABLE = "blocks.*.gamma_[12]", "blocks.*.attn.[qv]_bias", "pos_embed"
DINOV3 = _make_eva_layout("dinov3", (GAMMAS,), (EVA_TABLE,))
DINOV3_SPLIT = _make_eva_layout("dinov3", (GAMMAS,), (EVA_TABLE,), split=True)
EVA = _make_eva_layout("eva", (GAMMAS, EVA_TABLE, QV_BIASES))
EVA_SPLIT = _make_eva_layout("eva", (GAMMAS, EVA_TABLE), split=True)
EVA_UNSCALED = _make_eva_layout("eva-unscaled", (QV_BIASES,), (GAMMAS,))
EVA_UNSCALED_SPLIT = _make_eva_layout("eva-unscaled", (QV_BIASES,), (GAMMAS,), split=True)
EVA_MIXED = _make_eva_layout("eva-mixed", (ROPE_FREQUENCIES,), (GAMMAS, QV_BIASES))
EVA_MIXED_SPLIT = _make_eva_layout("eva-mixed", (ROPE_FREQUENCIES,), (GAMMAS, QV_BIASES), split=True)
EVA02, EVA_APART = (
    Layout(
        name="timm",
        variant=variant,
        required_names=("patch_embed.proj.weight", "blocks.*.attn.q_proj.weight", first),
        forbidden_names=("mask_token", "storage_tokens"),
        model_types=("timm",),
        rules=rules,
        describe=describe_eva,
        card=choose_eva_card,
        head="head",
        match="timm",
        clean_with_hints=fold_registers,
        prepare_export=export,
    )
    for variant, first, rules, export in (
        ("eva02", "blocks.*.mlp.fc1_g.*", EVA02_RULES, export_eva),
        ("eva-apart", "blocks.*.mlp.fc1.*", (*APART_RULES, *make_name_rules(MLP_NAMES)), export_eva_packed),
    )
)
"""Queries, keys and values apart: with the gate of EVA-02, and without."""
EVA_LAYOUTS = (
    *(DINOV3, DINOV3_SPLIT, EVA, EVA_SPLIT, EVA_UNSCALED, EVA_UNSCALED_SPLIT),
    *(EVA_MIXED, EVA_MIXED_SPLIT, EVA02, EVA_APART),
)
"""Files with a table, LayerScale and key biases have the names of DeiT-III, whose layout reads and writes them."""


# -- NaFlex

# fmt: off
NAFLEX_STEM = {  # theirs  ours
    "embeds.proj.bias":  "tokens.patches.bias",
    "embeds.cls_token":  "tokens.cls",
    "embeds.reg_token":  "tokens.registers",
}
# fmt: on
NAFLEX_PATCH_WEIGHT, NAFLEX_POSITION_TABLE = "embeds.proj.weight", "embeds.pos_embed"
NAFLEX_GRID = (16, 16)
"""Patch grid of a model without positions, which takes any."""
NAFLEX_RULES: tuple[Rule, ...] = (
    *make_name_rules({**NAFLEX_STEM, **TIMM_BLOCK_NAMES, **END_NAMES}),
    NameRule(NAFLEX_PATCH_WEIGHT, "tokens.patches.weight", MATRIX_CHANNELS_LAST),
    NameRule(NAFLEX_POSITION_TABLE, "positions.table", GRID_TABLE),
)


def describe_naflex(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of NaFlex."""
    patch, channels = _read_naflex_patch(require_tensor(tensors, NAFLEX_PATCH_WEIGHT, axes=2).shape[1], hints)
    without = timm_config.read_model_arg(hints, "pos_embed") in ("", "none")
    without = without or lacks_positions(tensors, hints, NAFLEX_POSITION_TABLE)
    rows, columns = NAFLEX_GRID if without else require_tensor(tensors, NAFLEX_POSITION_TABLE, axes=4).shape[1:3]
    end, (class_token, registers) = read_end_settings(tensors, hints), count_prefix_tokens(tensors, hints, "embeds.")
    probe = has_matching(tensors, "attn_pool.*")
    _refuse_other_naflex(tensors, hints)
    included = bool(timm_config.read_model_arg(hints, "pool_include_prefix"))
    if probe and class_token + registers and not included:
        check_probe(hints)
    pool = timm_config.choose_pool(hints, probe, class_token, end["pooled_norm"])
    config = ViTConfig(
        image_size=(rows * patch[0], columns * patch[1]),
        patch=patch,
        patches="linear",
        channels=channels,
        patch_bias=not end["pre_norm"] or has_matching(tensors, "embeds.proj.bias"),
        class_token=class_token,
        registers=registers,
        positions="none" if without else "learned",
        class_position=not class_token,
        qkv_bias=has_matching(tensors, "blocks.*.attn.qkv.bias"),
        pool="mean-all" if pool == "mean" and included else pool,
        **read_block_settings(tensors, hints),
        **end,
    )
    config = apply_numerics(config, hints, choose_naflex_card(config, hints))
    return config if hints.match not in (None, "timm") else replace(config, resample=_choose_resample(hints))


def choose_naflex_card(config: ViTConfig, hints: LayoutHints) -> str:
    """SigLIP 2's numerics card for attention pooling, timm's own otherwise."""
    if config.pool == "attention":
        return "timm_naflex_siglip"
    if hints.match == "original" and (name := timm_config.read_architecture(hints)):
        raise UsageError(f"The authors' numerics of {name} are not known. Leave match= out.")
    return "timm_vit"


def export_naflex(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """The same function in the parts that NaFlex has: positions of patches alone, flattened patches."""
    unsupported = {
        'positions="none"': config.positions == "none",
        f'rotary="{config.rotary}"': config.rotary != "none",
        "distillation_head=true": config.distillation_head,
        "parallel=true": config.parallel,
        "post_norm=true": config.post_norm,
        "token_norm=true": config.token_norm,
        "attention_norm=true": config.attention_norm,
        "mlp_norm=true": config.mlp_norm,
        f"pool_heads={config.pool_heads}": config.probe_heads != config.heads,
    }
    refuse_parts("timm-naflex", unsupported, advice="Write it as timm instead.")
    config, state = export_timm(config, state)
    if config.class_token and config.class_position:
        table = state["positions.table"]
        state |= {"tokens.cls": state["tokens.cls"] + table[0], "positions.table": table[1:].clone()}
    state["tokens.patches.weight"] = state["tokens.patches.weight"].flatten(1)
    return replace(config, patches="linear", class_position=not config.class_token), state


def _read_naflex_patch(numbers: int, hints: LayoutHints) -> tuple[tuple[int, int], int]:
    """Height and width of a patch, and channels, from the length of a flattened one."""
    channels = hints.channels or timm_config.read_model_arg(hints, "in_chans") or 3
    given = hints.settings.get("patch") or timm_config.read_model_arg(hints, "patch_size")
    side = isqrt(numbers // channels)
    height, width = (given, given) if isinstance(given, int) else given or (side, side)
    if height * width * channels == numbers:
        return (height, width), channels
    wanted = f"{height}x{width} pixels" if given else "a square"
    message = (
        f"{NAFLEX_PATCH_WEIGHT} must have a column for each pixel of a patch of {wanted} and each of "
        f"{format_count(channels, 'channel')}. Got {numbers} columns."
    )
    if hints.foreign_config:
        raise DamagedFileError(message)
    raise UsageError(f'{message} Pass channels= if there are others, or settings={{"patch": [height, width]}}.')


def _choose_resample(hints: LayoutHints) -> Resample:
    """How timm resamples positions: bicubic, or bilinear for SigLIP 2; antialiased unless config.json turns it off."""
    usual = "bilinear" if "siglip" in timm_config.read_architecture(hints) else "bicubic"
    mode = timm_config.read_model_arg(hints, "pos_embed_interp_mode") or usual
    smooth = timm_config.read_model_arg(hints, "pos_embed_antialias") is not False
    known: dict[tuple[str, bool], Resample] = {
        ("bicubic", True): "bicubic-antialias",
        ("bicubic", False): "bicubic",
        ("bilinear", True): "bilinear-antialias",
    }
    if (mode, smooth) not in known:
        raise UsageError(f"This NaFlex model stretches its positions by a rule that Vitrail lacks: {mode}, plain.")
    return known[mode, smooth]


def _refuse_other_naflex(tensors: Mapping[str, Tensor], hints: LayoutHints) -> None:
    """Refuse designs of positions that Vitrail lacks."""
    name = timm_config.read_architecture(hints)
    if timm_config.read_model_arg(hints, "pos_embed_ar_preserving") or "_par_" in name or "_radio_" in name:
        raise UsageError("This NaFlex model stretches its positions by the longer side alone, which Vitrail does not.")
    if ROPE_FREQUENCIES in tensors or timm_config.read_model_arg(hints, "rope_type") not in (None, "", "none"):
        raise UsageError("This NaFlex model has rotary positions; Vitrail reads those only from timm's other layout.")


def note_naflex(hints: LayoutHints) -> tuple[str, ...]:
    """A note on the order of the numbers of a patch, which timm alone knows without a config.json."""
    note = "the numbers of a patch were taken to lie by row, column, channel (patchify_channels_last=True in timm)"
    return () if hints.foreign_config else (note,)


NAFLEX_LAYOUTS = (
    Layout(
        name="timm-naflex",
        required_names=(NAFLEX_PATCH_WEIGHT, "blocks.*.attn.qkv.weight"),
        forbidden_names=("embeds.pos_embed_[xy]",),
        model_types=("timm",),
        rules=NAFLEX_RULES,
        describe=describe_naflex,
        card=choose_naflex_card,
        head="head",
        match="timm",
        warnings=note_naflex,
        prepare_export=export_naflex,
    ),
)
