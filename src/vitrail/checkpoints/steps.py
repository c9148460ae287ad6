"""How one of our tensors is stored elsewhere: turned, reshaped, cut, stacked, in another order.

A step reads theirs to ours and writes ours to theirs; reading what was written gives the same numbers back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..model.config import ViTConfig

Stored = TypeVar("Stored", Tensor, list[Tensor])


@dataclass(frozen=True)
class Step(Generic[Stored]):
    """How one tensor (in a `Name`) or a list of tensors (in `Parts`) is stored elsewhere."""

    read: Callable[[Stored, Stored], Stored] | None
    """From (theirs, tensors shaped like ours) to ours. None where `write` only moves the numbers of a single tensor
    to other places: reading then undoes it."""
    write: Callable[[Stored, ViTConfig], Stored]
    """From (ours, the model's configuration) to theirs."""


def _reshape(theirs: Tensor, like: Tensor) -> Tensor:
    return theirs.reshape(like.shape)


def undone(write: Callable[[Tensor, ViTConfig], Tensor], theirs: Tensor, like: Tensor, config: ViTConfig) -> Tensor:
    """The tensor shaped like ours from which `write`, which only moves numbers, makes theirs."""
    places = write(torch.arange(like.numel()).reshape(like.shape), config).flatten()  # where each of theirs came from
    return torch.empty_like(theirs).flatten().index_copy(0, places, theirs.flatten()).reshape(like.shape)


def _kernel(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(len(ours), config.channels, *config.patch)


def _channels_last(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(-1, config.channels, *config.patch).permute(0, 2, 3, 1)  # [.., row, column, channel]


def _grid(ours: Tensor, config: ViTConfig) -> Tensor:
    return ours.reshape(*config.grid, -1)


AS_IT_IS: Step[Tensor] = Step(lambda theirs, like: theirs, lambda ours, config: ours)
"""The same tensor under another name."""
BATCHED: Step[Tensor] = Step(_reshape, lambda ours, config: ours[None])
"""Theirs has an axis of length 1 in front."""
BATCHED2: Step[Tensor] = Step(_reshape, lambda ours, config: ours[None, None])
"""Theirs has two axes of length 1 in front."""
UNBATCHED: Step[Tensor] = Step(_reshape, lambda ours, config: ours[0])
"""Ours has an axis of length 1 in front that theirs lacks."""
FLAT: Step[Tensor] = Step(_reshape, lambda ours, config: ours.reshape(-1))
"""Theirs is ours in a single axis."""
KERNEL: Step[Tensor] = Step(_reshape, _kernel)
"""Their patch projection is a convolution kernel [D, C, p, p], ours that or its matrix."""
MATRIX: Step[Tensor] = Step(_reshape, lambda ours, config: ours.flatten(1))
"""Their patch projection is a matrix [D, C * p * p] over channel, row, column; ours that or a kernel."""
MATRIX_CHANNELS_LAST: Step[Tensor] = Step(None, lambda ours, config: _channels_last(ours, config).flatten(1))
"""Their patch projection is a matrix [D, p * p * C] over row, column, channel; ours a matrix or a kernel."""
CHANNELS_LAST_VECTOR: Step[Tensor] = Step(None, lambda ours, config: _channels_last(ours, config).flatten())
"""A vector over the numbers of a flat patch, theirs in the order row, column, channel."""
TRANSPOSED: Step[Tensor] = Step(lambda theirs, like: theirs.T, lambda ours, config: ours.T)
"""Their matrix stands the other way round."""
GRID_TABLE: Step[Tensor] = Step(_reshape, lambda ours, config: _grid(ours, config)[None])
"""Their position table is [1, rows, columns, D], ours [rows * columns, D]."""
GRID_TABLE_BARE: Step[Tensor] = Step(_reshape, _grid)
"""Their position table is [rows, columns, D], ours [rows * columns, D]."""


def _split(theirs: list[Tensor], likes: list[Tensor]) -> list[Tensor]:
    return list(theirs[0].split([len(like) for like in likes]))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of all of them, one after the other.

    Of tensors without memory only the shape is told: torch.cat would import a compiler for them, a second and 36 MB.
    """
    first = tensors[0]
    if first.is_meta:
        return first.new_empty((sum(map(len, tensors)), *first.shape[1:]))
    return torch.cat(list(tensors))


STACK: Step[list[Tensor]] = Step(lambda theirs, likes: [joined(theirs)], lambda ours, config: ours)
"""Several of theirs, of equal length, are the rows of one of ours (written by `cut`, which knows how many they are)."""
SPLIT: Step[list[Tensor]] = Step(_split, lambda ours, config: [joined(ours)])
"""One of theirs holds the rows of several of ours, one after the other."""


def cut(ours: Sequence[Tensor], count: int) -> list[Tensor]:
    """The one tensor of ours in so many equal parts, as `STACK` writes it."""
    (whole,) = ours
    return list(whole.chunk(count))
