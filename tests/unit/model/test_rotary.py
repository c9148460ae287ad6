"""Rotary positions: the angles of DINOv3 by hand, who is turned, and in which number format."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from kinds import TINY
from vitrail.errors import UsageError
from vitrail.model.positions import Rotary, apply_rotary, dinov3_angles, dinov3_periods
from vitrail.model.vit import create_model
from vitrail.spec import Grid

DINOV3 = dataclasses.replace(TINY, positions="none", rotary="dinov3", registers=2)


def test_the_angles_of_dinov3_by_hand():
    # width 8: periods 1 and 10; row 1 of 2 lies at 0.5, column 2 of 3 at 2/3, of a picture from -1 to 1
    assert dinov3_periods(8).tolist() == pytest.approx([1.0, 10.0])
    angles = dinov3_angles(Grid(2, 3), dinov3_periods(8))
    expected = [2 * math.pi * c / period for c in (0.5, 2 / 3) for period in (1, 10)]
    assert angles[1 * 3 + 2].tolist() == pytest.approx(expected, abs=1e-6)
    assert angles[0].tolist() == pytest.approx([-number for number in expected], abs=1e-6)


def test_dinov3_turns_number_k_with_its_partner_half_a_head_away():
    part = Rotary(dataclasses.replace(DINOV3, registers=0))
    part.periods = dinov3_periods(8)
    tables = part(Grid(2, 3), torch.zeros(1))
    angle = dinov3_angles(Grid(2, 3), dinov3_periods(8))[4]
    x = torch.zeros(1, 7, 1, 1, 8)
    x[0, 5, 0, 0, 1] = 1.0  # the second number of the patch in row 1, column 1
    turned = apply_rotary(x, tables)[0, 5, 0, 0]
    assert turned[1].item() == pytest.approx(math.cos(angle[1]), abs=1e-6)
    assert turned[5].item() == pytest.approx(math.sin(angle[1]), abs=1e-6)


def test_the_whole_prefix_stays_unturned():
    config = dataclasses.replace(DINOV3, distillation_token=True)
    tables = create_model(config).rotary(config.grid, torch.zeros(1))
    assert tables.cos.shape == (4 + 12, 8)
    assert tables.cos[:4].eq(1).all() and not tables.sin[:4].any()
    assert tables.sin[4:].any()


@torch.no_grad()
def test_the_prefix_is_turned_by_its_own_angles_where_it_has_some():
    config = dataclasses.replace(DINOV3, rotary="eva02", rotary_prefix=True)
    part, plain = (create_model(dataclasses.replace(config, rotary_prefix=own)).rotary for own in (True, False))
    assert part.prefix_angles.shape == (3, 4) and not part.prefix_angles.any()
    part.prefix_angles[1, 2] = 0.5  # the first register, the pair of numbers 4 and 5
    tables, usual = part(config.grid, torch.zeros(1)), plain(config.grid, torch.zeros(1))
    assert tables.cos[1, 4:6].tolist() == pytest.approx([math.cos(0.5)] * 2)
    assert tables.sin[1, 4:6].tolist() == pytest.approx([-math.sin(0.5), math.sin(0.5)])
    assert torch.equal(tables.cos[3:], usual.cos[3:]) and tables.cos[[0, 2]].eq(1).all()


def test_angles_of_the_prefix_need_rotary_positions_and_a_prefix():
    with pytest.raises(UsageError, match='Got rotary="none" and the class token'):
        dataclasses.replace(TINY, rotary_prefix=True)
    with pytest.raises(UsageError, match='Got rotary="eva02" and no such tokens'):
        dataclasses.replace(TINY, rotary="eva02", class_token=False, pool="mean", rotary_prefix=True)


@pytest.mark.parametrize("kind", ["axial", "from-one", "dinov3"])
def test_tables_have_the_format_of_what_they_turn_and_angles_are_float32(kind):
    part = create_model(dataclasses.replace(DINOV3, rotary=kind)).rotary
    exact, halved = part(Grid(3, 4), torch.zeros(1)), part(Grid(3, 4), torch.zeros(1, dtype=torch.bfloat16))
    assert halved.cos.dtype == halved.sin.dtype == torch.bfloat16
    assert torch.equal(halved.cos, exact.cos.bfloat16()) and torch.equal(halved.sin, exact.sin.bfloat16())


@pytest.mark.parametrize("kind", ["axial", "from-one", "dinov3"])
def test_visible_patches_keep_the_angles_of_their_places(kind):
    part = create_model(dataclasses.replace(DINOV3, rotary=kind)).rotary
    whole = part(Grid(3, 4), torch.zeros(1))
    some = part(Grid(3, 4), torch.zeros(1), torch.tensor([[7, 0], [3, 11]]))
    assert torch.equal(some.cos[0, 3:], whole.cos[3:][[7, 0]]) and torch.equal(some.sin[1, 3:], whole.sin[3:][[3, 11]])


def test_only_dinov3_keeps_its_periods_in_the_state():
    assert torch.equal(create_model(DINOV3).state_dict()["rotary.periods"], dinov3_periods(8))
    assert "rotary.periods" not in create_model(dataclasses.replace(DINOV3, rotary="axial")).state_dict()


def test_the_angles_come_from_the_periods_of_the_state():
    model = create_model(DINOV3).eval()
    images = torch.randn(1, 2, 12, 8)
    before = model(images)
    model.rotary.periods.copy_(model.rotary.periods.bfloat16().float() * 1.1)
    assert not torch.equal(model(images), before)


def test_a_given_head_width_sets_the_angles():
    config = dataclasses.replace(DINOV3, head_width=12)
    assert create_model(config).rotary(config.grid, torch.zeros(1)).cos.shape == (15, 12)


@pytest.mark.parametrize(
    ("kind", "base", "columns_first", "start"), [("eva02", 1e4, 0, 0), ("rope-vit", 100.0, 1, 0), ("pe", 1e4, 1, 1)]
)
@pytest.mark.parametrize("reference", [None, (4, 8)])
def test_angles_of_published_conventions_are_the_formula(kind, base, columns_first, start, reference):
    config = dataclasses.replace(TINY, width=32, positions="none", rotary=kind, rotary_grid=reference)
    angles = create_model(config).rotary.angles(Grid(2, 3), torch.device("cpu"))  # [6, 8]
    for patch in range(6):
        places = [place + start for place in divmod(patch, 3)]
        if reference is not None:
            places = [place / side * wanted for place, side, wanted in zip(places, (2, 3), reference, strict=True)]
        axes = places[::-1] if columns_first else places
        expected = [place / base ** (4 * i / 16) for place in axes for i in range(4)]
        torch.testing.assert_close(angles[patch], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_another_base_is_taken():
    config = dataclasses.replace(TINY, width=32, positions="none", rotary="eva02", rotary_base=9.0)
    angles = create_model(config).rotary.angles(Grid(1, 2), torch.device("cpu"))
    torch.testing.assert_close(angles[1, 4:], 9.0 ** -torch.tensor([0, 0.25, 0.5, 0.75]))


def test_mixed_frequencies_turn_every_head_by_column_and_row():
    config = dataclasses.replace(TINY, width=32, positions="none", rotary="mixed")
    model = create_model(config)
    rotary = model.encoder.blocks[1].attention.rotary
    tables = rotary(Grid(2, 3), torch.zeros(1))
    assert model.rotary(Grid(2, 3), torch.zeros(1)) is None and tables.cos.shape == (7, 2, 16) and tables.per_head
    row, column = divmod(4, 3)
    angle = column * rotary.frequencies[0] + row * rotary.frequencies[1]  # [A, d / 2]
    torch.testing.assert_close(tables.cos[5], angle.cos().repeat_interleave(2, -1))
    torch.testing.assert_close(tables.sin[5, :, 1::2], angle.sin())
    torch.testing.assert_close(tables.cos[0], torch.ones(2, 16))
    visible = torch.tensor([[4, 0]])
    assert torch.equal(rotary(Grid(2, 3), torch.zeros(1), visible).cos[0], tables.cos[[0, 5, 1]])
    sizes = rotary.frequencies.detach().norm(dim=0)  # two directions at a right angle have the same sizes
    torch.testing.assert_close(sizes, 10.0 ** (-torch.arange(4) / 4).repeat(2).expand(2, -1))


def test_a_base_or_a_grid_needs_a_kind_that_has_them():
    with pytest.raises(UsageError, match='need rotary="eva02"'):
        dataclasses.replace(TINY, rotary="axial", rotary_base=10.0)
    with pytest.raises(UsageError, match="rotary_base must be above 1"):
        dataclasses.replace(TINY, rotary="pe", rotary_base=1.0)
    with pytest.raises(UsageError, match="rotary_grid must be at least 1"):
        dataclasses.replace(TINY, rotary="pe", rotary_grid=(0, 4))
