"""`transformers`: DINOv2 with and without registers, in the names of files and in those of memory.

Registers come between the class token and the patches after positions are added, so they have none. The classifier
reads the class token beside the mean of the patches. The giant's MLP is gated; files pack gate and value in one matrix.
Without registers positions stretch by plain bicubic interpolation, with them by bicubic antialiased.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import Layout, Name, Parts, Rule, Zero, names
from ..shapes import blocks, has, need, vote
from ..steps import BATCHED, KERNEL, STACK
from ..told import Told
from .hf_common import FILE_QKV, MEMORY_QKV, OURS, block_rules, heads, numerics, outputs, settings, table_size
from .hf_express import as_dinov2

# fmt: off
STEM = {  # theirs                                    ours
    "embeddings.patch_embeddings.projection.bias":    "tokens.patches.bias",
    "embeddings.cls_token":                           "tokens.cls",
    "embeddings.register_tokens":                     "tokens.registers",
    "layernorm.{p}":                                  "encoder.norm.{p}",
    "classifier.{p}":                                 "head.linear.{p}",
}
BLOCK = {
    "norm1.{p}":                                      "norm1.{p}",
    "layer_scale1.lambda1":                           "scale1",
    "norm2.{p}":                                      "norm2.{p}",
    "layer_scale2.lambda1":                           "scale2",
}
PLAIN_MLP = {
    "mlp.fc1.{p}":                                    "mlp.fc1.{p}",
    "mlp.fc2.{p}":                                    "mlp.fc2.{p}",
}
PACKED_MLP = {
    "mlp.weights_in.{p}":                             "mlp.fc1.{p}",
    "mlp.weights_out.{p}":                            "mlp.fc2.{p}",
}
# fmt: on
WEIGHT, TABLE = "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"
REGISTERS = "embeddings.register_tokens"
INSIDE = "encoder.layer.{i}."
GATES = ("mlp.gate_proj", "mlp.up_proj")
DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu", "image_size": 224}
"""What a config.json of these classes means by leaving it out."""
PUBLISHED = {384: 6, 768: 12, 1024: 16, 1536: 24}
"""Heads of the published sizes by their width."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of the eight tables: with or without registers, names of files or of memory, plain or gated MLP."""

    registers: bool
    memory: bool
    gated: bool

    @property
    def family(self) -> str:
        """What transformers calls it: in config.json, and as the prefix of a classifier's encoder."""
        return "dinov2_with_registers" if self.registers else "dinov2"

    @property
    def variant(self) -> str:
        return self.family + ("-gated" if self.gated else "") + ("-memory" if self.memory else "")

    @property
    def card(self) -> str:
        return "hf_dinov2_registers" if self.registers else "hf_dinov2"

    @property
    def hidden(self) -> str:
        """The first matrix of the MLP."""
        return ("mlp.up_proj" if self.memory else "mlp.weights_in") if self.gated else "mlp.fc1"


def rules(kind: Kind) -> tuple[Rule, ...]:
    """The whole table of one kind."""
    parts = {**BLOCK, f"attention.{'o_proj' if kind.memory else 'output.dense'}.{{p}}": "attention.out.{p}"}
    joint: tuple[Rule, ...] = ()
    if not kind.gated:
        parts |= PLAIN_MLP
    elif not kind.memory:
        parts |= PACKED_MLP
    else:
        parts["mlp.down_proj.{p}"] = "mlp.fc2.{p}"
        joint = (Parts(tuple(f"{INSIDE}{gate}.{{p}}" for gate in GATES), (f"{OURS}mlp.fc1.{{p}}",), STACK),)
    return (
        *names(STEM),
        Name(WEIGHT, "tokens.patches.weight", KERNEL),
        Name(TABLE, "positions.table", BATCHED),
        Zero("embeddings.mask_token", lambda config: (1, config.width), reason="stands for hidden patches in training"),
        *block_rules("encoder.layer", parts, MEMORY_QKV if kind.memory else FILE_QKV),
        *joint,
    )


def describe(kind: Kind, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or config.json disagrees.
        UsageError: heads or a size that is needed was not given, or an argument contradicts the file.
    """
    beside = settings(told, DEFAULTS)
    kernel = need(tensors, WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = vote(tensors, "width", (f"{INSIDE}norm1.weight", 0), (f"{INSIDE}norm2.weight", 0))
    hidden = vote(tensors, "MLP width", (f"{INSIDE}{kind.hidden}.{{p}}", 0))
    count = outputs(tensors, *STEM)
    rows = need(tensors, TABLE, axes=3).shape[1]
    return ViTConfig(
        image_size=table_size(rows, 1, patch, told, beside, TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=blocks(tensors, "encoder.layer"),
        heads=heads(told, beside, width, PUBLISHED),
        mlp_width=hidden // 2 if kind.gated and not kind.memory else hidden,
        outputs=count,
        registers=need(tensors, REGISTERS, axes=3).shape[1] if kind.registers else 0,
        qkv_bias=has(tensors, *(f"{INSIDE}{name}.bias" for name in (MEMORY_QKV if kind.memory else FILE_QKV))),
        mlp="gated-packed" if kind.gated else "plain",
        layer_scale=1.0,
        **{
            "pool": "class+mean" if count else "class",
            **numerics(told, beside, kind.card),
            **({"activation": "SiLU"} if kind.gated else {}),  # whatever config.json says
        },
    )


def _layout(kind: Kind) -> Layout:
    first = "encoder.layer.0."
    attention = (MEMORY_QKV if kind.memory else FILE_QKV)[0]
    return Layout(
        name="transformers",
        variant=kind.variant,
        decisive=(WEIGHT, f"{first}layer_scale1.lambda1", f"{first}{attention}.weight", f"{first}{kind.hidden}.weight")
        + ((REGISTERS,) if kind.registers else ()),
        absent=() if kind.registers else (REGISTERS,),
        model_types=(kind.family,),
        rules=rules(kind),
        describe=partial(describe, kind),
        card=kind.card,
        match="transformers",
        published=frozenset(),
        prefix=f"{kind.family}.",
        outside=("classifier.{p}",),
        express=as_dinov2,
    )


LAYOUTS = tuple(
    _layout(Kind(registers=registers, memory=memory, gated=gated))
    for registers in (False, True)
    for memory in (False, True)
    for gated in (False, True)
)
"""Every kind."""
