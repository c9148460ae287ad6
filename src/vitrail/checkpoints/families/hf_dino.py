"""`transformers`: DINOv2 with and without registers, and DINOv3, in the namings of files and of memory.

DINOv2: registers are inserted between the class token and the patches after positions are added, so they have none. The
classifier reads the class token and the mean of the patches. The giant's MLP is gated; files pack gate and value in one
matrix. Positions are resampled by plain bicubic interpolation without registers, by antialiased bicubic with them.

DINOv3: there is no position table; queries and keys are rotated by row and column. The key projection has no bias (the
7B has none anywhere in attention), which is not the same as a trainable bias of zeros. transformers has no classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import (
    BATCHED,
    KERNEL,
    STACK,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    ZeroRule,
    make_name_rules,
)
from ..validate import count_blocks, count_outputs, has_tensor, majority_length, require_tensor
from .hf import (
    FILE_QKV,
    MEMORY_QKV,
    OUR_BLOCK,
    hf_block_rules,
    read_hf_config,
    read_hf_heads,
    read_hf_image_size,
    read_hf_numerics,
)
from .hf_export import export_dinov2, export_dinov3

# fmt: off
DINOV2_STEM = {  # theirs                           ours
    "embeddings.patch_embeddings.projection.bias":  "tokens.patches.bias",
    "embeddings.cls_token":                         "tokens.cls",
    "embeddings.register_tokens":                   "tokens.registers",
    "layernorm.{p}":                                "encoder.norm.{p}",
    "classifier.{p}":                               "head.linear.{p}",
}
DINOV2_BLOCK = {
    "norm1.{p}":             "norm1.{p}",
    "layer_scale1.lambda1":  "scale1",
    "norm2.{p}":             "norm2.{p}",
    "layer_scale2.lambda1":  "scale2",
}
PLAIN_MLP = {
    "mlp.fc1.{p}":  "mlp.fc1.{p}",
    "mlp.fc2.{p}":  "mlp.fc2.{p}",
}
PACKED_MLP = {
    "mlp.weights_in.{p}":   "mlp.fc1.{p}",
    "mlp.weights_out.{p}":  "mlp.fc2.{p}",
}
# fmt: on
DINOV2_PATCH_WEIGHT = "embeddings.patch_embeddings.projection.weight"
DINOV2_POSITION_TABLE = "embeddings.position_embeddings"
REGISTER_TOKENS = "embeddings.register_tokens"
MASK_REASON = "stands for hidden patches in training"
INSIDE = "encoder.layer.{i}."
DINOV2_DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu", "image_size": 224}
"""Defaults of these classes, for fields that a config.json leaves out."""
DINOV2_HEADS = {384: 6, 768: 12, 1024: 16, 1536: 24}
"""Heads of the published sizes by their width."""


@dataclass(frozen=True, kw_only=True)
class HFDinov2Variant:
    """One of the eight layouts: with or without registers, naming of files or of memory, plain or gated MLP."""

    registers: bool
    memory: bool
    gated: bool

    @property
    def family(self) -> str:
        """transformers' name: in config.json, and as the prefix of a classifier's encoder."""
        return "dinov2_with_registers" if self.registers else "dinov2"

    @property
    def variant(self) -> str:
        return self.family + ("-gated" if self.gated else "") + ("-memory" if self.memory else "")

    @property
    def card(self) -> str:
        return "hf_dinov2_registers" if self.registers else "hf_dinov2"

    @property
    def qkv(self) -> tuple[str, str, str]:
        """The three projections inside a block."""
        return MEMORY_QKV if self.memory else FILE_QKV

    @property
    def hidden_matrix(self) -> str:
        """The first matrix of the MLP."""
        return ("mlp.up_proj" if self.memory else "mlp.weights_in") if self.gated else "mlp.fc1"


def make_hf_dinov2_rules(kind: HFDinov2Variant) -> tuple[Rule, ...]:
    """The whole table of one kind."""
    parts = {**DINOV2_BLOCK, f"attention.{'o_proj' if kind.memory else 'output.dense'}.{{p}}": "attention.out.{p}"}
    joint: tuple[Rule, ...] = ()
    if not kind.gated:
        parts |= PLAIN_MLP
    elif not kind.memory:
        parts |= PACKED_MLP
    else:
        parts["mlp.down_proj.{p}"] = "mlp.fc2.{p}"
        gate_and_value = (f"{INSIDE}mlp.gate_proj.{{p}}", f"{INSIDE}mlp.up_proj.{{p}}")
        joint = (PartsRule(gate_and_value, (f"{OUR_BLOCK}mlp.fc1.{{p}}",), STACK),)
    return (
        *make_name_rules(DINOV2_STEM),
        NameRule(DINOV2_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
        NameRule(DINOV2_POSITION_TABLE, "positions.table", BATCHED),
        ZeroRule("embeddings.mask_token", lambda config: (1, config.width), reason=MASK_REASON),
        *hf_block_rules("encoder.layer", parts, kind.qkv),
        *joint,
        IgnoreRule(REGISTER_TOKENS, reason="holds no registers"),
    )


def describe_hf_dinov2(kind: HFDinov2Variant, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file."""
    stored = read_hf_config(hints, DINOV2_DEFAULTS)
    kernel = require_tensor(tensors, DINOV2_PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = (f"{INSIDE}norm1.weight", 0), (f"{INSIDE}norm2.weight", 0)
    width = majority_length(tensors, "width", *norms)
    hidden = majority_length(tensors, "MLP width", (f"{INSIDE}{kind.hidden_matrix}.{{p}}", 0))
    count = count_outputs(tensors, "classifier.{p}")
    rows = require_tensor(tensors, DINOV2_POSITION_TABLE, axes=3).shape[1]
    return ViTConfig(
        image_size=read_hf_image_size(rows, 1, patch, hints, stored, DINOV2_POSITION_TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, "encoder.layer"),
        heads=read_hf_heads(hints, stored, width, DINOV2_HEADS),
        mlp_width=hidden // 2 if kind.gated and not kind.memory else hidden,
        outputs=count,
        registers=require_tensor(tensors, REGISTER_TOKENS, axes=3).shape[1] if kind.registers else 0,
        qkv_bias=has_tensor(tensors, *(f"{INSIDE}{name}.bias" for name in kind.qkv)),
        mlp="gated-packed" if kind.gated else "plain",
        layer_scale=1.0,
        **{
            "pool": "class+mean" if count else "class",
            **read_hf_numerics(hints, stored, kind.card),
            **({"activation": "SiLU"} if kind.gated else {}),  # config.json may give another one, which is not run
        },
    )


def _make_dinov2_layout(kind: HFDinov2Variant) -> Layout:
    inside = ("layer_scale1.lambda1", f"{kind.qkv[0]}.weight", f"{kind.hidden_matrix}.weight")
    registers = (REGISTER_TOKENS,)
    return Layout(
        name="transformers",
        variant=kind.variant,
        required_names=(
            DINOV2_PATCH_WEIGHT,
            *(f"encoder.layer.0.{name}" for name in inside),
            *(registers if kind.registers else ()),
        ),
        forbidden_names=() if kind.registers else registers,
        model_types=(kind.family,),
        rules=make_hf_dinov2_rules(kind),
        describe=partial(describe_hf_dinov2, kind),
        card=kind.card,
        head="classifier",
        match="transformers",
        published=frozenset(),
        prefix=f"{kind.family}.",
        names_without_prefix=("classifier.{p}",),
        prepare_export=export_dinov2,
    )


HF_DINOV2_LAYOUTS = tuple(
    _make_dinov2_layout(HFDinov2Variant(registers=registers, memory=memory, gated=gated))
    for registers in (False, True)
    for memory in (False, True)
    for gated in (False, True)
)


# -- DINOv3

# fmt: off
DINOV3_STEM = {  # theirs                ours
    "embeddings.patch_embeddings.bias":  "tokens.patches.bias",
    "embeddings.cls_token":              "tokens.cls",
    "embeddings.register_tokens":        "tokens.registers",
    "norm.{p}":                          "encoder.norm.{p}",
}
DINOV3_BLOCK = {
    "norm1.{p}":             "norm1.{p}",
    "attention.o_proj.{p}":  "attention.out.{p}",
    "layer_scale1.lambda1":  "scale1",
    "norm2.{p}":             "norm2.{p}",
    "mlp.gate_proj.{p}":     "mlp.gate.{p}",
    "mlp.up_proj.{p}":       "mlp.fc1.{p}",
    "mlp.down_proj.{p}":     "mlp.fc2.{p}",
    "layer_scale2.lambda1":  "scale2",
}
# fmt: on
DINOV3_PATCH_WEIGHT = "embeddings.patch_embeddings.weight"
DINOV3_DEFAULTS = {
    "num_attention_heads": 6, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "image_size": 224, "rope_theta": 100.0,
}  # fmt: skip
"""Defaults of this class, for fields that a config.json leaves out."""
DINOV3_HEADS = {384: 6, 768: 12, 1024: 16, 1280: 20, 4096: 32}
"""Heads of the published sizes by their width."""


def make_hf_dinov3_rules(block_prefix: str) -> tuple[Rule, ...]:
    """The whole table, for blocks under this prefix."""
    query, _, value = (f"{block_prefix}.{{i}}.{name}.bias" for name in MEMORY_QKV)
    return (
        *make_name_rules(DINOV3_STEM),
        NameRule(DINOV3_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
        ZeroRule("embeddings.mask_token", lambda config: (1, 1, config.width), reason=MASK_REASON),
        *hf_block_rules(block_prefix, DINOV3_BLOCK, MEMORY_QKV),
        IgnoreRule(REGISTER_TOKENS, reason="holds no registers"),
        PartsRule((query, value), (OUR_BLOCK + "attention.qv_bias",), STACK),
    )


def describe_hf_dinov3(block_prefix: str, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file. The image size is 224 x 224 unless config.json or the caller gives one."""
    inside = f"{block_prefix}.{{i}}."
    stored = read_hf_config(hints, DINOV3_DEFAULTS)
    if (base := stored.positive_float("rope_theta")) != 100:
        raise UsageError(
            f"config.json says rope_theta={base:g}. Published DINOv3 models have 100; others are not read."
        )
    kernel = require_tensor(tensors, DINOV3_PATCH_WEIGHT, axes=4)
    width = majority_length(tensors, "width", (f"{inside}norm1.weight", 0), (f"{inside}norm2.weight", 0))
    hidden = (f"{inside}mlp.up_proj.weight", 0), (f"{inside}mlp.down_proj.weight", 1)
    size = stored.int_pair("image_size")
    gated = has_tensor(tensors, f"{inside}mlp.gate_proj.weight")
    q, k, v = (has_tensor(tensors, f"{inside}{name}.bias") for name in MEMORY_QKV)
    return ViTConfig(
        image_size=size if hints.foreign_config else hints.image_size or size,
        patch=(kernel.shape[2], kernel.shape[3]),
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, block_prefix),
        heads=read_hf_heads(hints, stored, width, DINOV3_HEADS),
        mlp_width=majority_length(tensors, "MLP width", *hidden),
        outputs=0,
        registers=require_tensor(tensors, REGISTER_TOKENS, axes=3).shape[1],
        positions="none",
        rotary="dinov3",
        qkv_bias=q or v or k,
        key_bias=k or not (q or v),
        out_bias=has_tensor(tensors, f"{inside}attention.o_proj.bias"),
        mlp="gated" if gated else "plain",
        mlp_bias=has_tensor(tensors, f"{inside}mlp.up_proj.bias", f"{inside}mlp.down_proj.bias"),
        layer_scale=1.0,
        **{"pool": "class", **read_hf_numerics(hints, stored, "hf_dinov3", gated)},
    )


HF_DINOV3_LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant=variant,
        required_names=(DINOV3_PATCH_WEIGHT, f"{under}.0.attention.k_proj.weight"),
        model_types=("dinov3_vit",),
        rules=make_hf_dinov3_rules(under),
        describe=partial(describe_hf_dinov3, under),
        card="hf_dinov3",
        match="transformers",
        published=frozenset(),
        prepare_export=export_dinov3,
    )
    for variant, under in (("dinov3", "layer"), ("dinov3-memory", "model.layer"))
)
