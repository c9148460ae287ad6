"""`transformers`: ViT, DeiT, MAE, MSN and I-JEPA, in the names of files and in those of memory.

All five are one encoder under one table. DeiT has a second token with its own position and, with a teacher's head, a
second classifier whose outputs are averaged with the first's; I-JEPA has no class token and takes the mean. Positions
stretch by plain bicubic interpolation in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isqrt

from torch import Tensor

from ...errors import DamagedFileError
from ...model.config import Pool, ViTConfig
from ..layouts import Ignore, Layout, Name, Rule, names
from ..shapes import blocks, has, need, vote
from ..steps import BATCHED, KERNEL
from ..told import Told
from .hf_common import FILE_QKV, MEMORY_QKV, block_rules, heads, numerics, outputs, settings, table_size
from .hf_express import as_vit

# fmt: off
STEM = {  # theirs                                    ours
    "embeddings.patch_embeddings.projection.bias":    "tokens.patches.bias",
    "embeddings.cls_token":                           "tokens.cls",
    "embeddings.distillation_token":                  "tokens.distillation",
    "layernorm.{p}":                                  "encoder.norm.{p}",
}
ONE_HEAD = {
    "pooler.dense.{p}":                               "head.hidden.{p}",
    "classifier.{p}":                                 "head.linear.{p}",
}
TWO_HEADS = {
    "cls_classifier.{p}":                             "head.linear.{p}",
    "distillation_classifier.{p}":                    "head.distillation.{p}",
}
FILE = {  # inside a block
    "layernorm_before.{p}":                           "norm1.{p}",
    "attention.output.dense.{p}":                     "attention.out.{p}",
    "layernorm_after.{p}":                            "norm2.{p}",
    "intermediate.dense.{p}":                         "mlp.fc1.{p}",
    "output.dense.{p}":                               "mlp.fc2.{p}",
}
MEMORY = {
    "layernorm_before.{p}":                           "norm1.{p}",
    "attention.o_proj.{p}":                           "attention.out.{p}",
    "layernorm_after.{p}":                            "norm2.{p}",
    "mlp.fc1.{p}":                                    "mlp.fc1.{p}",
    "mlp.fc2.{p}":                                    "mlp.fc2.{p}",
}
# fmt: on
WEIGHT, TABLE = "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"
CLASS, SECOND = "embeddings.cls_token", "embeddings.distillation_token"
DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "image_size": 224}
"""What a config.json of these classes means by leaving it out."""
MSN_DEFAULTS = {**DEFAULTS, "layer_norm_eps": 1e-6}
POOLER = "the tanh layer of a bare model; settings head=tanh keeps it"
PUBLISHED = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
"""Heads of the published sizes by their width."""


@dataclass(frozen=True)
class Naming:
    """One of the two tables of names inside the blocks."""

    suffix: str
    blocks: str
    parts: Mapping[str, str]
    qkv: tuple[str, str, str]
    hidden: str
    """The first matrix of the MLP."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of the architectures: what tells it from the others, and what it means."""

    variant: str
    prefix: str
    model_types: tuple[str, ...]
    card: str
    pool: Pool = "class"
    decisive: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    heads: Mapping[str, str]


NAMINGS = (
    Naming("", "encoder.layer", FILE, FILE_QKV, "intermediate.dense"),
    Naming("-memory", "layers", MEMORY, MEMORY_QKV, "mlp.fc1"),
)
PRETRAINED, TEACHER = "decoder.decoder_embed.weight", "*_classifier.*"
KINDS = (
    Kind(
        variant="vit", prefix="vit.", model_types=("vit", "vit_mae", "vit_msn"), card="hf_vit", heads=ONE_HEAD,
        decisive=(CLASS,), absent=(SECOND, PRETRAINED),
    ),
    Kind(
        variant="mae", prefix="vit.", model_types=("vit_mae",), card="hf_mae", heads=ONE_HEAD,
        decisive=(CLASS, PRETRAINED),
    ),
    Kind(
        variant="deit", prefix="deit.", model_types=("deit",), card="hf_deit", heads=ONE_HEAD,
        decisive=(SECOND,), absent=(TEACHER,),
    ),
    Kind(
        variant="deit-teacher", prefix="deit.", model_types=("deit",), card="hf_deit", heads=TWO_HEADS,
        decisive=(SECOND, TEACHER),
    ),
    Kind(
        variant="ijepa", prefix="ijepa.", model_types=("ijepa",), card="hf_ijepa", heads=ONE_HEAD, pool="mean",
        absent=(CLASS, SECOND),
    ),
)  # fmt: skip


def rules(kind: Kind, naming: Naming) -> tuple[Rule, ...]:
    """The whole table; what a model lacks (a second token, a pooler) has no rule that applies."""
    return (
        *names({**STEM, **kind.heads}),
        Name(WEIGHT, "tokens.patches.weight", KERNEL),
        Name(TABLE, "positions.table", BATCHED),
        *block_rules(naming.blocks, naming.parts, naming.qkv),
        *(Ignore(f"pooler.dense.{p}", reason=POOLER) for p in ("weight", "bias")),
        Ignore("embeddings.mask_token", reason="stands for hidden patches in its pre-training"),
        Ignore("decoder.*", reason="the decoder of its pre-training"),
    )


def describe(kind: Kind, naming: Naming, tensors: Mapping[str, Tensor], told: Told) -> ViTConfig:
    """The architecture of a file.

    Raises:
        DamagedFileError: a tensor that tells the architecture is missing or has other axes, or config.json disagrees.
        UsageError: heads or a size that is needed was not given, or an argument contradicts the file.
    """
    inside = f"{naming.blocks}.{{i}}."
    beside = settings(told, MSN_DEFAULTS if told.foreign.get("model_type") == "vit_msn" else DEFAULTS)
    kernel = need(tensors, WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    width = vote(tensors, "width", *((f"{inside}layernorm_{place}.weight", 0) for place in ("before", "after")))
    prefix = (kind.pool == "class") + (SECOND in tensors)
    rows = need(tensors, TABLE, axes=3).shape[1]
    _check_tokens(rows - prefix, tensors, told)
    return ViTConfig(
        image_size=table_size(rows, prefix, patch, told, beside, TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=blocks(tensors, naming.blocks),
        heads=heads(told, beside, width, PUBLISHED),
        mlp_width=vote(tensors, "MLP width", (f"{inside}{naming.hidden}.{{p}}", 0)),
        outputs=outputs(tensors, *kind.heads),
        class_token=kind.pool == "class",
        distillation_token=SECOND in tensors,
        distillation_head=kind.heads is TWO_HEADS,
        qkv_bias=has(tensors, *(f"{inside}{part}.bias" for part in naming.qkv)),
        **{"pool": kind.pool, **numerics(told, beside, card_name(kind, told))},
    )


def card_name(kind: Kind, told: Told) -> str:
    """Whose numbers: a config.json tells MAE and MSN from ViT, which their tensors do not."""
    return {"vit_mae": "hf_mae", "vit_msn": "hf_msn"}.get(str(told.foreign.get("model_type")), kind.card)


def doubts(kind: Kind, told: Told) -> tuple[str, ...]:
    """DINO's folders say no more than those of Google's ViT."""
    if not told.foreign or told.match != "original" or card_name(kind, told) != "hf_vit":
        return ()
    return ("taken for Google's ViT; for DINO's own numerics load the original file with layout=dino",)


def _card_of(kind: Kind, config: ViTConfig, told: Told) -> str:
    return card_name(kind, told)


def _check_tokens(patches: int, tensors: Mapping[str, Tensor], told: Told) -> None:
    """Name the token that a file lacks when its table has one row more than a square.

    Raises:
        DamagedFileError: so it is, and nobody says that the pictures are not square.
    """
    lacking = [name for name in (CLASS, SECOND) if name not in tensors]
    told_otherwise = bool(told.foreign) or told.image_size is not None
    if lacking and not told_otherwise and not _is_square(patches) and _is_square(patches - 1):
        raise DamagedFileError(f"{TABLE} has a row for one token more than the file holds: {lacking[0]} is missing.")


def _is_square(count: int) -> bool:
    return count > 0 and isqrt(count) ** 2 == count


def clean(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put `vit.` back before the blocks of an MSN classifier, which transformers 5 saves without it."""
    if f"vit.{CLASS}" not in tensors:
        return tensors
    return {f"vit.{name}" if name.startswith("encoder.") else name: tensor for name, tensor in tensors.items()}


LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant=kind.variant + naming.suffix,
        decisive=(WEIGHT, f"{naming.blocks}.0.layernorm_before.weight", *kind.decisive),
        absent=kind.absent,
        model_types=kind.model_types,
        rules=rules(kind, naming),
        describe=partial(describe, kind, naming),
        card=partial(_card_of, kind),
        match="transformers",
        published=frozenset(),
        doubts=partial(doubts, kind),
        prefix=kind.prefix,
        outside=tuple(name for name in (*ONE_HEAD, *TWO_HEADS) if "classifier" in name),
        clean=clean,
        express=as_vit,
    )
    for kind in KINDS
    for naming in NAMINGS
)
"""Every kind in both namings."""
