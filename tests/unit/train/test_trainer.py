"""What a training says of the time that is left, while its steps change in price."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.model.registry import config_from_name
from vitrail.train.plan import Plan, Recipe
from vitrail.train.trainer import estimate_seconds_left

RECIPE = Recipe(steps=100, progressive_size=0.6, progressive_until=0.5, patch_keep_rate=0.5, patch_keep_until=0.7)
PLAN = Plan(model=config_from_name("vit_pico_patch4_28"), recipe=RECIPE)
"""Fifty steps of 8 patches, twenty of 24, thirty of 49."""
FORETOLD = (1.0, 2.0, 4.0)
"""Dearer by less than their patches are more: part of a step costs the same whatever it sees."""


@pytest.mark.parametrize(
    ("step", "now", "expected"),
    [
        (1, 1.0, 49 + 20 * 2 + 30 * 4),
        (50, 1.0, 20 * 2 + 30 * 4),
        (51, 2.0, 19 * 2 + 30 * 4),
        (51, 3.0, 1.5 * (19 * 2 + 30 * 4)),  # a machine that is busier than when it was measured
        (70, 2.0, 30 * 4),
        (71, 4.0, 29 * 4),
        (100, 4.0, 0),
    ],
)
def test_steps_of_another_phase_cost_as_was_measured_before_the_first(step, now, expected):
    assert estimate_seconds_left(step, PLAN, now, FORETOLD) == pytest.approx(expected)


@pytest.mark.parametrize("foretold", [(1.0, 2.0, 500.0), (1.0, 2.0, 8.4), (500.0, 2.0, 8.4), (500.0, 400.0, 8.4)])
def test_a_measurement_on_a_starved_machine_never_makes_the_time_left_contradict_the_pace(foretold):
    """A later stage costs at most the square of its patches and at least as much: 8 to 24 to 49 patches."""
    left = estimate_seconds_left(50, PLAN, 1.0, foretold)
    assert 50 <= left <= 20 * (24 / 8) ** 2 + 30 * (49 / 8) ** 2


@pytest.mark.parametrize("foretold", [(), (1.0, 2.0)])
def test_without_a_measurement_of_these_phases_the_price_goes_by_the_patches(foretold):
    assert estimate_seconds_left(50, PLAN, 8.0, foretold) == pytest.approx(20 * 24 + 30 * 49)
    assert estimate_seconds_left(90, PLAN, 49.0, foretold) == pytest.approx(10 * 49)


def test_a_training_of_one_phase_is_steps_times_pace():
    plan = dataclasses.replace(PLAN, recipe=Recipe(steps=10))
    assert estimate_seconds_left(4, plan, 0.5) == pytest.approx(3.0)
