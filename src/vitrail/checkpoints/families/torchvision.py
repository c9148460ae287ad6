"""`torchvision`: files of torchvision's `VisionTransformer`, with current or old names of its MLP.

Images are square and the class token goes to the head. The file does not give the number of heads; published widths
have known ones.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UsageError
from ...files import atomic, safetensors_file
from ...model.config import ViTConfig
from ...model.vit import ViT
from ..layouts import BATCHED, KERNEL, Layout, LayoutHints, NameRule, Rule, make_name_rules
from ..rules import write_with_layout
from ..validate import (
    choose_heads,
    count_blocks,
    count_outputs,
    has_tensor,
    infer_image_size,
    majority_length,
    reconcile,
    require_tensor,
)
from .plain_export import ConfigAndState, StateDict, export_plain, refuse_parts

BLOCK = "encoder.layers.encoder_layer_{i}"
# fmt: off
NAMES = {  # theirs                            ours
    "class_token":                             "tokens.cls",
    "conv_proj.bias":                          "tokens.patches.bias",
    f"{BLOCK}.ln_1.{{p}}":                     "encoder.blocks.{i}.norm1.{p}",
    f"{BLOCK}.self_attention.in_proj_weight":  "encoder.blocks.{i}.attention.qkv.weight",
    f"{BLOCK}.self_attention.in_proj_bias":    "encoder.blocks.{i}.attention.qkv.bias",
    f"{BLOCK}.self_attention.out_proj.{{p}}":  "encoder.blocks.{i}.attention.out.{p}",
    f"{BLOCK}.ln_2.{{p}}":                     "encoder.blocks.{i}.norm2.{p}",
    "encoder.ln.{p}":                          "encoder.norm.{p}",
    "heads.pre_logits.{p}":                    "head.hidden.{p}",
    "heads.head.{p}":                          "head.linear.{p}",
}
# fmt: on
KERNEL_NAME, TABLE = "conv_proj.weight", "encoder.pos_embedding"
MLP_NAMES = {"": ("mlp.0", "mlp.3"), "old-names": ("mlp.linear_1", "mlp.linear_2")}
"""Variant -> names of the two matrices of the MLP, current and old."""
HEADS = {768: 12, 1024: 16, 1280: 16}
"""Heads of the published sizes by their width."""
SWAG_IMAGE_SIZES = {768: (384, 384), 1024: (512, 512), 1280: (518, 518)}
"""Width -> image size of the weights that come from SWAG, under their own licence."""
PATCH16_CARDS = {768: "torchvision_b16", 1024: "torchvision_l16"}
"""Width -> card of the models with patches of 16 pixels; SWAG has linear classifiers in the same shapes."""


RULES: tuple[Rule, ...] = (
    *make_name_rules(NAMES),
    NameRule(KERNEL_NAME, "tokens.patches.weight", KERNEL),
    NameRule(TABLE, "positions.table", BATCHED),
)


def describe_torchvision(mlp: tuple[str, str], tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file; a file without heads.head gives features."""
    kernel = require_tensor(tensors, KERNEL_NAME, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = (f"{BLOCK}.ln_1.{{p}}", 0), (f"{BLOCK}.ln_2.{{p}}", 0), ("encoder.ln.bias", 0)
    width = majority_length(tensors, "width", *norms)
    hidden = (f"{BLOCK}.{mlp[0]}.{{p}}", 0), (f"{BLOCK}.{mlp[1]}.weight", 1)
    config = ViTConfig(
        image_size=infer_image_size(require_tensor(tensors, TABLE, axes=3).shape[1] - 1, patch, hints, TABLE),
        patch=patch,
        channels=reconcile(hints.channels, kernel.shape[1], "channels", KERNEL_NAME),
        width=width,
        depth=count_blocks({name.replace("encoder_layer_", ""): t for name, t in tensors.items()}, "encoder.layers"),
        heads=choose_heads(hints, width, HEADS, "torchvision"),
        mlp_width=majority_length(tensors, "MLP width", *hidden),
        outputs=count_outputs(tensors, "heads.head.{p}"),
        head="tanh" if has_tensor(tensors, "heads.pre_logits.{p}") else "linear",
        init="torchvision",
    )
    return replace(config, **hints.numerics("torchvision"))


def choose_torchvision_card(config: ViTConfig, hints: LayoutHints) -> str:
    """The numerics card. Of ImageNet models and models without head, those of SWAG's sizes and all H/14 are SWAG's."""
    if config.outputs not in (0, 1000):
        return "torchvision"
    if config.image_size == SWAG_IMAGE_SIZES.get(config.width):
        return "torchvision_swag"
    if config.width == 1280:
        return "torchvision_swag_linear"
    published = config.image_size == (224, 224) and config.patch == (16, 16)
    return PATCH16_CARDS.get(config.width, "torchvision") if published else "torchvision"


def export_torchvision(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """The same function in the parts that torchvision's class has."""
    (height, width), (rows, columns) = config.image_size, config.patch
    faults = {
        f'pool="{config.pool}"': config.pool != "class",
        f"pictures that are not square ({height}x{width})": height != width,
        f"patches that are not square ({rows}x{columns})": rows != columns,
        f"channels={config.channels}": config.channels != 3,
    }
    refuse_parts("The layout torchvision", faults)
    return export_plain(config, state, "torchvision")


TORCHVISION_LAYOUTS = tuple(
    Layout(
        name="torchvision",
        variant=variant,
        required_names=(KERNEL_NAME, f"{BLOCK.format(i=0)}.{mlp[0]}.weight"),
        rules=(
            *RULES,
            NameRule(f"{BLOCK}.{mlp[0]}.{{p}}", "encoder.blocks.{i}.mlp.fc1.{p}"),
            NameRule(f"{BLOCK}.{mlp[1]}.{{p}}", "encoder.blocks.{i}.mlp.fc2.{p}"),
        ),
        describe=partial(describe_torchvision, mlp),
        card=choose_torchvision_card,
        head="heads.head",
        prepare_export=export_torchvision,
    )
    for variant, mlp in MLP_NAMES.items()
)


# -- Writing

TORCHVISION_SUFFIXES = (".pth", ".safetensors")


def write_torchvision(path: Path, model: ViT) -> None:
    """Write a state dict that `VisionTransformer.load_state_dict` takes, whole or not at all.

    Args:
        path: ends in .pth for a file of `torch.save`, or in .safetensors.
    """
    if path.suffix not in TORCHVISION_SUFFIXES:
        raise UsageError(f"A file for torchvision ends in {' or '.join(TORCHVISION_SUFFIXES)}. Got {path}.")
    weights = write_with_layout(model.state_dict(), model.config, TORCHVISION_LAYOUTS[0])
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    if path.suffix == ".safetensors":
        safetensors_file.save_tensors(path, whole, {"format": "pt"}, checksum=True)
        return
    buffer = io.BytesIO()
    torch.save(whole, buffer)
    atomic.write_bytes(path, buffer.getvalue())
