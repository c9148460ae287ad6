"""`mae`: files of facebookresearch/mae, the encoder, the whole autoencoder, or a classifier fine-tuned from it.

The fixed waves that pre-training adds are read as the learned table that fine-tuning makes of them, and stretch as the
repository stretches them. Encoder and classifier have the names of many other files: `layout="mae"` must be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Ignore, Layout, Rule, names
from ..shapes import has
from ..told import Told
from .originals import KERNEL_NAME, RULES, TABLE, plain

PUBLISHED = {768: 12, 1024: 16, 1280: 16}
"""Heads by width."""
# fmt: off
CLASSIFIER = {  # theirs                      ours
    "fc_norm.{p}":                            "pool.norm.{p}",
    "head.{p}":                               "head.linear.{p}",
}
# fmt: on
CLASSIFIER_RULES: tuple[Rule, ...] = (*RULES, *names(CLASSIFIER))
DECODER = "a decoder, which its pre-training alone uses"


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; with `fc_norm` the mean of the patches is normalised, not the tokens.

    Raises: see `originals.plain`.
    """
    config = plain(tensors, told, "mae", PUBLISHED)
    if has(tensors, "fc_norm.{p}"):
        return replace(config, pool="mean", final_norm=False, pooled_norm=True)
    return config


_layout = partial(Layout, name="mae", describe=describe, card="mae", published=PUBLISHED_SIZES)
LAYOUTS = (
    _layout(decisive=(KERNEL_NAME, TABLE), absent=("decoder_*",), named_only=True, rules=CLASSIFIER_RULES),
    _layout(
        variant="autoencoder",
        decisive=(KERNEL_NAME, TABLE, "decoder_embed.weight", "decoder_pos_embed"),
        rules=(
            *RULES,
            Ignore("decoder_*", reason=DECODER),
            Ignore("mask_token", reason=DECODER),
        ),
    ),
)
