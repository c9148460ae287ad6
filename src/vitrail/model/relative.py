"""Relative positions in attention: learned vectors for row and column offsets, on the keys and on the values."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..spec import Grid
from .kept import kept


class RelativePositions(nn.Module):
    """Four tables [2k + 2, d], shared by the heads of one attention: rows and columns for keys, the same for values.

    Table row 0 serves every pair with a prefix token; table row 1 + k + o serves the offset o = place of the looked-at
    patch minus place of the looking one, clipped to -k .. k. A pair adds key_rows[r] + key_columns[c] to its key and
    value_rows[r] + value_columns[c] to its value. Designs that keep rows and columns in separate halves of the head
    are this one with zeros in the other half.

    No vector is built for a pair. A token meets the few vectors of the tables first, and the result is spread over the
    rows and columns of the grid, then over their tokens; the values go the same way back. A row or column of the grid,
    and the prefix of either axis, is called a line here: L = (1 + h) + (1 + w) of them.

    Source: Shaw et al. 2018, section 3.3; Wu et al. 2021 for two axes.
    """

    def __init__(self, distance: int, head: int, prefix: int):
        super().__init__()
        self.distance = distance
        self.prefix = prefix
        self.key_rows = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.key_columns = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.value_rows = nn.Parameter(torch.empty(2 * distance + 2, head))
        self.value_columns = nn.Parameter(torch.empty(2 * distance + 2, head))

    def scores(
        self, q: Float[Tensor, "B A T d"], grid: Grid, visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B A T T"]:
        """What the tables add to the products of these queries with all keys."""
        lines, offsets = self._marks(q, grid, visible)
        products = q @ torch.cat([self.key_rows, self.key_columns]).T  # [B, A, T, 4k + 4]
        by_line = torch.einsum("batn,btln->batl", products, offsets)  # [B, A, T, L]
        return by_line @ lines.mT

    def values(
        self, weights: Float[Tensor, "B A T T"], grid: Grid, visible: Int[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B A T d"]:
        """What the tables add to the values, averaged by `weights`."""
        lines, offsets = self._marks(weights, grid, visible)
        by_offset = torch.einsum("batl,btln->batn", weights @ lines, offsets)  # [B, A, T, 4k + 4]
        return by_offset @ torch.cat([self.value_rows, self.value_columns])

    def _marks(self, like: Tensor, grid: Grid, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Ones where a token stands on a line [b, 1, T, L], and where it sees a line at an offset [b, T, L, 4k + 4].

        b is 1 where all patches are there: then every picture has the same marks, and every forward.
        """
        if visible is None:
            return _kept_marks(grid, self.prefix, self.distance, like.device, like.dtype)
        return _marks(visible, grid, self.prefix, self.distance, like.dtype)


@kept
def _kept_marks(
    grid: Grid, prefix: int, distance: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _marks(torch.arange(grid.patches, device=device)[None], grid, prefix, distance, dtype)


def _marks(
    patch: Int[Tensor, "b n"], grid: Grid, prefix: int, distance: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    row_lines, row_offsets = _axis(patch // grid.columns + 1, grid.rows, prefix, distance, dtype)
    column_lines, column_offsets = _axis(patch % grid.columns + 1, grid.columns, prefix, distance, dtype)
    lines = torch.cat([row_lines, column_lines], dim=-1)
    offsets = torch.cat(
        [
            torch.cat([row_offsets, torch.zeros_like(row_offsets)], dim=-1),
            torch.cat([torch.zeros_like(column_offsets), column_offsets], dim=-1),
        ],
        dim=-2,
    )
    return lines.unsqueeze(1), offsets


def _axis(line: Tensor, side: int, prefix: int, distance: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The marks of one axis, for patches on lines 1 .. side of it; line 0 holds the prefix."""
    line = torch.cat([line.new_zeros(len(line), prefix), line], dim=-1)[..., None]  # [b, T, 1]
    seen = torch.arange(1 + side, device=line.device)
    offset = (seen - line).clamp(-distance, distance) + distance + 1  # [b, T, 1 + side]
    offset = torch.where((seen > 0) & (line > 0), offset, torch.zeros_like(offset))
    number = torch.arange(2 * distance + 2, device=line.device)
    return (line == seen).to(dtype), (offset[..., None] == number).to(dtype)
