"""`big-vision`: files of Google's big_vision, among them SigLIP and SigLIP 2, whose picture tower is in `params/img/`.

A model has a class token, or takes the mean, or pools by a learned probe (`MAPHead_0`); the table of positions has no
row for the class token, unless the file is old. Blocks trained with a scan lie on the first axis of one `encoderblock`.
NaFlex models cut the pictures themselves: their projection is a matrix over (row, column, channel), their table a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import ViTConfig
from ..layouts import Layout, Name, Rule
from ..shapes import agree, given, has, need, picture_size
from ..steps import CHANNELS_LAST_VECTOR, Step
from ..told import Told
from .flax_common import (
    AROUND,
    CONV,
    END,
    block_rules,
    dense,
    encoder_settings,
    missing,
    norm,
    out,
    outside_container,
    patch_of,
    projections,
)

LAYERS = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
POOL, SCAN = "MAPHead_0", "Transformer/encoderblock/"
INLINED = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")
"""What early models with a probe had outside MAPHead_0."""


def _patches(ours: Tensor, config: ViTConfig) -> Tensor:
    kernel = CONV.write(ours, config)  # [p, p, C, D]
    return kernel.flatten(0, 2) if ours.ndim == 2 else kernel


def _table(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(*config.grid, -1) if config.patches == "linear" else ours[None]


PATCHES: Step[Tensor] = Step(None, _patches)
"""Their patch projection: a kernel, or in NaFlex models (ours is then a matrix) a matrix [p * p * C, D]."""
TABLE: Step[Tensor] = Step(lambda theirs, like: theirs.reshape(like.shape), _table)
"""Their position table [1, N, D], or in NaFlex models [rows, columns, D]."""
RULES: tuple[Rule, ...] = (  # without the table of positions, which some models compute
    Name("embedding/kernel", "tokens.patches.weight", PATCHES),
    Name("embedding/bias", "tokens.patches.bias"),
    Name("patchln_pre/scale", "tokens.patches.norm_in.weight", CHANNELS_LAST_VECTOR),
    Name("patchln_pre/bias", "tokens.patches.norm_in.bias", CHANNELS_LAST_VECTOR),
    *norm("patchln_post", "tokens.patches.norm_out"),
    Name("cls", "tokens.cls"),
    *block_rules(*LAYERS),
    *END,
    Name(f"{POOL}/probe", "pool.attention.probe"),
    *projections(f"{POOL}/{LAYERS[0]}", ("query",), "pool.attention.q"),
    *projections(f"{POOL}/{LAYERS[0]}", ("key", "value"), "pool.attention.kv"),
    *out(f"{POOL}/{LAYERS[0]}", "pool.attention.out"),
    *norm(f"{POOL}/LayerNorm_0", "pool.attention.norm"),
    *dense(f"{POOL}/{LAYERS[2]}/Dense_0", "pool.attention.mlp.fc1"),
    *dense(f"{POOL}/{LAYERS[2]}/Dense_1", "pool.attention.mlp.fc2"),
    *AROUND,
)


def clean(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Out of its container, with one name for each block and with today's names."""
    tensors = outside_container(tensors)
    renamed = {_today(name, tensors): tensor for name, tensor in tensors.items()}
    unstacked: dict[str, Tensor] = {}
    for name, tensor in renamed.items():
        if name.startswith(SCAN) and tensor.ndim:
            rest = name.removeprefix(SCAN)
            unstacked.update({f"Transformer/encoderblock_{i}/{rest}": block for i, block in enumerate(tensor)})
        else:
            unstacked[name] = tensor
    return unstacked


def _today(name: str, tensors: Mapping[str, Tensor]) -> str:
    if name == "Transformer/pos_embedding":
        return "pos_embedding"
    return f"{POOL}/{name}" if "probe" in tensors and name.startswith(INLINED) else name


def describe(tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file; a file without head gives features.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes.
        UsageError: image_size was not given for computed positions, or an argument contradicts the file.
    """
    settings = encoder_settings(tensors, told, LAYERS[0], LAYERS[2])
    probe, class_token = has(tensors, f"{POOL}/probe", f"{POOL}/LayerNorm_0/bias"), "cls" in tensors
    if probe and class_token:
        raise DamagedFileError(f"The file has cls and {POOL}, a class token and a probe; no model pools by both.")
    stem = _naflex if tensors["embedding/kernel"].ndim == 2 else _fixed
    config = ViTConfig(
        class_token=class_token,
        pool="attention" if probe else "class" if class_token else "mean",
        **settings,
        **stem(tensors, told, class_token, probe),
    )
    if probe and told.match == "timm":
        settings = {"activation": _of_timm(config), **told.settings}
        return replace(config, **{**told.numerics(card_of(config, told)), **settings})
    return replace(config, **told.numerics(card_of(config, told)))


def _of_timm(config: ViTConfig) -> str:
    """timm runs the exact GELU in every size that SigLIP had in its first version, and by tanh in SigLIP 2's own."""
    patch, size = config.patch[0], config.image_size[0]
    new = (
        (config.width, patch) in ((768, 32), (1152, 16)) or config.width == 1536 or (config.width, size) == (1024, 512)
    )
    return "GELUTanh" if new or config.patches == "linear" else "GELU"


def card_of(config: ViTConfig, told: Told) -> str:
    """The probe is SigLIP's; a matrix for the patches is that of SigLIP 2 NaFlex."""
    if config.patches == "linear":
        return "big_vision_naflex"
    return "big_vision_siglip" if config.pool == "attention" else "big_vision"


def _fixed(tensors: Mapping[str, Tensor], told: Told, class_token: bool, probe: bool) -> dict[str, Any]:
    """Patches, positions and picture size of a model for one size of pictures."""
    kernel = need(tensors, "embedding/kernel", axes=4)
    patch = patch_of(kernel, told)
    found = {"patch": patch, "channels": agree(told.channels, kernel.shape[2], "channels", "embedding/kernel")}
    if "pos_embedding" not in tensors:
        if class_token or probe:
            raise missing(tensors, "pos_embedding", "which a model with a class token or a probe learns")
        kind = "big-vision without pos_embedding, whose positions are computed,"
        size = given(told.image_size, "image_size", kind, "big_vision's own has 224")
        return {**found, "image_size": size, "positions": "sincos2d-moco", "class_position": False}
    rows = need(tensors, "pos_embedding", axes=3).shape[1]
    one_more = not _fills(rows, patch, told) and isqrt(rows - 1) ** 2 == rows - 1
    if one_more and not class_token:
        raise missing(tensors, "cls", f"to which the first of the {rows} rows of pos_embedding belongs")
    size = picture_size(rows - one_more, patch, told, "pos_embedding")
    return {**found, "image_size": size, "class_position": one_more}


def _fills(patches: int, patch: tuple[int, int], told: Told) -> bool:
    """Whether so many patches lie in a square, or in the picture that the caller says."""
    height, width = told.image_size or (0, 0)
    return isqrt(patches) ** 2 == patches or (height // patch[0]) * (width // patch[1]) == patches


def _naflex(tensors: Mapping[str, Tensor], told: Told, class_token: bool, probe: bool) -> dict[str, Any]:
    """Patches, positions and picture size of a model for pictures of any aspect ratio."""
    numbers, channels = tensors["embedding/kernel"].shape[0], told.channels or 3
    side = isqrt(numbers // channels)
    if not side or side * side * channels != numbers:
        raise DamagedFileError(
            f"embedding/kernel must have a row for each number of a square patch of {channels} channels. Got {numbers} "
            "rows. Pass channels= if it is another number of channels."
        )
    rows, columns, _ = need(tensors, "pos_embedding", axes=3).shape
    if rows != columns:
        raise DamagedFileError(
            f"pos_embedding must be a square grid beside an embedding/kernel that is a matrix. Got {rows}x{columns}."
        )
    return {
        "patches": "linear",
        "patch": (side, side),
        "channels": channels,
        "patch_norms": has(tensors, "patchln_pre/scale", "patchln_post/scale"),
        "image_size": (rows * side, columns * side),
        "class_position": False,
    }


LEARNED: Rule = Name("pos_embedding", "positions.table", TABLE)
LAYOUTS = tuple(
    Layout(
        name="big-vision",
        variant=variant,
        decisive=("*embedding/kernel", f"*Transformer/encoderblock*/{LAYERS[0]}/query/kernel", *decisive),
        absent=("*posembed_input*", "*encoderblock*MultiHeadDotProductAttention_1*", *absent),
        rules=rules,
        describe=describe,
        card=card_of,
        clean=clean,
    )
    for variant, rules, decisive, absent in (
        ("", (*RULES, LEARNED), ("*pos_embedding",), ()),
        ("computed", RULES, (), ("*pos_embedding",)),
    )
)
