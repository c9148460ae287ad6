"""`transformers`: DINOv3 ViT, in the names of files and in those of memory.

No position table: queries and keys are turned by row and column. The key projection has no bias (the 7B has none
anywhere in attention), which is not the same as a bias of zeros that one could train. transformers has no classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import Ignore, Layout, Name, Parts, Rule, Zero, names
from ..shapes import blocks, has, need, vote
from ..steps import KERNEL, STACK
from ..told import Told
from .hf_common import MEMORY_QKV, OURS, block_rules, heads, numerics, settings
from .hf_express import as_dinov3

# fmt: off
STEM = {  # theirs                        ours
    "embeddings.patch_embeddings.bias":   "tokens.patches.bias",
    "embeddings.cls_token":               "tokens.cls",
    "embeddings.register_tokens":         "tokens.registers",
    "norm.{p}":                           "encoder.norm.{p}",
}
BLOCK = {
    "norm1.{p}":                          "norm1.{p}",
    "attention.o_proj.{p}":               "attention.out.{p}",
    "layer_scale1.lambda1":               "scale1",
    "norm2.{p}":                          "norm2.{p}",
    "mlp.gate_proj.{p}":                  "mlp.gate.{p}",
    "mlp.up_proj.{p}":                    "mlp.fc1.{p}",
    "mlp.down_proj.{p}":                  "mlp.fc2.{p}",
    "layer_scale2.lambda1":               "scale2",
}
# fmt: on
WEIGHT, REGISTERS = "embeddings.patch_embeddings.weight", "embeddings.register_tokens"
DEFAULTS = {
    "num_attention_heads": 6, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "image_size": 224, "rope_theta": 100.0,
}  # fmt: skip
"""What a config.json of this class means by leaving it out."""
PUBLISHED = {384: 6, 768: 12, 1024: 16, 1280: 20, 4096: 32}
"""Heads of the published sizes by their width."""
MASK = "stands for hidden patches in training"


def rules(under: str) -> tuple[Rule, ...]:
    """The whole table, for blocks that lie under this name."""
    query, _, value = (f"{under}.{{i}}.{name}.bias" for name in MEMORY_QKV)
    return (
        *names(STEM),
        Name(WEIGHT, "tokens.patches.weight", KERNEL),
        Zero("embeddings.mask_token", lambda config: (1, 1, config.width), reason=MASK),
        *block_rules(under, BLOCK, MEMORY_QKV),
        Ignore(REGISTERS, reason="holds no registers"),
        Parts((query, value), (OURS + "attention.qv_bias",), STACK),
    )


def describe(under: str, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. Pictures are 224 x 224 unless config.json or the caller says otherwise.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or config.json disagrees.
        UsageError: heads were not given, an argument contradicts the file, or config.json says other periods.
    """
    inside = f"{under}.{{i}}."
    beside = settings(told, DEFAULTS)
    if (base := beside.number("rope_theta")) != 100:
        raise UsageError(
            f"config.json says rope_theta={base:g}. Published DINOv3 models have 100; others are not read."
        )
    kernel = need(tensors, WEIGHT, axes=4)
    width = vote(tensors, "width", (f"{inside}norm1.weight", 0), (f"{inside}norm2.weight", 0))
    size = beside.pair("image_size")
    gated = has(tensors, f"{inside}mlp.gate_proj.weight")
    q, k, v = (has(tensors, f"{inside}{name}.bias") for name in MEMORY_QKV)
    return ViTConfig(
        image_size=size if told.foreign else told.image_size or size,
        patch=(kernel.shape[2], kernel.shape[3]),
        channels=kernel.shape[1],
        width=width,
        depth=blocks(tensors, under),
        heads=heads(told, beside, width, PUBLISHED),
        mlp_width=vote(tensors, "MLP width", (f"{inside}mlp.up_proj.weight", 0), (f"{inside}mlp.down_proj.weight", 1)),
        outputs=0,
        registers=need(tensors, REGISTERS, axes=3).shape[1],
        positions="none",
        rotary="dinov3",
        qkv_bias=q or v or k,
        key_bias=k or not (q or v),
        out_bias=has(tensors, f"{inside}attention.o_proj.bias"),
        mlp="gated" if gated else "plain",
        mlp_bias=has(tensors, f"{inside}mlp.up_proj.bias", f"{inside}mlp.down_proj.bias"),
        layer_scale=1.0,
        **{"pool": "class", **numerics(told, beside, "hf_dinov3", gated)},
    )


LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant=variant,
        decisive=(WEIGHT, f"{under}.0.attention.k_proj.weight"),
        model_types=("dinov3_vit",),
        rules=rules(under),
        describe=partial(describe, under),
        card="hf_dinov3",
        match="transformers",
        published=frozenset(),
        express=as_dinov3,
    )
    for variant, under in (("dinov3", "layer"), ("dinov3-memory", "model.layer"))
)
"""In both namings; a file has no prefix."""
