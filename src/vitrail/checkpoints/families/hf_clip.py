"""`transformers`: the picture tower of CLIP, alone, with its projection, in a whole CLIP, or under a classifier.

Tokens are normalised before the first block and only the class token after the last one; a matrix without bias projects
it. transformers' classifier for CLIP reads the mean of the patches instead, not normalised. Both namings are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import Drop, Ignore, Layout, Name, Rule, names
from ..shapes import blocks, has, need, vote
from ..steps import FLAT, KERNEL
from ..told import Told
from .hf_common import block_rules, heads, numerics, settings, table_size
from .hf_express import as_clip
from .hf_siglip import BLOCK, FIRST, PAIRED, QKV, TABLE, WEIGHT

# fmt: off
STEM = {  # theirs                             ours
    "embeddings.position_embedding.weight":    "positions.table",
    "pre_layrnorm.{p}":                        "encoder.pre_norm.{p}",
}
CLASSIFIER = {"classifier.{p}":               "head.linear.{p}"}
PROJECTION = {
    "post_layernorm.{p}":                      "pool.norm.{p}",
    "visual_projection.weight":                "head.linear.weight",
}
# fmt: on
CLASS = "embeddings.class_embedding"
DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "image_size": 224}
"""What a config.json of this class means by leaving it out."""
PUBLISHED = {768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of the published sizes by their width."""


def rules(classifier: bool) -> tuple[Rule, ...]:
    """The whole table."""
    unseen = Drop("post_layernorm.{p}", "encoder.pre_norm.{p}", reason="a norm at which the classifier does not look")
    return (
        *names({**STEM, **(CLASSIFIER if classifier else PROJECTION)}),
        *((unseen,) if classifier else ()),
        Name(WEIGHT, "tokens.patches.weight", KERNEL),
        Name(CLASS, "tokens.cls", FLAT),
        *block_rules("encoder.layers", BLOCK, QKV),
        *PAIRED,
        Ignore("text_projection.weight", reason="the projection of texts"),
    )


def describe(classifier: bool, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. What comes out of a CLIP is the projected class token, or the normalised one.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or config.json disagrees.
        UsageError: heads, the activation or a size that is needed was not given, or an argument contradicts the file.
    """
    inside = "encoder.layers.{i}."
    if not told.foreign and "activation" not in told.settings:
        raise UsageError(
            "A CLIP file without its config.json does not say its activation. Pass "
            'settings={"activation": "QuickGELU"} for those of OpenAI and their likes, "GELU" for most of LAION\'s.'
        )
    beside = settings(told, DEFAULTS)
    known = numerics(told, beside, "hf_clip")
    if told.foreign:  # every tower was trained with its own, whoever runs it
        known["activation"] = beside.activation("hidden_act")
    kernel = need(tensors, WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = vote(tensors, "width", (f"{inside}layer_norm1.weight", 0), (f"{inside}layer_norm2.weight", 0))
    last = "classifier.{p}" if classifier else "visual_projection.weight"
    count = vote(tensors, "number of outputs", (last, 0)) if has(tensors, last) else 0
    return ViTConfig(
        image_size=table_size(need(tensors, TABLE, axes=2).shape[0], 1, patch, told, beside, TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=blocks(tensors, "encoder.layers"),
        heads=heads(told, beside, width, PUBLISHED),
        mlp_width=vote(tensors, "MLP width", (f"{inside}mlp.fc1.{{p}}", 0)),
        outputs=count,
        patch_bias=False,
        pre_norm=True,
        final_norm=False,
        pooled_norm=not classifier,
        head_bias=classifier or not count,
        **{"pool": "mean" if classifier else "class", **known},
    )


LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant="clip-classifier" if classifier else "clip",
        decisive=(WEIGHT, CLASS, FIRST, *(("classifier.*",) if classifier else ())),
        absent=() if classifier else ("classifier.*",),
        model_types=("clip_vision_model", "clip"),
        rules=rules(classifier),
        describe=partial(describe, classifier),
        card="hf_clip",
        match="transformers",
        published=frozenset(),
        prefix="vision_model.",
        outside=("classifier.{p}", "visual_projection.weight"),
        express=as_clip,
    )
    for classifier in (False, True)
)
"""A tower with or without its projection, and one under a classifier."""
