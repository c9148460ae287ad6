"""`deit` and `deit3`: files of facebookresearch/deit.

DeiT's files have timm's names, so `layout="deit"` must be said; what it adds is the numerics of its repository. A
distilled one has a second token with a row of its own in the table and a second head; its outputs are the mean of both.
DeiT-III's files are known by `gamma_1` and `gamma_2`, and their table holds patches alone. timm's `Eva` module gives
the same names to some models with rotary positions, which only the config.json beside them tells apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import PUBLISHED_SIZES, Layout, Rule, names
from ..told import Told
from . import timm_dinov3, timm_told
from .originals import KERNEL_NAME, PLAIN_MLP, STEM_RULES, TABLE, TABLE_RULE, described, heads, mlp_width, table_size
from .timm_parts import ATTENTION, NORMS, has

# fmt: off
DISTILLED = {  # theirs                      ours
    "dist_token":                            "tokens.distillation",
    "head_dist.{p}":                         "head.distillation.{p}",
}
HEAD = {
    "head.{p}":                              "head.linear.{p}",
}
# fmt: on
RULES: tuple[Rule, ...] = (*STEM_RULES, TABLE_RULE, *names({**NORMS, **ATTENTION, **PLAIN_MLP, **HEAD, **DISTILLED}))
PUBLISHED = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16}
"""Heads by width."""


def describe(tensors: Mapping[str, Tensor], told: Told, card: str, class_position: bool = True) -> ViTConfig:
    """The architecture of a file.

    Args:
        card: deit or deit3.
        class_position: the table has rows for the class and the distillation token.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads or a size are needed and were not given.
    """
    if timm_told.architecture(told) or "rotary" in told.settings:
        return timm_dinov3.describe(tensors, told)
    distilled = has(tensors, "dist_token", "head_dist.*")
    fields = described(tensors, told, card)
    fields["heads"] = heads(told, fields["width"], PUBLISHED)
    fields["image_size"] = table_size(tensors, told, fields["patch"], prefix=(1 + distilled) * class_position)
    fields["mlp_width"] = mlp_width(tensors, "fc1")
    fields["class_position"] = class_position
    fields["distillation_token"] = fields["distillation_head"] = distilled
    fields["layer_scale"] = 1e-5 if has(tensors, "blocks.*.gamma_[12]") else None
    return ViTConfig(**fields)


STEM = (KERNEL_NAME, TABLE, "blocks.*.attn.qkv.weight")
DEIT = Layout(
    name="deit",
    decisive=STEM,
    absent=("blocks.*.gamma_[12]", "mask_token", "reg_token"),
    named_only=True,
    rules=RULES,
    describe=partial(describe, card="deit"),
    card="deit",
    published=PUBLISHED_SIZES,
)
DEIT3 = Layout(
    name="deit3",
    decisive=(*STEM, "blocks.*.gamma_[12]"),
    absent=("blocks.*.attn.[qkv]_bias", "blocks.*.mlp.fc1_g*", "*relative_position*", "rope*"),
    model_types=("timm",),
    rules=timm_dinov3.RULES,
    describe=partial(describe, card="deit3", class_position=False),
    card="deit3",
    published=PUBLISHED_SIZES,
    express=timm_dinov3.express_packed,
)
LAYOUTS = (DEIT, DEIT3)
