"""Rotary positions: queries and keys are turned by their row and column, so that products see only differences."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..spec import Grid
from .config import ViTConfig
from .kept import KeptFor, kept


class RotaryTables(NamedTuple):
    """Cosine and signed sine for every number of a head, [T, d] or [B, T, d], and which numbers form pairs."""

    cos: Tensor
    sin: Tensor
    interleaved: bool


class Rotary(nn.Module):
    """Makes the tables for a grid. It has no parameters; prefix tokens stand at angle 0 and are not turned.

    `axial` (ours): the first half of the pairs follows rows, the second columns, places count from 0, frequencies
    100^(-4i/d), i = 0 .. d/4-1, and number k is paired with number k + d/2.
    `from-one` (xray_vit_patch16_224): the first half of a head follows columns, the second rows, places count from 1,
    frequencies 10000^(-2i/e) with e = d/2 and i = 1 .. e/2, and neighbours (2k, 2k+1) are paired.
    `dinov3`: pairs as in axial, angles 2 pi c / period, where c is a patch's centre with the whole picture as -1 .. 1
    on both axes. The periods [d/4] belong to the state, because published files hold them rounded.

    Angles are computed in float32; the tables have the number format of what they turn.

    Source: Su et al. 2021 (RoFormer); Heo et al. 2024 for the axial form and its base of 100; Siméoni et al. 2025
    (DINOv3), section 3.2.
    """

    periods: Tensor

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.rotary
        self.head = config.head_numbers
        self.prefix = config.prefix
        self.kept = KeptFor()
        if self.kind == "dinov3":
            self.register_buffer("periods", torch.empty(self.head // 4))

    def forward(self, grid: Grid, like: Tensor, visible: Int[Tensor, "B n"] | None = None) -> RotaryTables | None:
        if self.kind == "none":
            return None
        tables = self._of_all(grid, like)  # [T, d]
        if visible is None:
            return tables
        prefix = torch.arange(self.prefix, device=visible.device).expand(len(visible), -1)
        rows = torch.cat([prefix, visible + self.prefix], dim=1)
        return RotaryTables(tables.cos[rows], tables.sin[rows], tables.interleaved)  # [B, T, d]

    def _of_all(self, grid: Grid, like: Tensor) -> RotaryTables:
        """The tables of all tokens of a grid, the same from one forward to the next."""
        if self.kind != "dinov3":
            return _kept_tables(self.kind, grid, self.head, self.prefix, like.device, like.dtype)
        device, dtype = like.device, like.dtype
        make = partial(self._made, grid, device, dtype)
        return self.kept(self.periods, (grid, device, dtype), make)

    def _made(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> RotaryTables:
        return _tables(self.angles(grid, device), self.prefix, dtype)

    def angles(self, grid: Grid, device: torch.device) -> Float[Tensor, "N half"]:
        """The angle of every pair of numbers of a head at every patch of a grid, in radians."""
        if self.kind == "dinov3":
            return dinov3_angles(grid, self.periods.to(device))
        return _angles(self.kind, grid, self.head, device)


@kept
def _kept_tables(
    kind: str, grid: Grid, head: int, prefix: int, device: torch.device, dtype: torch.dtype
) -> RotaryTables:
    return _tables(_angles(kind, grid, head, device), prefix, dtype, interleaved=kind == "from-one")


def _angles(kind: str, grid: Grid, head: int, device: torch.device) -> Float[Tensor, "N half"]:
    return (axial_angles if kind == "axial" else from_one_angles)(grid, head, device)


def _tables(
    angles: Float[Tensor, "N half"], prefix: int, dtype: torch.dtype, interleaved: bool = False
) -> RotaryTables:
    """The tables of the patches, after those of prefix tokens at angle 0."""
    zeros = angles.new_zeros(prefix, angles.shape[-1])
    return make_tables(torch.cat([zeros, angles]), dtype, interleaved)  # [T, d]


def make_tables(angles: Float[Tensor, "*T half"], dtype: torch.dtype, interleaved: bool) -> RotaryTables:
    """Spread the angle of each pair over its two numbers; the first one's sine is negative."""
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if interleaved:
        signed = torch.stack([-sin, sin], dim=-1).flatten(-2)
        return RotaryTables(cos.repeat_interleave(2, dim=-1), signed, interleaved)
    return RotaryTables(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), interleaved)


def axial_angles(grid: Grid, head: int, device: torch.device) -> Float[Tensor, "N half"]:
    """Angles of our own recipes, see `Rotary`."""
    frequency = 100.0 ** (-torch.arange(head // 4, device=device) * 4 / head)
    return _outer_by_axis(grid, 0, frequency, columns_first=False)


def from_one_angles(grid: Grid, head: int, device: torch.device) -> Float[Tensor, "N half"]:
    """Angles of xray_vit_patch16_224, see `Rotary`."""
    axis = head // 2
    frequency = 10000.0 ** (-2 * torch.arange(1, axis // 2 + 1, device=device) / axis)
    return _outer_by_axis(grid, 1, frequency, columns_first=True)


def dinov3_periods(head: int, base: float = 100.0) -> Float[Tensor, " quarter"]:
    """Periods of DINOv3's angles: base^(4i/d), i = 0 .. d/4-1, in float32."""
    return base ** (torch.arange(head // 4, dtype=torch.float32) * 4 / head)


def dinov3_angles(grid: Grid, periods: Float[Tensor, " quarter"]) -> Float[Tensor, "N half"]:
    """Angles of DINOv3, rows then columns, see `Rotary`."""
    centres = [(torch.arange(side, device=periods.device) + 0.5) / side * 2 - 1 for side in grid]  # float32
    row, column = torch.meshgrid(*centres, indexing="ij")
    turns = torch.stack([row.flatten(), column.flatten()], dim=1)[:, :, None] / periods.float()  # [N, 2, d/4]
    return 2 * math.pi * turns.flatten(1)


def _outer_by_axis(grid: Grid, start: int, frequency: Tensor, columns_first: bool) -> Float[Tensor, "N half"]:
    steps = [torch.arange(start, start + side, device=frequency.device) for side in grid]
    row, column = torch.meshgrid(*steps, indexing="ij")
    axes = (column, row) if columns_first else (row, column)
    return torch.cat([place.flatten()[:, None] * frequency for place in axes], dim=1)


def rotate(x: Float[Tensor, "B T G A d"], tables: RotaryTables) -> Float[Tensor, "B T G A d"]:
    """Turn every pair of numbers of a head by its token's angle. G counts what is turned together: queries and keys.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin): each number times its cosine, plus its partner times a signed
    sine. Written so, it takes three passes over the numbers.
    """
    partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if tables.interleaved else x.roll(x.shape[-1] // 2, -1)
    cos, sin = (table[..., None, None, :] for table in tables[:2])  # [T, 1, 1, d] or [B, T, 1, 1, d]
    return torch.addcmul(x * cos, partner, sin)
