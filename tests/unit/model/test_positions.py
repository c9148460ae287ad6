"""The tables of waves, one by one, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.positions import fixed_table, resample_matrix, sincos2d_table
from vitrail.spec import Grid

ROW, COLUMN, WIDTH = 1, 2, 12


def waves(place: int, steps: int) -> tuple[list[float], list[float]]:
    """Sines and cosines of a place, a quarter of the width each."""
    angles = [place * 10000 ** (-k / steps) for k in range(WIDTH // 4)]
    return [math.sin(a) for a in angles], [math.cos(a) for a in angles]


@pytest.mark.parametrize(
    ("kind", "order", "steps"),
    [
        ("sincos2d", "sx cx sy cy", 3),
        ("sincos2d-rows", "sy cy sx cx", 3),
        ("sincos2d-timm", "sy sx cy cx", 3),
        ("sincos2d-moco", "sx cx sy cy", 2),
    ],
)
def test_each_order_of_the_2d_waves(kind, order, steps):
    sin_x, cos_x = waves(COLUMN, steps)
    sin_y, cos_y = waves(ROW, steps)
    parts = {"sx": sin_x, "cx": cos_x, "sy": sin_y, "cy": cos_y}
    expected = [number for part in order.split() for number in parts[part]]
    table = sincos2d_table(Grid(2, 3), WIDTH, kind)
    assert table[ROW * 3 + COLUMN].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_waves_over_token_numbers_count_the_prefix():
    table = fixed_table("sinusoid", Grid(2, 2), 4, prefix_rows=2)
    assert table[5].tolist() == pytest.approx([math.sin(5), math.cos(5), math.sin(0.05), math.cos(0.05)], abs=1e-6)


def test_learned_positions_have_no_fixed_table():
    with pytest.raises(UsageError, match=r"must be one of sinusoid, sincos2d, .*Got 'learned'"):
        fixed_table("learned", Grid(2, 2), 4, 0)


def test_bilinear_weights_by_hand():
    # five places over three: 0, 0.5, 1, 1.5, 2
    expected = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]])
    torch.testing.assert_close(resample_matrix(3, 5, "bilinear-corners"), expected)
    # two places under four, each a triangle two old steps wide on either side: 1/4 and 3/4 of what lies inside
    half = torch.tensor([[3, 3, 1, 0], [0, 1, 3, 3]]) / 7
    torch.testing.assert_close(resample_matrix(4, 2, "bilinear-antialias"), half)


def test_cubic_weights_by_hand():
    # the middle between two places: -3/32, 19/32 with a = -0.75; the place beyond the border is the border
    middle = resample_matrix(4, 2, "bicubic")  # reads at 0.5 and 2.5
    torch.testing.assert_close(middle[0], torch.tensor([16.0, 19.0, -3.0, 0.0]) / 32)
    torch.testing.assert_close(middle[1], torch.tensor([0.0, -3.0, 19.0, 16.0]) / 32)
    shifted = resample_matrix(4, 2, "bicubic-offset")  # reads at 0.5 * 4 / 2.1 - 0.5 = 0.452...
    assert shifted[0, 0] > middle[0, 0] and shifted[1, 1] < middle[1, 1] * 0.5
