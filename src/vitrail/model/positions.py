"""Positions that are added to the tokens: learned tables, and fixed ones computed from waves."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import UsageError
from ..spec import Grid
from .config import FIXED_POSITIONS, Resample, ViTConfig
from .kept import KeptFor, kept
from .resample import resample_table
from .tokens import take_rows


class Positions(nn.Module):
    """Adds one table to the tokens. Its first rows belong to the class and the distillation token where
    `class_position` says so; registers get nothing.

    `learned` and `indexed` are parameters [rows, D] (an embedding looked up in order is its table); the fixed kinds
    are buffers. For another grid a learned table is resampled by the rule `resample`, and a fixed one computed anew.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.positions
        self.grid = config.grid
        self.prefix = config.prefix
        self.first = config.table_prefix
        self.resample: Resample = config.resample
        self.kept = KeptFor()
        rows = torch.empty(config.table_rows, config.width)
        self.table = nn.Parameter(rows) if self.kind in ("learned", "indexed") else None
        if self.kind in FIXED_POSITIONS:
            del self.table
            self.register_buffer("table", rows)

    def forward(
        self, x: Float[Tensor, "B T D"], grid: Grid, visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B T D"]:
        if self.table is None:
            return x
        table = self.for_grid(grid).to(x.dtype)  # [rows, D]
        if visible is None and self.first == self.prefix:
            return x + table
        patches = table[self.first :]  # [N, D]
        if visible is not None:  # by gather: the gradient of indexing adds up in a random order on several threads
            patches = take_rows(patches.expand(len(visible), -1, -1), visible)  # [B, n, D]
        placed = [x[:, : self.first] + table[: self.first]] if self.first else []
        unplaced = [x[:, self.first : self.prefix]] if self.first < self.prefix else []
        return torch.cat([*placed, *unplaced, x[:, self.prefix :] + patches], dim=1)

    def for_grid(self, grid: Grid) -> Float[Tensor, "rows D"]:
        """The table for a grid of patches, the rows of the class and the distillation token (if any) first."""
        assert self.table is not None
        if grid == self.grid:
            return self.table
        if self.kind in FIXED_POSITIONS:
            return _kept_table(self.kind, grid, self.table.shape[1], self.first, self.table.device, self.table.dtype)
        table = self.table
        return self.kept(table, (grid,), lambda: self._resampled(table, grid))

    def _resampled(self, table: Float[Tensor, "rows D"], grid: Grid) -> Float[Tensor, "new D"]:
        patches = resample_table(table[self.first :], self.grid, grid, self.resample)
        return torch.cat([table[: self.first], patches]) if self.first else patches


def fixed_table(kind: str, grid: Grid, width: int, prefix_rows: int) -> Float[Tensor, "rows D"]:
    """The table of a fixed kind of positions, `prefix_rows` rows for class and distillation token first.

    Those are the first positions of `sinusoid`, and zeros in the kinds that know rows and columns.

    Raises:
        UsageError: there is no such fixed kind.
    """
    if kind not in FIXED_POSITIONS:
        raise UsageError(f"Positions of a fixed kind must be one of {', '.join(FIXED_POSITIONS)}. Got {kind!r}.")
    if kind == "sinusoid":
        return sinusoid_table(grid.patches + prefix_rows, width)
    table = sincos2d_table(grid, width, kind)
    return torch.cat([torch.zeros(prefix_rows, width), table])


@kept
def _kept_table(
    kind: str, grid: Grid, width: int, prefix_rows: int, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "rows D"]:
    return fixed_table(kind, grid, width, prefix_rows).to(device, dtype)


def sinusoid_table(count: int, width: int) -> Float[Tensor, "rows D"]:
    """Waves over the token's number: angle = position / 10000^(2 floor(j/2) / D), sine in even columns, cosine in odd.

    Source: Vaswani et al. 2017, section 3.5.
    """
    position = torch.arange(count, dtype=torch.float64)[:, None]
    pair = torch.arange(width // 2, dtype=torch.float64)
    angle = position / 10000 ** (2 * pair / width)  # [rows, D / 2]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def sincos2d_table(grid: Grid, width: int, kind: str = "sincos2d") -> Float[Tensor, "N D"]:
    """Waves over columns x and rows y, a quarter of the width each, wave k with frequency 10000^(-k / (D/4)).

    `sincos2d`       sin x, cos x, sin y, cos y: the table in MAE and I-JEPA checkpoints.
    `sincos2d-rows`  sin y, cos y, sin x, cos x: what transformers builds for MAE before it swaps the halves.
    `sincos2d-timm`  sin y, sin x, cos y, cos x: timm's own.
    `sincos2d-moco`  sin x, cos x, sin y, cos y with 10000^(-k / (D/4 - 1)): MoCo v3, big_vision and SimpleViT.
    """
    quarter = width // 4
    steps = quarter - 1 if kind == "sincos2d-moco" else quarter
    frequency = 10000 ** (-torch.arange(quarter, dtype=torch.float64) / steps)
    y, x = (
        axis.flatten()[:, None] * frequency
        for axis in torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
    )  # 2 x [N, D / 4]
    parts = {
        "sincos2d": (x.sin(), x.cos(), y.sin(), y.cos()),
        "sincos2d-rows": (y.sin(), y.cos(), x.sin(), x.cos()),
        "sincos2d-timm": (y.sin(), x.sin(), y.cos(), x.cos()),
        "sincos2d-moco": (x.sin(), x.cos(), y.sin(), y.cos()),
    }[kind]
    return torch.cat(parts, dim=1).float()
