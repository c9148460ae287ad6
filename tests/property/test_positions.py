"""Positions against torch's and scipy's own resizing, and what must hold for every table and every grid."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from kinds import TINY
from vitrail.model.config import FIXED_POSITIONS, Resample
from vitrail.model.positions import Positions, fixed_table, resample_matrix, resample_table
from vitrail.spec import Grid

RULES = [rule for rule in get_args(Resample) if rule != "geometric"]
"""Those of torch; `geometric` is of relative biases, and compared with timm's own function where they are."""
few = settings(max_examples=30, deadline=None)
sides = st.integers(1, 20)
grids = st.builds(Grid, sides, sides)


def by_torch(table: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """The same stretch by torch's own function, with the arguments of the families' code."""
    image = table.T.reshape(1, -1, *old)
    if new.columns == 1 < new.rows:  # torch 2.13 repeats one row where it stretches to a single column with antialias
        return by_torch(image.mT.flatten(2)[0].T, Grid(*reversed(old)), Grid(*reversed(new)), rule)
    size, mode = tuple(new), rule.partition("-")[0]
    if rule == "bicubic-offset":
        scale = tuple((side + 0.1) / was for side, was in zip(new, old, strict=True))
        stretched = F.interpolate(image, scale_factor=scale, mode=mode)
    elif rule.endswith("corners"):
        stretched = F.interpolate(image, size=size, mode=mode, align_corners=True)
    else:
        stretched = F.interpolate(image, size=size, mode=mode, antialias=rule.endswith("antialias"))
    return stretched.flatten(2)[0].T


@pytest.mark.parametrize("rule", RULES)
@few
@given(old=grids, new=grids)
def test_every_rule_is_torchs_resizing(rule, old, new):
    """To 1e-6 in float64. In float32 torch itself errs by up to 1e-5, because it rounds the places it reads at."""
    assume(old != new)  # then nothing is stretched, by DINO's code neither
    table = torch.rand(old.patches, 3, generator=torch.Generator().manual_seed(old.rows)) * 2 - 1
    found = resample_table(table, old, new, rule)
    torch.testing.assert_close(found.double(), by_torch(table.double(), old, new, rule), atol=1e-6, rtol=0)
    torch.testing.assert_close(found, by_torch(table, old, new, rule), atol=1e-5, rtol=0)


@few
@given(old=grids, new=grids)
def test_bilinear_corners_is_scipys_zoom(old, new):
    table = torch.rand(old.patches, 3, generator=torch.Generator().manual_seed(old.rows)) * 2 - 1
    factors = (new.rows / old.rows, new.columns / old.columns, 1)
    zoomed = ndimage.zoom(table.reshape(*old, 3).double().numpy(), factors, order=1)
    expected = torch.from_numpy(zoomed).reshape(-1, 3)
    found = resample_table(table, old, new, "bilinear-corners")
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rule", RULES)
@few
@given(old=sides, new=sides)
def test_the_weights_of_a_new_place_sum_to_one(rule, old, new):
    matrix = resample_matrix(old, new, rule)
    assert matrix.shape == (new, old)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(new), atol=1e-6, rtol=0)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "bicubic-offset"])
@given(side=sides)
def test_an_axis_that_stays_is_not_touched(rule, side):
    torch.testing.assert_close(resample_matrix(side, side, rule), torch.eye(side), atol=1e-7, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_a_square_grid_is_stretched_the_same_way_on_both_axes(rule):
    table = torch.randn(25, 4)
    turned = table.reshape(5, 5, 4).transpose(0, 1).flatten(0, 1)
    tall, wide = (
        resample_table(table, Grid(5, 5), Grid(9, 3), rule),
        resample_table(turned, Grid(5, 5), Grid(3, 9), rule),
    )
    torch.testing.assert_close(tall.reshape(9, 3, 4).transpose(0, 1).flatten(0, 1), wide, atol=1e-6, rtol=0)


def test_the_rules_differ_from_each_other():
    table = torch.randn(37 * 37, 2)
    found = [resample_table(table, Grid(37, 37), Grid(16, 16), rule) for rule in RULES]
    for i in range(len(found)):
        assert all((found[i] - found[j]).abs().max() > 1e-3 for j in range(i))


def test_a_half_precision_table_is_stretched_in_float32_also_under_autocast():
    table = torch.randn(49, 8)
    exact = resample_table(table, Grid(7, 7), Grid(5, 9))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(resample_table(table, Grid(7, 7), Grid(5, 9)), exact)
    halved = resample_table(table.bfloat16(), Grid(7, 7), Grid(5, 9))
    assert torch.equal(halved, resample_table(table.bfloat16().float(), Grid(7, 7), Grid(5, 9)).bfloat16())


def test_a_matrix_made_for_a_prediction_serves_a_training():
    table = torch.randn(11 * 13, 2, requires_grad=True)
    with torch.inference_mode():
        resample_table(table, Grid(11, 13), Grid(6, 17))
    resample_table(table, Grid(11, 13), Grid(6, 17)).sum().backward()
    assert table.grad is not None
    assert table.grad.sum().item() == pytest.approx(2 * 6 * 17, rel=1e-5)


@pytest.mark.parametrize("kind", FIXED_POSITIONS)
@pytest.mark.parametrize("prefix_rows", [0, 1, 2])
def test_fixed_tables_have_unequal_rows_and_first_rows_for_the_prefix(kind, prefix_rows):
    table = fixed_table(kind, Grid(3, 4), 16, prefix_rows)
    assert table.shape == (prefix_rows + 12, 16)
    assert (torch.cdist(table[prefix_rows:], table[prefix_rows:]) + torch.eye(12)).min() > 0.1
    if kind != "sinusoid":
        assert not table[:prefix_rows].any()
        assert torch.equal(table[prefix_rows:], fixed_table(kind, Grid(3, 4), 16, 0))


@pytest.mark.parametrize("kind", ["learned", *FIXED_POSITIONS])
@pytest.mark.parametrize("class_position", [True, False])
@pytest.mark.parametrize("prefix", [(True, False, 0), (True, True, 0), (True, True, 3), (False, False, 2)])
def test_every_prefix_gets_the_rows_that_are_its_own_and_registers_nothing(kind, class_position, prefix):
    cls, distillation, registers = prefix
    config = dataclasses.replace(
        TINY, positions=kind, class_token=cls, distillation_token=distillation, registers=registers, pool="mean",
        class_position=class_position,
    )  # fmt: skip
    part, first = Positions(config), config.table_prefix
    torch.nn.init.normal_(part.table)
    x = torch.randn(2, config.tokens, config.width)
    added = part(x, config.grid) - x
    whole = torch.cat([part.table[:first], torch.zeros(config.prefix - first, config.width), part.table[first:]])
    torch.testing.assert_close(added, whole.expand_as(added), atol=1e-6, rtol=0)
    visible = torch.tensor([[5, 0, 7], [1, 2, 11]])
    some = torch.cat([x[:, : config.prefix], x[:, config.prefix :][:, :3]], dim=1)
    added = part(some, config.grid, visible) - some
    expected = torch.stack([torch.cat([whole[: config.prefix], whole[config.prefix :][row]]) for row in visible])
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=0)


def test_another_grid_resamples_the_patches_by_the_configured_rule_and_keeps_the_first_rows():
    for rule in RULES:
        part = Positions(dataclasses.replace(TINY, resample=rule))
        torch.nn.init.normal_(part.table)
        table = part.table_for_grid(Grid(5, 2))
        assert torch.equal(table[0], part.table[0])
        assert torch.equal(table[1:], resample_table(part.table[1:], TINY.grid, Grid(5, 2), rule))
