"""Flax layouts of Google: `big-vision` (big_vision, SigLIP and SigLIP 2) and `google-npz` (ViT, AugReg, SAM).

Both share names of layers and kernels of the flax convention. A dense layer computes x @ kernel, so its kernel is our
matrix transposed. The projections of attention have an axis for the heads: kernels [D, A, d] to queries, keys and
values, [A, d, D] back. A convolution's kernel is [p, p, C, D].
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...files import atomic
from ...formatting import format_count
from ...model.config import ViTConfig
from ...model.vit import ViT
from ..layouts import (
    BATCHED,
    CHANNELS_LAST_VECTOR,
    TRANSPOSED,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    StorageStep,
)
from ..rules import write_with_layout
from ..validate import (
    count_patches,
    has_tensor,
    infer_image_size,
    is_square,
    majority_length,
    nearest_name_hint,
    reconcile,
    require_argument,
    require_tensor,
)
from .plain_export import ConfigAndState, StateDict, export_plain, refuse_parts

# -- Shared by both layouts

CONTAINERS = ("opt/target/", "params/img/", "params/")
"""Prefixes of every name in a whole training state, and in a model of images and texts."""
FLAX_BLOCK = "Transformer/encoderblock_{i}"
OUR_BLOCK = "encoder.blocks.{i}"


def _write_head_kernels(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    count = len(ours[0]) // config.attention_width
    return [part.T.reshape(-1, config.heads, config.head_dim) for part in ours[0].chunk(count)]


CONV: StorageStep[Tensor] = StorageStep(
    None, lambda ours, config: ours.reshape(len(ours), config.channels, *config.patch).permute(2, 3, 1, 0)
)
"""Their patch projection is a convolution kernel [p, p, C, D]."""
KERNELS: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: [torch.cat([kernel.flatten(1).T for kernel in theirs])], _write_head_kernels
)
"""Their projections to one, two or three of queries, keys and values, each [D, A, d], are the rows of our matrix."""
BIASES: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: [torch.cat([bias.flatten() for bias in theirs])],
    lambda ours, config: list(ours[0].reshape(-1, config.heads, config.head_dim)),
)
"""Their biases, each [A, d]."""
WRITE_OUT: StorageStep[Tensor] = StorageStep(
    lambda theirs, like: theirs.flatten(0, 1).T,
    lambda ours, config: ours.T.reshape(config.heads, config.head_dim, len(ours)),
)
"""Their projection back from the heads [A, d, D]."""


def dense_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for one dense layer."""
    return NameRule(f"{theirs}/kernel", f"{ours}.weight", TRANSPOSED), NameRule(f"{theirs}/bias", f"{ours}.bias")


def mlp_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for the two dense layers of an MLP."""
    return *dense_rules(f"{theirs}/Dense_0", f"{ours}.fc1"), *dense_rules(f"{theirs}/Dense_1", f"{ours}.fc2")


def norm_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for one normalisation."""
    return NameRule(f"{theirs}/scale", f"{ours}.weight"), NameRule(f"{theirs}/bias", f"{ours}.bias")


def projection_rules(theirs: str, parts: tuple[str, ...], ours: str) -> tuple[Rule, ...]:
    """Rules for those of query, key and value that together are one matrix of ours, and its bias."""
    return (
        PartsRule(tuple(f"{theirs}/{part}/kernel" for part in parts), (f"{ours}.weight",), KERNELS),
        PartsRule(tuple(f"{theirs}/{part}/bias" for part in parts), (f"{ours}.bias",), BIASES),
    )


def out_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Rules for the projection back from the heads."""
    return NameRule(f"{theirs}/out/kernel", f"{ours}.weight", WRITE_OUT), NameRule(f"{theirs}/out/bias", f"{ours}.bias")


def flax_block_rules(attention: str, second_norm: str, mlp: str) -> tuple[Rule, ...]:
    """Rules for the blocks, whose layers flax numbers in one of two ways."""
    return (
        *norm_rules(f"{FLAX_BLOCK}/LayerNorm_0", f"{OUR_BLOCK}.norm1"),
        *projection_rules(f"{FLAX_BLOCK}/{attention}", ("query", "key", "value"), f"{OUR_BLOCK}.attention.qkv"),
        *out_rules(f"{FLAX_BLOCK}/{attention}", f"{OUR_BLOCK}.attention.out"),
        *norm_rules(f"{FLAX_BLOCK}/{second_norm}", f"{OUR_BLOCK}.norm2"),
        *mlp_rules(f"{FLAX_BLOCK}/{mlp}", f"{OUR_BLOCK}.mlp"),
    )


END_RULES: tuple[Rule, ...] = (
    *norm_rules("Transformer/encoder_norm", "encoder.norm"),
    *dense_rules("pre_logits", "head.hidden"),
    *dense_rules("head", "head.linear"),
)
"""Rules for final norm and head."""
TRAINING_STATE_RULES: tuple[Rule, ...] = (
    IgnoreRule("txt/*", reason="the text tower"),
    IgnoreRule("[tb]", reason="temperature and bias of the comparison of images and texts"),
    IgnoreRule("opt/*", reason="the optimizer's state"),
    IgnoreRule("step", reason="the count of training steps"),
)
"""Rules for what else a training state, or a model of images and texts, holds."""


def strip_container(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefix of the container that a file has, if it has one (see `CONTAINERS`).

    Beside `params/img/` the text tower loses its `params/` too, and falls under `TRAINING_STATE_RULES`.
    """
    for container in CONTAINERS:
        if any(name.startswith(f"{container}embedding/") for name in tensors):
            outer = "params/" if container == "params/img/" else container
            inside = {name: name.removeprefix(container).removeprefix(outer) for name in tensors}
            if len(set(inside.values())) < len(tensors):
                twice = Counter(inside.values()).most_common(1)[0][0]
                raise DamagedFileError(f"The file has {twice} twice, within {container} and outside. Delete one.")
            return {inside[name]: tensor for name, tensor in tensors.items()}
    return tensors


def read_encoder_settings(
    tensors: Mapping[str, Tensor], hints: LayoutHints, attention: str, mlp: str
) -> dict[str, Any]:
    """Settings that the blocks and the head give: the number of heads is an axis of the kernels."""
    if has_tensor(tensors, "conv_root/kernel"):
        raise UsageError(
            "The file has conv_root/kernel: a hybrid, whose patches come out of a ResNet. Only plain Vision "
            "Transformers can be read."
        )
    numbers = [re.match(r"Transformer/encoderblock_(\d+)/", name) for name in tensors]
    biases = [f"{FLAX_BLOCK}/{attention}/{part}/bias" for part in ("query", "key", "value")]
    places = ("Transformer/encoder_norm", f"{FLAX_BLOCK}/LayerNorm_0")
    norms = [(f"{place}/{part}", 0) for place in places for part in ("scale", "bias")]
    hidden = (
        (f"{FLAX_BLOCK}/{mlp}/Dense_0/bias", 0),
        (f"{FLAX_BLOCK}/{mlp}/Dense_0/kernel", 1),
        (f"{FLAX_BLOCK}/{mlp}/Dense_1/kernel", 0),
    )
    width = majority_length(tensors, "width", *norms)
    heads = majority_length(tensors, "heads", *((name, 0) for name in biases))
    numbers_per_head = majority_length(tensors, "width of a head", *((name, 1) for name in biases))
    headed = has_tensor(tensors, "head/kernel", "head/bias")
    return {
        "width": width,
        "depth": 1 + max((int(number[1]) for number in numbers if number), default=-1),
        "heads": reconcile(hints.heads, heads, "heads", biases[0].format(i=0)),
        "head_width": None if heads * numbers_per_head == width else numbers_per_head,
        "mlp_width": majority_length(tensors, "MLP width", *hidden),
        "outputs": majority_length(tensors, "number of outputs", ("head/bias", 0), ("head/kernel", 1)) if headed else 0,
        "head": "tanh" if has_tensor(tensors, "pre_logits/kernel", "pre_logits/bias") else "linear",
        "init": "jax",
    }


def read_patch_size(kernel: Tensor, hints: LayoutHints) -> tuple[int, int]:
    """Height and width of a patch, from the kernel [p, p, C, D]; `hints` must confirm one that is not square."""
    patch = (kernel.shape[0], kernel.shape[1])
    if patch[0] != patch[1] and hints.settings.get("patch") != patch:
        raise UsageError(
            f"embedding/kernel has patches of {patch[0]}x{patch[1]} pixels, and those of published files are square. "
            f'If this is right, pass settings={{"patch": {patch}}}.'
        )
    return patch


def missing_tensor_error(tensors: Mapping[str, Tensor], name: str, why: str) -> DamagedFileError:
    """The error for a missing tensor that the others imply."""
    return DamagedFileError(f"The file has no tensor {name}{nearest_name_hint(name, tensors)}, {why}.")


# -- big-vision
#
# A model has a class token, takes the mean, or pools by a learned probe (`MAPHead_0`). The position table has no row
# for the class token, unless the file is old. Blocks trained with a scan lie on the first axis of one `encoderblock`.
# NaFlex models cut the images themselves: the projection is a matrix over (row, column, channel), the table a grid.

BIG_VISION_LAYERS = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PROBE_MODULE, SCAN_PREFIX = "MAPHead_0", "Transformer/encoderblock/"
INLINED_PROBE_NAMES = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")
"""Names of the probe that early models had outside MAPHead_0."""


def _write_patches(ours: Tensor, config: ViTConfig) -> Tensor:
    kernel = CONV.write(ours, config)  # [p, p, C, D]
    return kernel.flatten(0, 2) if ours.ndim == 2 else kernel


WRITE_PATCHES: StorageStep[Tensor] = StorageStep(None, _write_patches)
"""Their patch projection: a kernel, or in NaFlex models (ours is then a matrix) a matrix [p * p * C, D]."""
WRITE_TABLE: StorageStep[Tensor] = StorageStep(
    lambda theirs, like: theirs.reshape(like.shape),
    lambda ours, config: ours.reshape(*config.grid, -1) if config.patches == "linear" else ours[None],
)
"""Their position table [1, N, D], or in NaFlex models [rows, columns, D]."""
BIG_VISION_RULES: tuple[Rule, ...] = (  # without the table of positions, which some models compute
    NameRule("embedding/kernel", "tokens.patches.weight", WRITE_PATCHES),
    NameRule("embedding/bias", "tokens.patches.bias"),
    NameRule("patchln_pre/scale", "tokens.patches.norm_in.weight", CHANNELS_LAST_VECTOR),
    NameRule("patchln_pre/bias", "tokens.patches.norm_in.bias", CHANNELS_LAST_VECTOR),
    *norm_rules("patchln_post", "tokens.patches.norm_out"),
    NameRule("cls", "tokens.cls"),
    *flax_block_rules(*BIG_VISION_LAYERS),
    *END_RULES,
    NameRule(f"{PROBE_MODULE}/probe", "pool.attention.probe"),
    *projection_rules(f"{PROBE_MODULE}/{BIG_VISION_LAYERS[0]}", ("query",), "pool.attention.q"),
    *projection_rules(f"{PROBE_MODULE}/{BIG_VISION_LAYERS[0]}", ("key", "value"), "pool.attention.kv"),
    *out_rules(f"{PROBE_MODULE}/{BIG_VISION_LAYERS[0]}", "pool.attention.out"),
    *norm_rules(f"{PROBE_MODULE}/LayerNorm_0", "pool.attention.norm"),
    *mlp_rules(f"{PROBE_MODULE}/{BIG_VISION_LAYERS[2]}", "pool.attention.mlp"),
    *TRAINING_STATE_RULES,
)


def clean_big_vision(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the container's prefix, unstack scanned blocks, and rename what early files called differently."""
    tensors = strip_container(tensors)
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name == "Transformer/pos_embedding":
            renamed["pos_embedding"] = tensor
        elif "probe" in tensors and name.startswith(INLINED_PROBE_NAMES):
            renamed[f"{PROBE_MODULE}/{name}"] = tensor
        elif name.startswith(SCAN_PREFIX) and tensor.ndim:
            rest = name.removeprefix(SCAN_PREFIX)
            renamed.update({f"Transformer/encoderblock_{i}/{rest}": block for i, block in enumerate(tensor)})
        else:
            renamed[name] = tensor
    return renamed


def describe_big_vision(tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file; a file without head gives features."""
    settings = read_encoder_settings(tensors, hints, BIG_VISION_LAYERS[0], BIG_VISION_LAYERS[2])
    probe = has_tensor(tensors, f"{PROBE_MODULE}/probe", f"{PROBE_MODULE}/LayerNorm_0/bias")
    class_token = "cls" in tensors
    if probe and class_token:
        raise DamagedFileError(
            f"The file has cls and {PROBE_MODULE}, a class token and a probe; no model pools by both."
        )
    stem = _naflex_settings if tensors["embedding/kernel"].ndim == 2 else _fixed_size_settings
    config = ViTConfig(
        class_token=class_token,
        pool="attention" if probe else "class" if class_token else "mean",
        **settings,
        **stem(tensors, hints, class_token, probe),
    )
    if probe and hints.match == "timm":
        settings = {"activation": _timm_activation(config), **hints.settings}
        return replace(config, **{**hints.numerics(choose_big_vision_card(config, hints)), **settings})
    return replace(config, **hints.numerics(choose_big_vision_card(config, hints)))


def _timm_activation(config: ViTConfig) -> str:
    """timm runs the exact GELU in the sizes of the first SigLIP, and the tanh GELU in those that SigLIP 2 added."""
    patch, size = config.patch[0], config.image_size[0]
    new = (
        (config.width, patch) in ((768, 32), (1152, 16)) or config.width == 1536 or (config.width, size) == (1024, 512)
    )
    return "GELUTanh" if new or config.patches == "linear" else "GELU"


def choose_big_vision_card(config: ViTConfig, hints: LayoutHints) -> str:
    """A probe means SigLIP; a patch projection that is a matrix means SigLIP 2 NaFlex."""
    if config.patches == "linear":
        return "big_vision_naflex"
    return "big_vision_siglip" if config.pool == "attention" else "big_vision"


def _fixed_size_settings(
    tensors: Mapping[str, Tensor], hints: LayoutHints, class_token: bool, probe: bool
) -> dict[str, Any]:
    """Patches, positions and image size of a model of fixed image size."""
    kernel = require_tensor(tensors, "embedding/kernel", axes=4)
    patch = read_patch_size(kernel, hints)
    fields = {"patch": patch, "channels": reconcile(hints.channels, kernel.shape[2], "channels", "embedding/kernel")}
    if "pos_embedding" not in tensors:
        if class_token or probe:
            raise missing_tensor_error(tensors, "pos_embedding", "which a model with a class token or a probe learns")
        kind = "big-vision without pos_embedding, whose positions are computed,"
        size = require_argument(hints.image_size, "image_size", kind, "big_vision's own has 224")
        return {**fields, "image_size": size, "positions": "sincos2d-moco", "class_position": False}
    rows = require_tensor(tensors, "pos_embedding", axes=3).shape[1]
    fits = is_square(rows) or count_patches(hints.image_size or (0, 0), patch) == rows
    one_more = not fits and is_square(rows - 1)
    if one_more and not class_token:
        raise missing_tensor_error(tensors, "cls", f"to which the first of the {rows} rows of pos_embedding belongs")
    size = infer_image_size(rows - one_more, patch, hints, "pos_embedding")
    return {**fields, "image_size": size, "class_position": one_more}


def _naflex_settings(
    tensors: Mapping[str, Tensor], hints: LayoutHints, class_token: bool, probe: bool
) -> dict[str, Any]:
    """Patches, positions and image size of a model for images of any aspect ratio."""
    numbers, channels = tensors["embedding/kernel"].shape[0], hints.channels or 3
    side = isqrt(numbers // channels)
    if not side or side * side * channels != numbers:
        raise DamagedFileError(
            "embedding/kernel must have a row for each number of a square patch of "
            f"{format_count(channels, 'channel')}. Got {numbers} rows. Pass channels= if it is another number of "
            "channels."
        )
    rows, columns, _ = require_tensor(tensors, "pos_embedding", axes=3).shape
    if rows != columns:
        raise DamagedFileError(
            f"pos_embedding must be a square grid beside an embedding/kernel that is a matrix. Got {rows}x{columns}."
        )
    return {
        "patches": "linear",
        "patch": (side, side),
        "channels": channels,
        "patch_norms": has_tensor(tensors, "patchln_pre/scale", "patchln_post/scale"),
        "image_size": (rows * side, columns * side),
        "class_position": False,
    }


LEARNED_POSITIONS: Rule = NameRule("pos_embedding", "positions.table", WRITE_TABLE)
BIG_VISION_LAYOUTS = tuple(
    Layout(
        name="big-vision",
        variant=variant,
        required_names=(
            "*embedding/kernel",
            f"*Transformer/encoderblock*/{BIG_VISION_LAYERS[0]}/query/kernel",
            *decisive,
        ),
        forbidden_names=("*posembed_input*", "*encoderblock*MultiHeadDotProductAttention_1*", *absent),
        rules=rules,
        describe=describe_big_vision,
        card=choose_big_vision_card,
        clean=clean_big_vision,
    )
    for variant, rules, decisive, absent in (
        ("", (*BIG_VISION_RULES, LEARNED_POSITIONS), ("*pos_embedding",), ()),
        ("computed", BIG_VISION_RULES, (), ("*pos_embedding",)),
    )
)


# -- google-npz: Google's `.npz` files of 2020 (ViT), AugReg and SAM, and those that vit_jax writes today
#
# The published files number the layers of a block in one sequence (`LayerNorm_0`, `MultiHeadDotProductAttention_1`,
# `LayerNorm_2`, `MlpBlock_3`), today's flax numbers each kind separately. The position table has a row for the class
# token. The authors' code runs the tanh GELU, timm and transformers the exact GELU: `match` chooses, and a reader of a
# file that is written here must know which.

POSITION_TABLE_NAME = "Transformer/posembed_input/pos_embedding"
PUBLISHED_LAYERS = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN_LAYERS = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
GOOGLE_STEM_RULES: tuple[Rule, ...] = (
    NameRule("embedding/kernel", "tokens.patches.weight", CONV),
    NameRule("embedding/bias", "tokens.patches.bias"),
    NameRule("cls", "tokens.cls"),
    NameRule(POSITION_TABLE_NAME, "positions.table", BATCHED),
)


def describe_google_npz(layers: tuple[str, str, str], tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file; a file without head gives features, one without `cls` takes the mean."""
    settings = read_encoder_settings(tensors, hints, layers[0], layers[2])
    kernel = require_tensor(tensors, "embedding/kernel", axes=4)
    patch, rows = read_patch_size(kernel, hints), require_tensor(tensors, POSITION_TABLE_NAME, axes=3).shape[1]
    class_token = "cls" in tensors
    if not class_token and is_square(rows - 1) and not is_square(rows):
        raise missing_tensor_error(
            tensors, "cls", f"to which the first of the {rows} rows of {POSITION_TABLE_NAME} belongs"
        )
    config = ViTConfig(
        image_size=infer_image_size(rows - class_token, patch, hints, POSITION_TABLE_NAME),
        patch=patch,
        channels=reconcile(hints.channels, kernel.shape[2], "channels", "embedding/kernel"),
        class_token=class_token,
        pool="class" if class_token else "mean",
        **settings,
    )
    return replace(config, **hints.numerics("google_npz"))


def export_google_npz(config: ViTConfig, state: StateDict) -> ConfigAndState:
    """The same function in the parts that these files have."""
    mean_beside_class = config.pool == "mean" and config.class_token
    refuse_parts("The layout google-npz", {'pool="mean" with a class token': mean_beside_class})
    return export_plain(config, state, "google-npz")


GOOGLE_NPZ_LAYOUTS = tuple(
    Layout(
        name="google-npz",
        variant=variant,
        required_names=(f"*{POSITION_TABLE_NAME}", f"*Transformer/encoderblock_0/{layers[0]}/query/kernel"),
        rules=(*GOOGLE_STEM_RULES, *flax_block_rules(*layers), *END_RULES, *TRAINING_STATE_RULES),
        describe=partial(describe_google_npz, layers),
        card="google_npz",
        clean=strip_container,
        prepare_export=export_google_npz,
    )
    for variant, layers in (("", PUBLISHED_LAYERS), ("linen", LINEN_LAYERS))
)


ACTIVATIONS_OF_READERS = ("GELUTanh", "GELU")
"""What such files are run with, by the authors' code and by timm."""
MAX_COMMENT_BYTES = 65_535
"""Longest comment on a file of an archive."""


def write_google_npz(path: Path, model: ViT, about: Mapping[str, object]) -> None:
    """Write one `.npz` file in float32 that vit_jax, big_vision and timm load, whole or not at all.

    The arrays are weights alone. A comment on the first, which only Vitrail reads, says what they do not: activation,
    patch and image size, and `about`.

    Args:
        about: what JSON can hold: the writer, the weights' origin, preprocessing, classes.
    """
    if path.suffix != ".npz":
        raise UsageError(f"A file of Google's layout ends in .npz. Got {path}.")
    settings: dict[str, Any] = {"patch": model.config.patch}
    if model.config.activation in ACTIVATIONS_OF_READERS:
        settings["activation"] = model.config.activation
    weights = write_with_layout(model.state_dict(), model.config, GOOGLE_NPZ_LAYOUTS[0], settings)
    noted = {**about, "settings": {**settings, "image_size": model.config.image_size}}
    comment = json.dumps(noted).encode()
    if len(comment) > MAX_COMMENT_BYTES:
        comment = json.dumps({**noted, "label_names": []}).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, tensor in weights.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.external_attr, entry.comment, comment = 0o644 << 16, comment, b""
            with archive.open(entry, "w", force_zip64=True) as member:
                array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
                np.lib.format.write_array(member, array, allow_pickle=False)
    atomic.write_bytes(path, buffer.getvalue())
