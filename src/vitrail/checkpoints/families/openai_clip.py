"""`openai-clip`: the picture tower of OpenAI's CLIP, in a whole model's state dict or by itself.

The names are also those of OpenCLIP, whose models mostly have another activation: only the sizes that OpenAI's archives
hold beside the weights (`input_resolution`) tell the two apart, so that other files must be named with `layout=`. The
published archives are TorchScript programs: their tensors are read, their code is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import Layout
from ..shapes import given
from ..told import Told
from .clip_common import DECISIVE, VISUAL, rules, tower_settings

HEAD = 64
"""Numbers per head in every tower that OpenAI published."""


def describe(prefix: str, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file. The outputs are the vector that is compared with the words'.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads was not given for a width that 64 does not divide, or an argument contradicts the file.
    """
    settings = tower_settings(prefix, tensors, told)
    usual = None if settings["width"] % HEAD else settings["width"] // HEAD
    heads = given(usual if told.heads is None else told.heads, "heads", "openai-clip", "OpenAI's have width / 64")
    return replace(ViTConfig(heads=heads, **settings), **told.numerics("openai_clip"))


LAYOUTS = tuple(
    Layout(
        name="openai-clip",
        variant=variant,
        decisive=tuple(prefix + name for name in DECISIVE),
        absent=(f"{prefix}*.ls_[12].gamma", "*attn_pool*", "text.*", "logit_bias"),
        rules=rules(prefix),
        describe=partial(describe, prefix),
        card="openai_clip",
    )
    for variant, prefix in (("", VISUAL), ("tower", ""))
)
