"""Foreign checkpoints as tables that read both ways, where a tensor without a rule is an error and never a skip.

A layout is a list of rules about *their* tensor names. `{i}` stands for every block, `{p}` for weight and bias. Both
directions come from one expansion: `write` makes the file that a model would have, and `read` wants a file to hold
exactly the names and shapes that `write` would give, before it takes a number from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..model.config import ViTConfig
from .audit import Audit, Row
from .complete import check_complete, check_numbers

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Step:
    """How one tensor is stored elsewhere. `read(write(ours, config), ours)` gives `ours` back."""

    read: Callable[[Tensor, Tensor], Tensor]
    """From (theirs, a tensor shaped like ours) to ours."""
    write: Callable[[Tensor, ViTConfig], Tensor]
    """From (ours, the model's configuration) to theirs."""


def _reshape(theirs: Tensor, like: Tensor) -> Tensor:
    return theirs.reshape(like.shape)


AS_IT_IS = Step(lambda theirs, like: theirs, lambda ours, config: ours)
"""The same tensor under another name."""
BATCHED = Step(_reshape, lambda ours, config: ours[None])
"""Theirs has an axis of length 1 in front."""
KERNEL = Step(_reshape, lambda ours, config: ours.reshape(len(ours), config.channels, *config.patch))
"""Their patch projection is a convolution kernel [D, C, p, p], ours that or its matrix."""
MATRIX = Step(_reshape, lambda ours, config: ours.flatten(1))
"""Their patch projection is a matrix [D, C * p * p] over channel, row, column; ours that or a kernel."""


@dataclass(frozen=True)
class Name:
    """Their tensor is our parameter, `partner`."""

    theirs: str
    partner: str
    step: Step = AS_IT_IS


@dataclass(frozen=True)
class Same:
    """Their tensor is a second copy of another of theirs, `partner`; the two must be equal. Written twice."""

    theirs: str
    partner: str
    reason: str = "copies"


@dataclass(frozen=True)
class Drop:
    """Their norm is declared and never used. Written with its initial values, in the shape of `partner` of ours."""

    theirs: str
    partner: str
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
    partner: str = field(default="", init=False)


Rule = Name | Same | Drop | Check


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A family of files: what it is called, how to know it, and its complete table."""

    name: str
    """What people write after `layout=`."""
    decisive: tuple[str, ...]
    """Tensor names that together occur in this family only."""
    rules: tuple[Rule, ...]
    """The table; every tensor of a file falls under exactly one rule."""
    config: Callable[[Tensors, int | None, tuple[int, int] | None, int | None], ViTConfig]
    """(tensors, heads, image_size, channels) to the architecture: shapes tell it, what they cannot say is given."""


def names(table: Mapping[str, str]) -> tuple[Name, ...]:
    """Rules for tensors that only change their name, from a table theirs -> ours."""
    return tuple(Name(theirs, ours) for theirs, ours in table.items())


def read(
    tensors: Tensors, state: Tensors, config: ViTConfig, layout: Layout, where: str
) -> tuple[dict[str, Tensor], Audit]:
    """Take every tensor of a file to its place.

    Copies, second names and fixed tables may be left out of a file, all of one kind together.

    Args:
        state: the model's own tensors, for their names, shapes and number formats; they may lie on the meta device.
        where: the file, for messages.

    Returns:
        Our tensors by our names, and the report.

    Raises:
        DamagedFileError: a tensor is missing, has no rule, another shape, numbers that are not finite, differs from
            the one it repeats, or is a fixed table of another convention. The message names it.
        UsageError: the layout has no place for a part of the model.
    """
    claims = _expand(layout, state, config)
    absent = _left_out(tensors, claims)
    shapes = {theirs: _shape(theirs, claims, state, config) for theirs in claims if theirs not in absent}
    check_complete(tensors, shapes, layout.name, where)
    check_numbers(tensors, where)
    for theirs in tensors:
        _agrees(theirs, claims[theirs], tensors, config, where)
    loaded = {theirs: claim for theirs, claim in claims.items() if isinstance(claim.rule, Name)}
    values = {claim.partner: _taken(tensors[theirs], claim, state) for theirs, claim in loaded.items()}
    rows = tuple(_row(theirs, tuple(tensor.shape), claims[theirs]) for theirs, tensor in tensors.items())
    return values, Audit(layout=layout.name, rows=rows)


def write(state: Tensors, config: ViTConfig, layout: Layout) -> dict[str, Tensor]:
    """A model's tensors under their names, as the family's own code would have saved them.

    Raises:
        UsageError: the layout cannot say what this model is, so that reading it back would give another one.
    """
    claims = _expand(layout, state, config)
    tensors = {theirs: _written(theirs, claims, state, config) for theirs in claims}
    told = layout.config(tensors, config.heads, config.image_size, config.channels)
    for setting in fields(config):
        theirs, ours = getattr(told, setting.name), getattr(config, setting.name)
        if theirs != ours and setting.name not in _NOT_IN_FILES:
            raise UsageError(
                f"The layout {layout.name} cannot hold this model: it means {setting.name}={theirs!r}, "
                f"the model has {setting.name}={ours!r}. Save it as a bundle instead."
            )
    return tensors


# What no file of any family says, and the outputs of a model in evaluation mode do not depend on.
_NOT_IN_FILES = ("dropout", "attention_dropout", "mlp_dropout", "drop_path", "init", "attention", "patches")


class _Claim(NamedTuple):
    """One name of theirs under its rule; the partner is ours, or for `Same` the other name of theirs."""

    rule: Rule
    partner: str


def _expand(layout: Layout, state: Tensors, config: ViTConfig) -> dict[str, _Claim]:
    """The table without placeholders, for one model: their names, each with its claim."""
    claims: dict[str, _Claim] = {}
    for rule in layout.rules:
        for theirs, partner in _fill_in(rule, config.depth):
            known = claims if isinstance(rule, Same) else state
            if isinstance(rule, Check) or partner in known:
                claims[theirs] = _Claim(rule, partner)
    placed = {claim.partner for claim in claims.values() if isinstance(claim.rule, Name)}
    if left := [name for name in state if name not in placed and name not in FIXED_TABLES]:
        raise UsageError(
            f"The layout {layout.name} has no place for {len(left)} of the model's tensors: {', '.join(left[:3])}. "
            "Save it as a bundle instead."
        )
    return claims


FIXED_TABLES = ("positions.table",)
"""Our tensors that a layout may leave out, because the configuration alone tells them (unless they are learned)."""


def _fill_in(rule: Rule, depth: int) -> Iterator[tuple[str, str]]:
    """Their name and its partner, for every block and for weight and bias where the rule has placeholders."""
    blocks = range(depth) if "{i}" in rule.theirs else (0,)
    parts = ("weight", "bias") if "{p}" in rule.theirs else ("",)
    for i, p in product(blocks, parts):
        yield rule.theirs.format(i=i, p=p), rule.partner.format(i=i, p=p)


def _written(theirs: str, claims: Mapping[str, _Claim], state: Tensors, config: ViTConfig) -> Tensor:
    rule, partner = claims[theirs]
    match rule:
        case Name(step=step):
            return step.write(state[partner], config)
        case Same():
            return _written(partner, claims, state, config).clone()
        case Drop():
            return torch.ones_like(state[partner]) if theirs.endswith("weight") else torch.zeros_like(state[partner])
        case Check(table=table):
            return table(config)


def _shape(theirs: str, claims: Mapping[str, _Claim], state: Tensors, config: ViTConfig) -> tuple[int, ...] | None:
    """The shape that their tensor must have; None for a fixed table, whose own comparison judges it."""
    if isinstance(claims[theirs].rule, Check):
        return None
    return tuple(_written(theirs, claims, state, config).shape)


def _left_out(tensors: Tensors, claims: Mapping[str, _Claim]) -> set[str]:
    """Names that the file may lack: kinds of copies, drops and checks of which it has none at all."""
    kinds: dict[str, set[str]] = {}
    for theirs, claim in claims.items():
        if not isinstance(claim.rule, Name):
            kinds.setdefault(claim.rule.reason, set()).add(theirs)
    return {theirs for kind in kinds.values() if kind.isdisjoint(tensors) for theirs in kind}


def _agrees(theirs: str, claim: _Claim, tensors: Tensors, config: ViTConfig, where: str) -> None:
    """Refuse a copy that differs, or a fixed table that is not ours."""
    match claim.rule:
        case Same() if not torch.equal(tensors[theirs], tensors[claim.partner]):
            gap = (tensors[theirs].double() - tensors[claim.partner].double()).abs().max().item()
            raise DamagedFileError(
                f"{where}: {theirs} and {claim.partner} are one tensor under two names and must be equal. "
                f"They differ by up to {gap:.3g}; delete the one that was not trained."
            )
        case Check(compare=compare):
            if wrong := compare(tensors[theirs], config):
                raise DamagedFileError(f"{where}: {theirs} {wrong}")


def _taken(tensor: Tensor, claim: _Claim, state: Tensors) -> Tensor:
    """Their tensor in our shape and number format, in memory of its own."""
    assert isinstance(claim.rule, Name)
    like = state[claim.partner]
    ours = claim.rule.step.read(tensor, like)
    return ours.to(like.dtype, copy=True, memory_format=torch.contiguous_format)


def _row(theirs: str, shape: tuple[int, ...], claim: _Claim) -> Row:
    match claim.rule:
        case Name():
            return Row(theirs=theirs, shape=shape, action="loaded", ours=claim.partner)
        case Same():
            return Row(theirs=theirs, shape=shape, action="equal", ours=f"a second name of {claim.partner}")
        case Drop(reason=reason):
            return Row(theirs=theirs, shape=shape, action="dropped", ours=reason)
        case Check(reason=reason):
            return Row(theirs=theirs, shape=shape, action="checked", ours=reason)
