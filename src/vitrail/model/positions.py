"""Positions that are added to the tokens: learned or fixed tables, and how a table stretches to another grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import UsageError
from ..spec import Grid
from .config import ViTConfig
from .tokens import take_rows


class Positions(nn.Module):
    """Adds one table to the tokens. Row 0 belongs to the class token where `class_position` says so.

    `learned` and `indexed` are parameters [rows, D] (an embedding looked up in order is its table); `sinusoid` and
    `sincos2d` are buffers. For another grid a learned table is resampled and a fixed one computed anew.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.positions
        self.grid = config.grid
        self.prefix = config.prefix
        self.has_class_row = config.class_token and config.class_position
        rows = torch.empty(config.table_rows, config.width)
        self.table = nn.Parameter(rows) if self.kind in ("learned", "indexed") else None
        if self.kind in ("sinusoid", "sincos2d"):
            del self.table
            self.register_buffer("table", rows)

    def forward(
        self, x: Float[Tensor, "B T D"], grid: Grid, rows: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B T D"]:
        if self.table is None:
            return x
        table = self.for_grid(grid).to(x.dtype)  # [rows, D]
        first = int(self.has_class_row)
        if rows is None and first == self.prefix:
            return x + table
        patches = table[first:]  # [N, D]
        if rows is not None:  # by gather: the gradient of indexing adds up in a random order on several threads
            patches = take_rows(patches.expand(len(rows), -1, -1), rows)  # [B, n, D]
        prefix = x[:, : self.prefix] + table[:first] if first else x[:, : self.prefix]
        return torch.cat([prefix, x[:, self.prefix :] + patches], dim=1)

    def for_grid(self, grid: Grid) -> Float[Tensor, "rows D"]:
        """The table for a grid of patches, the class row (if any) first."""
        assert self.table is not None
        if grid == self.grid:
            return self.table
        if self.kind in ("sinusoid", "sincos2d"):
            return fixed_table(self.kind, grid, self.table.shape[1], self.has_class_row).to(self.table)
        first = int(self.has_class_row)
        return torch.cat([self.table[:first], resample_table(self.table[first:], self.grid, grid)])


def fixed_table(kind: str, grid: Grid, width: int, class_row: bool) -> Float[Tensor, "rows D"]:
    """The table of a fixed kind of positions; the class row is position 0 of `sinusoid` and zeros in `sincos2d`."""
    if kind == "sinusoid":
        return sinusoid_table(grid.patches + class_row, width)
    table = sincos2d_table(grid, width)
    return torch.cat([torch.zeros(int(class_row), width), table])


def sinusoid_table(count: int, width: int) -> Float[Tensor, "rows D"]:
    """Waves over the token's number: angle = position / 10000^(2 floor(j/2) / D), sine in even columns, cosine in odd.

    Source: Vaswani et al. 2017, section 3.5.
    """
    position = torch.arange(count, dtype=torch.float64)[:, None]
    pair = torch.arange(width // 2, dtype=torch.float64)
    angle = position / 10000 ** (2 * pair / width)  # [rows, D / 2]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def sincos2d_table(grid: Grid, width: int) -> Float[Tensor, "N D"]:
    """Waves over columns then rows: [sin x, cos x, sin y, cos y], a quarter of the width each, 10000^(-4k/D).

    Source: the table of the MAE and I-JEPA checkpoints.
    """
    frequency = 10000 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    y, x = torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
    parts = [wave(axis.flatten()[:, None] * frequency) for axis in (x, y) for wave in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=1).float()


def resample_table(table: Float[Tensor, "N D"], old: Grid, new: Grid) -> Float[Tensor, "M D"]:
    """Stretch learned positions from one patch grid to another.

    Bicubic, antialiased, in float32; an equal grid returns `table` untouched. Rows run left to right, then
    down, and hold patches only: class and register rows are the caller's business.

    Args:
        old, new: (rows, columns), counted in patches, not pixels.

    Raises:
        UsageError: `table` does not have old[0] * old[1] rows.

    Source: Dosovitskiy et al. 2020, section 3.2.
    """
    if len(table) != old[0] * old[1]:
        raise UsageError(
            f"The position table must have one row per patch of a {old[0]}x{old[1]} grid, {old[0] * old[1]} rows. "
            f"Got {len(table)}. Did the class row come along? Pass table[1:]."
        )
    if old == new:
        return table
    image = table.float().T.reshape(1, -1, *old)  # [1, D, rows, columns]
    image = F.interpolate(image, size=tuple(new), mode="bicubic", antialias=True, align_corners=False)
    return image.flatten(2)[0].T.to(table.dtype)
