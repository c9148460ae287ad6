"""`transformers`: YOLOS, a plain ViT whose detection tokens are read as registers.

Detection tokens stand behind the patches and have positions of their own. Where a token stands makes no difference to
attention, and its position is added to it when the file is read: the same sum that YOLOS computes in every pass. The
heads that predict boxes are left out, so the outputs are the class token. Models that add positions again before every
block (`use_mid_position_embeddings`) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import BATCHED, KERNEL, IgnoreRule, Layout, LayoutHints, NameRule, Rule, make_name_rules
from ..validate import count_blocks, has_tensor, majority_length, require_tensor
from .hf import (
    CLASS_TOKEN,
    DETECTION_TOKENS,
    FILE_BLOCK,
    FILE_QKV,
    POOLER_REASON,
    VIT_DEFAULTS,
    VIT_HEADS,
    VIT_PATCH_WEIGHT,
    VIT_POSITION_TABLE,
    VIT_STEM,
    hf_block_rules,
    read_hf_config,
    read_hf_heads,
    read_hf_image_size,
    read_hf_numerics,
)

YOLOS_PREFIX, YOLOS_BLOCKS = "vit.", "encoder.layer"
DETECTION_HEADS = ("class_labels_classifier", "bbox_predictor")
YOLOS_RULES: tuple[Rule, ...] = (
    *make_name_rules({**VIT_STEM, DETECTION_TOKENS: "tokens.registers", "pooler.dense.{p}": "head.hidden.{p}"}),
    NameRule(VIT_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
    NameRule(VIT_POSITION_TABLE, "positions.table", BATCHED),
    *hf_block_rules(YOLOS_BLOCKS, FILE_BLOCK, FILE_QKV),
    *(IgnoreRule(f"pooler.dense.{p}", reason=POOLER_REASON) for p in ("weight", "bias")),
    *(
        IgnoreRule(f"{head}.*", reason="predicts boxes and their classes from the detection tokens")
        for head in DETECTION_HEADS
    ),
)


def describe_hf_yolos(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `fold_detection_tokens`. The outputs are the class token."""
    if has_tensor(tensors, "encoder.mid_position_embeddings", "encoder.interpolation.mid_position_embeddings"):
        raise UsageError(
            "This YOLOS adds positions again before every block (use_mid_position_embeddings), which no plain Vision "
            "Transformer does. YOLOS models without them are read."
        )
    inside = f"{YOLOS_BLOCKS}.{{i}}."
    stored = read_hf_config(hints, VIT_DEFAULTS | {"image_size": [512, 864]})
    kernel = require_tensor(tensors, VIT_PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = (f"{inside}layernorm_before.weight", 0), (f"{inside}layernorm_after.weight", 0)
    width = majority_length(tensors, "width", *norms)
    rows = require_tensor(tensors, VIT_POSITION_TABLE, axes=3).shape[1]
    return ViTConfig(
        image_size=read_hf_image_size(rows, 1, patch, hints, stored, VIT_POSITION_TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, YOLOS_BLOCKS),
        heads=read_hf_heads(hints, stored, width, VIT_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}intermediate.dense.{{p}}", 0)),
        outputs=0,
        registers=require_tensor(tensors, DETECTION_TOKENS, axes=3).shape[1],
        qkv_bias=has_tensor(tensors, *(f"{inside}{part}.bias" for part in FILE_QKV)),
        **{"pool": "class", **read_hf_numerics(hints, stored, "hf_yolos")},
    )


def fold_detection_tokens(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the positions of the detection tokens, the last rows of the table, to these tokens."""
    prefix = YOLOS_PREFIX if YOLOS_PREFIX + DETECTION_TOKENS in tensors else ""
    tokens, table = tensors.get(prefix + DETECTION_TOKENS), tensors.get(prefix + VIT_POSITION_TABLE)
    if tokens is None or table is None or [tokens.ndim, table.ndim] != [3, 3]:
        return tensors
    rest = table.shape[1] - tokens.shape[1]
    if rest < 2 or table.shape[2] != tokens.shape[2]:
        return tensors
    folded = {prefix + DETECTION_TOKENS: tokens + table[:, rest:], prefix + VIT_POSITION_TABLE: table[:, :rest]}
    return {**tensors, **folded}


HF_YOLOS_LAYOUTS = (
    Layout(
        name="transformers",
        variant="yolos",
        required_names=(VIT_PATCH_WEIGHT, CLASS_TOKEN, DETECTION_TOKENS, f"{YOLOS_BLOCKS}.0.layernorm_before.weight"),
        model_types=("yolos",),
        rules=YOLOS_RULES,
        describe=describe_hf_yolos,
        card="hf_yolos",
        match="transformers",
        published=frozenset(),
        prefix=YOLOS_PREFIX,
        names_without_prefix=tuple(f"{head}.*" for head in DETECTION_HEADS),
        clean=fold_detection_tokens,
    ),
)
