"""What a checkpoint layout is: a table of rules from tensor names of foreign files to ours, read in both directions.

`{i}` in a name stands for every block, `{p}` for weight and bias. A rule applies only if the model has every parameter
of ours that it names. `rules.py` reads and writes files by these tables; `families/` holds the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from ..errors import UsageError
from ..model.config import FIXED_POSITIONS, Pool, ViTConfig
from ..model.registry import SIZES, T2T_MODELS
from .numerics import load_card

TensorDict = Mapping[str, Tensor]
TensorOrList = TypeVar("TensorOrList", Tensor, list[Tensor])
Match = Literal["original", "timm", "transformers"]
"""Whose numerics a model gets."""
PUBLISHED_SIZES = frozenset(
    {(size.width, size.depth) for size in SIZES.values()}
    | {(shape.width, shape.depth) for shape in T2T_MODELS.values()}
)
"""Width and depth of the sizes that papers have given names."""

# -- Storage steps: how a tensor is stored elsewhere (transposed, reshaped, split, stacked, reordered)


@dataclass(frozen=True)
class StorageStep(Generic[TensorOrList]):
    """How one tensor (in a `NameRule`) or a list of tensors (in a `PartsRule`) is stored in a foreign file.

    Reading what was written gives the same numbers back.
    """

    read: Callable[[TensorOrList, TensorOrList], TensorOrList] | None
    """From (theirs, tensors shaped like ours) to ours. None if `write` is a permutation of the numbers of a single
    tensor: reading then inverts it."""
    write: Callable[[TensorOrList, ViTConfig], TensorOrList]
    """From (ours, the model's configuration) to theirs."""


def _read_reshaped(theirs: Tensor, like: Tensor) -> Tensor:
    return theirs.reshape(like.shape)


def invert_write(
    write: Callable[[Tensor, ViTConfig], Tensor], theirs: Tensor, like: Tensor, config: ViTConfig
) -> Tensor:
    """Invert `write`, a permutation: the tensor shaped like ours from which it makes theirs."""
    index = write(torch.arange(like.numel()).reshape(like.shape), config).flatten()  # where each of theirs came from
    return torch.empty_like(theirs).flatten().index_copy(0, index, theirs.flatten()).reshape(like.shape)


def _write_channels_last(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(-1, config.channels, *config.patch).permute(0, 2, 3, 1)  # [.., row, column, channel]


IDENTITY: StorageStep[Tensor] = StorageStep(lambda theirs, like: theirs, lambda ours, config: ours)
"""The same tensor under another name."""
BATCHED: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours[None])
"""Theirs has a leading axis of length 1."""
UNBATCHED: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours[0])
"""Ours has a leading axis of length 1 that theirs lacks."""
FLAT: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours.reshape(-1))
"""Theirs is ours flattened."""
KERNEL: StorageStep[Tensor] = StorageStep(
    _read_reshaped, lambda ours, config: ours.reshape(len(ours), config.channels, *config.patch)
)
"""Their patch projection is a convolution kernel [D, C, p, p], ours that or its matrix."""
MATRIX: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours.flatten(1))
"""Their patch projection is a matrix [D, C * p * p] over channel, row, column; ours that or a kernel."""
MATRIX_CHANNELS_LAST: StorageStep[Tensor] = StorageStep(
    None, lambda ours, config: _write_channels_last(ours, config).flatten(1)
)
"""Their patch projection is a matrix [D, p * p * C] over row, column, channel; ours a matrix or a kernel."""
CHANNELS_LAST_VECTOR: StorageStep[Tensor] = StorageStep(
    None, lambda ours, config: _write_channels_last(ours, config).flatten()
)
"""A vector over the numbers of a flat patch; theirs is in the order row, column, channel."""
TRANSPOSED: StorageStep[Tensor] = StorageStep(lambda theirs, like: theirs.T, lambda ours, config: ours.T)
"""Their matrix is transposed."""
GRID_TABLE: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours.reshape(1, *config.grid, -1))
"""Their position table is [1, rows, columns, D], ours [rows * columns, D]."""


def concat_rows(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis.

    Meta tensors are not passed to torch.cat, which would import a compiler for them (1 second, 36 MB).
    """
    first = tensors[0]
    if first.is_meta:
        return first.new_empty((sum(map(len, tensors)), *first.shape[1:]))
    return torch.cat(list(tensors))


STACK: StorageStep[list[Tensor]] = StorageStep(lambda theirs, likes: [concat_rows(theirs)], lambda ours, config: ours)
"""Several of theirs, of equal length, are the rows of one of ours (written by `split_equally`)."""


def _stack_blocks(ours: list[Tensor], config: ViTConfig) -> list[Tensor]:
    first = ours[0]
    if first.is_meta:  # as in concat_rows
        return [first.new_empty((len(first), len(ours), *first.shape[1:]))]
    return [torch.stack(ours, dim=1)]


BLOCKS_ON_SECOND_AXIS: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: list(theirs[0].unbind(1)), _stack_blocks
)
"""One of theirs holds ours of every block along its second axis."""
SPLIT: StorageStep[list[Tensor]] = StorageStep(
    lambda theirs, likes: list(theirs[0].split([len(like) for like in likes])),
    lambda ours, config: [concat_rows(ours)],
)
"""One of theirs is the concatenation of several of ours."""


def split_equally(ours: Sequence[Tensor], count: int) -> list[Tensor]:
    """The one tensor of ours in `count` equal parts, as `STACK` writes it."""
    (whole,) = ours
    return list(whole.chunk(count))


# -- Rules: what becomes of each tensor of a file


@dataclass(frozen=True)
class NameRule:
    """Their tensor is our parameter."""

    theirs: str
    ours: str
    step: StorageStep[Tensor] = IDENTITY


@dataclass(frozen=True)
class PartsRule:
    """Several tensors of theirs are several of ours. Where only ours have `{i}`, they are those of all blocks."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    step: StorageStep[list[Tensor]]


@dataclass(frozen=True)
class CopyRule:
    """Their tensor is a copy of another of theirs, `original`; the two must be equal. Written twice."""

    theirs: str
    original: str
    reason: str = "copies"


@dataclass(frozen=True)
class DropRule:
    """Their parameter is declared and never used. Written with initial values, in the shape of our `like`."""

    theirs: str
    like: str
    reason: str = field(kw_only=True)
    step: StorageStep[Tensor] = field(default=IDENTITY, kw_only=True)


@dataclass(frozen=True)
class ZeroRule:
    """Their parameter has no counterpart here and a shape that follows from the configuration. Written as zeros."""

    theirs: str
    shape: Callable[[ViTConfig], tuple[int, ...]]
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class CheckRule:
    """Their tensor is a fixed table that Vitrail computes. It must agree, and is not loaded."""

    theirs: str
    table: Callable[[ViTConfig], Tensor]
    """The table as it is written."""
    compare: Callable[[Tensor, ViTConfig], str]
    """Empty if a file's table agrees, else a message that follows its name."""
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class IgnoreRule:
    """Their tensors have no counterpart here and any content. Listed with the reason, never written."""

    theirs: str
    """A glob pattern, with or without the layout's prefix."""
    reason: str = field(kw_only=True)


Rule = NameRule | PartsRule | CopyRule | DropRule | ZeroRule | CheckRule | IgnoreRule


def make_name_rules(table: Mapping[str, str]) -> tuple[NameRule, ...]:
    """Rules for tensors that only change their name, from a table theirs -> ours."""
    return tuple(NameRule(theirs, ours) for theirs, ours in table.items())


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A family of files: its name, how it is identified, and its complete table."""

    name: str
    """The value of `layout=`. Layouts that share it differ in `variant`, `required_names` and `forbidden_names`."""
    variant: str = ""
    """Which of those it is, for messages and the report."""
    required_names: tuple[str, ...]
    """Glob patterns (without the prefix); a file must have a name for each."""
    forbidden_names: tuple[str, ...] = ()
    """Glob patterns; a file must have a name for none of them."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Name (without the prefix) -> axes of a tensor, where only shapes distinguish variants."""
    model_types: tuple[str, ...] = ()
    """Kinds of model in a config.json beside such files: a `model_type` of transformers (also the one inside
    `vision_config`), "timm" or "open_clip". Empty for files that never come with one."""
    named_only: bool = False
    """Tried only if `layout=` names it: its files have the same tensor names as those of another family."""
    rules: tuple[Rule, ...]
    """The table; exactly one rule applies to every tensor of a file."""
    describe: Callable[[TensorDict, LayoutHints], ViTConfig]
    """The architecture, from shapes (names come without the prefix), hints and the numerics card. It raises
    DamagedFileError where a tensor that it reads is missing, has other axes or disagrees with others or with the
    config.json, and UsageError where an option is missing, contradicts the file, or the design is not Vitrail's."""
    card: str | Callable[[ViTConfig, LayoutHints], str] = ""
    """Name of the numerics card in checkpoints/cards (numerics, preprocessing, licence), or how to choose it."""
    match: Match | None = None
    """Whose numerics a file of this kind gets by default; None for its authors'."""
    published: frozenset[tuple[int, int]] | None = None
    """Width and depth of its published models, if the width alone determines the heads of a file without config.json;
    heads of any other size are noted as a guess. None if heads are never guessed."""
    warnings: Callable[[LayoutHints], tuple[str, ...]] | None = None
    """Notes on whose numerics were taken, in sentences without a full stop."""
    prefix: str = ""
    """Prefix of all names of a file, or of none. Written if one of `names_without_prefix` is, or if there are none."""
    names_without_prefix: tuple[str, ...] = ()
    """Names, as in the rules, that never get the prefix."""
    head: str = ""
    """Name of the head's linear layer, if it is a module that users replace by one of their own."""
    clean: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """Converts a file's tensors before the rules apply: unstacks, renumbers, adds what old files lack. It raises
    DamagedFileError where two tensors would get one name."""
    clean_with_hints: Callable[[dict[str, Tensor], LayoutHints], dict[str, Tensor]] | None = None
    """The same, after `clean`, where the hints decide what the tensors mean."""
    prepare_export: Callable[[ViTConfig, dict[str, Tensor]], tuple[ViTConfig, dict[str, Tensor]]] | None = None
    """Before writing: the same function in the parts that this layout has; UsageError names what it lacks."""

    @property
    def key(self) -> str:
        """Its name with its variant."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


@dataclass(frozen=True, kw_only=True)
class LayoutHints:
    """What a file does not contain: given by the caller or by the config.json beside it.

    A layout's `describe` gets it together with the tensors.
    """

    layout: str | None = None
    """The name of the layout, if the caller gives it."""
    heads: int | None = None
    """Attention heads; compared with the file's, or used if the file does not give them."""
    image_size: tuple[int, int] | None = None
    """The image size that the caller wants. If the file gives its own, `describe` returns that one, and positions are
    resampled afterwards; else this is taken as the file's own."""
    channels: int | None = None
    """Channels of the file's images; None if the file gives them and they are to be adapted afterwards."""
    pool: Pool | None = None
    """The pooling that the caller wants; replaced afterwards if `describe` returns another."""
    match: Match | None = None
    """Whose numerics: the authors', or those that timm or transformers run; the layout's default is filled in."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ViTConfig that the caller gives; they override those from `describe`."""
    foreign_config: Mapping[str, Any] = field(default_factory=dict)
    """The config.json beside the file; empty if there is none."""

    def numerics(self, name: str) -> dict[str, Any]:
        """Fields of ViTConfig from the card of that name for this `match`, overridden by `settings`."""
        return {**load_card(name).numerics(self.match), **self.settings}


# -- Expansion: every name in the file of one model, with the rule that claims it


@dataclass(frozen=True)
class TensorClaim:
    """A rule with its placeholders filled: for one block, and for weight or bias."""

    rule: Rule
    theirs: tuple[str, ...]
    """Their names as in a file, prefix included."""
    ours: tuple[str, ...]
    """Our parameters; for a `CopyRule` the original's name, for `ZeroRule` and `CheckRule` none."""

    @property
    def fills_model(self) -> bool:
        """Whether our parameters are loaded from it."""
        return isinstance(self.rule, NameRule | PartsRule)


def expand_rules(layout: Layout, state: TensorDict, config: ViTConfig, prefixed: bool) -> dict[str, TensorClaim]:
    """Every name that a file of this model may have, each with its claim; several names may share one.

    Raises:
        UsageError: the layout has no place for a part of the model.
    """
    claims: dict[str, TensorClaim] = {}
    placed: set[str] = set()
    for rule in layout.rules:
        for claim in _make_claims(rule, layout, config.depth, prefixed):
            known: Collection[str] = claims if isinstance(rule, CopyRule) else state
            if all(name in known for name in claim.ours):
                assert claims.keys().isdisjoint(claim.theirs), f"{layout.key} has two rules for {claim.theirs}"
                assert not claim.fills_model or placed.isdisjoint(claim.ours), f"{layout.key} fills {claim.ours} twice"
                claims.update(dict.fromkeys(claim.theirs, claim))
                placed.update(claim.ours if claim.fills_model else ())
    if left := [name for name in state if name not in placed and name not in computed_tensors(config)]:
        raise UsageError(
            f"The layout {layout.key} has no place for {len(left)} of the model's tensors: {', '.join(left[:3])}. "
            "Save it as a bundle instead."
        )
    return claims


def computed_tensors(config: ViTConfig) -> tuple[str, ...]:
    """Our tensors that a layout may leave out, because they follow from the configuration."""
    table = ("positions.table",) if config.positions in FIXED_POSITIONS else ()
    return (*table, "rotary.periods") if config.rotary == "dinov3" else table


def has_prefix(layout: Layout, names: Collection[str]) -> bool:
    """Whether a file's names carry the layout's prefix."""
    return bool(layout.prefix) and any(name.startswith(layout.prefix) for name in names)


def writes_prefix(layout: Layout, state: TensorDict, config: ViTConfig) -> bool:
    """Whether a file of this model is written with the prefix: if it has a name without it, or if none can have."""
    if not layout.names_without_prefix:
        return bool(layout.prefix)
    bare = expand_rules(layout, state, config, prefixed=False)
    filled = (_fill_placeholders(config.depth, pattern) for pattern in layout.names_without_prefix)
    return any(name in bare for names in filled for (name,) in names)


def map_unprefixed_names(layout: Layout, names: Collection[str]) -> dict[str, str]:
    """Every name of a file, without the layout's prefix -> as in the file."""
    return {name.removeprefix(layout.prefix): name for name in names}


def find_ignore_rule(layout: Layout, name: str) -> IgnoreRule | None:
    """The rule by which a tensor without a claim is ignored, if there is one."""
    forms = (name, name.removeprefix(layout.prefix))
    ignoring = (rule for rule in layout.rules if isinstance(rule, IgnoreRule))
    return next((rule for rule in ignoring if any(fnmatchcase(form, rule.theirs) for form in forms)), None)


def _make_claims(rule: Rule, layout: Layout, depth: int, prefixed: bool) -> Iterator[TensorClaim]:
    if isinstance(rule, IgnoreRule):
        return
    names = rule.theirs if isinstance(rule, PartsRule) else (rule.theirs,)
    theirs = tuple(_name_in_file(layout, name, prefixed) for name in names)
    ours: tuple[str, ...]
    match rule:
        case NameRule():
            ours = (rule.ours,)
        case PartsRule():
            ours = rule.ours
        case CopyRule():
            ours = (_name_in_file(layout, rule.original, prefixed),)
        case DropRule():
            ours = (rule.like,)
        case ZeroRule() | CheckRule():
            ours = ()
    if depth and not any("{i}" in name for name in theirs) and any("{i}" in name for name in ours):
        yield TensorClaim(rule, theirs, tuple(name.replace("{i}", str(i)) for name in ours for i in range(depth)))
        return
    for filled in _fill_placeholders(depth, *theirs, *ours):
        yield TensorClaim(rule, filled[: len(theirs)], filled[len(theirs) :])


def _name_in_file(layout: Layout, name: str, prefixed: bool) -> str:
    return layout.prefix + name if prefixed and name not in layout.names_without_prefix else name


def _fill_placeholders(depth: int, *patterns: str) -> Iterator[tuple[str, ...]]:
    """The names for every block and for weight and bias, if they have placeholders."""
    blocks = range(depth) if any("{i}" in pattern for pattern in patterns) else (0,)
    parts = ("weight", "bias") if any("{p}" in pattern for pattern in patterns) else ("",)
    for i, p in product(blocks, parts):
        yield tuple(pattern.replace("{i}", str(i)).replace("{p}", p) for pattern in patterns)


def find_optional_names(tensors: TensorDict, claims: Mapping[str, TensorClaim]) -> set[str]:
    """Names that a file may lack: copies, drops, zeros and checks of one reason, if it has none of them."""
    by_reason: dict[str, set[str]] = {}
    for theirs, claim in claims.items():
        if isinstance(claim.rule, CopyRule | DropRule | ZeroRule | CheckRule):
            by_reason.setdefault(claim.rule.reason, set()).add(theirs)
    return {theirs for names in by_reason.values() if names.isdisjoint(tensors) for theirs in names}
