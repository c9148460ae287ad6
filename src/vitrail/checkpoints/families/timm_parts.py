"""What the tensors of any timm transformer tell: its blocks, its tokens and positions, its end.

timm has one set of names for blocks and two modules that write them: `VisionTransformer` (LayerScale `ls1.gamma`) and
`Eva` (`gamma_1`, query and value biases apart), besides NaFlex, whose patches and tokens lie under `embeds.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ...spec import Grid
from ..complete import nearest
from ..shapes import blocks, need, square_grid, vote
from ..told import Told
from . import timm_told

# fmt: off
NORMS = {  # theirs                          ours
    "blocks.{i}.norm1.{p}":                  "encoder.blocks.{i}.norm1.{p}",
    "blocks.{i}.norm2.{p}":                  "encoder.blocks.{i}.norm2.{p}",
}
ATTENTION = {
    "blocks.{i}.attn.qkv.{p}":               "encoder.blocks.{i}.attention.qkv.{p}",
    "blocks.{i}.attn.q_norm.{p}":            "encoder.blocks.{i}.attention.q_norm.{p}",
    "blocks.{i}.attn.k_norm.{p}":            "encoder.blocks.{i}.attention.k_norm.{p}",
    "blocks.{i}.attn.proj.{p}":              "encoder.blocks.{i}.attention.out.{p}",
}
MLP = {
    "blocks.{i}.mlp.fc1.{p}":                "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.fc2.{p}":                "encoder.blocks.{i}.mlp.fc2.{p}",
}
SPLIT_MLP = {
    "blocks.{i}.mlp.fc1_g.{p}":              "encoder.blocks.{i}.mlp.gate.{p}",
    "blocks.{i}.mlp.fc1_x.{p}":              "encoder.blocks.{i}.mlp.fc1.{p}",
    "blocks.{i}.mlp.fc2.{p}":                "encoder.blocks.{i}.mlp.fc2.{p}",
}
SCALES = {
    "blocks.{i}.ls1.gamma":                  "encoder.blocks.{i}.scale1",
    "blocks.{i}.ls2.gamma":                  "encoder.blocks.{i}.scale2",
}
GAMMAS = {
    "blocks.{i}.gamma_1":                    "encoder.blocks.{i}.scale1",
    "blocks.{i}.gamma_2":                    "encoder.blocks.{i}.scale2",
}
END = {
    "norm_pre.{p}":                          "encoder.pre_norm.{p}",
    "norm.{p}":                              "encoder.norm.{p}",
    "attn_pool.latent":                      "pool.attention.probe",
    "attn_pool.q.{p}":                       "pool.attention.q.{p}",
    "attn_pool.kv.{p}":                      "pool.attention.kv.{p}",
    "attn_pool.proj.{p}":                    "pool.attention.out.{p}",
    "attn_pool.norm.{p}":                    "pool.attention.norm.{p}",
    "attn_pool.mlp.fc1.{p}":                 "pool.attention.mlp.fc1.{p}",
    "attn_pool.mlp.fc2.{p}":                 "pool.attention.mlp.fc2.{p}",
    "fc_norm.{p}":                           "pool.norm.{p}",
    "head.{p}":                              "head.linear.{p}",
}
# fmt: on
BLOCK = {**NORMS, **ATTENTION, **MLP, **SCALES}
SPLIT_BLOCK = {**NORMS, **ATTENTION, **SPLIT_MLP, **SCALES}
Settings = dict[str, Any]
"""Fields of ViTConfig by name."""


def has(tensors: Mapping[str, Tensor], *patterns: str) -> bool:
    """Whether some tensor's name fits one of the patterns, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for name in tensors for pattern in patterns)


def block_settings(tensors: Mapping[str, Tensor], told: Told) -> Settings:
    """Everything about the blocks that shapes and names tell, and their heads.

    Raises:
        DamagedFileError: tensors of the blocks disagree.
        UsageError: nothing tells the heads.
    """
    width = vote(tensors, "width", *((f"blocks.{{i}}.norm{n}.{p}", 0) for n in (1, 2) for p in ("weight", "bias")))
    depth, (mlp, mlp_width) = blocks(tensors, "blocks"), _mlp(tensors)
    scaled = has(tensors, "blocks.*.ls[12].gamma", "blocks.*.gamma_[12]")
    return {
        "width": width,
        "depth": depth,
        "heads": _heads(tensors, told, width, depth, mlp_width, mlp),
        "mlp": mlp,
        "mlp_width": mlp_width,
        "qk_norm": has(tensors, "blocks.*.attn.[qk]_norm.*"),
        "out_bias": has(tensors, "blocks.*.attn.proj.bias"),
        "mlp_bias": has(tensors, "blocks.*.mlp.fc*.bias"),
        "norm": "LayerNorm" if has(tensors, "blocks.*.norm[12].bias") else "RMSNorm",
        "layer_scale": (timm_told.argument(told, "init_values") or 1e-5) if scaled else None,
    }


def end_settings(tensors: Mapping[str, Tensor], told: Told) -> Settings:
    """The norms around the blocks and the head; where neither norm is there, one is missing unless that is told."""
    headed, pooled = has(tensors, "head.*"), has(tensors, "fc_norm.*")
    return {
        "pre_norm": has(tensors, "norm_pre.*"),
        "final_norm": has(tensors, "norm.*") or not (pooled or timm_told.lacks_final_norm(told)),
        "pooled_norm": pooled,
        "outputs": vote(tensors, "number of outputs", ("head.weight", 0), ("head.bias", 0)) if headed else 0,
    }


def table(
    tensors: Mapping[str, Tensor], name: str, prefixes: tuple[int, ...], patch: tuple[int, int], told: Told
) -> tuple[tuple[int, int], int]:
    """The picture size that a learned table [1, rows, D] was made for, and how many first rows are for no patch.

    Args:
        prefixes: the counts of such rows that timm might mean, the likeliest first.

    Raises:
        DamagedFileError: the table has a row for a class token that is not there.
        UsageError: the rows fill no square, and no size that was told.
    """
    rows = tensors[name].shape[1]
    for grid in told_grids(told, patch):
        for prefix in prefixes:
            if grid.patches == rows - prefix:
                return (grid.rows * patch[0], grid.columns * patch[1]), prefix
    for prefix in prefixes:
        if is_square(rows - prefix):
            side = isqrt(rows - prefix)
            return (side * patch[0], side * patch[1]), prefix
    if 1 not in prefixes and is_square(rows - 1):
        raise DamagedFileError(
            f"{name} has {rows} rows, one more than a square of patches, which belongs to a class token. "
            f"The file has no tensor cls_token{nearest('cls_token', tensors)}."
        )
    square_grid(tuple(rows - prefix for prefix in prefixes), name)  # none is square: it says so
    raise AssertionError("unreachable")


def told_grids(told: Told, patch: tuple[int, int]) -> list[Grid]:
    """Rows and columns of patches of the sizes that are told, those of config.json first.

    timm leaves out what is left of a picture beside whole patches, or pads it.
    """
    sizes = [size for size in (timm_told.size(told), told.image_size) if size is not None]
    whole = [Grid(size[0] // patch[0], size[1] // patch[1]) for size in sizes]
    return [*whole, *(Grid(-(-size[0] // patch[0]), -(-size[1] // patch[1])) for size in sizes)]


def is_square(count: int) -> bool:
    """Whether so many patches fill a square."""
    return count > 0 and isqrt(count) ** 2 == count


def fold_registers(tensors: dict[str, Tensor], told: Told) -> dict[str, Tensor]:
    """Add positions of registers to the registers, where the table has rows for them behind that of the class token.

    The table of a picture size that is told decides, or else that of a square picture.
    """
    registers, rows, kernel = (tensors.get(name) for name in ("reg_token", "pos_embed", "patch_embed.proj.weight"))
    if registers is None or rows is None or kernel is None or [t.ndim for t in (registers, rows, kernel)] != [3, 3, 4]:
        return tensors
    first, count, total = int("cls_token" in tensors), registers.shape[1], rows.shape[1]
    patches = total - first - count
    if patches < 1 or rows.shape[2] != registers.shape[2] or not _covers(total, patches, kernel, told):
        return tensors
    of_class, of_registers, of_patches = rows.split([first, count, patches], dim=1)
    return {
        **tensors,
        "reg_token": registers + of_registers,
        "pos_embed": torch.cat([of_class, of_patches], dim=1),
    }


def _covers(total: int, patches: int, kernel: Tensor, told: Told) -> bool:
    """Whether so many of all rows are for patches, the first ones being for class and register tokens."""
    said = timm_told.argument(told, "no_embed_class")
    if said is not None:
        return not said
    counts = [grid.patches for grid in told_grids(told, (kernel.shape[2], kernel.shape[3]))]
    if total in counts or patches in counts:
        return total not in counts
    return is_square(patches) and not is_square(total)


def token_counts(tensors: Mapping[str, Tensor], told: Told, where: str = "") -> tuple[bool, int]:
    """Whether there is a class token, and how many registers.

    Raises:
        DamagedFileError: config.json or the architecture's name promises other tokens.
    """
    registers = need(tensors, f"{where}reg_token", axes=3).shape[1] if has(tensors, f"{where}reg_token") else 0
    class_token = has(tensors, f"{where}cls_token")
    timm_told.expect_tokens(told, class_token, registers)
    return class_token, registers


def with_numerics(config: ViTConfig, told: Told, card: str) -> ViTConfig:
    """Epsilon, activation and resampling: as timm runs the architecture, or from the card of whom `match` asks for."""
    if told.match not in (None, "timm"):
        known = told.numerics(card)
        if card == "timm_clip":
            known["activation"] = timm_told.activation_of_clip(told, config.pre_norm, config.mlp != "plain")
        return replace(config, **{name: known[name] for name in ("norm_eps", "activation", "resample")})
    return replace(
        config,
        norm_eps=timm_told.norm_eps(told, config.pre_norm, config.rotary == "dinov3"),
        activation=timm_told.activation(told, config.pre_norm, config.mlp != "plain"),
        resample="bicubic-antialias",
    )


def _mlp(tensors: Mapping[str, Tensor]) -> tuple[str, int]:
    """The kind of MLP and its hidden width."""
    inner = vote(tensors, "MLP width", ("blocks.{i}.mlp.fc2.weight", 1))
    if has(tensors, "blocks.*.mlp.fc1_[gx].*"):
        return "gated", inner
    rows = vote(tensors, "MLP width", ("blocks.{i}.mlp.fc1.weight", 0), ("blocks.{i}.mlp.fc1.bias", 0))
    return ("gated-packed", inner) if rows == 2 * inner else ("plain", rows)


def _heads(tensors: Mapping[str, Tensor], told: Told, width: int, depth: int, mlp_width: int, mlp: str) -> int:
    """From the norms of queries and keys, whose length is a head's width, or else from what is told."""
    if has(tensors, "blocks.*.attn.[qk]_norm.*"):
        norms = [(f"blocks.{{i}}.attn.{n}_norm.{p}", 0) for n in "qk" for p in ("weight", "bias")]
        return width // vote(tensors, "width of a head", *norms)
    return timm_told.heads(told, width, depth, mlp_width, mlp != "plain")
