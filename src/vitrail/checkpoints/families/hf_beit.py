"""`transformers`: BEiT and Data2Vec-Vision, whose attention adds a learned number for every offset between patches.

Every block has a table of these numbers, or all blocks share one, which is then copied into each. Queries and values
have a bias, keys have none. Models that pool the mean of the patches normalise it; the others normalise the tokens and
take the class token. Most have no other positions. The tables tell the heads and, where they are square, the image
size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isqrt

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import ViTConfig
from ..layouts import (
    BATCHED,
    KERNEL,
    STACK,
    IgnoreRule,
    Layout,
    LayoutHints,
    NameRule,
    PartsRule,
    Rule,
    make_name_rules,
)
from ..validate import (
    choose_heads,
    count_blocks,
    count_outputs,
    has_tensor,
    majority_length,
    reconcile,
    require_argument,
    require_tensor,
)
from .hf import (
    CLASS_TOKEN,
    FILE_BLOCK,
    FILE_QKV,
    MEMORY_BLOCK,
    MEMORY_QKV,
    OUR_BLOCK,
    VIT_HEADS,
    VIT_PATCH_WEIGHT,
    VIT_POSITION_TABLE,
    hf_block_rules,
    read_hf_config,
    read_hf_image_size,
    read_hf_numerics,
)

# fmt: off
BEIT_STEM = {  # theirs                            ours
    "embeddings.patch_embeddings.projection.bias":  "tokens.patches.bias",
    "embeddings.cls_token":                         "tokens.cls",
    "layernorm.{p}":                                "encoder.norm.{p}",
    "pooler.layernorm.{p}":                         "pool.norm.{p}",
    "classifier.{p}":                               "head.linear.{p}",
}
BEIT_SCALES = {
    "lambda_1":  "scale1",
    "lambda_2":  "scale2",
}
# fmt: on
BIAS_TABLE = "relative_position_bias.relative_position_bias_table"
BEIT_DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "image_size": 224}
"""Defaults of these classes, for fields that a config.json leaves out."""
CLASS_TOKEN_ROWS = 3
"""Rows of a table of offsets for pairs with the class token, behind those for pairs of patches."""


@dataclass(frozen=True)
class BeitNaming:
    """One of the two namings, with the parts of names in which they differ."""

    variant: str
    prefix: str
    blocks: str
    parts: Mapping[str, str]
    qkv: tuple[str, str, str]
    hidden_matrix: str
    own_table: str
    """A block's table of offsets, inside the block."""
    shared_table: str
    """The table of offsets for all blocks."""
    decisive: tuple[str, ...] = ()
    """A name that only its files have."""


_FILE = ("encoder.layer", FILE_BLOCK, FILE_QKV, "intermediate.dense", f"attention.attention.{BIAS_TABLE}")
BEIT_NAMINGS = (
    BeitNaming("beit", "beit.", *_FILE, f"encoder.{BIAS_TABLE}"),
    BeitNaming(
        "beit-memory", "beit.", "layers", MEMORY_BLOCK, MEMORY_QKV, "mlp.fc1", BIAS_TABLE,
        "shared_position_bias.relative_position_bias_table",
    ),
    BeitNaming(
        "data2vec", "data2vec_vision.", *_FILE, f"encoder.{BIAS_TABLE}", (f"data2vec_vision.{VIT_PATCH_WEIGHT}",)
    ),
)  # fmt: skip
BEIT_IGNORED: tuple[Rule, ...] = (
    IgnoreRule("embeddings.mask_token", reason="stands for hidden patches in its pre-training"),
    IgnoreRule("*relative_position_index", reason="the row of every pair of patches, which old versions saved"),
    IgnoreRule("lm_head.*", reason="predicts the words of hidden patches in its pre-training"),
    IgnoreRule("layernorm.*", reason="a second norm, before the words of its pre-training"),
    *(
        IgnoreRule(f"{part}.*", reason="draws maps of segments")
        for part in ("decode_head", "auxiliary_head", "fpn", "fpn1", "fpn2")
    ),
)


def make_beit_rules(naming: BeitNaming) -> tuple[Rule, ...]:
    """The whole table; rules for parts that a model lacks do not apply."""
    query, _, value = (f"{naming.blocks}.{{i}}.{name}.bias" for name in naming.qkv)
    parts = {**naming.parts, **BEIT_SCALES, naming.own_table: "attention.relative_bias.table"}
    return (
        *make_name_rules(BEIT_STEM),
        NameRule(VIT_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
        NameRule(VIT_POSITION_TABLE, "positions.table", BATCHED),
        *hf_block_rules(naming.blocks, parts, naming.qkv),
        PartsRule((query, value), (OUR_BLOCK + "attention.qv_bias",), STACK),
        *BEIT_IGNORED,
    )


def describe_hf_beit(naming: BeitNaming, tensors: Mapping[str, Tensor], hints: LayoutHints) -> ViTConfig:
    """The architecture of a file, after `copy_shared_table`."""
    inside = f"{naming.blocks}.{{i}}."
    table = inside + naming.own_table
    stored = read_hf_config(hints, BEIT_DEFAULTS)
    kernel = require_tensor(tensors, VIT_PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = (f"{inside}layernorm_before.weight", 0), (f"{inside}layernorm_after.weight", 0)
    width = majority_length(tensors, "width", *norms)
    relative, absolute = has_tensor(tensors, table), VIT_POSITION_TABLE in tensors
    if hints.foreign_config:
        heads = reconcile(hints.heads, stored.positive_int("num_attention_heads"), "heads", "config.json")
    elif relative:
        heads = reconcile(hints.heads, majority_length(tensors, "heads", (table, 1)), "heads", naming.own_table)
    else:
        heads = choose_heads(hints, width, VIT_HEADS, "transformers without its config.json")
    if absolute:
        rows = require_tensor(tensors, VIT_POSITION_TABLE, axes=3).shape[1]
        size = read_hf_image_size(rows, 1, patch, hints, stored, VIT_POSITION_TABLE)
    elif hints.foreign_config:
        size = stored.int_pair("image_size")
    else:
        size = _infer_size(majority_length(tensors, "image size", (table, 0)) if relative else None, patch, hints)
    if relative and size[0] // patch[0] != size[1] // patch[1]:
        raise UsageError(
            f"This BEiT is for pictures of {size[0]}x{size[1]} pixels, and transformers takes the rows of a table of "
            "offsets for columns, where it is not square. Only square models are read."
        )
    final_norm = "layernorm.weight" in tensors
    numerics = read_hf_numerics(hints, stored, choose_beit_card(hints))
    if absolute and numerics["resample"] == "geometric":
        numerics["resample"] = "bicubic"  # geometric is a rule for tables of offsets
    return ViTConfig(
        image_size=size,
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, naming.blocks),
        heads=heads,
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}{naming.hidden_matrix}.{{p}}", 0)),
        outputs=count_outputs(tensors, "classifier.{p}"),
        positions="learned" if absolute else "none",
        relative_bias=relative,
        key_bias=False,
        layer_scale=0.1 if has_tensor(tensors, *(inside + name for name in BEIT_SCALES)) else None,
        final_norm=final_norm,
        pooled_norm=has_tensor(tensors, "pooler.layernorm.{p}"),
        **{"pool": "class" if final_norm else "mean", **numerics},
    )


def _infer_size(rows: int | None, patch: tuple[int, int], hints: LayoutHints) -> tuple[int, int]:
    """The image size of a table of offsets for a square of patches; the caller's where there is no such table."""
    if rows is None:
        return require_argument(
            hints.image_size, "image_size", "transformers without positions", "the one it was trained with"
        )
    offsets = rows - CLASS_TOKEN_ROWS
    side = isqrt(max(offsets, 0))
    if side**2 != offsets or side % 2 == 0:
        raise DamagedFileError(
            f"A table of offsets must have (2 n - 1)^2 + {CLASS_TOKEN_ROWS} rows for a square of n x n patches. "
            f"Got {rows}."
        )
    return (side + 1) // 2 * patch[0], (side + 1) // 2 * patch[1]


def choose_beit_card(hints: LayoutHints) -> str:
    """The numerics card: only config.json distinguishes the two families."""
    return "hf_data2vec" if hints.foreign_config.get("model_type") == "data2vec-vision" else "hf_beit"


def copy_shared_table(naming: BeitNaming, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give every block a copy of the table that all share, added to its own where it has one."""
    prefix = naming.prefix if naming.prefix + naming.shared_table in tensors else ""
    shared = prefix + naming.shared_table
    if shared not in tensors:
        return tensors
    copied = {name: tensor for name, tensor in tensors.items() if name != shared}
    for i in range(count_blocks(tensors, prefix + naming.blocks)):
        own = f"{prefix}{naming.blocks}.{i}.{naming.own_table}"
        both = own in tensors and tensors[own].shape == tensors[shared].shape
        copied[own] = tensors[shared] + tensors[own] if both else tensors[shared].clone()
    return copied


def clean_hf_beit(naming: BeitNaming, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy a shared table into the blocks, and call the norm before the words of a pre-training the encoder's last."""
    tensors = copy_shared_table(naming, tensors)
    last = naming.prefix + "layernorm"
    if "lm_head.weight" not in tensors or f"{last}.weight" in tensors:
        return tensors
    ends = {f"layernorm.{p}": f"{last}.{p}" for p in ("weight", "bias")}
    return {ends.get(name, name): tensor for name, tensor in tensors.items()}


def _make_beit_layout(naming: BeitNaming) -> Layout:
    query, key, _ = (f"{naming.blocks}.*.{name}.bias" for name in naming.qkv)
    return Layout(
        name="transformers",
        variant=naming.variant,
        required_names=(
            VIT_PATCH_WEIGHT,
            CLASS_TOKEN,
            f"{naming.blocks}.0.layernorm_before.weight",
            query,
            *naming.decisive,
        ),
        forbidden_names=(key,),
        model_types=("beit", "data2vec-vision"),
        rules=make_beit_rules(naming),
        describe=partial(describe_hf_beit, naming),
        card=lambda config, hints: choose_beit_card(hints),
        match="transformers",
        published=frozenset(),
        prefix=naming.prefix,
        names_without_prefix=("classifier.{p}",),
        head="classifier",
        clean=partial(clean_hf_beit, naming),
    )


HF_BEIT_LAYOUTS: tuple[Layout, ...] = tuple(_make_beit_layout(naming) for naming in BEIT_NAMINGS)
"""BEiT in both namings, and Data2Vec-Vision, which has the first one under another beginning."""
