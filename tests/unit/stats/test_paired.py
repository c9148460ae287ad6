"""Paired tests against exact ones, by simulation, and against hand values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from vitrail.errors import UsageError
from vitrail.stats.paired import holm_correction, sign_flip_test


def mid_p(wins: int, n: int) -> float:
    """Of the sign test: half of the cases that are as far apart as what happened are left out."""
    return binomtest(wins, n).pvalue - binom.pmf(wins, n, 0.5)


def test_few_wins_and_losses_have_the_exact_mid_p_value_of_the_sign_test():
    wins = np.concatenate([np.ones(9), -np.ones(2), np.zeros(50)])
    assert sign_flip_test(wins) == pytest.approx(mid_p(9, 11), abs=1e-12)


def test_many_have_that_of_the_sign_test_within_chance():
    wins = np.concatenate([np.ones(60), -np.ones(40), np.zeros(900)])
    assert sign_flip_test(wins) == pytest.approx(mid_p(60, 100), abs=0.01)


def test_pictures_of_one_patient_count_once():
    wins = np.repeat([1.0, 1.0, 1.0, -1.0], 25)
    assert sign_flip_test(wins) < 0.001
    assert sign_flip_test(wins, np.repeat(np.arange(4), 25)) == pytest.approx(mid_p(3, 4))


def test_V13_equal_models_are_told_apart_in_five_of_a_hundred_cases():
    sets, told, by_groups = 4000, 0, 0
    groups = np.repeat(np.arange(30), 2)
    for seed in range(sets):
        generator = np.random.default_rng(seed)
        told += sign_flip_test(generator.normal(0, 1, 40), seed=seed) < 0.05
        alike = np.repeat(generator.normal(0, 1, 30), 2) + generator.normal(0, 0.5, 60)
        by_groups += sign_flip_test(alike, groups, seed=seed) < 0.05
    assert 0.04 <= told / sets <= 0.06
    assert 0.04 <= by_groups / sets <= 0.06


def test_no_difference_is_no_evidence():
    assert sign_flip_test(np.zeros(10)) == 1.0
    assert sign_flip_test(np.array([0.0, 0.3])) == 0.5  # mid-p of one picture


def test_the_same_seed_gives_the_same_p_value():
    differences = np.random.default_rng(0).normal(0.1, 1, 200)
    assert sign_flip_test(differences, seed=4) == sign_flip_test(differences, seed=4)


def test_differences_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match=r"Got 2\."):
        sign_flip_test(np.array([1.0, np.nan]))


def test_holm_gives_the_textbook_values():
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([]) == []


@given(ps=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_and_keeps_the_order(ps):
    raised = holm_correction(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, raised, strict=True))
    for i in range(len(ps)):
        for j in range(len(ps)):
            assert ps[i] >= ps[j] or raised[i] <= raised[j]
    assert min(raised) == pytest.approx(min(1.0, min(ps) * len(ps)))
