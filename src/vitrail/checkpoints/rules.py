"""Foreign checkpoints as tables that read both ways, where a tensor without a rule is an error and never a skip.

A layout is a list of rules about *their* tensor names (see layouts.py and steps.py, whose words stand here again).
Both directions come from one expansion: `write` makes the file that a model would have, and `read` wants a file to
hold exactly the names and shapes that `write` would give, before it takes a number from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..errors import DamagedFileError, UsageError
from ..model.config import FIXED_POSITIONS, ViTConfig
from .audit import Audit, Row
from .complete import check_complete, check_numbers
from .expand import Claim, expand, ignored, is_prefixed, kinds_left_out, without_prefix, writes_prefix
from .layouts import Check, Drop, Ignore, Layout, Name, Parts, Rule, Same, Tensors, Zero, names
from .steps import (
    AS_IT_IS,
    BATCHED,
    BATCHED2,
    CHANNELS_LAST_VECTOR,
    FLAT,
    GRID_TABLE,
    GRID_TABLE_BARE,
    KERNEL,
    MATRIX,
    MATRIX_CHANNELS_LAST,
    SPLIT,
    STACK,
    TRANSPOSED,
    UNBATCHED,
    Step,
    cut,
    undone,
)
from .told import Told

__all__ = [
    "AS_IT_IS", "BATCHED", "BATCHED2", "CHANNELS_LAST_VECTOR", "FLAT", "GRID_TABLE", "GRID_TABLE_BARE", "KERNEL",
    "MATRIX", "MATRIX_CHANNELS_LAST", "SPLIT", "STACK", "TRANSPOSED", "UNBATCHED", "Check", "Drop", "Ignore", "Layout",
    "Name", "Parts", "Rule", "Same", "Step", "Tensors", "Zero", "names", "read", "take", "write",
]  # fmt: skip


def read(
    tensors: Tensors, state: Tensors, config: ViTConfig, layout: Layout, where: str
) -> tuple[dict[str, Tensor], Audit]:
    """Take every tensor of a file to its place.

    Copies, second names, fixed tables and what only training uses may be left out of a file, all of one reason
    together. What the layout ignores may be there or not.

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
    return take(dict(tensors), state, config, layout, where)


def take(
    tensors: dict[str, Tensor],
    state: Tensors,
    config: ViTConfig,
    layout: Layout,
    where: str,
    allow_nonfinite: bool = False,
) -> tuple[dict[str, Tensor], Audit]:
    """`read`, but `tensors` is emptied on the way, so that file and model are not both whole in memory.

    Args:
        allow_nonfinite: note tensors that hold NaN or infinity in the report, instead of refusing them.
    """
    claims = expand(layout, state, config, is_prefixed(layout, tensors))
    aside = {name: rule for name in tensors if name not in claims and (rule := ignored(layout, name))}
    used = {name: tensor for name, tensor in tensors.items() if name not in aside}
    absent = kinds_left_out(used, claims)
    shapes = _shapes(claims, state, config)
    check_complete(used, {name: shape for name, shape in shapes.items() if name not in absent}, layout.key, where)
    doubts = check_numbers(used, where, allow_nonfinite)
    for name in used:
        _agrees(name, claims[name], used, config, where)
    rows = tuple(_row(name, tensor, aside[name] if name in aside else claims[name]) for name, tensor in tensors.items())
    used.clear()
    values: dict[str, Tensor] = {}
    for claim in _once(claims):
        found = [tensors.pop(name) for name in claim.theirs if name in tensors]
        if claim.loads:
            values.update(zip(claim.ours, _taken(found, claim, state, config), strict=True))
    tensors.clear()
    return values, Audit(layout=layout.name, variant=layout.variant, rows=rows, doubts=doubts)


def write(
    state: Tensors, config: ViTConfig, layout: Layout, settings: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """A model's tensors under their names, as the family's own code would have saved them.

    Args:
        settings: fields of ViTConfig that stand beside the file, in a config.json, so that the file need not say them.

    Raises:
        UsageError: the layout cannot say what this model is, so that reading it back would give another one.
    """
    if layout.express is not None:
        config, state = layout.express(config, dict(state))
    claims = expand(layout, state, config, writes_prefix(layout, state, config))
    tensors: dict[str, Tensor] = {}
    for claim in _once(claims):
        tensors.update(zip(claim.theirs, _written(claim, tensors, state, config), strict=True))
    _check_holds(tensors, claims, config, layout, settings or {})
    return {name: tensors[name] for name in claims}


def _check_holds(
    tensors: Tensors, claims: Mapping[str, Claim], config: ViTConfig, layout: Layout, settings: Mapping[str, Any]
) -> None:
    """Refuse to write what would be read back as another model."""
    bare = {name: tensors[full] for name, full in without_prefix(layout, tensors).items()}
    told = Told(
        heads=config.heads,
        image_size=config.image_size,
        channels=config.channels,
        pool=config.pool,
        match=layout.match,
        settings=settings,
    )
    read_back = layout.describe(bare, told)
    placed = {name for claim in claims.values() if claim.loads for name in claim.ours}
    for setting in fields(config):
        name = setting.name
        theirs, ours = settings.get(name, getattr(read_back, name)), getattr(config, name)
        if name not in _NOT_IN_FILES and _function(name, theirs, placed) != _function(name, ours, placed):
            raise UsageError(
                f"The layout {layout.key} cannot hold this model: it means {name}={theirs!r}, "
                f"the model has {name}={ours!r}. Save it as a bundle instead."
            )


# What no file of any family says, and the outputs of a model in evaluation mode, at its own size, do not depend on.
_NOT_IN_FILES = (
    "dropout", "attention_dropout", "mlp_dropout", "drop_path", "recompute", "init", "attention", "resample",
)  # fmt: skip


def _function(name: str, value: object, placed: set[str]) -> object:
    """A setting without what makes no other function at the model's own size."""
    if name == "patches":
        return "conv" if value == "linear" else value
    if name == "layer_scale":
        return value is not None  # its initial value stands in no file
    if name == "positions" and "positions.table" in placed and value in ("indexed", *FIXED_POSITIONS):
        return "learned"  # the file holds the table itself
    return value


def _once(claims: Mapping[str, Claim]) -> Iterable[Claim]:
    """Every claim once, also those that claim several names."""
    return (claim for name, claim in claims.items() if claim.theirs[0] == name)


def _written(claim: Claim, tensors: Tensors, state: Tensors, config: ViTConfig) -> list[Tensor]:
    rule = claim.rule
    match rule:
        case Name(step=step):
            return [step.write(state[claim.ours[0]], config)]
        case Parts(step=parts):
            ours = [state[name] for name in claim.ours]
            return cut(ours, len(claim.theirs)) if parts is STACK else parts.write(ours, config)
        case Same():
            return [tensors[claim.ours[0]].clone()]
        case Drop(step=step):
            like = step.write(state[claim.ours[0]], config)
            return [torch.ones_like(like) if claim.theirs[0].endswith("weight") else torch.zeros_like(like)]
        case Zero(shape=shape):
            return [torch.zeros(shape(config))]
        case Check(table=table):
            return [table(config)]
        case Ignore():
            raise AssertionError("what is ignored claims no name")


def _shapes(claims: Mapping[str, Claim], state: Tensors, config: ViTConfig) -> dict[str, tuple[int, ...] | None]:
    """The shape that each of their tensors must have; None for a fixed table, whose own comparison judges it."""
    like = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
    written: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    for claim in _once(claims):
        if isinstance(claim.rule, Check):
            shapes[claim.theirs[0]] = None
            continue
        for name, tensor in zip(claim.theirs, _written(claim, written, like, config), strict=True):
            written[name], shapes[name] = tensor, tuple(tensor.shape)
    return shapes


def _agrees(name: str, claim: Claim, tensors: Tensors, config: ViTConfig, where: str) -> None:
    """Refuse a copy that differs, or a fixed table that is not ours."""
    match claim.rule:
        case Same() if not _equal(tensors[name], tensors[claim.ours[0]]):
            gap = (tensors[name].double() - tensors[claim.ours[0]].double()).abs().max().item()
            raise DamagedFileError(
                f"{where}: {name} and {claim.ours[0]} are one tensor under two names and must be equal. "
                f"They differ by up to {gap:.3g}; delete the one that was not trained."
            )
        case Check(compare=compare):
            if wrong := compare(tensors[name], config):
                raise DamagedFileError(f"{where}: {name} {wrong}")


def _equal(first: Tensor, second: Tensor) -> bool:
    """Bit for bit but for the kind of NaN; in another shape they are not."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _taken(theirs: list[Tensor], claim: Claim, state: Tensors, config: ViTConfig) -> list[Tensor]:
    """Their tensors in our shapes and number formats, in memory of their own."""
    likes = [state[name] for name in claim.ours]
    match claim.rule:
        case Name(step=step):
            ours = [
                undone(step.write, theirs[0], likes[0], config) if step.read is None else step.read(theirs[0], likes[0])
            ]
        case Parts(step=parts):
            assert parts.read is not None
            ours = parts.read(theirs, likes)
        case _:
            raise AssertionError("no parameter of ours comes from this rule")
    taken = {tensor.untyped_storage().data_ptr() for tensor in theirs}
    return [_own(tensor, like.dtype, taken) for tensor, like in zip(ours, likes, strict=True)]


def _own(tensor: Tensor, dtype: torch.dtype, taken: set[int]) -> Tensor:
    """The tensor in this format, whole and in a storage that no other has; its own is noted as taken."""
    own = tensor.to(dtype).contiguous()
    own = own.clone() if own.untyped_storage().data_ptr() in taken else own
    taken.add(own.untyped_storage().data_ptr())
    return own


def _row(name: str, tensor: Tensor, claim: Claim | Ignore) -> Row:
    shape = tuple(tensor.shape)
    rule = claim if isinstance(claim, Ignore) else claim.rule
    ours = () if isinstance(claim, Ignore) else claim.ours
    match rule:
        case Name() | Parts():
            return Row(theirs=name, shape=shape, action="loaded", ours=", ".join(ours))
        case Same():
            return Row(theirs=name, shape=shape, action="equal", ours=f"a second name of {ours[0]}")
        case Check(reason=reason):
            return Row(theirs=name, shape=shape, action="checked", ours=reason)
        case Drop(reason=reason) | Zero(reason=reason) | Ignore(reason=reason):
            return Row(theirs=name, shape=shape, action="dropped", ours=reason)
