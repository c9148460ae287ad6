"""Positions that are added to the tokens: learned tables, and fixed ones computed from waves."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import UsageError
from ..spec import Grid
from .cache import TensorCache, cache_results
from .config import BASED_ROTARY, FIXED_POSITIONS, Resample, ViTConfig
from .layers import disable_autocast
from .tokens import gather_tokens


class Positions(nn.Module):
    """Adds one table to the tokens. With `class_position` its first rows belong to the class and the distillation
    token; registers get nothing.

    `learned` and `indexed` are parameters [rows, D] (an embedding looked up in order is its table); the fixed kinds
    are buffers. For another grid a learned table is resampled by the rule `resample`, and a fixed one computed anew.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.positions
        self.grid = config.grid
        self.prefix = config.prefix
        self.table_prefix = config.table_prefix
        self.resample: Resample = config.resample
        self.cache = TensorCache()
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
        table = self.table_for_grid(grid).to(x.dtype)  # [rows, D]
        if visible is None and self.table_prefix == self.prefix:
            return x + table
        patches = table[self.table_prefix :]  # [N, D]
        if visible is not None:  # by gather: the gradient of indexing adds up in a random order on several threads
            patches = gather_tokens(patches.expand(len(visible), -1, -1), visible)  # [B, n, D]
        placed = [x[:, : self.table_prefix] + table[: self.table_prefix]] if self.table_prefix else []
        unplaced = [x[:, self.table_prefix : self.prefix]] if self.table_prefix < self.prefix else []
        return torch.cat([*placed, *unplaced, x[:, self.prefix :] + patches], dim=1)

    def table_for_grid(self, grid: Grid) -> Float[Tensor, "rows D"]:
        """The table for a grid of patches, the rows of the class and the distillation token (if any) first."""
        assert self.table is not None
        table = self.table
        if grid == self.grid:
            return table
        if self.kind in FIXED_POSITIONS:
            return _cached_fixed_table(self.kind, grid, table.shape[1], self.table_prefix, table.device, table.dtype)
        return self.cache(table, (grid,), lambda: self._resample(table, grid))

    def _resample(self, table: Float[Tensor, "rows D"], grid: Grid) -> Float[Tensor, "new D"]:
        patches = resample_table(table[self.table_prefix :], self.grid, grid, self.resample)
        return torch.cat([table[: self.table_prefix], patches]) if self.table_prefix else patches


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


@cache_results
def _cached_fixed_table(
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


# Rotary positions: queries and keys are rotated by their row and column, so that products depend on differences alone.


class RotaryTables(NamedTuple):
    """Cosine and signed sine for every number of a head, [T, d] or [B, T, d], and whether neighbours form pairs.

    With `per_head` every head has its own: [T, A, d] or [B, T, A, d].
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    per_head: bool = False


class Rotary(nn.Module):
    """Makes the tables for a grid. Prefix tokens have angle 0, or with `rotary_prefix` learned angles, the only
    parameters.

    `axial` (ours): the first half of the pairs follows rows, the second columns, places count from 0, frequencies
    100^(-4i/d), i = 0 .. d/4-1, and number k is paired with number k + d/2.
    `from-one` (xray_vit_patch16_224): the first half of a head follows columns, the second rows, places count from 1,
    frequencies 10000^(-2i/e) with e = d/2 and i = 1 .. e/2, and neighbours (2k, 2k+1) are paired.
    `dinov3`: pairs as in axial, angles 2 pi c / period, where c is a patch's centre with the whole image as -1 .. 1
    on both axes. The periods [d/4] are a buffer, because published files hold them rounded.
    `eva02`, `rope-vit`, `pe`: neighbours are paired, frequencies base^(-4i/d), i = 0 .. d/4-1. EVA-02 has rows first
    and places from 0, RoPE-ViT columns first, Perception Encoder columns first and places from 1. Where a
    `rotary_grid` is given, places are multiplied by its side over that of the grid. `mixed` has tables of its own in
    every block, see `MixedRotary`.

    Angles are computed in float32; the tables have the dtype of the queries and keys.

    Source: Su et al. 2021 (RoFormer); Heo et al. 2024 for the axial form and its base of 100; Siméoni et al. 2025
    (DINOv3), section 3.2.
    """

    periods: Tensor

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.rotary
        self.head_dim = config.head_dim
        self.prefix = config.prefix
        self.base = config.rotary_base or BASED_ROTARY.get(config.rotary)
        self.reference = None if config.rotary_grid is None else Grid(*config.rotary_grid)
        self.cache = TensorCache()
        angles = torch.empty(config.prefix, config.head_dim // 2) if config.rotary_prefix else None
        self.prefix_angles = None if angles is None else nn.Parameter(angles)
        if self.kind == "dinov3":
            self.register_buffer("periods", torch.empty(self.head_dim // 4))

    def forward(self, grid: Grid, like: Tensor, visible: Int[Tensor, "B n"] | None = None) -> RotaryTables | None:
        device, dtype = like.device, like.dtype
        if self.kind in ("none", "mixed"):
            return None
        if self.kind == "dinov3":
            make = partial(self._dinov3_tables, grid, device, dtype)
            tables = self.cache(self.periods, (grid, device, dtype), make)  # [T, d]
        else:
            settings = self.kind, grid, self.head_dim, self.base, self.reference
            tables = _cached_rotary_tables(*settings, self.prefix, device, dtype)  # [T, d]
        if self.prefix_angles is not None:
            own = _make_rotary_tables(self.prefix_angles.float(), 0, dtype, tables.interleaved)
            cos, sin = (
                torch.cat([ours, all_of[self.prefix :]]) for ours, all_of in zip(own[:2], tables[:2], strict=True)
            )
            tables = tables._replace(cos=cos, sin=sin)
        return _select_visible(tables, self.prefix, visible)

    def _dinov3_tables(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> RotaryTables:
        return _make_rotary_tables(self.angles(grid, device), self.prefix, dtype)

    def angles(self, grid: Grid, device: torch.device) -> Float[Tensor, "N half"]:
        """The angle of every pair of numbers of a head at every patch of a grid, in radians."""
        if self.kind == "dinov3":
            return dinov3_angles(grid, self.periods.to(device))
        return _fixed_angles(self.kind, grid, self.head_dim, self.base, self.reference, device)


class MixedRotary(nn.Module):
    """The rotation of one attention with learned frequencies: every pair of numbers of every head turns by
    column * frequencies[0] + row * frequencies[1], places count from 0, and neighbours are paired.

    Angles are computed in float32.

    Source: Heo et al. 2024, section 3.2 (RoPE-Mixed).
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.frequencies = nn.Parameter(torch.empty(2, config.heads, config.head_dim // 2))

    def forward(self, grid: Grid, like: Tensor, visible: Int[Tensor, "B n"] | None = None) -> RotaryTables:
        places = (torch.arange(side, device=like.device, dtype=torch.float32) for side in grid)
        row, column = (axis.flatten()[:, None, None] for axis in torch.meshgrid(*places, indexing="ij"))  # [N, 1, 1]
        of_column, of_row = self.frequencies.float()  # 2 x [A, d / 2]
        tables = _make_rotary_tables(column * of_column + row * of_row, self.prefix, like.dtype, interleaved=True)
        return _select_visible(tables._replace(per_head=True), self.prefix, visible)


def mixed_frequencies(heads: int, head: int, generator: torch.Generator) -> Float[Tensor, "2 A half"]:
    """Initial frequencies of `MixedRotary`: 10^(-4i/d) at a right angle to each other, turned by chance per head."""
    size = 10.0 ** (-torch.arange(head // 4, device=generator.device) * 4 / head)  # [d / 4]
    turn = 2 * math.pi * torch.rand(heads, 1, generator=generator, device=generator.device)
    directions = torch.stack([turn, turn + math.pi / 2], dim=1)  # [A, 2, 1]
    return torch.stack([(size * directions.cos()).flatten(1), (size * directions.sin()).flatten(1)])


@cache_results
def _cached_rotary_tables(
    kind: str, grid: Grid, head: int, base: float | None, reference: Grid | None,
    prefix: int, device: torch.device, dtype: torch.dtype,
) -> RotaryTables:  # fmt: skip
    angles = _fixed_angles(kind, grid, head, base, reference, device)
    return _make_rotary_tables(angles, prefix, dtype, interleaved=kind != "axial")


def _make_rotary_tables(
    angles: Float[Tensor, "N ... half"], prefix: int, dtype: torch.dtype, interleaved: bool = False
) -> RotaryTables:
    """The angle of each pair spread over its two numbers, the first one's sine negative; prefix tokens have angle 0."""
    angles = torch.cat([angles.new_zeros(prefix, *angles.shape[1:]), angles])  # [T, d / 2] or [T, A, d / 2]
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if interleaved:
        signed = torch.stack([-sin, sin], dim=-1).flatten(-2)
        return RotaryTables(torch.stack([cos, cos], dim=-1).flatten(-2), signed, interleaved)
    return RotaryTables(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), interleaved)


def _select_visible(tables: RotaryTables, prefix: int, visible: Int[Tensor, "B n"] | None) -> RotaryTables:
    """The rows of the prefix tokens and of the patches that are there; all if `visible` is None."""
    if visible is None:
        return tables
    before = torch.arange(prefix, device=visible.device).expand(len(visible), -1)
    rows = torch.cat([before, visible + prefix], dim=1)
    return tables._replace(cos=tables.cos[rows], sin=tables.sin[rows])


def _fixed_angles(
    kind: str, grid: Grid, head: int, base: float | None, reference: Grid | None, device: torch.device
) -> Float[Tensor, "N half"]:
    """Angles without parameters, see `Rotary`."""
    if base is None:
        return FIXED_ANGLES[kind](grid, head, device)
    quarter = head // 4
    frequency = 1.0 / base ** (torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    return _outer_by_axis(grid, int(kind == "pe"), frequency, columns_first=kind != "eva02", reference=reference)


def axial_angles(grid: Grid, head: int, device: torch.device) -> Float[Tensor, "N half"]:
    """Angles of our own recipes, see `Rotary`."""
    frequency = 100.0 ** (-torch.arange(head // 4, device=device) * 4 / head)
    return _outer_by_axis(grid, 0, frequency, columns_first=False)


def from_one_angles(grid: Grid, head: int, device: torch.device) -> Float[Tensor, "N half"]:
    """Angles of xray_vit_patch16_224, see `Rotary`."""
    axis = head // 2
    frequency = 10000.0 ** (-2 * torch.arange(1, axis // 2 + 1, device=device) / axis)
    return _outer_by_axis(grid, 1, frequency, columns_first=True)


FIXED_ANGLES = {"axial": axial_angles, "from-one": from_one_angles}


def dinov3_periods(head: int) -> Float[Tensor, " quarter"]:
    """Periods of DINOv3's angles: 100^(4i/d), i = 0 .. d/4-1, in float32."""
    return 100.0 ** (torch.arange(head // 4, dtype=torch.float32) * 4 / head)


def dinov3_angles(grid: Grid, periods: Float[Tensor, " quarter"]) -> Float[Tensor, "N half"]:
    """Angles of DINOv3, rows then columns, see `Rotary`."""
    centres = [(torch.arange(side, device=periods.device) + 0.5) / side * 2 - 1 for side in grid]  # float32
    row, column = torch.meshgrid(*centres, indexing="ij")
    turns = torch.stack([row.flatten(), column.flatten()], dim=1)[:, :, None] / periods.float()  # [N, 2, d/4]
    return 2 * math.pi * turns.flatten(1)


def _outer_by_axis(
    grid: Grid, start: int, frequency: Tensor, columns_first: bool, reference: Grid | None = None
) -> Float[Tensor, "N half"]:
    steps = [torch.arange(start, start + side, device=frequency.device) for side in grid]
    if reference is not None:
        steps = [places / side * wanted for places, side, wanted in zip(steps, grid, reference, strict=True)]
    row, column = torch.meshgrid(*steps, indexing="ij")
    axes = (column, row) if columns_first else (row, column)
    return torch.cat([place.flatten()[:, None] * frequency for place in axes], dim=1)


def apply_rotary(x: Float[Tensor, "B T G A d"], tables: RotaryTables) -> Float[Tensor, "B T G A d"]:
    """Rotate every pair of numbers of a head by its token's angle. G counts what is rotated together: queries and keys.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin): each number times its cosine, plus its partner times a signed
    sine, which takes three passes over the numbers.
    """
    partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if tables.interleaved else x.roll(x.shape[-1] // 2, -1)
    by_head = (table if tables.per_head else table.unsqueeze(-2) for table in tables[:2])
    cos, sin = (table.unsqueeze(-3) for table in by_head)  # [T, 1, 1 or A, d] or [B, T, 1, 1 or A, d]
    return torch.addcmul(x * cos, partner, sin)


# Relative biases: a learned number for every head and offset between two patches, added to products of attention.


class RelativeBias(nn.Module):
    """Table [offsets, A] of one attention, and what it adds to the products of queries and keys, [1, A, T, T] or, where
    some patches are left out, [B, A, T, T].

    The first (2h - 1)(2w - 1) rows are for the offsets between the patches of a grid [h, w]: position of the query
    minus that of the key, rows first, from 1 - h and 1 - w. With a class token three rows follow: from the class token
    to a patch, from a patch to it, and from it to itself. For another grid the rows of offsets are resampled:
    geometrically if `resample` says so, else bilinearly.

    Source: Liu et al. 2021 (Swin), section 3.2; Bao et al. 2022 (BEiT) for the class token.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        self.prefix = config.prefix
        self.rule = relative_bias_rule(config.resample)
        self.cache = TensorCache()
        self.table = nn.Parameter(torch.empty(relative_bias_rows(config), config.heads))

    def forward(self, grid: Grid, visible: Int[Tensor, "B n"] | None = None) -> Float[Tensor, "b A T T"]:
        table: Tensor = self.table
        if grid != self.grid:
            table = self.cache(table, (grid,), lambda: resample_relative_bias(self.table, self.grid, grid, self.rule))
        index = _cached_offset_rows(grid, self.prefix, table.device)[None]  # [1, T, T]
        if visible is not None:
            kept = visible + self.prefix
            kept = torch.cat([torch.arange(self.prefix, device=kept.device).expand(len(kept), -1), kept], dim=1)
            index = index[0][kept[:, :, None], kept[:, None, :]]  # [B, T, T]
        return F.embedding(index, table).permute(0, 3, 1, 2).contiguous()


def relative_bias_rule(resample: Resample) -> Resample:
    """The rule by which relative biases are resampled, for the setting of a model."""
    return "geometric" if resample == "geometric" else "bilinear"


def relative_bias_rows(config: ViTConfig) -> int:
    """Rows of the table of a `RelativeBias`."""
    offsets = _offset_grid(config.grid)
    return offsets.patches + 3 * config.prefix


def resample_relative_bias(
    table: Float[Tensor, "old A"], old: Grid, new: Grid, rule: Resample
) -> Float[Tensor, "new A"]:
    """The table of a `RelativeBias` for another grid of patches; the rows of a class token stay as they are."""
    count = _offset_grid(old).patches
    offsets = resample_table(table[:count], _offset_grid(old), _offset_grid(new), rule)
    return torch.cat([offsets, table[count:]])


def _offset_grid(grid: Grid) -> Grid:
    """How many offsets there are between the rows and between the columns of a grid."""
    return Grid(2 * grid.rows - 1, 2 * grid.columns - 1)


@cache_results
def _cached_offset_rows(grid: Grid, prefix: int, device: torch.device) -> Int[Tensor, "T T"]:
    """The row of a `RelativeBias` table for every pair of a query and a key."""
    places = (torch.arange(side, device=device) for side in grid)
    row, column = (axis.flatten() for axis in torch.meshgrid(*places, indexing="ij"))
    offsets = _offset_grid(grid)
    down, right = (axis[:, None] - axis[None, :] for axis in (row, column))
    index = (down + grid.rows - 1) * offsets.columns + right + grid.columns - 1  # [N, N]
    if not prefix:
        return index
    of_class = torch.arange(1 + grid.patches, device=device) == 0  # [T]
    query, key = of_class[:, None].long(), of_class[None, :].long()
    after = offsets.patches - 1 + query + 2 * key  # 0, 1 and 2 rows after the offsets
    return torch.where((query + key) > 0, after, F.pad(index, (1, 0, 1, 0)))


# Resampling of a position table to another grid of patches: two small matrices, A_rows P A_columns^T.


def resample_table(
    table: Float[Tensor, "N D"], old: Grid, new: Grid, rule: Resample = "bicubic-antialias"
) -> Float[Tensor, "M D"]:
    """Resample learned positions from one patch grid to another.

    Computed in float32, whatever the dtype; an equal grid returns `table` untouched. Rows run left to right,
    then down, and hold patches only, without class and register rows.

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
    over_rows, over_columns = (
        _cached_resample_matrix(*sides, rule, table.device) for sides in zip(old, new, strict=True)
    )
    with disable_autocast(table.device.type):
        grid = over_rows @ table.float().reshape(old[0], -1)  # [new rows, old columns * D]
        grid = over_columns @ grid.reshape(new[0], old[1], -1)  # [new rows, new columns, D]
    return grid.flatten(0, 1).to(table.dtype)


def resample_matrix(old: int, new: int, rule: Resample) -> Float[Tensor, "new old"]:
    """The matrix that resamples one axis of `old` places to `new` ones; its rows sum to 1. Float32, on the CPU.

    With centres aligned, (i + 0.5) / new at (j + 0.5) / old:

    `bicubic`            four neighbours, cubic with a = -0.75, places beyond the border repeat it (torch's bicubic).
    `bilinear`           two neighbours (torch's bilinear).
    `bicubic-offset`     four neighbours, the step old / (new + 0.1) in place of old / new, as DINO and DINOv2 have it.
    `bicubic-antialias`  when shrinking, the cubic grows with the step and covers all places under it; a = -0.5, and
                         what lies beyond the border is left out, not repeated (torch's antialias=True).
    `bilinear-antialias` the same with a triangle.

    With the first and last places aligned (torch's align_corners=True):

    `bicubic-corners`    four neighbours, a = -0.75 (torchvision's helper).
    `bilinear-corners`   two neighbours (scipy's zoom of order 1, so Google's checkpoints).

    With the middle places aligned, for offsets between patches (BEiT's fine-tuning at another size, as timm has it):

    `geometric`          two neighbours of old places that lie further and further from the middle, 1, 1 + q,
                         1 + q + q^2 ... new places away, so that small offsets keep their values.

    Source: Keys 1981 for the cubic.
    """
    if rule == "geometric":
        return _geometric_matrix(old, new)
    if rule in ("bicubic-antialias", "bilinear-antialias"):
        return _antialias_matrix(old, new, cubic=rule == "bicubic-antialias")
    return _interpolation_matrix(_source_positions(old, new, rule), old, cubic=not rule.startswith("bilinear"))


def _source_positions(old: int, new: int, rule: Resample) -> Float[Tensor, " new"]:
    """Where each new place lies among the old ones, counted from the centre of the first."""
    i = torch.arange(new, dtype=torch.float64, device="cpu")
    if rule in ("bicubic-corners", "bilinear-corners"):
        return i * ((old - 1) / (new - 1) if new > 1 else 0.0)
    step = old / (new + 0.1) if rule == "bicubic-offset" else old / new
    return (i + 0.5) * step - 0.5


def _interpolation_matrix(positions: Float[Tensor, " new"], old: int, cubic: bool) -> Float[Tensor, "new old"]:
    """Weights of the two or four neighbours of each place; a neighbour beyond the border gives its weight to it."""
    below = positions.floor()
    j = torch.arange(old, dtype=torch.float64, device="cpu")
    matrix = torch.zeros(len(positions), old, dtype=torch.float64, device="cpu")
    for step in (-1, 0, 1, 2) if cubic else (0, 1):
        neighbour = below + step
        distance = (positions - neighbour).abs()
        weight = _cubic_kernel(distance, -0.75) if cubic else _triangle_kernel(distance)
        matrix = matrix + weight[:, None] * (neighbour.clamp(0, old - 1)[:, None] == j)
    return matrix.float()


def _geometric_matrix(old: int, new: int) -> Float[Tensor, "new old"]:
    """Linear weights between old places at a geometric distance from the middle; q, from 1.01 to 1.5, is the one that
    spreads them over the new places."""
    half, low, high, q = old // 2, 1.01, 1.5, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if (1 - q**half) / (1 - q) > new // 2 else (q, high)
    device = torch.device("cpu")
    sums = [sum(q**i for i in range(n)) for n in range(1, half + 1)]
    distance = torch.tensor(sums, dtype=torch.float64, device=device)
    places = torch.cat([-distance.flip(0), distance.new_zeros(1), distance])  # [old]
    wanted = torch.arange(new, dtype=torch.float64, device=device) - new // 2
    right = torch.bucketize(wanted, places).clamp(min(1, old - 1), old - 1)
    left = (right - 1).clamp(min=0)
    share = ((wanted - places[left]) / (places[right] - places[left]).clamp(min=1e-9)).clamp(0, 1)  # of the right one
    columns = torch.arange(old, device=device)
    matrix = (left[:, None] == columns) * (1 - share)[:, None] + (right[:, None] == columns) * share[:, None]
    return matrix.float()


def _antialias_matrix(old: int, new: int, cubic: bool) -> Float[Tensor, "new old"]:
    """Weights of every old place by its distance, in steps of the coarser grid."""
    step = old / new
    centre = (torch.arange(new, dtype=torch.float64, device="cpu") + 0.5) * step
    j = torch.arange(old, dtype=torch.float64, device="cpu") + 0.5
    distance = (j - centre[:, None]).abs() / max(step, 1.0)
    matrix = _cubic_kernel(distance, -0.5) if cubic else _triangle_kernel(distance)
    return (matrix / matrix.sum(dim=1, keepdim=True)).float()


def _cubic_kernel(distance: Tensor, a: float) -> Tensor:
    x = distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _triangle_kernel(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


@cache_results
def _cached_resample_matrix(old: int, new: int, rule: Resample, device: torch.device) -> Float[Tensor, "new old"]:
    return resample_matrix(old, new, rule).to(device)
