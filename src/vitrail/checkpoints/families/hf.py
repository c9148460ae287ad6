"""`transformers`: ViT, DeiT, MAE, MSN and I-JEPA, and what all layouts of transformers share.

transformers writes a model under two namings: that of the files on the Hub, which `save_pretrained` still writes, and
since its version 5 that of the modules in memory (`state_dict()`, `save_original_format=False`). A family has a layout
for each. A field that a config.json leaves out has the default of the class that it names.

ViT, DeiT, MAE, MSN and I-JEPA are one encoder under one table. DeiT has a second token with its own position and, with
a teacher's head, a second classifier whose outputs are averaged with the first's. I-JEPA has no class token and takes
the mean. All of them resample positions by plain bicubic interpolation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ...errors import DamagedFileError, UsageError
from ...model.config import Pool, ViTConfig
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
from ..numerics import load_card
from ..validate import (
    choose_heads,
    count_blocks,
    count_outputs,
    count_patches,
    has_tensor,
    infer_image_size,
    is_square,
    majority_length,
    reconcile,
    require_argument,
    require_tensor,
)
from .hf_export import export_vit

# -- Shared by all layouts of transformers: config.json, blocks, heads

ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_pytorch_tanh": "GELUTanh",
    "gelu_new": "GELUTanh",
    "gelu_python_tanh": "GELUTanh",
    "quick_gelu": "QuickGELU",
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "silu": "SiLU",
    "swish": "SiLU",
    "mish": "Mish",
    "tanh": "Tanh",
}
"""transformers' words for activations, and ours."""
OUR_BLOCK = "encoder.blocks.{i}."
"""Prefix of our names inside a block."""
FILE_QKV = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
"""The three projections inside a block, in the naming of files."""
MEMORY_QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
"""The same in the naming of memory."""


@dataclass(frozen=True)
class HFConfig:
    """A config.json of transformers, with the defaults of its class for fields that it leaves out.

    Every method raises DamagedFileError for a value of another kind, and `activation` UsageError for one that no model
    here has.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def positive_int(self, name: str) -> int:
        """A whole number above 0."""
        value = self._get(name)
        if type(value) is not int or value < 1:
            raise DamagedFileError(f"config.json must say {name} as a whole number above 0. Got {value!r}.")
        return value

    def positive_float(self, name: str) -> float:
        """A number above 0."""
        value = self._get(name)
        if type(value) not in (int, float) or not value > 0:
            raise DamagedFileError(f"config.json must say {name} as a number above 0. Got {value!r}.")
        return float(value)

    def int_pair(self, name: str) -> tuple[int, int]:
        """(height, width); config.json may give one number for both."""
        value = self._get(name)
        both = [value, value] if type(value) is int else value
        if not isinstance(both, list | tuple) or len(both) != 2 or any(type(n) is not int or n < 1 for n in both):
            raise DamagedFileError(f"config.json must say {name} as one or two whole numbers. Got {value!r}.")
        return both[0], both[1]

    def activation(self, name: str) -> str:
        """An activation, by our word."""
        value = self._get(name)
        if not isinstance(value, str):
            raise DamagedFileError(f"config.json must say {name} as the name of an activation. Got {value!r}.")
        if value not in ACTIVATIONS:
            raise UsageError(
                f"config.json says {name}={value!r}, an activation that is not known here: {', '.join(ACTIVATIONS)}."
            )
        return ACTIVATIONS[value]

    def _get(self, name: str) -> Any:
        return self.values.get(name, self.defaults[name])


def read_hf_config(hints: LayoutHints, defaults: Mapping[str, Any]) -> HFConfig:
    """The config.json beside the file; of a model of images and texts its `vision_config`."""
    inner = hints.foreign_config.get("vision_config")
    return HFConfig(inner if isinstance(inner, dict) else hints.foreign_config, defaults)


def hf_block_rules(theirs: str, parts: Mapping[str, str], qkv: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Rules for everything inside the blocks that lie under `theirs`.{i}.

    Args:
        parts: their names inside a block -> ours.
        qkv: their three projections, stacked in this order into our joint one.
    """
    named = (NameRule(f"{theirs}.{{i}}.{name}", OUR_BLOCK + part) for name, part in parts.items())
    three = tuple(f"{theirs}.{{i}}.{name}.{{p}}" for name in qkv)
    return (*named, PartsRule(three, (OUR_BLOCK + "attention.qkv.{p}",), STACK))


def read_hf_numerics(hints: LayoutHints, config: HFConfig, card_name: str, gated: bool = False) -> dict[str, Any]:
    """Settings that no tensor gives: norm_eps, activation, resample and perhaps pool, for `hints.match`.

    A config.json beside the file gives what transformers runs, so it is ignored where `match` is another code.

    Args:
        gated: the MLP has a gate, which always goes with SiLU.
    """
    match = hints.match or "transformers"
    known = load_card(card_name).numerics(match) | ({"activation": "SiLU"} if gated else {})
    if hints.foreign_config and match == "transformers":
        known["norm_eps"] = config.positive_float("layer_norm_eps")
        known["activation"] = config.activation("hidden_act")
    return known


def read_hf_heads(hints: LayoutHints, config: HFConfig, width: int, published: Mapping[int, int]) -> int:
    """Attention heads: from config.json, else from the caller, else those of the published size of that width."""
    if hints.foreign_config:
        return reconcile(hints.heads, config.positive_int("num_attention_heads"), "heads", "config.json")
    return choose_heads(hints, width, published, "transformers without its config.json")


def read_hf_image_size(
    rows: int, prefix: int, patch: tuple[int, int], hints: LayoutHints, config: HFConfig, source: str
) -> tuple[int, int]:
    """The image size of a learned position table.

    Args:
        rows: of the table.
        prefix: how many of them belong to the class and distillation tokens.
        source: the table's name, for messages.
    """
    patches = rows - prefix
    if hints.foreign_config and "image_size" in config.defaults:
        size = config.int_pair("image_size")
        if (expected := count_patches(size, patch)) != patches:
            raise DamagedFileError(
                f"config.json says image_size={size}, {expected} patches of {patch[0]}x{patch[1]}, but "
                f"{source} has {rows} rows, {patches} of them for patches. One of the two files is not this model's."
            )
        return size
    return infer_image_size(patches, patch, hints, source)


# -- ViT, DeiT, MAE, MSN and I-JEPA

# fmt: off
VIT_STEM = {  # theirs                              ours
    "embeddings.patch_embeddings.projection.bias":  "tokens.patches.bias",
    "embeddings.cls_token":                         "tokens.cls",
    "embeddings.distillation_token":                "tokens.distillation",
    "layernorm.{p}":                                "encoder.norm.{p}",
}
ONE_HEAD = {
    "pooler.dense.{p}":  "head.hidden.{p}",
    "classifier.{p}":    "head.linear.{p}",
}
TWO_HEADS = {
    "cls_classifier.{p}":           "head.linear.{p}",
    "distillation_classifier.{p}":  "head.distillation.{p}",
}
FILE_BLOCK = {  # inside a block
    "layernorm_before.{p}":        "norm1.{p}",
    "attention.output.dense.{p}":  "attention.out.{p}",
    "layernorm_after.{p}":         "norm2.{p}",
    "intermediate.dense.{p}":      "mlp.fc1.{p}",
    "output.dense.{p}":            "mlp.fc2.{p}",
}
MEMORY_BLOCK = {
    "layernorm_before.{p}":  "norm1.{p}",
    "attention.o_proj.{p}":  "attention.out.{p}",
    "layernorm_after.{p}":   "norm2.{p}",
    "mlp.fc1.{p}":           "mlp.fc1.{p}",
    "mlp.fc2.{p}":           "mlp.fc2.{p}",
}
# fmt: on
VIT_PATCH_WEIGHT, VIT_POSITION_TABLE = "embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"
CLASS_TOKEN, DISTILLATION_TOKEN = "embeddings.cls_token", "embeddings.distillation_token"
DETECTION_TOKENS = "embeddings.detection_tokens"
NOT_VIT_NAMES = (DETECTION_TOKENS, "*.lambda_[12]", "*relative_position_bias_table")
"""Names by which YOLOS, InternViT and BEiT are distinguished from the families of this file."""
VIT_DEFAULTS = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "image_size": 224}
"""Defaults of these classes, for fields that a config.json leaves out."""
POOLER_REASON = "the tanh layer of a bare model; settings head=tanh keeps it"
VIT_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}
"""Heads of the published sizes by their width."""


@dataclass(frozen=True)
class HFNaming:
    """One of the two namings inside the blocks."""

    suffix: str
    blocks: str
    parts: Mapping[str, str]
    qkv: tuple[str, str, str]
    hidden_matrix: str
    """The first matrix of the MLP."""


@dataclass(frozen=True, kw_only=True)
class HFViTVariant:
    """One of the architectures: the names that identify it, and its settings."""

    variant: str
    prefix: str
    model_types: tuple[str, ...]
    card: str
    pool: Pool = "class"
    required_names: tuple[str, ...] = ()
    forbidden_names: tuple[str, ...] = ()
    heads: Mapping[str, str]


NAMINGS = (
    HFNaming("", "encoder.layer", FILE_BLOCK, FILE_QKV, "intermediate.dense"),
    HFNaming("-memory", "layers", MEMORY_BLOCK, MEMORY_QKV, "mlp.fc1"),
)
MAE_DECODER, TEACHER_HEADS = "decoder.decoder_embed.weight", "*_classifier.*"
HF_VIT_VARIANTS = (
    HFViTVariant(
        variant="vit", prefix="vit.", model_types=("vit", "vit_mae", "vit_msn"), card="hf_vit", heads=ONE_HEAD,
        required_names=(CLASS_TOKEN,), forbidden_names=(DISTILLATION_TOKEN, MAE_DECODER),
    ),
    HFViTVariant(
        variant="mae", prefix="vit.", model_types=("vit_mae",), card="hf_mae", heads=ONE_HEAD,
        required_names=(CLASS_TOKEN, MAE_DECODER),
    ),
    HFViTVariant(
        variant="deit", prefix="deit.", model_types=("deit",), card="hf_deit", heads=ONE_HEAD,
        required_names=(DISTILLATION_TOKEN,), forbidden_names=(TEACHER_HEADS,),
    ),
    HFViTVariant(
        variant="deit-teacher", prefix="deit.", model_types=("deit",), card="hf_deit", heads=TWO_HEADS,
        required_names=(DISTILLATION_TOKEN, TEACHER_HEADS),
    ),
    HFViTVariant(
        variant="ijepa", prefix="ijepa.", model_types=("ijepa",), card="hf_ijepa", heads=ONE_HEAD, pool="mean",
        forbidden_names=(CLASS_TOKEN, DISTILLATION_TOKEN),
    ),
)  # fmt: skip


def make_hf_vit_rules(kind: HFViTVariant, naming: HFNaming) -> tuple[Rule, ...]:
    """The whole table; rules for parts that a model lacks (a second token, a pooler) do not apply."""
    return (
        *make_name_rules({**VIT_STEM, **kind.heads}),
        NameRule(VIT_PATCH_WEIGHT, "tokens.patches.weight", KERNEL),
        NameRule(VIT_POSITION_TABLE, "positions.table", BATCHED),
        *hf_block_rules(naming.blocks, naming.parts, naming.qkv),
        *(IgnoreRule(f"pooler.dense.{p}", reason=POOLER_REASON) for p in ("weight", "bias")),
        IgnoreRule("embeddings.mask_token", reason="stands for hidden patches in its pre-training"),
        IgnoreRule("decoder.*", reason="the decoder of its pre-training"),
    )


def describe_hf_vit(
    kind: HFViTVariant, naming: HFNaming, tensors: Mapping[str, Tensor], hints: LayoutHints
) -> ViTConfig:
    """The architecture of a file."""
    inside = f"{naming.blocks}.{{i}}."
    is_msn = hints.foreign_config.get("model_type") == "vit_msn"
    stored = read_hf_config(hints, VIT_DEFAULTS | ({"layer_norm_eps": 1e-6} if is_msn else {}))
    if VIT_PATCH_WEIGHT in tensors and tensors[VIT_PATCH_WEIGHT].ndim == 5 and VIT_POSITION_TABLE not in tensors:
        raise UsageError("The file cuts videos into pieces of several frames, as VideoMAE does: it reads no pictures.")
    kernel = require_tensor(tensors, VIT_PATCH_WEIGHT, axes=4)
    patch = (kernel.shape[2], kernel.shape[3])
    norms = (f"{inside}layernorm_before.weight", 0), (f"{inside}layernorm_after.weight", 0)
    width = majority_length(tensors, "width", *norms)
    prefix = (kind.pool == "class") + (DISTILLATION_TOKEN in tensors)
    rows = require_tensor(tensors, VIT_POSITION_TABLE, axes=3).shape[1]
    _check_tokens(rows - prefix, tensors, hints)
    outputs = count_outputs(tensors, *(name for name in kind.heads if "classifier" in name))
    if outputs and not hints.foreign_config and has_tensor(tensors, "pooler.dense.{p}"):
        require_argument(
            hints.settings.get("head"),
            "head",
            "transformers with a pooler and a classifier",
            'in settings: "tanh" if the classifier reads pooler_output, "linear" if it reads last_hidden_state[:, 0]',
        )
    return ViTConfig(
        image_size=read_hf_image_size(rows, prefix, patch, hints, stored, VIT_POSITION_TABLE),
        patch=patch,
        channels=kernel.shape[1],
        width=width,
        depth=count_blocks(tensors, naming.blocks),
        heads=read_hf_heads(hints, stored, width, VIT_HEADS),
        mlp_width=majority_length(tensors, "MLP width", (f"{inside}{naming.hidden_matrix}.{{p}}", 0)),
        outputs=outputs,
        class_token=kind.pool == "class",
        distillation_token=DISTILLATION_TOKEN in tensors,
        distillation_head=kind.heads is TWO_HEADS,
        qkv_bias=has_tensor(tensors, *(f"{inside}{part}.bias" for part in naming.qkv)),
        **{"pool": kind.pool, **read_hf_numerics(hints, stored, choose_vit_card(kind, hints))},
    )


def choose_vit_card(kind: HFViTVariant, hints: LayoutHints) -> str:
    """The numerics card: config.json distinguishes MAE and MSN from ViT, their tensors do not."""
    return {"vit_mae": "hf_mae", "vit_msn": "hf_msn"}.get(str(hints.foreign_config.get("model_type")), kind.card)


def _card_for_layout(kind: HFViTVariant, config: ViTConfig, hints: LayoutHints) -> str:
    return choose_vit_card(kind, hints)


def warn_of_dino(kind: HFViTVariant, hints: LayoutHints) -> tuple[str, ...]:
    """Note that a folder of DINO cannot be distinguished from one of Google's ViT."""
    if not hints.foreign_config or hints.match != "original" or choose_vit_card(kind, hints) != "hf_vit":
        return ()
    return ("taken for Google's ViT; for DINO's own numerics load the original file with layout=dino",)


def _check_tokens(patches: int, tensors: Mapping[str, Tensor], hints: LayoutHints) -> None:
    """Refuse a file whose table has one row more than its tokens, if images are square."""
    lacking = [name for name in (CLASS_TOKEN, DISTILLATION_TOKEN) if name not in tensors]
    size_known = bool(hints.foreign_config) or hints.image_size is not None
    if lacking and not size_known and not is_square(patches) and is_square(patches - 1):
        raise UsageError(
            f"{VIT_POSITION_TABLE} has a row for one token more than the file holds: {lacking[0]} is missing. If its "
            "patches fill no square, pass image_size=(height, width)."
        )


def clean_hf_vit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put `vit.` back before the blocks of an MSN classifier, which transformers 5 saves without it."""
    if f"vit.{CLASS_TOKEN}" not in tensors:
        return tensors
    return {f"vit.{name}" if name.startswith("encoder.") else name: tensor for name, tensor in tensors.items()}


HF_VIT_LAYOUTS = tuple(
    Layout(
        name="transformers",
        variant=kind.variant + naming.suffix,
        required_names=(VIT_PATCH_WEIGHT, f"{naming.blocks}.0.layernorm_before.weight", *kind.required_names),
        forbidden_names=(*NOT_VIT_NAMES, *kind.forbidden_names),
        model_types=kind.model_types,
        rules=make_hf_vit_rules(kind, naming),
        describe=partial(describe_hf_vit, kind, naming),
        card=partial(_card_for_layout, kind),
        match="transformers",
        published=frozenset(),
        warnings=partial(warn_of_dino, kind),
        prefix=kind.prefix,
        names_without_prefix=tuple(name for name in (*ONE_HEAD, *TWO_HEADS) if "classifier" in name),
        head="classifier" if kind.heads is ONE_HEAD else "",
        clean=clean_hf_vit,
        prepare_export=export_vit,
    )
    for kind in HF_VIT_VARIANTS
    for naming in NAMINGS
)
"""Every kind in both namings."""
