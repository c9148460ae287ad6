"""`deit` and `deit3`: files of facebookresearch/deit.

DeiT's files have timm's names, so they are read only with `layout="deit"`, for the numerics of its repository. A
distilled model has a second token with its own row in the table and a second head; its outputs are the mean of both.
DeiT-III's files have `gamma_1` and `gamma_2`, and their table holds patches alone. timm's `Eva` module gives the same
names and shapes to RoPE-ViT with a table, so that without a config.json the caller must say which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...errors import UsageError
from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout, LayoutHints, Rule, make_name_rules
from . import timm_config, timm_eva_naflex
from .originals import (
    KERNEL_NAME,
    PLAIN_MLP,
    POSITION_TABLE,
    STEM_RULES,
    TABLE_RULE,
    read_common_fields,
    read_heads,
    read_image_size,
    read_mlp_width,
)
from .timm import ATTENTION_NAMES, NORM_NAMES, fold_registers, has_matching

# fmt: off
HEAD_NAMES = {  # theirs  ours
    "head.{p}":       "head.linear.{p}",
    "dist_token":     "tokens.distillation",
    "head_dist.{p}":  "head.distillation.{p}",
}
# fmt: on
DEIT_RULES: tuple[Rule, ...] = (
    *STEM_RULES,
    TABLE_RULE,
    *make_name_rules({**NORM_NAMES, **ATTENTION_NAMES, **PLAIN_MLP, **HEAD_NAMES}),
)
DEIT_HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16}
"""Heads by width."""


def describe_deit(
    tensors: Mapping[str, Tensor], hints: LayoutHints, card: str, class_position: bool = True
) -> ViTConfig:
    """The architecture of a file.

    Args:
        card: numerics card, deit or deit3.
        class_position: the table has rows for the class and the distillation token.
    """
    rotary = timm_config.read_architecture(hints) or timm_eva_naflex.ROPE_FREQUENCIES in tensors
    if rotary or "rotary" in hints.settings:
        return timm_eva_naflex.describe_eva(tensors, hints)
    if not class_position and hints.layout is None:
        raise UsageError(
            'The file has the tensors of DeiT-III and of models with rotary positions. Say which: layout="deit3"; '
            'the name of a published model, such as network="vit_small_patch16_rope_ape_224" or '
            '"vit_pe_lang_large_patch14_448"; or settings={"rotary": ...}, which may be "none".'
        )
    distilled = has_matching(tensors, "dist_token", "head_dist.*")
    fields = read_common_fields(tensors, hints, card)
    fields["heads"] = read_heads(hints, fields["width"], DEIT_HEADS)
    fields["image_size"] = read_image_size(tensors, hints, fields["patch"], prefix=(1 + distilled) * class_position)
    fields["mlp_width"] = read_mlp_width(tensors, "fc1")
    fields["class_position"] = class_position
    fields["distillation_token"] = fields["distillation_head"] = distilled
    fields["layer_scale"] = 1e-5 if has_matching(tensors, "blocks.*.gamma_[12]") else None
    return ViTConfig(**fields)


def choose_deit3_card(config: ViTConfig, hints: LayoutHints) -> str:
    """DeiT-III's numerics card, unless config.json names another model of the same tensors."""
    other = timm_config.read_architecture(hints) or config.rotary != "none"
    return timm_eva_naflex.choose_eva_card(config, hints) if other else "deit3"


DEIT_REQUIRED_NAMES = (KERNEL_NAME, POSITION_TABLE, "blocks.*.attn.qkv.weight")
DEIT = Layout(
    name="deit",
    required_names=DEIT_REQUIRED_NAMES,
    forbidden_names=("blocks.*.gamma_[12]", "mask_token", "reg_token"),
    named_only=True,
    rules=DEIT_RULES,
    describe=partial(describe_deit, card="deit"),
    card="deit",
    head="head",
    published=PUBLISHED_SIZES,
)
DEIT3 = Layout(
    name="deit3",
    required_names=(*DEIT_REQUIRED_NAMES, "blocks.*.gamma_[12]"),
    forbidden_names=(
        "blocks.*.attn.[qkv]_bias",
        "blocks.*.mlp.fc1_g*",
        "*relative_position*",
        "rope_embed*",
        "*.rope.freqs",
    ),
    model_types=("timm",),
    rules=timm_eva_naflex.EVA_RULES,
    describe=partial(describe_deit, card="deit3", class_position=False),
    card=choose_deit3_card,
    head="head",
    published=PUBLISHED_SIZES,
    clean_with_hints=fold_registers,
    prepare_export=timm_eva_naflex.export_eva_packed,
)
DEIT_LAYOUTS = (DEIT, DEIT3)
