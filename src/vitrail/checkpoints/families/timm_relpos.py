"""Files of timm's `VisionTransformerRelPos`, in which a small network makes relative biases of offsets between patches.

The network has two numbers as its input, the offsets in rows and in columns, and a number for each head as its output.
Its answers for the offsets of one grid are a table of relative biases, which takes its place here: for the image size
of the model, or the one that the caller wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ...spec import Grid
from ..layouts import KERNEL, Layout, LayoutHints, NameRule, PartsRule, Rule, make_name_rules
from ..validate import count_blocks, has_tensor, reconcile, require_argument, require_tensor
from . import timm_config
from .timm import (
    END_NAMES,
    TIMM_BLOCK_NAMES,
    apply_numerics,
    choose_timm_card,
    count_prefix_tokens,
    has_matching,
    read_block_settings,
    read_end_settings,
)
from .timm_beit import BLOCK_TABLE, CLASS_ROWS, COPIED, OUR_TABLE, SHARED_TABLE, refuse_relative
from .timm_eva_naflex import EVA_STEM

BLOCK_NETWORK, SHARED_NETWORK = "blocks.{i}.attn.rel_pos.mlp", "shared_rel_pos.mlp"
RELPOS_RULES: tuple[Rule, ...] = (
    *make_name_rules({**EVA_STEM, **TIMM_BLOCK_NAMES, **END_NAMES}),
    NameRule("patch_embed.proj.weight", "tokens.patches.weight", KERNEL),
)


def make_tables(tensors: dict[str, Tensor], hints: LayoutHints) -> dict[str, Tensor]:
    """The tensors with the answers of each network in its place, as a table of BEiT's names."""
    grid = _find_grid(tensors, hints)
    steps = [torch.arange(1 - side, side, dtype=torch.float32) for side in grid]
    offsets = torch.stack(torch.meshgrid(*steps, indexing="ij"), dim=-1).flatten(0, 1)  # [offsets, 2]
    offsets = offsets.sign() * (1 + offsets.abs()).log()
    networks = {SHARED_NETWORK: SHARED_TABLE} if has_matching(tensors, f"{SHARED_NETWORK}.*") else {}
    blocks = () if networks else range(count_blocks(tensors, "blocks"))
    networks |= {BLOCK_NETWORK.replace("{i}", str(i)): BLOCK_TABLE.replace("{i}", str(i)) for i in blocks}
    rest = dict(tensors)
    for network, table in networks.items():
        hidden = len(require_tensor(tensors, f"{network}.fc1.bias", axes=1))
        heads = len(require_tensor(tensors, f"{network}.fc2.bias", axes=1))
        shapes = {"fc1.weight": (hidden, 2), "fc1.bias": (hidden,), "fc2.weight": (heads, hidden), "fc2.bias": (heads,)}
        parts = []
        for part, shape in shapes.items():
            found = require_tensor(tensors, f"{network}.{part}", axes=len(shape))
            if tuple(found.shape) != shape:
                raise DamagedFileError(f"{network}.{part} must be of the shape {list(shape)}. Got {list(found.shape)}.")
            parts.append(rest.pop(f"{network}.{part}").float())
        answers = torch.relu(offsets @ parts[0].T + parts[1]) @ parts[2].T + parts[3]  # [offsets, A]
        of_class = answers.new_zeros(CLASS_ROWS if "cls_token" in tensors else 0, heads)
        rest[table] = torch.cat([answers, of_class])
    return rest


def _find_grid(tensors: Mapping[str, Tensor], hints: LayoutHints) -> Grid:
    """The grid of patches of the wanted image size, else of the model's own."""
    kernel = require_tensor(tensors, "patch_embed.proj.weight", axes=4)
    size = hints.settings.get("image_size") or hints.image_size or timm_config.read_timm_image_size(hints)
    height, width = require_argument(
        size, "image_size", "timm with relative biases by a network", "224 in most of them"
    )
    return Grid(height // kernel.shape[2], width // kernel.shape[3])


def describe_relpos(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `make_tables`."""
    kernel, grid = require_tensor(tensors, "patch_embed.proj.weight", axes=4), _find_grid(tensors, hints)
    name = SHARED_TABLE if SHARED_TABLE in tensors else BLOCK_TABLE.replace("{i}", "0")
    heads = reconcile(hints.heads, require_tensor(tensors, name, axes=2).shape[1], "heads", "the network of its biases")
    end, settings = read_end_settings(tensors, hints), read_block_settings(tensors, replace(hints, heads=heads))
    class_token, _ = count_prefix_tokens(tensors, hints)
    config = ViTConfig(
        image_size=(grid.rows * kernel.shape[2], grid.columns * kernel.shape[3]),
        patch=(kernel.shape[2], kernel.shape[3]),
        channels=reconcile(hints.channels, kernel.shape[1], "channels", "patch_embed.proj.weight"),
        class_token=class_token,
        positions="none",
        relative_bias=True,
        qkv_bias=has_tensor(tensors, "blocks.{i}.attn.qkv.bias"),
        pool=timm_config.choose_pool(hints, False, class_token, end["pooled_norm"]),
        post_norm=timm_config.read_post_norm(
            hints, settings["layer_scale"] is None, "vit_relpos_medium_patch16_rpn_224 and the like"
        ),
        **settings,
        **end,
    )
    return replace(apply_numerics(config, hints, choose_timm_card(config, hints)), resample="geometric")


RELPOS, RELPOS_SHARED = (
    Layout(
        name="timm",
        variant=variant,
        required_names=(
            "patch_embed.proj.weight",
            "blocks.*.attn.qkv.weight",
            f"{network}.fc1.weight".replace("{i}", "*"),
        ),
        forbidden_names=("pos_embed", "storage_tokens", "mask_token"),
        model_types=("timm",),
        rules=(*RELPOS_RULES, rule),
        describe=describe_relpos,
        card=choose_timm_card,
        head="head",
        match="timm",
        clean_with_hints=make_tables,
        prepare_export=refuse_relative,
    )
    for variant, network, rule in (
        ("relpos", BLOCK_NETWORK, NameRule(BLOCK_TABLE, OUR_TABLE)),
        ("relpos-shared", SHARED_NETWORK, PartsRule((SHARED_TABLE,), (OUR_TABLE,), COPIED)),
    )
)
RELPOS_LAYOUTS = (RELPOS, RELPOS_SHARED)
