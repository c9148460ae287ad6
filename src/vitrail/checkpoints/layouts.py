"""The words of a table: what a rule can say about a tensor of a foreign file, and what a layout is.

`{i}` in a name stands for every block, `{p}` for weight and bias. A rule applies only where the model has every
parameter of ours that it names.
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

# A table without its placeholders, for one model: every name of theirs with the rule that claims it.


@dataclass(frozen=True)
class TensorClaim:
    """A rule for one block and one of weight and bias."""

    rule: Rule
    theirs: tuple[str, ...]
    """Their names as they stand in a file, prefix included."""
    ours: tuple[str, ...]
    """Our parameters; for `Same` their other name, for `Zero` and `Check` none."""

    @property
    def fills_model(self) -> bool:
        """Whether our parameters come from it."""
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
    """Our tensors that a layout may leave out, because the configuration alone tells them."""
    table = ("positions.table",) if config.positions in FIXED_POSITIONS else ()
    return (*table, "rotary.periods") if config.rotary == "dinov3" else table


def has_prefix(layout: Layout, names: Collection[str]) -> bool:
    """Whether a file's names carry the layout's prefix."""
    return bool(layout.prefix) and any(name.startswith(layout.prefix) for name in names)


def writes_prefix(layout: Layout, state: TensorDict, config: ViTConfig) -> bool:
    """Whether a file of this model has the prefix: only beside names that stand outside it, if there can be any."""
    if not layout.names_without_prefix:
        return bool(layout.prefix)
    bare = expand_rules(layout, state, config, prefixed=False)
    return any(
        name == filled
        for name in bare
        for pattern in layout.names_without_prefix
        for filled, *_ in _fill_placeholders(config.depth, pattern)
    )


def map_unprefixed_names(layout: Layout, names: Collection[str]) -> dict[str, str]:
    """Every name of a file as the rules write it -> as it stands in the file."""
    return {name.removeprefix(layout.prefix): name for name in names}


def find_ignore_rule(layout: Layout, name: str) -> IgnoreRule | None:
    """The rule by which a tensor that nothing else claims is left aside, if there is one."""
    for rule in layout.rules:
        if isinstance(rule, IgnoreRule) and any(
            fnmatchcase(form, rule.theirs) for form in (name, name.removeprefix(layout.prefix))
        ):
            return rule
    return None


def _make_claims(rule: Rule, layout: Layout, depth: int, prefixed: bool) -> Iterator[TensorClaim]:
    if isinstance(rule, IgnoreRule):
        return
    theirs, ours = _rule_names(rule)
    inside = [layout.prefix if prefixed and name not in layout.names_without_prefix else "" for name in theirs]
    if isinstance(rule, CopyRule):
        ours = (layout.prefix + ours[0] if prefixed and ours[0] not in layout.names_without_prefix else ours[0],)
    for filled in _fill_placeholders(
        depth, *(prefix + name for prefix, name in zip(inside, theirs, strict=True)), *ours
    ):
        yield TensorClaim(rule, filled[: len(theirs)], filled[len(theirs) :])


def _rule_names(rule: Rule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match rule:
        case NameRule():
            return (rule.theirs,), (rule.ours,)
        case PartsRule():
            return rule.theirs, rule.ours
        case CopyRule():
            return (rule.theirs,), (rule.original,)
        case DropRule():
            return (rule.theirs,), (rule.like,)
        case ZeroRule() | CheckRule() | IgnoreRule():
            return (rule.theirs,), ()


def _fill_placeholders(depth: int, *patterns: str) -> Iterator[tuple[str, ...]]:
    """The names for every block and for weight and bias, where they have placeholders."""
    blocks = range(depth) if any("{i}" in pattern for pattern in patterns) else (0,)
    parts = ("weight", "bias") if any("{p}" in pattern for pattern in patterns) else ("",)
    for i, p in product(blocks, parts):
        yield tuple(pattern.replace("{i}", str(i)).replace("{p}", p) for pattern in patterns)


def find_optional_names(tensors: TensorDict, claims: Mapping[str, TensorClaim]) -> set[str]:
    """Names that a file may lack: kinds of copies, drops, zeros and checks of which it has none at all."""
    kinds: dict[str, set[str]] = {}
    for theirs, claim in claims.items():
        if isinstance(claim.rule, CopyRule | DropRule | ZeroRule | CheckRule):
            kinds.setdefault(claim.rule.reason, set()).add(theirs)
    return {theirs for kind in kinds.values() if kind.isdisjoint(tensors) for theirs in kind}


# How one of our tensors is stored elsewhere: turned, reshaped, cut, stacked, in another order.
#
# A step reads theirs to ours and writes ours to theirs; reading what was written gives the same numbers back.

TensorOrList = TypeVar("TensorOrList", Tensor, list[Tensor])


@dataclass(frozen=True)
class StorageStep(Generic[TensorOrList]):
    """How one tensor (in a `Name`) or a list of tensors (in `Parts`) is stored elsewhere."""

    read: Callable[[TensorOrList, TensorOrList], TensorOrList] | None
    """From (theirs, tensors shaped like ours) to ours. None where `write` only moves the numbers of a single tensor
    to other places: reading then undoes it."""
    write: Callable[[TensorOrList, ViTConfig], TensorOrList]
    """From (ours, the model's configuration) to theirs."""


def _read_reshaped(theirs: Tensor, like: Tensor) -> Tensor:
    return theirs.reshape(like.shape)


def invert_write(
    write: Callable[[Tensor, ViTConfig], Tensor], theirs: Tensor, like: Tensor, config: ViTConfig
) -> Tensor:
    """The tensor shaped like ours from which `write`, which only moves numbers, makes theirs."""
    places = write(torch.arange(like.numel()).reshape(like.shape), config).flatten()  # where each of theirs came from
    return torch.empty_like(theirs).flatten().index_copy(0, places, theirs.flatten()).reshape(like.shape)


def _write_kernel(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(len(ours), config.channels, *config.patch)


def _write_channels_last(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(-1, config.channels, *config.patch).permute(0, 2, 3, 1)  # [.., row, column, channel]


def _write_grid(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(*config.grid, -1)


IDENTITY: StorageStep[Tensor] = StorageStep(lambda theirs, like: theirs, lambda ours, config: ours)
"""The same tensor under another name."""
BATCHED: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours[None])
"""Theirs has an axis of length 1 in front."""
BATCHED2: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours[None, None])
"""Theirs has two axes of length 1 in front."""
UNBATCHED: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours[0])
"""Ours has an axis of length 1 in front that theirs lacks."""
FLAT: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: ours.reshape(-1))
"""Theirs is ours in a single axis."""
KERNEL: StorageStep[Tensor] = StorageStep(_read_reshaped, _write_kernel)
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
"""A vector over the numbers of a flat patch, theirs in the order row, column, channel."""
TRANSPOSED: StorageStep[Tensor] = StorageStep(lambda theirs, like: theirs.T, lambda ours, config: ours.T)
"""Their matrix stands the other way round."""
GRID_TABLE: StorageStep[Tensor] = StorageStep(_read_reshaped, lambda ours, config: _write_grid(ours, config)[None])
"""Their position table is [1, rows, columns, D], ours [rows * columns, D]."""
GRID_TABLE_BARE: StorageStep[Tensor] = StorageStep(_read_reshaped, _write_grid)
"""Their position table is [rows, columns, D], ours [rows * columns, D]."""


def _read_split(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    return list(theirs[0].split([len(like) for like in likes]))


def concat_rows(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of all of them, one after the other.

    Of tensors without memory only the shape is told: torch.cat would import a compiler for them, a second and 36 MB.
    """
    first = tensors[0]
    if first.is_meta:
        return first.new_empty((sum(map(len, tensors)), *first.shape[1:]))
    return torch.cat(list(tensors))


STACK: StorageStep[list[Tensor]] = StorageStep(lambda theirs, likes: [concat_rows(theirs)], lambda ours, config: ours)
"""Several of theirs, of equal length, are the rows of one of ours (written by `cut`, which knows how many they are)."""
SPLIT: StorageStep[list[Tensor]] = StorageStep(_read_split, lambda ours, config: [concat_rows(ours)])
"""One of theirs holds the rows of several of ours, one after the other."""


def split_equally(ours: Sequence[Tensor], count: int) -> list[Tensor]:
    """The one tensor of ours in so many equal parts, as `STACK` writes it."""
    (whole,) = ours
    return list(whole.chunk(count))


TensorDict = Mapping[str, Tensor]
PUBLISHED_SIZES = frozenset(
    {(size.width, size.depth) for size in SIZES.values()}
    | {(shape.width, shape.depth) for shape in T2T_MODELS.values()}
)
"""Width and depth of the sizes that papers have given names."""


@dataclass(frozen=True)
class NameRule:
    """Their tensor is our parameter."""

    theirs: str
    ours: str
    step: StorageStep[Tensor] = IDENTITY


@dataclass(frozen=True)
class PartsRule:
    """Several tensors of theirs are several of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    step: StorageStep[list[Tensor]]


@dataclass(frozen=True)
class CopyRule:
    """Their tensor is a second copy of another of theirs, `partner`; the two must be equal. Written twice."""

    theirs: str
    original: str
    reason: str = "copies"


@dataclass(frozen=True)
class DropRule:
    """Their parameter is declared and never used. Written with initial values, in the shape of `like` of ours."""

    theirs: str
    like: str
    reason: str = field(kw_only=True)
    step: StorageStep[Tensor] = field(default=IDENTITY, kw_only=True)


@dataclass(frozen=True)
class ZeroRule:
    """Their parameter is of no use to us and has a shape that the configuration tells. Written as zeros."""

    theirs: str
    shape: Callable[[ViTConfig], tuple[int, ...]]
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class CheckRule:
    """Their tensor is a fixed table that we compute ourselves. It must agree, and is then not needed."""

    theirs: str
    table: Callable[[ViTConfig], Tensor]
    """The table as it is written."""
    compare: Callable[[Tensor, ViTConfig], str]
    """Empty if a file's table is ours, else what is wrong with it, in words that follow its name."""
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class IgnoreRule:
    """Their tensors have no counterpart in ours, whatever they hold. Listed with the reason, never written."""

    theirs: str
    """A name in which `*` stands for anything, with the layout's prefix or without it."""
    reason: str = field(kw_only=True)


Rule = NameRule | PartsRule | CopyRule | DropRule | ZeroRule | CheckRule | IgnoreRule


def make_name_rules(table: Mapping[str, str]) -> tuple[NameRule, ...]:
    """Rules for tensors that only change their name, from a table theirs -> ours."""
    return tuple(NameRule(theirs, ours) for theirs, ours in table.items())


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A family of files: what it is called, how to know it, and its complete table."""

    name: str
    """What people write after `layout=`. Several may share it, told apart by `variant`, `decisive` and `absent`."""
    variant: str = ""
    """Which of those it is, in a word for messages and the report."""
    required_names: tuple[str, ...]
    """Names that a file must all have (without the prefix); `*` stands for anything."""
    forbidden_names: tuple[str, ...] = ()
    """Names of which it must have none; `*` stands for anything."""
    model_types: tuple[str, ...] = ()
    """What the config.json of a folder of this kind says: a `model_type` of transformers (also the one inside
    `vision_config`), or the word "timm" or "open_clip". Empty for files that never come with one."""
    named_only: bool = False
    """Tried only where a person names it: its files have the same tensor names as those of another family."""
    rules: tuple[Rule, ...]
    """The table; every tensor of a file falls under exactly one rule."""
    describe: Callable[[TensorDict, LayoutHints], ViTConfig]
    """The architecture: shapes tell it (names come without the prefix), what they cannot say is told or on the card."""
    card: str | Callable[[ViTConfig, LayoutHints], str] = ""
    """Name of the card in checkpoints/cards (numerics, preprocessing, licence), or how to choose it."""
    match: Match | None = None
    """Whose numerics a file of this kind has when nobody says; None for its authors'."""
    published: frozenset[tuple[int, int]] | None = None
    """Width and depth of its published models, where the width alone tells the heads of a file that comes without a
    config.json; heads taken so for any other size are noted. None where no heads are guessed."""
    warnings: Callable[[LayoutHints], tuple[str, ...]] | None = None
    """What a person should know about whose numerics were taken, in sentences without a full stop."""
    prefix: str = ""
    """Stands before every name of a file, or of none. Written if one of `outside` is, or if there are none of those."""
    names_without_prefix: tuple[str, ...] = ()
    """Names, as the rules write them, before which the prefix never stands."""
    clean: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """Repairs a file's tensors before the rules see them: unstacks, renumbers, adds what old files left out."""
    clean_with_hints: Callable[[dict[str, Tensor], LayoutHints], dict[str, Tensor]] | None = None
    """The same, after `clean`, where what is told beside the file decides what its tensors mean."""
    prepare_export: Callable[[ViTConfig, dict[str, Tensor]], tuple[ViTConfig, dict[str, Tensor]]] | None = None
    """The same function in values that this layout can hold, before writing; UsageError names what it cannot hold."""

    @property
    def key(self) -> str:
        """Its name with its variant."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


# What a file cannot say about itself: told by the caller, by the config.json beside it, or by the family's card.

Match = Literal["original", "timm", "transformers"]


@dataclass(frozen=True, kw_only=True)
class LayoutHints:
    """Everything that a layout's `describe` may ask beside the tensors."""

    heads: int | None = None
    """Attention heads; to be compared with what the file says, or used where it says nothing."""
    image_size: tuple[int, int] | None = None
    """The image size that the caller wants. Where a file tells its own, `describe` gives that one, and the engine
    resamples the positions afterwards; where the file cannot say, this is the file's own."""
    channels: int | None = None
    """Channels of the file's images; None where the file tells them and they are to be adapted afterwards."""
    pool: Pool | None = None
    """The pooling that the caller wants; the engine replaces it afterwards where `describe` gives another."""
    match: Match | None = None
    """Whose numerics: the authors', or those that timm or transformers run; the layout's own where nobody said."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ViTConfig that the caller says; the engine lays them over what `describe` gives."""
    foreign_config: Mapping[str, Any] = field(default_factory=dict)
    """The config.json beside the file, or nothing."""

    def numerics(self, name: str) -> dict[str, Any]:
        """The fields of ViTConfig on the card of that name for this match, and over them those that the caller says."""
        return {**load_card(name).numerics(self.match), **self.settings}
