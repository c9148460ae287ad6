"""`torchvision`: files of torchvision's `VisionTransformer`, with the names that its MLP has today or had at first.

Pictures are square and the class token goes to the head. The file does not say how many heads there are; the published
widths have known ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...model.config import ViTConfig
from ..layouts import Layout, Name, Rule, names
from ..shapes import agree, blocks, given, has, need, picture_size, vote
from ..steps import BATCHED, KERNEL
from ..told import Told
from .plain_express import Expressed, State, as_plain, refuse

LAYERS = "encoder.layers.encoder_layer_{i}"
# fmt: off
NAMES = {  # theirs                                 ours
    "class_token":                                  "tokens.cls",
    "conv_proj.bias":                               "tokens.patches.bias",
    f"{LAYERS}.ln_1.{{p}}":                         "encoder.blocks.{i}.norm1.{p}",
    f"{LAYERS}.self_attention.in_proj_weight":      "encoder.blocks.{i}.attention.qkv.weight",
    f"{LAYERS}.self_attention.in_proj_bias":        "encoder.blocks.{i}.attention.qkv.bias",
    f"{LAYERS}.self_attention.out_proj.{{p}}":      "encoder.blocks.{i}.attention.out.{p}",
    f"{LAYERS}.ln_2.{{p}}":                         "encoder.blocks.{i}.norm2.{p}",
    "encoder.ln.{p}":                               "encoder.norm.{p}",
    "heads.pre_logits.{p}":                         "head.hidden.{p}",
    "heads.head.{p}":                               "head.linear.{p}",
}
# fmt: on
KERNEL_NAME, TABLE = "conv_proj.weight", "encoder.pos_embedding"
MLP = {"": ("mlp.0", "mlp.3"), "old-names": ("mlp.linear_1", "mlp.linear_2")}
"""The two matrices of the MLP, today and before."""
PUBLISHED = {768: 12, 1024: 16, 1280: 16}
"""Heads of the published sizes by their width."""
SWAG = {768: (384, 384), 1024: (512, 512), 1280: (518, 518)}
"""Width and picture size of the weights that come from SWAG, under a licence of their own."""
SIXTEEN = {768: "torchvision_b16", 1024: "torchvision_l16"}
"""Width and card of the models of patches of 16 pixels, of which SWAG has linear classifiers in the same shapes."""


def rules(mlp: tuple[str, str]) -> tuple[Rule, ...]:
    """The table, with these names of the MLP's matrices."""
    first, second = mlp
    return (
        *names(NAMES),
        Name(KERNEL_NAME, "tokens.patches.weight", KERNEL),
        Name(TABLE, "positions.table", BATCHED),
        Name(f"{LAYERS}.{first}.{{p}}", "encoder.blocks.{i}.mlp.fc1.{p}"),
        Name(f"{LAYERS}.{second}.{{p}}", "encoder.blocks.{i}.mlp.fc2.{p}"),
    )


def describe(mlp: tuple[str, str], tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; a file without heads.head gives features.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: heads was not given for a width that is not published, or an argument contradicts the file.
    """
    kernel = need(tensors, KERNEL_NAME, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = [(f"{LAYERS}.{norm}.{part}", 0) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")]
    width = vote(tensors, "width", *norms, ("encoder.ln.bias", 0))
    hidden = (f"{LAYERS}.{mlp[0]}.weight", 0), (f"{LAYERS}.{mlp[0]}.bias", 0), (f"{LAYERS}.{mlp[1]}.weight", 1)
    head = ("heads.head.weight", 0), ("heads.head.bias", 0)
    config = ViTConfig(
        image_size=picture_size(need(tensors, TABLE, axes=3).shape[1] - 1, patch, told, TABLE),
        patch=patch,
        channels=agree(told.channels, kernel.shape[1], "channels", KERNEL_NAME),
        width=width,
        depth=blocks({name.replace("encoder_layer_", ""): t for name, t in tensors.items()}, "encoder.layers"),
        heads=_heads(told, width),
        mlp_width=vote(tensors, "MLP width", *hidden),
        outputs=vote(tensors, "number of outputs", *head) if has(tensors, "heads.head.{p}") else 0,
        head="tanh" if has(tensors, "heads.pre_logits.{p}") else "linear",
        init="torchvision",
    )
    return replace(config, **told.numerics("torchvision"))


def card_of(config: ViTConfig, told: Told) -> str:
    """Of the weights with ImageNet's classes, or without their head, SWAG's are those with its sizes and all H/14."""
    if config.outputs not in (0, 1000):
        return "torchvision"
    if config.image_size == SWAG.get(config.width):
        return "torchvision_swag"
    if config.width == 1280:
        return "torchvision_swag_linear"
    published = config.image_size == (224, 224) and config.patch == (16, 16)
    return SIXTEEN.get(config.width, "torchvision") if published else "torchvision"


def express(config: ViTConfig, state: State) -> Expressed:
    """The same function in the parts that torchvision's class has.

    Raises:
        UsageError: it has no such part; the message names it.
    """
    (height, width), (rows, columns) = config.image_size, config.patch
    faults = {
        f'pool="{config.pool}"': config.pool != "class",
        f"pictures that are not square ({height}x{width})": height != width,
        f"patches that are not square ({rows}x{columns})": rows != columns,
        f"channels={config.channels}": config.channels != 3,
    }
    refuse("torchvision", faults)
    return as_plain(config, state, "torchvision")


def _heads(told: Told, width: int) -> int:
    sizes = ", ".join(f"{width} wide {heads}" for width, heads in PUBLISHED.items())
    known = PUBLISHED.get(width) if told.heads is None else told.heads
    return given(known, "heads", "torchvision", f"published sizes have: {sizes}")


LAYOUTS = tuple(
    Layout(
        name="torchvision",
        variant=variant,
        decisive=(KERNEL_NAME, f"{LAYERS.format(i=0)}.{mlp[0]}.weight"),
        rules=rules(mlp),
        describe=partial(describe, mlp),
        card=card_of,
        express=express,
    )
    for variant, mlp in MLP.items()
)
