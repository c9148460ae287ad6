"""`transformers`: the picture towers of SigLIP and SigLIP 2, of fixed size and NaFlex. Both namings are the same.

A learned probe looks at the normalised tokens and an MLP follows; a classifier reads the mean of the tokens instead and
never looks at the probe. NaFlex projects flat patches, channels last, and stretches one square table to each picture.
Text towers and the two numbers that scale similarities have no place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import Ignore, Layout, Name, Parts, Rule, names
from ..shapes import blocks, has, need, vote
from ..steps import KERNEL, MATRIX_CHANNELS_LAST, SPLIT, Step
from ..told import Told
from .hf_common import Settings, block_rules, heads, numerics, outputs, settings, table_size
from .hf_express import as_siglip

# fmt: off
STEM = {  # theirs                              ours
    "embeddings.patch_embedding.bias":          "tokens.patches.bias",
    "embeddings.position_embedding.weight":     "positions.table",
    "post_layernorm.{p}":                       "encoder.norm.{p}",
    "classifier.{p}":                           "head.linear.{p}",
}
PROBE = {
    "head.probe":                               "pool.attention.probe",
    "head.attention.out_proj.{p}":              "pool.attention.out.{p}",
    "head.layernorm.{p}":                       "pool.attention.norm.{p}",
    "head.mlp.fc1.{p}":                         "pool.attention.mlp.fc1.{p}",
    "head.mlp.fc2.{p}":                         "pool.attention.mlp.fc2.{p}",
}
BLOCK = {
    "layer_norm1.{p}":                          "norm1.{p}",
    "self_attn.out_proj.{p}":                   "attention.out.{p}",
    "layer_norm2.{p}":                          "norm2.{p}",
    "mlp.fc1.{p}":                              "mlp.fc1.{p}",
    "mlp.fc2.{p}":                              "mlp.fc2.{p}",
}
# fmt: on
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
WEIGHT, TABLE = "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"
BIAS, FIRST = "embeddings.patch_embedding.bias", "encoder.layers.0.layer_norm1.weight"
DEFAULTS = {
    "num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "image_size": 224,
    "num_channels": 3,
}  # fmt: skip
"""What a config.json of these classes means by leaving it out; Hub files leave out everything that is usual."""
NAFLEX_DEFAULTS = {name: value for name, value in DEFAULTS.items() if name != "image_size"}
PUBLISHED = {768: 12, 1024: 16, 1152: 16, 1536: 16}
"""Heads of the published sizes by their width."""
UNSEEN = "the probe and its MLP, at which a classifier on the mean does not look"
PAIRED: tuple[Rule, ...] = (
    Ignore("text_model.*", reason="the text tower"),
    Ignore("logit_scale", reason="scales similarities of pictures and texts"),
    Ignore("logit_bias", reason="shifts similarities of pictures and texts"),
    Ignore("embeddings.position_ids", reason="a list of numbers from 0, which old versions saved"),
)
"""What stands beside the picture tower of a model of pictures and texts."""
BOTH = ("weight", "bias")


def _stored_patches(ours: Tensor, config: ViTConfig) -> Tensor:
    return (MATRIX_CHANNELS_LAST if config.patches == "linear" else KERNEL).write(ours, config)


RULES: tuple[Rule, ...] = (
    *names(STEM),
    Name(WEIGHT, "tokens.patches.weight", Step(None, _stored_patches)),
    *block_rules("encoder.layers", BLOCK, QKV),
    *names(PROBE),
    *(
        Parts((f"head.attention.in_proj_{p}",), (f"pool.attention.q.{p}", f"pool.attention.kv.{p}"), SPLIT)
        for p in BOTH
    ),
    *(Ignore(name.replace("{p}", p), reason=UNSEEN) for name in (*PROBE, "head.attention.in_proj_{p}") for p in BOTH),
    *PAIRED,
)


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file: NaFlex if the projection is a matrix. Without a probe the tokens are averaged.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or config.json disagrees.
        UsageError: heads or a size that is needed was not given, or an argument contradicts the file.
    """
    inside = "encoder.layers.{i}."
    naflex = WEIGHT in tensors and tensors[WEIGHT].ndim == 2
    beside = settings(told, NAFLEX_DEFAULTS if naflex else DEFAULTS)
    weight = need(tensors, WEIGHT, axes=2 if naflex else 4)
    patch, channels = (
        _flat_patch(weight, told, beside) if naflex else ((weight.shape[2], weight.shape[3]), weight.shape[1])
    )
    width = vote(tensors, "width", (f"{inside}layer_norm1.weight", 0), (f"{inside}layer_norm2.weight", 0))
    count = outputs(tensors, *STEM)
    return ViTConfig(
        image_size=table_size(need(tensors, TABLE, axes=2).shape[0], 0, patch, told, beside, TABLE),
        patch=patch,
        channels=channels,
        width=width,
        depth=blocks(tensors, "encoder.layers"),
        heads=heads(told, beside, width, PUBLISHED),
        mlp_width=vote(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=count,
        patches="linear" if naflex else "conv",
        class_token=False,
        **{
            "pool": "attention" if not count and has(tensors, *PROBE) else "mean",
            **numerics(told, beside, card_name(naflex)),
        },
    )


def _flat_patch(weight: Tensor, told: Told, beside: Settings) -> tuple[tuple[int, int], int]:
    """The square patch of a projection of flat patches, and the channels: 3 unless somebody says otherwise."""
    numbers = weight.shape[1]
    channels = beside.count("num_channels") if told.foreign else told.channels or 3
    side = isqrt(numbers // channels)
    if side**2 * channels != numbers:
        raise UsageError(
            f"channels={channels} contradicts the file: {WEIGHT} has {numbers} columns, not {channels} times a square. "
            "Pass channels=, the count that the model was trained with."
        )
    return (side, side), channels


def card_name(naflex: bool) -> str:
    """Whose numbers: both generations of fixed size share one card."""
    return "hf_siglip2_naflex" if naflex else "hf_siglip"


LAYOUTS = (
    Layout(
        name="transformers",
        variant="siglip",
        decisive=(WEIGHT, BIAS, FIRST),
        absent=("embeddings.class_embedding",),
        model_types=("siglip_vision_model", "siglip", "siglip2_vision_model", "siglip2"),
        rules=RULES,
        describe=describe,
        card=lambda config, told: card_name(config.patches == "linear"),
        match="transformers",
        prefix="vision_model.",
        outside=("classifier.{p}",),
        express=as_siglip,
    ),
)
"""One table for fixed sizes and NaFlex, with a probe, with a classifier, or with neither."""
