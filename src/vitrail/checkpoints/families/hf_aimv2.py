"""`transformers`: the image tower of AIMv2, alone or beside its text tower.

Patch tokens are normalised before positions are added; all norms are RMSNorm, MLPs are gated, and there is no class
token. Models of one size learn their positions; those of any size (`is_native`) compute them. A probe attends to the
normalised tokens without projection, norm or MLP of its own: it is ours with the identity as the matrix of queries and
an MLP that adds nothing. Without the probe the outputs are the mean of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    KERNEL,
    STACK,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    make_name_rules,
)
from ..numerics import load_card
from ..validate import count_blocks, count_outputs, has_tensor, majority_length, require_tensor
from .hf import (
    MEMORY_QKV,
    HFConfig,
    hf_block_rules,
    read_hf_config,
    read_hf_heads,
    read_hf_image_size,
)
from .hf_clip_siglip import TEXT_TOWER_RULES

# fmt: off
AIMV2_STEM = {  # theirs                     ours
    "embeddings.patch_embed.bias":           "tokens.patches.bias",
    "embeddings.rms_norm.weight":            "tokens.patches.norm_out.weight",
    "embeddings.position_embedding.weight":  "positions.table",
    "rms_norm.weight":                       "encoder.norm.weight",
    "visual_projection.weight":              "head.linear.weight",
}
AIMV2_BLOCK = {
    "rms_norm1.weight":        "norm1.weight",
    "attention.out_proj.{p}":  "attention.out.{p}",
    "rms_norm2.weight":        "norm2.weight",
    "ffn.gate_proj.{p}":       "mlp.gate.{p}",
    "ffn.up_proj.{p}":         "mlp.fc1.{p}",
    "ffn.down_proj.{p}":       "mlp.fc2.{p}",
}
AIMV2_PROBE = {
    "head.cls_token":        "pool.attention.probe",
    "head.output_proj.{p}":  "pool.attention.out.{p}",
    "head.q_proj.{p}":       "pool.attention.q.{p}",
    "head.norm.weight":      "pool.attention.norm.weight",
    "head.mlp.fc1.{p}":      "pool.attention.mlp.fc1.{p}",
    "head.mlp.fc2.{p}":      "pool.attention.mlp.fc2.{p}",
}
# fmt: on
AIMV2_PATCH_WEIGHT, AIMV2_TABLE = "embeddings.patch_embed.weight", "embeddings.position_embedding.weight"
AIMV2_PREFIX, AIMV2_PROBE_TOKEN = "vision_model.", "head.cls_token"
AIMV2_DEFAULTS = {"num_attention_heads": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu", "image_size": 224}
"""Defaults of this class, for fields that a config.json leaves out."""
AIMV2_HEADS = {1024: 8, 1536: 12, 2048: 16, 3072: 24}
"""Heads of the published sizes by their width."""
AIMV2_RULES: tuple[Rule, ...] = (
    *make_name_rules({**AIMV2_STEM, **AIMV2_PROBE}),
    NameRule(AIMV2_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
    PartsRule(("head.k_proj.{p}", "head.v_proj.{p}"), ("pool.attention.kv.{p}",), STACK),
    *hf_block_rules("encoder.layers", AIMV2_BLOCK, MEMORY_QKV),
    *TEXT_TOWER_RULES,
    IgnoreRule("text_projection.weight", reason="the projection of texts"),
)


def describe_hf_aimv2(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `complete_probe`. A tower of any size is for 224 x 224 unless one is given."""
    inside = "encoder.layers.{i}."
    stored = read_hf_config(hints, AIMV2_DEFAULTS)
    kernel = require_tensor(tensors, AIMV2_PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = majority_length(tensors, "width", (f"{inside}rms_norm1.weight", 0), (f"{inside}rms_norm2.weight", 0))
    learned, probe = AIMV2_TABLE in tensors, AIMV2_PROBE_TOKEN in tensors
    if not learned:
        _check_native(hints, stored)
    if learned:
        rows = require_tensor(tensors, AIMV2_TABLE, axes=2).shape[0]
        size = read_hf_image_size(rows, 0, patch, hints, stored, AIMV2_TABLE)
    else:
        size = stored.int_pair("image_size") if hints.foreign_config else hints.image_size or (224, 224)
    match = hints.match or "transformers"
    known = load_card("hf_aimv2").numerics(match)
    if hints.foreign_config and match == "transformers":
        known |= {"norm_eps": stored.positive_float("rms_norm_eps"), "activation": stored.activation("hidden_act")}
    outputs = count_outputs(tensors, "visual_projection.weight")
    return ViTConfig(
        image_size=size,
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, "encoder.layers"),
        heads=read_hf_heads(hints, stored, width, AIMV2_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}ffn.up_proj.weight", 0)),
        outputs=outputs,
        token_norm=True,
        class_token=False,
        positions="learned" if learned else "sincos2d",
        qkv_bias=has_tensor(tensors, *(f"{inside}{name}.bias" for name in MEMORY_QKV)),
        out_bias=has_tensor(tensors, f"{inside}attention.out_proj.bias"),
        norm="RMSNorm",
        mlp="gated",
        mlp_bias=has_tensor(tensors, f"{inside}ffn.up_proj.bias", f"{inside}ffn.down_proj.bias"),
        pool_mlp_width=1 if probe else None,
        head_bias=not outputs,
        **{"pool": "attention" if probe else "mean", **known},
    )


def _check_native(hints: LayoutHints, stored: HFConfig) -> None:
    """Refuse a file without positions, unless config.json or the caller says that the model computes them."""
    if hints.foreign_config and not stored.values.get("is_native"):
        raise DamagedFileError(f"The file has no tensor {AIMV2_TABLE}, and config.json does not say is_native.")
    if not hints.foreign_config and hints.settings.get("positions") != "sincos2d":
        raise UsageError(
            f'The file has no tensor {AIMV2_TABLE}. Pass settings={{"positions": "sincos2d"}} if it is an AIMv2 of any '
            "size (native), which computes its positions; else take another copy."
        )


def complete_probe(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the parts of our probe that theirs lacks, with values that change nothing."""
    prefix = AIMV2_PREFIX if AIMV2_PREFIX + AIMV2_PROBE_TOKEN in tensors else ""
    probe = tensors.get(prefix + AIMV2_PROBE_TOKEN)
    if probe is None or probe.ndim != 3:
        return tensors
    width = probe.shape[2]
    added = {
        "q_proj.weight": torch.eye(width),
        "q_proj.bias": torch.zeros(width),
        "k_proj.bias": torch.zeros(width),
        "v_proj.bias": torch.zeros(width),
        "norm.weight": torch.ones(width),
        "mlp.fc1.weight": torch.zeros(1, width),
        "mlp.fc1.bias": torch.zeros(1),
        "mlp.fc2.weight": torch.zeros(width, 1),
        "mlp.fc2.bias": torch.zeros(width),
    }
    return {**{f"{prefix}head.{name}": tensor.to(probe.dtype) for name, tensor in added.items()}, **tensors}


HF_AIMV2_LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant=variant,
        required_names=(
            AIMV2_PATCH_WEIGHT,
            "embeddings.rms_norm.weight",
            "encoder.layers.0.ffn.gate_proj.weight",
            *own,
        ),
        forbidden_names=absent,
        model_types=("aimv2_vision_model", "aimv2"),
        rules=tuple(rule for rule in AIMV2_RULES if rule.theirs not in absent),
        describe=describe_hf_aimv2,
        card="hf_aimv2",
        match="transformers",
        published=frozenset(),
        prefix=AIMV2_PREFIX,
        names_without_prefix=("visual_projection.weight",),
        clean=complete_probe,
    )
    for variant, own, absent in (("aimv2", (AIMV2_TABLE,), ()), ("aimv2-native", (), (AIMV2_TABLE,)))
)
"""With learned positions, and with computed ones."""
