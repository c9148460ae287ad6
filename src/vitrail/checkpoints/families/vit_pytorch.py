"""`vit-pytorch`: files of its `ViT` and `SimpleViT`, whose patches are normalised before and after their projection.

`SimpleViT` may have register tokens. Its classes with patch dropout or flash attention, and the `ViT` that is trained
to decorrelate its tokens, are the same models in use. The other classes of the package are no plain ViTs, and
`describe_other_class` says which one a file is of.

Neither gives its heads, which may have any width. `ViT` learns its positions and has a class token if it pools by it.
Attention with a single head as wide as a token has no output matrix, which is read as the identity. `SimpleViT`
computes its positions, which are in no file, and takes the mean.

Four designs, by the version that introduced them:

- 1.17: position table [T, D]; a class token only where it is pooled.
- 1.16: the same with an axis of length 1 in front: [1, T, D].
- 1.4: as 1.16, but `ViT` always has a class token, which the mean includes: no tensor shows whether it is pooled, or
  the mean of all tokens.
- before: as 1.4, but normalised after the pooling, not before; names with `fn`; the first ones without norms of
  patches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...formatting import format_count
from ...model.config import Pool, ViTConfig
from ..layouts import (
    BATCHED,
    CHANNELS_LAST_VECTOR,
    IDENTITY,
    MATRIX_CHANNELS_LAST,
    UNBATCHED,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    Rule,
    make_name_rules,
)
from ..validate import (
    count_blocks,
    count_outputs,
    has_tensor,
    infer_image_size,
    is_square,
    majority_length,
    nearest_name_hint,
    reconcile,
    require_argument,
    require_tensor,
)

BLOCK, OUR_BLOCK = "transformer.layers.{i}", "encoder.blocks.{i}"
REGISTER_TOKENS = "register_tokens"


@dataclass(frozen=True, kw_only=True)
class ModuleNames:
    """Names of the modules in which the designs differ."""

    qkv: str = "0.to_qkv"
    out: str = "0.to_out.0"
    norm2: str = "1.net.0"
    fc1: str = "1.net.1"
    fc2: str = "1.net.4"
    projection: int = 2
    """Place of the patch projection in its sequence; 1 without norms around it."""
    last_norm: str = "transformer.norm"
    head: str = "mlp_head"

    @property
    def pooled_norm(self) -> bool:
        """The pooled vector is normalised, not the tokens."""
        return self.last_norm != "transformer.norm"


VIT_NAMES = ModuleNames()
DECORRELATED_NAMES = ModuleNames(norm2="1.norm", fc1="1.net.0", fc2="1.net.3")
SIMPLE_NAMES = ModuleNames(out="0.to_out", fc2="1.net.3", head="linear_head")
FN_NAMES = ModuleNames(
    qkv="0.fn.to_qkv", out="0.fn.to_out.0", norm2="1.norm", fc1="1.fn.net.0", fc2="1.fn.net.3",
    last_norm="mlp_head.0", head="mlp_head.1",
)  # fmt: skip
PLAIN_FN_NAMES = replace(FN_NAMES, projection=1)
OLD_SIMPLE_NAMES = replace(SIMPLE_NAMES, last_norm="linear_head.0", head="linear_head.1")
PLAIN_SIMPLE_NAMES = replace(OLD_SIMPLE_NAMES, projection=1)


def make_token_rules(batched: bool) -> tuple[Rule, ...]:
    """Rules for the class token and the positions of `ViT`.

    Args:
        batched: both have an axis of length 1 in front.
    """
    return (
        IgnoreRule("cls_token", reason="no class token: a tensor without numbers"),  # with mean pooling
        NameRule("cls_token", "tokens.cls", IDENTITY if batched else UNBATCHED),
        NameRule("pos_embedding", "positions.table", BATCHED if batched else IDENTITY),
    )


def make_module_rules(names: ModuleNames) -> tuple[Rule, ...]:
    """Rules for all modules; those for parts that a model lacks (norms of patches) do not apply."""
    stem, place = "to_patch_embedding", names.projection
    ours_norm = "pool.norm" if names.pooled_norm else "encoder.norm"
    return (
        NameRule(f"{stem}.{place}.weight", "tokens.patches.weight", MATRIX_CHANNELS_LAST),
        NameRule(f"{stem}.{place - 1}.weight", "tokens.patches.norm_in.weight", CHANNELS_LAST_VECTOR),
        NameRule(f"{stem}.{place - 1}.bias", "tokens.patches.norm_in.bias", CHANNELS_LAST_VECTOR),
        NameRule(REGISTER_TOKENS, "tokens.registers", UNBATCHED),
        *make_name_rules(
            {
                f"{stem}.{place}.bias": "tokens.patches.bias",
                f"{stem}.{place + 1}.{{p}}": "tokens.patches.norm_out.{p}",
                f"{BLOCK}.0.norm.{{p}}": f"{OUR_BLOCK}.norm1.{{p}}",
                f"{BLOCK}.{names.qkv}.weight": f"{OUR_BLOCK}.attention.qkv.weight",
                f"{BLOCK}.{names.out}.{{p}}": f"{OUR_BLOCK}.attention.out.{{p}}",
                f"{BLOCK}.{names.norm2}.{{p}}": f"{OUR_BLOCK}.norm2.{{p}}",
                f"{BLOCK}.{names.fc1}.{{p}}": f"{OUR_BLOCK}.mlp.fc1.{{p}}",
                f"{BLOCK}.{names.fc2}.{{p}}": f"{OUR_BLOCK}.mlp.fc2.{{p}}",
                f"{names.last_norm}.{{p}}": f"{ours_norm}.{{p}}",
                f"{names.head}.{{p}}": "head.linear.{p}",
            }
        ),
    )


def add_identity_output(names: ModuleNames, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the identity as output matrix where attention of a single head has none."""
    out = f"{BLOCK}.{names.out}.{{p}}"
    if has_tensor(tensors, out):
        return tensors
    added: dict[str, Tensor] = {}
    for i in range(count_blocks(tensors, "transformer.layers")):
        qkv = tensors.get(f"{BLOCK}.{names.qkv}.weight".format(i=i))
        if qkv is not None and qkv.ndim == 2 and qkv.shape[0] == 3 * qkv.shape[1]:
            added[out.format(i=i, p="weight")] = torch.eye(qkv.shape[1]).to(qkv.dtype)
            added[out.format(i=i, p="bias")] = qkv.new_zeros(qkv.shape[1])
    return {**tensors, **added}


def describe_vit(names: ModuleNames, batched: bool, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of `ViT`; a file without mlp_head gives features."""
    if "cls_token" in tensors and tensors["cls_token"].ndim == 1:
        raise UsageError(
            "cls_token has a single axis, as in vit-pytorch's ViTDetPool, which pools the patches of an object: only "
            "its ViT and SimpleViT are read."
        )
    rows = require_tensor(tensors, "pos_embedding", axes=2 + batched).shape[-2]
    class_token = "cls_token" in tensors and tensors["cls_token"].numel() > 0
    if not class_token and not is_square(rows) and is_square(rows - 1):
        near = nearest_name_hint("cls_token", tensors)
        raise DamagedFileError(f"The file has no cls_token{near}, to which the first of the {rows} positions belongs.")
    if class_token and tensors["cls_token"].ndim != 2 + batched:
        shapes = (
            f"pos_embedding is {list(tensors['pos_embedding'].shape)}, cls_token {list(tensors['cls_token'].shape)}"
        )
        raise DamagedFileError(f"{shapes}: both must have an axis of length 1 in front, or none of them.")
    settings = _read_common_settings(names, tensors, hints)
    config = ViTConfig(
        image_size=infer_image_size(rows - class_token, settings["patch"], hints, "pos_embedding"),
        class_token=class_token,
        class_position=class_token,
        pool=_read_pool(hints, batched and settings["outputs"] > 0) if class_token else "mean",
        **settings,
    )
    return replace(config, **hints.numerics("vit_pytorch"))


def _read_pool(hints: LayoutHints, is_open: bool) -> Pool:
    """The pooling of a file with a class token.

    Args:
        is_open: the version always had one and the file a head, so that the caller must give the pooling.
    """
    pool: Pool | None = hints.settings.get("pool", hints.pool)
    if is_open and pool not in ("class", "mean-all"):
        raise UsageError(
            "Files of vit-pytorch up to 1.16 have the same tensors for both of its poolings, and do not say which one "
            'the head was trained on. Pass pool="class" if the model had pool=\'cls\', its default, or pool="mean-all" '
            "if it had pool='mean', which was the mean of the patches and the class token before 1.16."
        )
    return pool if is_open and pool is not None else "class"


def describe_simple_vit(names: ModuleNames, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file of `SimpleViT`, which does not give the image size."""
    config = ViTConfig(
        image_size=require_argument(
            hints.image_size, "image_size", "vit-pytorch:simple", "the one it was trained with"
        ),
        class_token=False,
        registers=require_tensor(tensors, REGISTER_TOKENS, axes=2).shape[0] if REGISTER_TOKENS in tensors else 0,
        class_position=False,
        positions="sincos2d-moco",
        pool="mean",
        out_bias=False,
        **_read_common_settings(names, tensors, hints),
    )
    return replace(config, **hints.numerics("vit_pytorch"))


def _read_common_settings(names: ModuleNames, tensors: Mapping[str, Tensor], hints: LayoutHints) -> dict[str, Any]:
    """Settings that all designs give alike."""
    norms = (f"{BLOCK}.0.norm.{{p}}", 0), (f"{BLOCK}.{names.norm2}.{{p}}", 0)
    width = majority_length(tensors, "width", *norms)
    heads, head_width = _read_heads(names, tensors, hints, width)
    projection, after = (f"to_patch_embedding.{place}.weight" for place in (names.projection, names.projection + 1))
    if names.projection > 1 and after not in tensors and projection in tensors and tensors[projection].ndim == 1:
        raise UsageError(
            "The file has a norm behind its patch projection and none before it, as vit-pytorch's ViTND has: only its "
            "ViT and SimpleViT are read."
        )
    patch, channels = read_flat_patch(require_tensor(tensors, projection, axes=2).shape[1], projection, hints)
    return {
        "patch": patch,
        "channels": channels,
        "patches": "linear",
        "patch_norms": names.projection > 1,
        "width": width,
        "depth": count_blocks(tensors, "transformer.layers"),
        "heads": heads,
        "head_width": head_width,
        "mlp_width": majority_length(tensors, "MLP width", (f"{BLOCK}.{names.fc1}.{{p}}", 0)),
        "outputs": count_outputs(tensors, f"{names.head}.{{p}}"),
        "qkv_bias": False,
        "final_norm": not names.pooled_norm,
        "pooled_norm": names.pooled_norm,
    }


def _read_heads(
    names: ModuleNames, tensors: Mapping[str, Tensor], hints: LayoutHints, width: int
) -> tuple[int, int | None]:
    """Heads, and their width where it is not width / heads."""
    qkv = f"{BLOCK}.{names.qkv}.weight"
    inner, rest = divmod(majority_length(tensors, "width of queries, keys and values", (qkv, 0)), 3)
    out = tensors.get(f"{BLOCK}.{names.out}.weight".format(i=0))
    if out is not None and out.shape == (inner, inner) and torch.equal(out.float(), torch.eye(inner)):
        return reconcile(hints.heads, 1, "heads", "attention without a matrix after it"), None
    heads = require_argument(
        hints.heads, "heads", "vit-pytorch", f"heads of its usual 64 numbers would be {max(inner // 64, 1)}"
    )
    if rest or inner % heads:
        raise UsageError(f"heads={heads} contradicts the file: queries are {inner} wide, not a multiple of it.")
    return heads, None if inner == width else inner // heads


def read_flat_patch(numbers: int, source: str, hints: LayoutHints) -> tuple[tuple[int, int], int]:
    """Patch and channels, of which the file gives only the product: a square patch and RGB unless given."""
    channels = hints.channels or 3
    side = isqrt(numbers // channels)
    patch: tuple[int, int] = hints.settings.get("patch", (side, side))
    if patch[0] * patch[1] * channels != numbers:
        raise UsageError(
            f"{source} has {numbers} columns, no {patch[0]}x{patch[1]} patch of {format_count(channels, 'channel')}."
            " Pass channels=, or patch in settings if it is not square."
        )
    return patch, channels


MLP_OF_FN, WITH_PATCH_NORMS = "transformer.layers.*.fn.net.0.weight", "to_patch_embedding.[23].*"
NORM_BESIDE_MLP = "transformer.layers.*.1.norm.weight"
_vit_layout = partial(Layout, name="vit-pytorch", card="vit_pytorch")


def _layout_of_vit(variant: str, names: ModuleNames, batched: bool) -> Layout:
    """A variant of `ViT`."""
    old, beside = names.pooled_norm, names == DECORRELATED_NAMES
    return _vit_layout(
        variant=variant,
        required_names=(
            f"to_patch_embedding.{names.projection}.weight",
            "pos_embedding",
            *((MLP_OF_FN,) if old else (NORM_BESIDE_MLP,) if beside else ()),
        ),
        forbidden_names=()
        if names == FN_NAMES
        else (WITH_PATCH_NORMS,)
        if old
        else ("linear_head.*", "*.fn.*", *(() if beside else (NORM_BESIDE_MLP,))),
        axes={} if old else {"pos_embedding": 2 + batched},
        rules=(*make_token_rules(batched), *make_module_rules(names)),
        describe=partial(describe_vit, names, batched),
        head="" if old else names.head,
        clean=partial(add_identity_output, names),
    )


def _layout_of_simple_vit(variant: str, names: ModuleNames, *forbidden: str, registers: bool = False) -> Layout:
    """A variant of `SimpleViT`."""
    own, other = ((REGISTER_TOKENS,), ()) if registers else ((), (REGISTER_TOKENS,))
    return _vit_layout(
        variant=variant,
        required_names=(f"to_patch_embedding.{names.projection}.weight", f"{names.head}.weight", *own),
        forbidden_names=("pos_embedding", "cls_token", "*.fn.*", *other, *forbidden),
        rules=make_module_rules(names),
        head="" if names.pooled_norm else names.head,
        describe=partial(describe_simple_vit, names),
    )


VIT_PYTORCH_LAYOUTS = (
    _layout_of_vit("", VIT_NAMES, batched=False),
    _layout_of_vit("before-1.17", VIT_NAMES, batched=True),
    _layout_of_vit("decorrelated", DECORRELATED_NAMES, batched=True),
    _layout_of_vit("before-1.4", FN_NAMES, batched=True),
    _layout_of_vit("without-patch-norms", PLAIN_FN_NAMES, batched=True),
    _layout_of_simple_vit("simple", SIMPLE_NAMES, "linear_head.[01].*"),
    _layout_of_simple_vit("simple-registers", SIMPLE_NAMES, "linear_head.[01].*", registers=True),
    _layout_of_simple_vit("simple-before-1.4", OLD_SIMPLE_NAMES, "transformer.norm.*"),
    _layout_of_simple_vit("simple-without-patch-norms", PLAIN_SIMPLE_NAMES, "transformer.norm.*", WITH_PATCH_NORMS),
)


# -- The other classes of the package

OTHER_CLASSES = (  # a pattern of tensor names, the class that has them, and why it is no plain ViT
    ("jumbo_cls_token", "JumboViT", "its class token is wider than the others"),
    ("looped.layers.*", "LoopedViT", "it runs some of its blocks several times"),
    ("attn_pool_queries", "NaViT", "it packs several pictures into one sequence"),
    ("*.reattn_weights", "DeepViT", "it mixes attention weights over heads"),
    ("*.mix_heads_pre_attn", "CaiT", "it mixes attention weights over heads"),
    ("cls_transformer.layers.*", "XCiT", "it attends over channels"),
    ("*.fn.fn.net.*", "LocalViT", "it has convolutions inside its MLPs"),
    ("*.layers.*.options.*", "JetViT", "its blocks have several kinds of attention"),
    ("*.to_residual_mix.*", "SimpleViT with value residual", "its values are mixed with those of the first block"),
    ("*.[qk]_norm.gamma", "SimpleViT with QK norm", "it has a scale for every head, and a norm in the place of a head"),
    ("*.rel_pos_bias.*", "SimpleViT with relative positions", "its biases depend on the tokens"),
    ("to_freq_embedding.*", "SimpleViT with FFT", "it has tokens of frequencies beside those of patches"),
    ("*.norm.fns.*", "SimpleViT with a specialised class token", "that token has norms of its own"),
    ("*.static_alpha", "SimpleViT with hyper-connections", "it has several residual streams"),
    ("*.to_qkv_and_mask.*", "SimpleViT with sparse gating", "it has gates on its heads"),
    ("*.attn_res.*", "SimpleViT with attention residuals", "its blocks attend to the outputs of earlier ones"),
    ("*.final_pool.*", "SimpleViT with attention residuals", "its blocks attend to the outputs of earlier ones"),
    ("*.block.to_qkv.*", "SimpleViT with orthogonal residual updates", "it projects what its branches add"),
    ("*.layers.*.2.1.weight", "SimpleUViT", "it joins early blocks to late ones"),
    ("*.fns.0.*", "parallel ViT", "it runs several attentions side by side"),
    ("*.patch_merger.*", "ViT with patch merger", "it merges its tokens into a few"),
    ("*.temperature", "ViT for small data sets", "it shifts pictures before it cuts them"),
    ("*.post_norms.*", "ViT with Keel norms", "it normalises after the residual sum"),
    ("*.polar_emb.*", "ViT with polar positions", "it turns queries and keys by learned angles"),
    ("rotary_emb.freqs", "ViT of any dimension with rotary positions", "it turns queries and keys along random lines"),
    ("*.to_kv.weight", "ViT with queries apart from keys", "it reads more tokens than those of a picture"),
)
AS_OLD_HEAD = ("mlp_head.1.weight", "transformer.layers.0.1.net.1.weight")
"""Names that several classes of the package have which its `ViT` never had together without `transformer.norm`."""


def describe_other_class(names: Collection[str]) -> str:
    """Which other class of the package a file is of, in a sentence; empty if it may be a damaged plain one."""
    if not any("to_patch_embedding." in name for name in names):
        return ""
    for pattern, what, reason in OTHER_CLASSES:
        if any(fnmatchcase(name, pattern) for name in names):
            return f"It is no plain Vision Transformer: it is vit-pytorch's {what}, and {reason}."
    if all(name in names for name in AS_OLD_HEAD) and not any(name.startswith("transformer.norm") for name in names):
        return (
            "It is none of vit-pytorch's ViT and SimpleViT: its head normalises, and its blocks have today's names, as "
            "in the classes ViT of ats_vit, vit_1d, vit_3d and vit_with_patch_dropout."
        )
    return ""
