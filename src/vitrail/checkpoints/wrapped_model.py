"""A model inside a training module: names with a common beginning, a head that was replaced, other architectures.

A Lightning module keeps its network under an attribute, so that all names begin with `model.`, `net.` or `backbone.`.
Courses replace the head of a published model by one of their own. What a file holds beside the network, and a head of
several layers, is never guessed: the message says what to pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from ..errors import UsageError
from . import identify
from .families.vit_pytorch import describe_other_class
from .identify import is_glob, list_candidates, matches_layout, read_kinds
from .layouts import IgnoreRule, Layout, PartsRule, Rule, has_prefix
from .other_architectures import explain_architecture
from .validate import compile_pattern

MAX_BEGINNINGS = 16
"""Beginnings of names that are tried; each is compared with every layout."""
MAX_SHOWN = 3
"""Names that a message lists."""
OWN_NAMES_OF_PE = "the names of Perception Encoder's own repository, which are not read; timm's and OpenCLIP's are"
CLIP_BEGINNING = ("*conv1.weight", "*positional_embedding", "*ln_pre.*", "*transformer.resblocks.*.ln_1.weight")
"""Names of the beginning of CLIP's towers, which Perception Encoder's for languages and places have as well."""
OTHER_DESIGNS = (  # a pattern of tensor names, and what has them
    ("*layers.*.blocks.*relative_position_bias_table", "attention in windows with relative biases, as Swin has it"),
    ("*trunk.*rel_pos.mlp.*", "relative biases by a small network, which are read under timm's own names only"),
    ("*rel_pos.relative_position_bias_table", "relative biases under names that no published model has"),
    ("*rel_pos_[hw]", "relative positions that are multiplied with queries, as SAM and MViT have them"),
    ("*.attn.lambda_*", "differential attention, the difference of two softmaxes, as dlittle and dwee have it"),
    ("*blocks.[0-9]*.lambda_*", "differential attention, the difference of two softmaxes, as dpwee has it"),
    ("*.mlp.ffn_ln.*", "the names of BAAI's EVA-02, which are not read; timm's files of it are"),
    ("*attn_pool.query", "a pooling by many learned queries, as CoCa has it"),
    ("*attn_pool.probe", OWN_NAMES_OF_PE),
    ("*vision_model.pre_layernorm.*", "the names of OWL-ViT, a detector"),
    ("*patch_embed.backbone.*", "a convolutional network before its patches (a hybrid)"),
    ("*running_mean", "batch normalisation, as convolutional networks and hybrids have it"),
    ("*downsample.*", "stages of different sizes, as Swin and other pyramids have them"),
    ("*blocks.[0-9].proj.weight", "blocks that change their width, as Hiera and MViT have them"),
    ("*.attn.proj_l.weight", "products of attention mixed over heads, as CaiT has them"),
    ("*.attn.qk.weight", "attention mixed with positions, as ConViT has it"),
    ("*blocks.*.attn.gate.*", "gates behind its attention, as GenLIP has them"),
    ("*stages.*", "stages of different sizes, as Hiera, PVT and other pyramids have them"),
    ("*temporal_*", "attention over time: it reads videos"),
    ("*text_embeddings.*", "embeddings of text, as ViLT and FLAVA have them"),
    ("*merger.fc1.weight", "a projector to a language model, as Qwen's encoders have it"),
    ("*embeds.pos_embed_[xy]", "positions of rows and of columns that are added"),
    ("*.lora_[AB].*", "LoRA matrices; merge them first, model.merge_and_unload()"),
    ("*flat_param", "flattened parameters of FSDP; save a full state dict (StateDictType.FULL_STATE_DICT)"),
    ("*.parametrizations.*", "parametrised weights; remove the parametrisations before saving"),
    ("*.ffn.layers.0.0.weight", "the names of MMPretrain, which are not read; rename them as timm's"),
    ("*patch_embedding.patch_embeddings.*", "the names of MONAI, which are not read; rename them as timm's"),
)
"""Kinds of files that no layout reads. Only names that no layout has, because every failure is compared with them."""
HEAD_NAMES = frozenset({"head", "heads", "classifier", "mlp_head", "linear_head"})
"""Parts of names of a head, which says nothing of the design of the encoder."""
PLAIN_TIMM_NAMES = ("vit_", "deit", "eva", "flexivit", "naflexvit", "test_vit", "aimv2", "beit")
"""Beginnings of timm's names of plain ViTs."""


def take_known_network(
    tensors: dict[str, Tensor], layout: str | None, foreign: Mapping[str, Any], notes: list[str]
) -> dict[str, Tensor]:
    """The tensors without a beginning that all names share, where a layout fits only beyond it.

    Args:
        layout, foreign: as in `find_layout`.
        notes: gets a note on what was taken off.

    Raises:
        UsageError: there are several networks, or tensors beside the one, so that `network` must choose.
    """
    candidates = list_candidates(layout, foreign)
    if any(matches_layout(candidate, tensors) for candidate in candidates):
        return tensors
    found: dict[str, Layout] = {}
    for beginning in _list_beginnings(tensors, candidates):
        if any(beginning.startswith(outer) for outer in found):
            continue
        inside = {
            name.removeprefix(beginning): tensor for name, tensor in tensors.items() if name.startswith(beginning)
        }
        fitting = [candidate for candidate in candidates if matches_layout(candidate, inside)]
        if fitting and not _belongs_to_sibling(beginning, fitting[0], candidates):
            found[beginning] = fitting[0]
    if not found:
        return tensors
    beside = [name for name in tensors if not name.startswith(tuple(found))]
    names = [beginning.removesuffix(".") for beginning in found]
    if len(found) > 1:
        listed = " and ".join(names)
        raise UsageError(f"The file holds {len(found)} networks, {listed}. Name one: network={names[0]!r}.")
    (beginning, fitting_layout), name = *found.items(), names[0]
    if beside:
        raise UsageError(
            f"The file holds a model of the layout {fitting_layout.name} under {name}, beside it {_shorten(beside)}: "
            f"what becomes of these is in the code of the training, not in the file. network={name!r} reads the model "
            "without them."
        )
    notes.append(f"every name in the file begins with {beginning}, which was taken off")
    return {name.removeprefix(beginning): tensor for name, tensor in tensors.items()}


def _list_beginnings(names: Collection[str], candidates: Collection[Layout]) -> list[str]:
    """Beginnings beyond which a name that a layout requires stands, the shortest first."""
    required = {
        prefix + pattern
        for candidate in candidates
        for pattern in candidate.required_names
        for prefix in ("", candidate.prefix)
        if not is_glob(pattern)
    }
    ends = tuple(f".{name}" for name in required)
    fitting = [name for name in names if name.endswith(ends)]
    beginnings = {name.removesuffix(end) + "." for name in fitting for end in ends if name.endswith(end)}
    return sorted(beginnings, key=lambda beginning: (len(beginning), beginning))[:MAX_BEGINNINGS]


def _belongs_to_sibling(beginning: str, layout: Layout, candidates: Collection[Layout]) -> bool:
    """Whether a beginning is the prefix of another variant of the layout, whose file then is damaged."""
    prefixes = {candidate.prefix for candidate in candidates if candidate.name == layout.name} - {layout.prefix, ""}
    return f".{beginning}".endswith(tuple(f".{prefix}" for prefix in prefixes))


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


# -- A replaced head


def rename_replaced_head(
    tensors: dict[str, Tensor], layout: Layout, outputs: int | None, notes: list[str]
) -> dict[str, Tensor]:
    """The tensors with the single linear layer of a replaced head under the name that the layout has for it.

    Args:
        outputs: as in `LoadOptions`; another head makes that of the file superfluous, whatever it is.
        notes: gets a note on what was assumed or left out.

    Raises:
        UsageError: the head is not a single linear layer.
    """
    root = layout.head.partition(".")[0]
    outside = not has_prefix(layout, tensors) or any(name.startswith(root) for name in layout.names_without_prefix)
    prefix = "" if outside else layout.prefix
    root = prefix + root
    inside = [name for name in tensors if name.startswith(f"{root}.")] if layout.head else []
    known = [compile_pattern(prefix + name) for rule in layout.rules for name in _names_of(rule)]
    if not inside or any(pattern.fullmatch(name) for name in inside for pattern in known):
        return tensors
    layers = {name.rpartition(".")[0]: None for name in inside}
    (first, *others) = layers
    weight, parts = tensors.get(f"{first}.weight"), {name.rpartition(".")[2] for name in inside}
    if not others and weight is not None and weight.ndim == 2 and parts <= {"weight", "bias"}:
        if first != root:
            notes.append(f"{first} was read as the head; layers without tensors beside it were taken for dropout")
        return {
            f"{prefix}{layout.head}.{name.rpartition('.')[2]}" if name in inside else name: tensor
            for name, tensor in tensors.items()
        }
    if outputs is None:
        raise UsageError(
            f"The head of the file is not a single linear layer: it has tensors in {_shorten([*layers])}, and how they "
            "are used is in the code of the training, not in the file. Pass outputs=0 for the features without the "
            "head, or another number for a new one."
        )
    notes.append(f"the file's own head was left out: {_shorten([*layers])}")
    return {name: tensor for name, tensor in tensors.items() if name not in inside}


def _names_of(rule: Rule) -> tuple[str, ...]:
    if isinstance(rule, PartsRule):
        return rule.theirs
    return () if isinstance(rule, IgnoreRule) else (rule.theirs,)


# -- Other architectures


def describe_other_design(names: Collection[str], foreign: Mapping[str, Any]) -> str:
    """What a file that no layout reads is instead, in a sentence; empty if it may be a damaged plain ViT."""
    kind = next(iter(read_kinds(foreign)), "")
    if reason := explain_architecture(kind):
        return f"{kind} is no plain Vision Transformer: {reason}."
    found = _find_other_part(names)
    known = {kind for layout in identify.LAYOUTS.values() for kind in layout.model_types}
    if kind and kind not in {*known, "open_clip"} and not kind.startswith(PLAIN_TIMM_NAMES):
        part = f": it has {found}" if found else ""
        said = f"config.json says that the model is a {kind[:80]}"
        return f"{said}, which is not a plain Vision Transformer known here{part}."
    if other := describe_other_class(names):
        return other
    if found:
        return f"{identify.UNLIKE} {kind if 'architecture' in foreign else 'it'} has {found}."
    if all(matching(names, name) for name in CLIP_BEGINNING) and not matching(names, "*ln_post.*"):
        return f"{identify.UNLIKE} it has {OWN_NAMES_OF_PE} (CLIP's, without a norm behind the blocks)."
    return ""


def _find_other_part(names: Collection[str]) -> str:
    """A part that no plain ViT has, with a tensor of it; empty if there is none."""
    encoder = [name for name in names if HEAD_NAMES.isdisjoint(name.split("."))]
    for pattern, what in OTHER_DESIGNS:
        if example := next((name for name in encoder if fnmatchcase(name, pattern)), None):
            return f"{what} ({example})"
    return ""
