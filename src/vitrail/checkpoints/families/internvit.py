"""InternViT, the image tower of InternVL: `internvit` (OpenGVLab's own files) and a variant of `transformers`.

A ViT with LayerScale and without a norm after its blocks: InternVL goes on from the patch tokens. OpenGVLab's code
pools the class token. transformers' tower takes the mean of the patches or, with `use_mean_pooling` off, normalises
the tokens and takes the class token. The tower lies alone in a file or beside the language model of a whole InternVL.
InternViT-6B has RMSNorm, and normalises queries and keys over all heads together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...errors import UsageError
from ...model.config import Norm, Pool, ViTConfig
from ..layouts import BATCHED, KERNEL, IgnoreRule, Layout, LayoutHints, NameRule, Rule, make_name_rules
from ..validate import count_blocks, has_tensor, majority_length, require_tensor
from .hf import (
    MEMORY_QKV,
    OUR_BLOCK,
    hf_block_rules,
    read_hf_config,
    read_hf_heads,
    read_hf_image_size,
    read_hf_numerics,
)

# fmt: off
OPENGVLAB_STEM = {  # theirs             ours
    "embeddings.patch_embedding.bias":   "tokens.patches.bias",
    "embeddings.class_embedding":        "tokens.cls",
}
OPENGVLAB_BLOCK = {
    "norm1.{p}":        "norm1.{p}",
    "attn.qkv.{p}":     "attention.qkv.{p}",
    "attn.q_norm.{p}":  "attention.q_norm.{p}",
    "attn.k_norm.{p}":  "attention.k_norm.{p}",
    "attn.proj.{p}":    "attention.out.{p}",
    "ls1":              "scale1",
    "norm2.{p}":        "norm2.{p}",
    "mlp.fc1.{p}":      "mlp.fc1.{p}",
    "mlp.fc2.{p}":      "mlp.fc2.{p}",
    "ls2":              "scale2",
}
INTERNVL_STEM = {
    "embeddings.patch_embeddings.projection.bias":  "tokens.patches.bias",
    "embeddings.cls_token":                         "tokens.cls",
    "layernorm.{p}":                                "encoder.norm.{p}",
}
INTERNVL_BLOCK = {
    "layernorm_before.{p}":            "norm1.{p}",
    "attention.q_norm.{p}":            "attention.q_norm.{p}",
    "attention.k_norm.{p}":            "attention.k_norm.{p}",
    "attention.projection_layer.{p}":  "attention.out.{p}",
    "lambda_1":                        "scale1",
    "layernorm_after.{p}":             "norm2.{p}",
    "mlp.fc1.{p}":                     "mlp.fc1.{p}",
    "mlp.fc2.{p}":                     "mlp.fc2.{p}",
    "lambda_2":                        "scale2",
}
# fmt: on
INTERNVIT_DEFAULTS = {
    "num_attention_heads": 16,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "image_size": 448,
}  # fmt: skip
"""Defaults of transformers' class, for fields that a config.json leaves out; OpenGVLab's files leave out none."""
INTERNVIT_HEADS = {1024: 16, 3200: 25}
"""Heads of the published sizes by their width."""
QK_NORM_EPS = 1e-6
"""The epsilon of normalised queries and keys in transformers, whatever layer_norm_eps is."""
REST_OF_INTERNVL: tuple[Rule, ...] = (
    *(IgnoreRule(f"{name}.*", reason="the language model") for name in ("language_model", "model.language_model")),
    IgnoreRule("lm_head.weight", reason="the language model"),
    *(
        IgnoreRule(f"{name}.*", reason="turns image tokens into words of the language model")
        for name in ("mlp1", "multi_modal_projector", "model.multi_modal_projector")
    ),
    IgnoreRule("embeddings.mask_token", reason="stands for hidden patches in training"),
)
"""Rules for what a whole InternVL holds beside the image tower."""


@dataclass(frozen=True)
class InternViTNaming:
    """One of the two namings."""

    patch_weight: str
    position_table: str
    blocks: str
    norm1: str
    q_norm: str
    """What only blocks with normalised queries have."""
    qkv_bias: str


OPENGVLAB = InternViTNaming(
    "embeddings.patch_embedding.weight", "embeddings.position_embedding", "encoder.layers", "norm1", "attn.q_norm",
    "attn.qkv.bias",
)  # fmt: skip
INTERNVL = InternViTNaming(
    "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings", "encoder.layer",
    "layernorm_before", "attention.q_norm", "attention.q_proj.bias",
)  # fmt: skip


def make_internvit_rules(naming: InternViTNaming) -> tuple[Rule, ...]:
    """The whole table."""
    if naming is OPENGVLAB:
        blocks: tuple[Rule, ...] = tuple(
            NameRule(f"{naming.blocks}.{{i}}.{theirs}", OUR_BLOCK + ours) for theirs, ours in OPENGVLAB_BLOCK.items()
        )
    else:
        blocks = hf_block_rules(naming.blocks, INTERNVL_BLOCK, MEMORY_QKV)
    return (
        *make_name_rules(OPENGVLAB_STEM if naming is OPENGVLAB else INTERNVL_STEM),
        NameRule(naming.patch_weight, "tokens.patches.weight", KERNEL),
        NameRule(naming.position_table, "positions.table", BATCHED),
        *blocks,
        *REST_OF_INTERNVL,
    )


def describe_internvit(naming: InternViTNaming, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The outputs are the pooled features."""
    inside = f"{naming.blocks}.{{i}}."
    stored = read_hf_config(hints, INTERNVIT_DEFAULTS)
    kernel = require_tensor(tensors, naming.patch_weight, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = majority_length(tensors, "width", (f"{inside}{naming.norm1}.weight", 0), (f"{inside}mlp.fc2.weight", 0))
    rows = require_tensor(tensors, naming.position_table, axes=3).shape[1]
    final_norm = has_tensor(tensors, "layernorm.{p}") or stored.values.get("use_mean_pooling") is False
    norm: Norm = "LayerNorm" if has_tensor(tensors, f"{inside}{naming.norm1}.bias") else "RMSNorm"
    qk_norm = has_tensor(tensors, f"{inside}{naming.q_norm}.{{p}}")
    if norm == "RMSNorm" and "layernorm.bias" in tensors:
        raise UsageError("This InternViT has RMSNorm in its blocks and LayerNorm behind them, which no model here has.")
    if norm == "LayerNorm" and qk_norm:
        raise UsageError("This InternViT has RMSNorm on queries and keys beside LayerNorm, which no model here has.")
    numerics = read_hf_numerics(hints, stored, "internvit")
    if qk_norm and naming is INTERNVL and numerics["norm_eps"] != QK_NORM_EPS:
        raise UsageError(
            f"This InternViT has norm_eps={QK_NORM_EPS} on queries and keys, as transformers sets it, beside "
            f"{numerics['norm_eps']}, which no model here has."
        )
    pool: Pool = "class" if final_norm or naming is OPENGVLAB else "mean"
    return ViTConfig(
        image_size=read_hf_image_size(rows, 1, patch, hints, stored, naming.position_table),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, naming.blocks),
        heads=read_hf_heads(hints, stored, width, INTERNVIT_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=0,
        qkv_bias=has_tensor(tensors, inside + naming.qkv_bias),
        qk_norm=qk_norm,
        qk_norm_joint=qk_norm,
        norm=norm,
        layer_scale=0.1,
        final_norm=final_norm and naming is not OPENGVLAB,
        **{"pool": pool, **numerics},
    )


_internvit_layout = partial(
    Layout,
    card="internvit",
    published=frozenset(),
    names_without_prefix=tuple(rule.theirs for rule in REST_OF_INTERNVL if isinstance(rule, IgnoreRule)),
)
INTERNVIT_LAYOUTS = (
    _internvit_layout(
        name="internvit",
        required_names=(OPENGVLAB.patch_weight, OPENGVLAB.position_table, "encoder.layers.0.attn.qkv.weight"),
        model_types=("intern_vit_6b", "intern_vit_300m"),
        rules=make_internvit_rules(OPENGVLAB),
        describe=partial(describe_internvit, OPENGVLAB),
        prefix="vision_model.",
    ),
    *(
        _internvit_layout(
            name="transformers",
            variant="internvl" + suffix,
            required_names=(
                ("model.vision_tower." if suffix else "") + INTERNVL.patch_weight,
                "encoder.layer.0.attention.projection_layer.weight",
                "encoder.layer.0.lambda_1",
            ),
            model_types=("internvl_vision", "internvl"),
            rules=make_internvit_rules(INTERNVL),
            describe=partial(describe_internvit, INTERNVL),
            match="transformers",
            prefix=prefix,
        )
        for suffix, prefix in (("", "vision_tower."), ("-memory", "model.vision_tower."))
    ),
)
"""OpenGVLab's files, and transformers' with the two beginnings of names that a tower has in a whole InternVL."""
