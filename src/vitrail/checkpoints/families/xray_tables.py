"""The rotary tables that an `xray-rope` file carries, ours and those of the conventions one could mistake them for.

A table holds the cosine or sine of one axis for every token: [N, e], or [N + 1, e] with the class token, which stands
at angle 0, in front; e is half a head's width. angle = place * 10000^(-2i/e), i = 1 .. e/2, each used twice.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ...model.config import ViTConfig
from ...spec import Grid

TABLES = ("x_cos", "x_sin", "y_cos", "y_sin")


class Convention(NamedTuple):
    """Where tables of this kind differ from each other; the defaults are the design's own."""

    first_exponent: int = 1
    first_place: int = 1
    swapped: bool = False
    halves: bool = False

    def words(self) -> str:
        """What is unlike the design, for a message."""
        said = (
            (self.first_exponent != 1, "exponents i counted from 0"),
            (self.first_place != 1, "places counted from 0"),
            (self.swapped, "rows and columns swapped"),
            (self.halves, "each angle used again half a table later (half-split), not twice in a row"),
        )
        return " and ".join(words for differs, words in said if differs)


DESIGN = Convention()


def rotary_table(name: str, grid: Grid, width: int, class_row: bool, convention: Convention = DESIGN) -> Tensor:
    """The table called `name` (one of TABLES) for a grid, [N (+ 1), width]."""
    along_columns = name.startswith("x") != convention.swapped
    rows, columns = (torch.arange(side, dtype=torch.float64) + convention.first_place for side in grid)
    places = columns.repeat(grid.rows) if along_columns else rows.repeat_interleave(grid.columns)  # [N]
    exponents = torch.arange(width // 2, dtype=torch.float64) + convention.first_exponent
    angles = places[:, None] * 10000 ** (-2 * exponents / width)  # [N, e / 2]
    angles = torch.cat([angles, angles], dim=1) if convention.halves else angles.repeat_interleave(2, dim=1)
    if class_row:
        angles = torch.cat([angles.new_zeros(1, width), angles])
    return (angles.cos() if name.endswith("cos") else angles.sin()).float()


def axis_width(config: ViTConfig) -> int:
    """Numbers of a head that follow one axis (e)."""
    return config.width // config.heads // 2


def compare_table(name: str, theirs: Tensor, config: ViTConfig) -> str:
    """Empty if the file's table called `name` is the design's, else what it is, in words that follow the name."""
    grid, width = config.grid, axis_width(config)
    flat = theirs.reshape(-1, theirs.shape[-1]) if theirs.ndim else theirs.reshape(1, 1)
    if flat.shape not in ((grid.patches, width), (grid.patches + 1, width)):
        return (
            f"is {list(theirs.shape)}, expected {[grid.patches + 1, width]}, or {[grid.patches, width]} without the "
            f"class token, for a grid of {grid.rows}x{grid.columns} and {config.heads} heads."
        )
    tolerance = max(1e-4, torch.finfo(theirs.dtype).eps)
    for convention in _CONVENTIONS:
        ours = rotary_table(name, grid, width, len(flat) > grid.patches, convention)
        if torch.allclose(flat.float(), ours, rtol=0, atol=tolerance):
            return _looks_like(convention)
    return "is a rotary table of no convention known here. The design counts places and exponents i from 1."


def _looks_like(convention: Convention) -> str:
    if convention == DESIGN:
        return ""
    return (
        f"is a rotary table of another convention: it looks like one with {convention.words()}. "
        "The model would rotate by other angles than the one that was trained."
    )


# The design first, then the others with fewer differences first.
_CONVENTIONS = sorted(
    (Convention(*parts) for parts in product((1, 0), (1, 0), (False, True), (False, True))),
    key=lambda convention: sum(a != b for a, b in zip(convention, DESIGN, strict=True)),
)
