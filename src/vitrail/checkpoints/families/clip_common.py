"""What OpenAI's CLIP and OpenCLIP's own towers share: one table of names, in a whole model or a tower by itself.

In a whole model the picture tower lies under `visual.` and the tower of words beside it under the same names without
it, so that the prefix is part of every rule here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError
from ..layouts import Ignore, Name, Rule
from ..shapes import agree, blocks, has, need, picture_size, vote
from ..steps import FLAT, KERNEL, TRANSPOSED
from ..told import Told

VISUAL = "visual."
"""Before every name of the picture tower in a whole model."""
# fmt: off
NAMES = {  # theirs                                       ours
    "positional_embedding":                               "positions.table",
    "ln_pre.{p}":                                         "encoder.pre_norm.{p}",
    "transformer.resblocks.{i}.ln_1.{p}":                 "encoder.blocks.{i}.norm1.{p}",
    "transformer.resblocks.{i}.attn.in_proj_weight":      "encoder.blocks.{i}.attention.qkv.weight",
    "transformer.resblocks.{i}.attn.in_proj_bias":        "encoder.blocks.{i}.attention.qkv.bias",
    "transformer.resblocks.{i}.attn.out_proj.{p}":        "encoder.blocks.{i}.attention.out.{p}",
    "transformer.resblocks.{i}.ls_1.gamma":               "encoder.blocks.{i}.scale1",
    "transformer.resblocks.{i}.ln_2.{p}":                 "encoder.blocks.{i}.norm2.{p}",
    "transformer.resblocks.{i}.mlp.c_fc.{p}":             "encoder.blocks.{i}.mlp.fc1.{p}",
    "transformer.resblocks.{i}.mlp.c_proj.{p}":           "encoder.blocks.{i}.mlp.fc2.{p}",
    "transformer.resblocks.{i}.ls_2.gamma":               "encoder.blocks.{i}.scale2",
    "ln_post.{p}":                                        "encoder.norm.{p}",
}
# fmt: on
DECISIVE = ("conv1.weight", "class_embedding", "positional_embedding", "ln_post.weight")
WORDS = "the tower of words"
BESIDE: tuple[Rule, ...] = (
    *(Ignore(name, reason=WORDS) for name in ("transformer.*", "token_embedding.weight", "positional_embedding")),
    *(Ignore(name, reason=WORDS) for name in ("ln_final.*", "text_projection*", "attn_mask", "text.*")),
    Ignore("logit_*", reason="temperature and bias of the comparison of pictures and words"),
    *(Ignore(name, reason="a size of the model") for name in ("input_resolution", "context_length", "vocab_size")),
)
"""Rules for what stands beside the picture tower in a whole model."""


def rules(prefix: str) -> tuple[Rule, ...]:
    """The table of a tower whose names all begin so."""
    return (
        Name(f"{prefix}conv1.weight", "tokens.patches.weight", KERNEL),
        Name(f"{prefix}class_embedding", "tokens.cls", FLAT),
        *(Name(prefix + theirs, ours) for theirs, ours in NAMES.items()),
        Name(f"{prefix}ln_post.{{p}}", "pool.norm.{p}"),
        Name(f"{prefix}proj", "head.linear.weight", TRANSPOSED),
        *(BESIDE if prefix else ()),
    )


def tower_settings(prefix: str, tensors: Mapping[str, Tensor], told: Told) -> dict[str, Any]:
    """What the shapes of a tower tell: everything but heads, activation, epsilon and pooling.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: the position table fills no square and no size was given, or an argument contradicts the file.
    """
    block, table = f"{prefix}transformer.resblocks", f"{prefix}positional_embedding"
    kernel = need(tensors, f"{prefix}conv1.weight", axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    hidden = (
        (f"{block}.{{i}}.mlp.c_fc.weight", 0),
        (f"{block}.{{i}}.mlp.c_fc.bias", 0),
        (f"{block}.{{i}}.mlp.c_proj.weight", 1),
    )
    norms = [(f"{block}.{{i}}.{norm}.{part}", 0) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")]
    return {
        "image_size": picture_size(need(tensors, table, axes=2).shape[0] - 1, patch, told, table),
        "patch": patch,
        "channels": agree(told.channels, kernel.shape[1], "channels", f"{prefix}conv1.weight"),
        "patch_bias": False,
        "width": vote(tensors, "width", *norms),
        "depth": blocks(tensors, block),
        "mlp_width": vote(tensors, "MLP width", *hidden),
        "pre_norm": has(tensors, f"{prefix}ln_pre.{{p}}"),
        "outputs": need(tensors, f"{prefix}proj", axes=2).shape[1],
        "head_bias": False,
    }


def check_outputs(told: Told, outputs: int, name: str) -> None:
    """Compare the length of the vectors with the one that open_clip_config.json says, if there is one.

    Raises:
        DamagedFileError: they differ.
    """
    model = told.foreign.get("model_cfg")
    said = model.get("embed_dim") if isinstance(model, Mapping) else None
    if said is not None and said != outputs:
        raise DamagedFileError(f"{name} gives {outputs} numbers, but open_clip_config.json says embed_dim={said!r}.")
