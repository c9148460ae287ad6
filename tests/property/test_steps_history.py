"""Schedules of a training whose number of steps is replanned on the way, wherever and to whatever number."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.spec import Grid
from vitrail.train.plan import Recipe, replan_steps

GRID = Grid(7, 7)


PLANNED = st.fixed_dictionaries(
    {
        "steps": st.integers(2, 300),
        "warmup": st.sampled_from([0.0, 0.05, 0.3]),
        "lr_schedule": st.sampled_from(["linear", "cosine"]),
        "patch_keep_until": st.sampled_from([0.0, 0.7, 0.9]),
        "progressive_until": st.sampled_from([0.0, 0.5]),
    }
)
DECISIONS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 300)), max_size=6)
"""Where among the steps that are left each decision is taken, and the steps that then follow."""


def replan(planned: dict[str, Any], decisions: list[tuple[float, int]]) -> list[Recipe]:
    """A recipe as it was planned, and after each decision."""
    recipe, step = Recipe(**planned, patch_keep_rate=0.5, progressive_size=0.6), 0
    recipes = [recipe]
    for place, following in decisions:
        if recipe.steps - step < 3:
            break
        step += 1 + round(place * (recipe.steps - step - 2))
        recipe = replan_steps(recipe, step, step + following)
        recipes.append(recipe)
    return recipes


@given(PLANNED, DECISIONS)
def test_steps_before_a_decision_are_as_they_were_taken(planned, decisions):
    recipes = replan(planned, decisions)
    last = recipes[-1]
    for recipe, (start, _) in zip(recipes, [*last.steps_history[1:], (last.steps, 0)], strict=True):
        begin = recipe.steps_history[-1][0] if recipe.steps_history else 0
        for step in range(begin, start):
            assert recipe.lr_factor(step) == last.lr_factor(step)
            assert recipe.tokens_at(step, GRID) == last.tokens_at(step, GRID)
            assert recipe.segment_at(step) == last.segment_at(step)
            assert recipe.evaluates_at(step + 1) == last.evaluates_at(step + 1) or step + 1 == start


@given(PLANNED, DECISIONS)
def test_progress_rises_from_0_to_1_and_the_rate_ends_at_zero_without_a_jump(planned, decisions):
    recipes = replan(planned, decisions)
    last = recipes[-1]
    progress = [last.progress(step) for step in range(last.steps + 1)]
    assert progress[0] == 0 and progress[-1] == pytest.approx(1)
    assert all(before < after for before, after in pairwise(progress))
    assert last.lr_factor(last.steps) == pytest.approx(0, abs=1e-9)
    for start, _ in last.steps_history[1:]:
        before = recipes[last.steps_history.index((start, _)) - 1]
        assert last.lr_factor(start) == pytest.approx(before.lr_factor(start), abs=1e-9)


@given(PLANNED, DECISIONS)
def test_stages_come_once_each_in_their_order_and_warm_up_is_not_entered_again(planned, decisions):
    recipes = replan(planned, decisions)
    last = recipes[-1]
    tokens = [last.tokens_at(step, GRID) for step in range(last.steps)]
    assert all(before <= after for before, after in pairwise(tokens))
    done = [last._warmup_factor(step) for step in range(last.steps)]
    assert all(before <= after + 1e-12 for before, after in pairwise(done))
