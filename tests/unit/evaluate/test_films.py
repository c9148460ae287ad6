"""What films and cameras do, against values by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.evaluate.corruptions_acquisition import GLYPHS, render_text
from vitrail.evaluate.robustness import corrupt_images


def of(images: Tensor, kind: str, severity: int) -> np.ndarray:
    return corrupt_images(images, kind, severity, 0, np.arange(len(images))).numpy()


def levels(*values: int, count: int = 1) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(1, 1, 1, -1).repeat(count, 1, 4, 1)


def test_a_stop_is_a_factor_of_two():
    assert of(levels(0, 50, 100, 200), "underexposure", 4)[0, 0, 0].tolist() == [0, 25, 50, 100]
    assert of(levels(0, 50, 100, 200), "overexposure", 4)[0, 0, 0].tolist() == [0, 100, 200, 255]


def test_gamma_keeps_black_and_white_and_goes_both_ways():
    found = of(levels(0, 64, 255, count=40), "gamma", 5)[:, 0, 0]
    assert set(found[:, 0].tolist()) == {0} and set(found[:, 2].tolist()) == {255}
    ways = [round(255 * (64 / 255) ** power) for power in (2.2, 1 / 2.2)]
    assert sorted(set(found[:, 1].tolist())) == ways
    assert 8 < (found[:, 1] == ways[0]).sum() < 32


def test_two_bits_are_four_levels():
    assert of(levels(0, 63, 64, 127, 128, 191, 192, 255), "bit_depth", 5)[0, 0, 0].tolist() == [
        0, 0, 85, 85, 170, 170, 255, 255,
    ]  # fmt: skip
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert [len(np.unique(of(every, "bit_depth", severity))) for severity in range(1, 6)] == [64, 32, 16, 8, 4]


def test_sensors_are_noisier_in_the_light():
    shape = (1, 1, 150, 150)
    dark, light = (of(torch.full(shape, value, dtype=torch.uint8), "sensor_noise", 3) / 255 for value in (51, 204))
    assert dark.std() == pytest.approx((0.015**2 + 0.2 / 300) ** 0.5, rel=0.04)
    assert light.std() == pytest.approx((0.015**2 + 0.8 / 300) ** 0.5, rel=0.04)


def test_pictures_are_turned_about_their_middle_by_ten_degrees_to_either_side():
    ramp = torch.arange(50, 151, dtype=torch.uint8).expand(20, 1, 101, 101).contiguous()  # rises to the right
    found = of(ramp, "rotation", 5)[:, 0].astype(float)
    assert (found[:, 50, 50] == 100).all()
    right = (found[:, 50, 80] - found[:, 50, 20]) / 60
    down = (found[:, 80, 50] - found[:, 20, 50]) / 60
    assert right == pytest.approx(np.cos(np.radians(10)), abs=0.02)
    assert np.abs(down) == pytest.approx(np.sin(np.radians(10)), abs=0.02) and len(set(np.sign(down))) == 2


def test_crops_are_shifted_by_as_much_as_the_table_says_in_any_direction():
    ramp = torch.arange(50, 150, dtype=torch.uint8).expand(20, 1, 100, 100)
    both = torch.cat([ramp, ramp.transpose(2, 3)], dim=1).contiguous()
    found = of(both, "shift", 5).astype(float)[:, :, 50, 50] - 100
    assert np.hypot(*found.T) == pytest.approx(12, abs=0.8)
    assert len(set(map(tuple, np.sign(found)))) == 4


def test_letters_are_written_dot_by_dot():
    ink = render_text("L7", 10)
    assert ink.shape == (10, 14)
    assert ["".join(".#"[int(dot)] for dot in row[::2]) for row in ink[::2]] == [
        "#...###",
        "#.....#",
        "#.....#",
        "#....#.",
        "###..#.",
    ]
    assert {len(rows.split()) for rows in GLYPHS.values()} == {5}
    assert {len(row) for rows in GLYPHS.values() for row in rows.split()} == {3}


def test_a_side_marker_stands_in_one_of_the_corners():
    found = of(torch.zeros(40, 2, 70, 70, dtype=torch.uint8), "marker", 1)
    assert np.array_equal(found[:, 0], found[:, 1]) and set(np.unique(found)) == {0, 255}
    light = of(torch.full((1, 1, 70, 70), 200, dtype=torch.uint8), "marker", 1)
    assert set(np.unique(light)) == {0, 200}, "black on what is light"
    corners, letters = set(), set()
    for one in found[:, 0]:
        rows, columns = (np.flatnonzero(one.any(axis)) for axis in (1, 0))
        corners.add((rows[0], columns[0]))
        letters.add(one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].tobytes())
    assert corners == {(2, 2), (2, 65), (63, 2), (63, 65)}
    assert letters == {(255 * render_text(letter, 5).astype(np.uint8)).tobytes() for letter in "LR"}


def test_dead_pixels_are_black_or_white_in_every_channel_and_then_whole_columns():
    found = of(torch.full((30, 3, 100, 100), 128, dtype=torch.uint8), "dead_pixels", 2)
    assert np.array_equal(found[:, 0], found[:, 2])
    assert [(found[:, 0] == value).mean() for value in (0, 255)] == pytest.approx([0.0015, 0.0015], abs=0.0004)
    lines = (of(torch.full((30, 1, 60, 60), 128, dtype=torch.uint8), "dead_pixels", 5) != 128).all((1, 2)).sum(1)
    assert set(lines.tolist()) <= {1, 2, 3} and (lines == 3).sum() > 20
