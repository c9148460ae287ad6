"""The words of a table: what a rule can say about a tensor of a foreign file, and what a layout is.

`{i}` in a name stands for every block, `{p}` for weight and bias. A rule applies only where the model has every
parameter of ours that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..model.config import ViTConfig
from ..model.registry import SIZES, T2T_MODELS
from .steps import AS_IT_IS, Step
from .told import Match, Told

Tensors = Mapping[str, Tensor]
PUBLISHED_SIZES = frozenset(
    {(size.width, size.depth) for size in SIZES.values()}
    | {(shape.width, shape.depth) for shape in T2T_MODELS.values()}
)
"""Width and depth of the sizes that papers have given names."""


@dataclass(frozen=True)
class Name:
    """Their tensor is our parameter."""

    theirs: str
    ours: str
    step: Step[Tensor] = AS_IT_IS


@dataclass(frozen=True)
class Parts:
    """Several tensors of theirs are several of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    step: Step[list[Tensor]]


@dataclass(frozen=True)
class Same:
    """Their tensor is a second copy of another of theirs, `partner`; the two must be equal. Written twice."""

    theirs: str
    partner: str
    reason: str = "copies"


@dataclass(frozen=True)
class Drop:
    """Their parameter is declared and never used. Written with initial values, in the shape of `like` of ours."""

    theirs: str
    like: str
    reason: str = field(kw_only=True)
    step: Step[Tensor] = field(default=AS_IT_IS, kw_only=True)


@dataclass(frozen=True)
class Zero:
    """Their parameter is of no use to us and has a shape that the configuration tells. Written as zeros."""

    theirs: str
    shape: Callable[[ViTConfig], tuple[int, ...]]
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Check:
    """Their tensor is a fixed table that we compute ourselves. It must agree, and is then not needed."""

    theirs: str
    table: Callable[[ViTConfig], Tensor]
    """The table as it is written."""
    compare: Callable[[Tensor, ViTConfig], str]
    """Empty if a file's table is ours, else what is wrong with it, in words that follow its name."""
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Ignore:
    """Their tensors have no counterpart in ours, whatever they hold. Listed with the reason, never written."""

    theirs: str
    """A name in which `*` stands for anything, with the layout's prefix or without it."""
    reason: str = field(kw_only=True)


Rule = Name | Parts | Same | Drop | Zero | Check | Ignore


def names(table: Mapping[str, str]) -> tuple[Name, ...]:
    """Rules for tensors that only change their name, from a table theirs -> ours."""
    return tuple(Name(theirs, ours) for theirs, ours in table.items())


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A family of files: what it is called, how to know it, and its complete table."""

    name: str
    """What people write after `layout=`. Several may share it, told apart by `variant`, `decisive` and `absent`."""
    variant: str = ""
    """Which of those it is, in a word for messages and the report."""
    decisive: tuple[str, ...]
    """Names that a file must all have (without the prefix); `*` stands for anything."""
    absent: tuple[str, ...] = ()
    """Names of which it must have none; `*` stands for anything."""
    model_types: tuple[str, ...] = ()
    """What the config.json of a folder of this kind says: a `model_type` of transformers (also the one inside
    `vision_config`), or the word "timm" or "open_clip". Empty for files that never come with one."""
    named_only: bool = False
    """Tried only where a person names it: its files have the same tensor names as those of another family."""
    rules: tuple[Rule, ...]
    """The table; every tensor of a file falls under exactly one rule."""
    describe: Callable[[Tensors, Told], ViTConfig]
    """The architecture: shapes tell it (names come without the prefix), what they cannot say is told or on the card."""
    card: str | Callable[[ViTConfig, Told], str] = ""
    """Name of the card in checkpoints/cards (numerics, preprocessing, licence), or how to choose it."""
    match: Match | None = None
    """Whose numerics a file of this kind has when nobody says; None for its authors'."""
    published: frozenset[tuple[int, int]] | None = None
    """Width and depth of its published models, where the width alone tells the heads of a file that comes without a
    config.json; heads taken so for any other size are noted. None where no heads are guessed."""
    doubts: Callable[[Told], tuple[str, ...]] | None = None
    """What a person should know about whose numerics were taken, in sentences without a full stop."""
    prefix: str = ""
    """Stands before every name of a file, or of none. Written if one of `outside` is, or if there are none of those."""
    outside: tuple[str, ...] = ()
    """Names, as the rules write them, before which the prefix never stands."""
    clean: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """Repairs a file's tensors before the rules see them: unstacks, renumbers, adds what old files left out."""
    settle: Callable[[dict[str, Tensor], Told], dict[str, Tensor]] | None = None
    """The same, after `clean`, where what is told beside the file decides what its tensors mean."""
    express: Callable[[ViTConfig, dict[str, Tensor]], tuple[ViTConfig, dict[str, Tensor]]] | None = None
    """The same function in values that this layout can hold, before writing; UsageError names what it cannot hold."""

    @property
    def key(self) -> str:
        """Its name with its variant."""
        return f"{self.name}:{self.variant}" if self.variant else self.name
