"""`transformers`: the image towers of CLIP, MetaCLIP 2, Chinese-CLIP, AltCLIP, SigLIP and SigLIP 2 (fixed size and
NaFlex). Both namings are the same.

SigLIP pools by a learned probe on the normalised tokens, followed by an MLP; a classifier reads the mean of the tokens
instead and ignores the probe. NaFlex projects flat patches, channels last, and resamples one square table for each
image. CLIP normalises tokens before the first block and only the class token after the last one; a matrix without bias
projects it. transformers' classifier for CLIP reads the mean of the patches instead, not normalised. MetaCLIP 2,
Chinese-CLIP and AltCLIP are CLIP's tower under CLIP's names beside other text towers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import isqrt

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    FLAT,
    KERNEL,
    MATRIX_CHANNELS_LAST,
    SPLIT,
    DropRule,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    StorageStep,
    make_name_rules,
)
from ..validate import count_blocks, count_outputs, has_tensor, majority_length, require_tensor
from .hf import (
    HFConfig,
    hf_block_rules,
    read_hf_config,
    read_hf_heads,
    read_hf_image_size,
    read_hf_numerics,
)
from .hf_export import export_clip, export_siglip

# -- SigLIP, and what CLIP shares with it

# fmt: off
SIGLIP_STEM = {  # theirs                    ours
    "embeddings.patch_embedding.bias":       "tokens.patches.bias",
    "embeddings.position_embedding.weight":  "positions.table",
    "post_layernorm.{p}":                    "encoder.norm.{p}",
    "classifier.{p}":                        "head.linear.{p}",
}
SIGLIP_PROBE = {
    "head.probe":                   "pool.attention.probe",
    "head.attention.out_proj.{p}":  "pool.attention.out.{p}",
    "head.layernorm.{p}":           "pool.attention.norm.{p}",
    "head.mlp.fc1.{p}":             "pool.attention.mlp.fc1.{p}",
    "head.mlp.fc2.{p}":             "pool.attention.mlp.fc2.{p}",
}
SIGLIP_BLOCK = {
    "layer_norm1.{p}":         "norm1.{p}",
    "self_attn.out_proj.{p}":  "attention.out.{p}",
    "layer_norm2.{p}":         "norm2.{p}",
    "mlp.fc1.{p}":             "mlp.fc1.{p}",
    "mlp.fc2.{p}":             "mlp.fc2.{p}",
}
# fmt: on
TOWER_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
PATCH_WEIGHT, POSITION_TABLE = "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"
FIRST_BLOCK_NORM = "encoder.layers.0.layer_norm1.weight"
SIGLIP_DEFAULTS = {
    "num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "image_size": 224,
    "num_channels": 3,
}  # fmt: skip
"""Defaults of these classes, for fields that a config.json leaves out; files on the Hub leave out all defaults."""
NAFLEX_DEFAULTS = {name: value for name, value in SIGLIP_DEFAULTS.items() if name != "image_size"}
SIGLIP_HEADS = {768: 12, 1024: 16, 1152: 16, 1536: 16}
"""Heads of the published sizes by their width."""
UNUSED_PROBE = "the probe and its MLP, which a classifier on the mean does not read"
TEXT_TOWER_RULES: tuple[Rule, ...] = (
    IgnoreRule("text_model.*", reason="the text tower"),
    IgnoreRule("logit_scale", reason="scales similarities of images and texts"),
    IgnoreRule("logit_bias", reason="shifts similarities of images and texts"),
    IgnoreRule("embeddings.position_ids", reason="a list of numbers from 0, which old versions saved"),
)
"""Rules for what a model of images and texts holds beside the image tower."""
WEIGHT_AND_BIAS = ("weight", "bias")


def _write_patches(ours: Tensor, config: ViTConfig) -> Tensor:
    return (MATRIX_CHANNELS_LAST if config.patches == "linear" else KERNEL).write(ours, config)


SIGLIP_RULES: tuple[Rule, ...] = (
    *make_name_rules(SIGLIP_STEM),
    NameRule(PATCH_WEIGHT, "tokens.patches.weight", StorageStep(None, _write_patches)),
    *hf_block_rules("encoder.layers", SIGLIP_BLOCK, TOWER_QKV),
    *make_name_rules(SIGLIP_PROBE),
    *(
        PartsRule((f"head.attention.in_proj_{p}",), (f"pool.attention.q.{p}", f"pool.attention.kv.{p}"), SPLIT)
        for p in WEIGHT_AND_BIAS
    ),
    *(
        IgnoreRule(name.replace("{p}", p), reason=UNUSED_PROBE)
        for name in (*SIGLIP_PROBE, "head.attention.in_proj_{p}")
        for p in WEIGHT_AND_BIAS
    ),
    *TEXT_TOWER_RULES,
)


def describe_hf_siglip(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file: NaFlex if the projection is a matrix. Without a probe the tokens are averaged."""
    inside = "encoder.layers.{i}."
    naflex = PATCH_WEIGHT in tensors and tensors[PATCH_WEIGHT].ndim == 2
    stored = read_hf_config(hints, NAFLEX_DEFAULTS if naflex else SIGLIP_DEFAULTS)
    weight = require_tensor(tensors, PATCH_WEIGHT, axes=2 if naflex else 4)
    if naflex:
        patch, channels = _read_flat_patch(weight, hints, stored)
    else:
        patch, channels = (weight.shape[2], weight.shape[3]), weight.shape[1]
    width = majority_length(tensors, "width", (f"{inside}layer_norm1.weight", 0), (f"{inside}layer_norm2.weight", 0))
    count = count_outputs(tensors, "classifier.{p}")
    rows = require_tensor(tensors, POSITION_TABLE, axes=2).shape[0]
    return ViTConfig(
        image_size=read_hf_image_size(rows, 0, patch, hints, stored, POSITION_TABLE),
        patch=patch,
        channels=channels,
        width=width,
        depth=count_blocks(tensors, "encoder.layers"),
        heads=read_hf_heads(hints, stored, width, SIGLIP_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=count,
        patches="linear" if naflex else "conv",
        class_token=False,
        **{
            "pool": "attention" if not count and has_tensor(tensors, *SIGLIP_PROBE) else "mean",
            **read_hf_numerics(hints, stored, choose_siglip_card(naflex)),
        },
    )


def _read_flat_patch(weight: Tensor, hints: LayoutHints, config: HFConfig) -> tuple[tuple[int, int], int]:
    """The square patch of a projection of flat patches, and the channels: 3 unless given."""
    numbers = weight.shape[1]
    channels = config.positive_int("num_channels") if hints.foreign_config else hints.channels or 3
    side = isqrt(numbers // channels)
    if side**2 * channels != numbers:
        raise UsageError(
            f"channels={channels} contradicts the file: {PATCH_WEIGHT} has {numbers} columns, not {channels} times "
            "a square. Pass channels=, the count that the model was trained with."
        )
    return (side, side), channels


def choose_siglip_card(naflex: bool) -> str:
    """The numerics card: both generations of fixed size share one."""
    return "hf_siglip2_naflex" if naflex else "hf_siglip"


HF_SIGLIP_LAYOUTS = (
    Layout(
        name="transformers",
        variant="siglip",
        required_names=(PATCH_WEIGHT, "embeddings.patch_embedding.bias", FIRST_BLOCK_NORM),
        forbidden_names=("embeddings.class_embedding",),
        model_types=("siglip_vision_model", "siglip", "siglip2_vision_model", "siglip2"),
        rules=SIGLIP_RULES,
        describe=describe_hf_siglip,
        card=lambda config, hints: choose_siglip_card(config.patches == "linear"),
        match="transformers",
        prefix="vision_model.",
        names_without_prefix=("classifier.{p}",),
        head="classifier",
        prepare_export=export_siglip,
    ),
)
"""One table for fixed sizes and NaFlex, with a probe, with a classifier, or with neither."""


# -- CLIP, alone, with its projection, in a whole CLIP, or under a classifier

# fmt: off
CLIP_STEM = {  # theirs                      ours
    "embeddings.position_embedding.weight":  "positions.table",
    "pre_layrnorm.{p}":                      "encoder.pre_norm.{p}",
}
CLIP_CLASSIFIER = {"classifier.{p}": "head.linear.{p}"}
CLIP_PROJECTION = {
    "post_layernorm.{p}":        "pool.norm.{p}",
    "visual_projection.weight":  "head.linear.weight",
}
# fmt: on
CLIP_CLASS_TOKEN, CLIP_BLOCK_NORM = "embeddings.class_embedding", "encoder.layer*.0.layer_norm1.weight"
CLIP_DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "image_size": 224}
"""Defaults of this class, for fields that a config.json leaves out."""
CLIP_HEADS = {768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of the published sizes by their width."""
CLIP_CARDS = {
    "clip": "hf_clip", "metaclip_2": "hf_metaclip2", "chinese_clip": "hf_chinese_clip", "altclip": "hf_altclip",
}  # fmt: skip
"""transformers' names of the families with CLIP's tower, and their numerics cards."""
VISION_SUFFIX = "_vision_model"
"""What a tower alone has after its family's name in config.json."""


def make_hf_clip_rules(classifier: bool) -> tuple[Rule, ...]:
    """The whole table."""
    unread = "a norm that the classifier does not read"
    end: tuple[Rule, ...] = make_name_rules(CLIP_CLASSIFIER if classifier else CLIP_PROJECTION)
    if classifier:
        end = (*end, DropRule("post_layernorm.{p}", "encoder.pre_norm.{p}", reason=unread))
    return (
        *make_name_rules(CLIP_STEM),
        *end,
        NameRule(PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
        NameRule(CLIP_CLASS_TOKEN, "tokens.cls", FLAT),
        *hf_block_rules("encoder.layers", SIGLIP_BLOCK, TOWER_QKV),
        *TEXT_TOWER_RULES,
        IgnoreRule("text_projection.weight", reason="the projection of texts"),
    )


def describe_hf_clip(classifier: bool, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The outputs are the projected class token, or the normalised one."""
    inside = "encoder.layers.{i}."
    if not hints.foreign_config and "activation" not in hints.settings:
        raise UsageError(
            "A CLIP file without its config.json does not say its activation. Pass "
            'settings={"activation": "QuickGELU"} for those of OpenAI and their likes, "GELU" for most of LAION\'s.'
        )
    stored = read_hf_config(hints, CLIP_DEFAULTS)
    known = read_hf_numerics(hints, stored, choose_clip_card(hints))
    if hints.foreign_config:  # the one the tower was trained with, for every `match`
        known["activation"] = stored.activation("hidden_act")
    kernel = require_tensor(tensors, PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = majority_length(tensors, "width", (f"{inside}layer_norm1.weight", 0), (f"{inside}layer_norm2.weight", 0))
    count = count_outputs(tensors, "classifier.{p}" if classifier else "visual_projection.weight")
    rows = require_tensor(tensors, POSITION_TABLE, axes=2).shape[0]
    return ViTConfig(
        image_size=read_hf_image_size(rows, 1, patch, hints, stored, POSITION_TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, "encoder.layers"),
        heads=read_hf_heads(hints, stored, width, CLIP_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=count,
        patch_bias=False,
        pre_norm=True,
        final_norm=False,
        pooled_norm=not classifier,
        head_bias=classifier or not count,
        **{"pool": "mean" if classifier else "class", **known},
    )


def clean_hf_clip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name blocks `layers` in an AltCLIP of transformers 5, which renames those of both towers."""
    renamed = {re.sub(r"^(vision_model\.)?encoder\.layer\.", r"\1encoder.layers.", name): name for name in tensors}
    if len(renamed) < len(tensors):
        raise DamagedFileError("The file has blocks under encoder.layer and under encoder.layers. Delete one of them.")
    return {ours: tensors[name] for ours, name in renamed.items()}


def choose_clip_card(hints: LayoutHints) -> str:
    """The numerics card of the family that config.json names."""
    return CLIP_CARDS.get(str(hints.foreign_config.get("model_type")).removesuffix(VISION_SUFFIX), "hf_clip")


HF_CLIP_LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant="clip-classifier" if classifier else "clip",
        required_names=(PATCH_WEIGHT, CLIP_CLASS_TOKEN, CLIP_BLOCK_NORM, *(("classifier.*",) if classifier else ())),
        forbidden_names=("class_pos_emb", *(() if classifier else ("classifier.*",))),
        model_types=tuple(kind + suffix for kind in CLIP_CARDS for suffix in (VISION_SUFFIX, "")),
        rules=make_hf_clip_rules(classifier),
        describe=partial(describe_hf_clip, classifier),
        card=lambda config, hints: choose_clip_card(hints),
        match="transformers",
        published=frozenset(),
        prefix="vision_model.",
        names_without_prefix=("classifier.{p}", "visual_projection.weight"),
        head="classifier",
        clean=clean_hf_clip,
        prepare_export=export_clip,
    )
    for classifier in (False, True)
)
"""A tower with or without its projection, and one under a classifier."""
