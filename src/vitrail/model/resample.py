"""How a table of positions stretches from one grid of patches to another: two small matrices, A_rows P A_columns^T."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..spec import Grid
from .config import Resample
from .kept import kept
from .precision import in_float32


def resample_table(
    table: Float[Tensor, "N D"], old: Grid, new: Grid, rule: Resample = "bicubic-antialias"
) -> Float[Tensor, "M D"]:
    """Stretch learned positions from one patch grid to another.

    Computed in float32, whatever the number format; an equal grid returns `table` untouched. Rows run left to right,
    then down, and hold patches only: class and register rows are the caller's business.

    Args:
        old, new: (rows, columns), counted in patches, not pixels.
        rule: see `resample_matrix`.

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
    over_rows, over_columns = (_kept_matrix(*sides, rule).to(table.device) for sides in zip(old, new, strict=True))
    with in_float32(table.device.type):
        grid = over_rows @ table.float().reshape(old[0], -1)  # [new rows, old columns * D]
        grid = over_columns @ grid.reshape(new[0], old[1], -1)  # [new rows, new columns, D]
    return grid.flatten(0, 1).to(table.dtype)


def resample_matrix(old: int, new: int, rule: Resample) -> Float[Tensor, "new old"]:
    """The matrix that stretches one axis of `old` places to `new` ones; its rows sum to 1. Float32, on the CPU.

    Where old and new have centres, (i + 0.5) / new answers to (j + 0.5) / old:

    `bicubic`            four neighbours, cubic with a = -0.75, places beyond the border repeat it (torch's bicubic).
    `bilinear`           two neighbours (torch's bilinear).
    `bicubic-offset`     four neighbours, the step old / (new + 0.1) in place of old / new, as DINO and DINOv2 have it.
    `bicubic-antialias`  when shrinking, the cubic grows with the step and covers all places under it; a = -0.5, and
                         what lies beyond the border is left out, not repeated (torch's antialias=True).
    `bilinear-antialias` the same with a triangle.

    Where the first and last places of both stand on each other (torch's align_corners=True):

    `bicubic-corners`    four neighbours, a = -0.75 (torchvision's helper).
    `bilinear-corners`   two neighbours (scipy's zoom of order 1, so Google's checkpoints).

    Source: Keys 1981 for the cubic.
    """
    if rule in ("bicubic-antialias", "bilinear-antialias"):
        return _over_all(old, new, cubic=rule == "bicubic-antialias")
    return _between_neighbours(_places(old, new, rule), old, cubic=not rule.startswith("bilinear"))


def _places(old: int, new: int, rule: Resample) -> Float[Tensor, " new"]:
    """Where each new place lies among the old ones, counted from the centre of the first."""
    i = torch.arange(new, dtype=torch.float64, device="cpu")
    if rule in ("bicubic-corners", "bilinear-corners"):
        return i * ((old - 1) / (new - 1) if new > 1 else 0.0)
    step = old / (new + 0.1) if rule == "bicubic-offset" else old / new
    return (i + 0.5) * step - 0.5


def _between_neighbours(places: Float[Tensor, " new"], old: int, cubic: bool) -> Float[Tensor, "new old"]:
    """Weights of the two or four neighbours of each place; a neighbour beyond the border gives its weight to it."""
    below = places.floor()
    j = torch.arange(old, dtype=torch.float64, device="cpu")
    matrix = torch.zeros(len(places), old, dtype=torch.float64, device="cpu")
    for step in (-1, 0, 1, 2) if cubic else (0, 1):
        neighbour = below + step
        distance = (places - neighbour).abs()
        weight = _cubic(distance, -0.75) if cubic else _triangle(distance)
        matrix = matrix + weight[:, None] * (neighbour.clamp(0, old - 1)[:, None] == j)
    return matrix.float()


def _over_all(old: int, new: int, cubic: bool) -> Float[Tensor, "new old"]:
    """Weights of every old place by its distance, in steps of the coarser grid."""
    step = old / new
    centre = (torch.arange(new, dtype=torch.float64, device="cpu") + 0.5) * step
    j = torch.arange(old, dtype=torch.float64, device="cpu") + 0.5
    distance = (j - centre[:, None]).abs() / max(step, 1.0)
    matrix = _cubic(distance, -0.5) if cubic else _triangle(distance)
    return (matrix / matrix.sum(dim=1, keepdim=True)).float()


def _cubic(distance: Tensor, a: float) -> Tensor:
    x = distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


_kept_matrix = kept(resample_matrix)
