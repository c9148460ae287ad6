"""Slices by any column: cut, measured, judged, and marked no oftener than chance allows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from unit.evaluate.test_primary_metric import classes, labels, numbers
from vitrail.evaluate.subgroups import EMPTY, UnusableColumn, compute_subgroups, split_by_value
from vitrail.stats.intervals import wilson_interval


def sizes(values: list[str]) -> dict[str, int]:
    found = split_by_value(values)
    assert not isinstance(found, UnusableColumn)
    return {name: int(rows.sum()) for name, rows in found.items()}


def test_words_are_parted_by_value_and_empty_cells_are_a_part():
    assert sizes(["PA", "AP", "PA", "", " PA "]) == {"PA": 3, "AP": 1, EMPTY: 1}


def test_few_numbers_are_values_and_many_are_cut_at_their_quartiles():
    assert sizes(["3", "1", "1", "2"]) == {"1": 2, "2": 1, "3": 1}
    ages = [str(age) for age in range(1, 41) for _ in range(2)]
    assert sizes(ages) == {"to 10": 20, "over 10 to 20": 20, "over 20 to 30": 20, "over 30": 20}
    assert sizes([*["0"] * 60, *(f"{x}.5" for x in range(20))]) == {"to 0": 60, "over 0": 20}
    assert sizes([*ages, ""])[EMPTY] == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["a"] * 5, "it is 'a' everywhere"),
        ([""] * 5, "it is empty"),
        ([f"film {k}" for k in range(30)], "every picture has a value of its own"),
        ([str(k) for k in range(1000, 1030)], "every picture has a value of its own"),
        ([f"doctor {k // 2}" for k in range(300)], "it has 150 values, more than 100"),
        ([*(str(k) for k in range(20)), *["99"] * 80], "three of four values are the largest"),
    ],
)
def test_columns_that_part_nothing_are_left_out_with_the_reason(values, reason):
    assert split_by_value(values) == UnusableColumn(reason)
    found = compute_subgroups(classes(np.ones(len(values), bool)), {"column": values})
    assert found.left_out == (("column", reason),) and found.columns == ()
    assert f"column is left out: {reason}" in found.table()


def test_measurements_that_all_differ_are_cut_all_the_same():
    assert list(sizes([f"{x / 7:.4f}" for x in range(100)]).values()) == [25] * 4


def test_V12_the_worse_camera_is_marked_and_small_ones_are_not_judged():
    right = np.concatenate([np.arange(400) % 20 > 0, np.arange(100) % 3 > 0, np.zeros(20, bool)])
    cameras = ["left"] * 400 + ["right"] * 100 + ["new"] * 20
    found = compute_subgroups(classes(right), {"camera": cameras})
    (column,) = found.columns
    assert [(one.value, one.n, one.few, one.worst) for one in column.slices] == [
        ("left", 400, False, False), ("right", 100, False, True), ("new", 20, True, False),
    ]  # fmt: skip
    assert found.judged == 2 and found.overall == pytest.approx(right.mean())
    assert column.slices[1].interval == wilson_interval(int(right[400:500].sum()), 100)
    assert "right" in found.table() and found.table().count("worst") == 2 and found.table().count("  few") == 1
    assert json.loads(json.dumps(found.to_json()))["columns"][0]["slices"][1]["worst"] is True


def test_a_figure_that_is_better_elsewhere_is_not_marked():
    right = np.concatenate([np.ones(300, bool), np.arange(300) % 2 == 0])
    found = compute_subgroups(classes(right), {"view": ["PA"] * 300 + ["AP"] * 300})
    assert [one.worst for one in found.columns[0].slices] == [True, False]
    assert [one.value for one in found.columns[0].slices] == ["AP", "PA"]


def test_V12_many_slices_of_luck_are_seldom_marked():
    generator, marked = np.random.default_rng(0), 0
    for _ in range(200):
        right = generator.random(1000) < 0.8
        shift = [f"shift {k}" for k in generator.integers(0, 20, 1000)]
        found = compute_subgroups(classes(right), {"shift": shift})
        marked += any(one.worst for one in found.columns[0].slices)
    assert marked <= 16  # 5 % of 200, and what chance adds


def test_groups_make_intervals_wider_and_few_groups_are_not_judged():
    right = np.repeat(np.arange(40) % 4 > 0, 10)
    patients, sites = np.repeat(np.arange(40), 10), ["A"] * 320 + ["B"] * 80
    plain, grouped = (compute_subgroups(classes(right), {"site": sites}, groups) for groups in (None, patients))
    width = [one.columns[0].slices[0].interval[1] - one.columns[0].slices[0].interval[0] for one in (plain, grouped)]
    assert width[1] > 2 * width[0]
    assert [one.few for one in grouped.columns[0].slices] == [False, True]
    assert [one.few for one in plain.columns[0].slices] == [False, False]


def test_areas_are_compared_over_the_same_labels():
    generator = np.random.default_rng(1)
    targets = (generator.random((600, 2)) < 0.4).astype(np.float32)
    targets[:300, 1] = 0  # the first site never has the hard label
    chances = generator.random((600, 2)).astype(np.float32)
    chances[:, 0] = (chances[:, 0] + targets[:, 0]) / 2
    found = compute_subgroups(labels(targets, chances), {"site": ["A"] * 300 + ["B"] * 300})
    first, second = found.columns[0].slices
    assert (first.labels, second.labels) == (1, 2)
    assert first.overall > found.overall + 0.1 and second.overall == found.overall
    assert not first.worst


def test_larger_errors_are_worse():
    generator = np.random.default_rng(2)
    targets = generator.normal(size=(400, 1)).astype(np.float32)
    noise = generator.normal(size=(400, 1)) * np.repeat([1, 3], 200)[:, None]
    found = compute_subgroups(
        numbers(targets, (targets + noise).astype(np.float32)), {"sex": ["F"] * 200 + ["M"] * 200}
    )
    assert {one.value: one.worst for one in found.columns[0].slices} == {"F": False, "M": True}
    assert not found.higher_is_better
