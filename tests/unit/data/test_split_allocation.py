"""Dealing at once gives what dealing one by one would; the slow, plain ways stand here."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.splits import (
    assign_folds,
    assign_groups,
    assign_iterative_stratified,
    assign_stratified,
    number_groups,
)


def one_by_one(positive: np.ndarray, fractions: np.ndarray) -> list[int]:
    """Pictures per split when those that show the only label go first, each to the split that wants most."""
    wanted, room = fractions * positive.sum(), fractions * len(positive)
    sizes = np.zeros(len(fractions), int)
    for shows in sorted(positive.tolist(), reverse=True):
        best = max(range(len(fractions)), key=lambda s: (round(wanted[s] if shows else room[s], 6), round(room[s], 6)))
        wanted[best] -= shows
        room[best] -= 1
        sizes[best] += 1
    return sizes.tolist()


@given(
    shows=st.lists(st.booleans(), min_size=1, max_size=40),
    shares=st.lists(st.integers(1, 97), min_size=2, max_size=5, unique=True),
)
def test_one_label_is_dealt_as_one_by_one(shows, shares):
    positive, fractions = np.array(shows), np.array(shares) / sum(shares)
    share = assign_iterative_stratified(positive[:, None], np.arange(len(shows)) / len(shows), fractions)
    found = np.bincount(share, minlength=len(shares))
    assert found.sum() == len(shows)
    assert np.abs(found - one_by_one(positive, fractions)).max() <= 1, "but for the order of equals"
    label = np.bincount(share[positive], minlength=len(shares))
    assert (label - fractions * positive.sum() < 1).all()


@given(data=st.data(), k=st.integers(2, 6))
def test_folds_dealt_in_turn_differ_by_one(data, k):
    strata = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=60)))
    share = assign_folds(strata, np.random.default_rng(0).random(len(strata)), k)
    for members in (share, *(share[strata == stratum] for stratum in np.unique(strata))):
        counts = np.bincount(members, minlength=k)
        assert counts.max() - counts.min() <= 1


def least_missed(strata: np.ndarray, keys: np.ndarray, fractions: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The same rule for whole groups, over full tables and with the squares written out."""
    shown = np.concatenate([strata[:, None] == np.unique(strata), np.ones((len(strata), 1), bool)], axis=1)
    counts = np.array([shown[groups == group].sum(0) for group in range(groups.max() + 1)])
    first = np.array([keys[groups == group].min() for group in range(groups.max() + 1)])
    totals = counts.sum(0)
    missing = fractions[:, None] * totals
    home = np.zeros(len(counts), int)
    for rank, group in enumerate(np.lexsort((first, -counts[:, -1]))):
        left = missing[:, None, :] - np.eye(len(fractions))[:, :, None] * counts[group]  # [split, if given to, stratum]
        missed = (((left.transpose(1, 0, 2)) / totals) ** 2).sum((1, 2))
        home[group] = missed.round(12).argmin() if rank else 0
        missing[home[group]] -= counts[group]
    return home[groups]


def test_groups_go_where_least_is_missed_then():
    for seed in range(5):
        draw = np.random.default_rng(seed)
        strata, keys = draw.integers(0, 4, 200), draw.random(200)
        groups = number_groups(draw.integers(0, 30, 200))
        fractions = np.array([0.65, 0.13, 0.22])
        share = assign_groups(np.arange(200), strata, keys, fractions, groups)
        assert np.array_equal(share, least_missed(strata, keys, fractions, groups))


def test_no_split_is_empty_while_there_are_groups_enough():
    fractions = np.array([0.7, 0.1, 0.2])
    for seed in range(200):
        draw = np.random.default_rng(seed)
        for sizes in ([20] * 5, draw.integers(1, 61, 8).tolist(), [100, 1, 1], [1, 50, 900]):
            groups = np.repeat(np.arange(len(sizes)), sizes)
            n = len(groups)
            share = assign_groups(np.arange(n), draw.integers(0, 3, n), draw.random(n), fractions, groups)
            assert np.bincount(share, minlength=3).all(), (seed, sizes)


def test_two_groups_fill_two_of_three_splits_train_first():
    groups = np.repeat([0, 1], [9, 1])
    share = assign_groups(np.arange(10), np.zeros(10, int), np.arange(10) / 10, np.array([0.7, 0.1, 0.2]), groups)
    assert share.tolist() == [0] * 9 + [2]


def test_nothing_is_dealt_out_to_nobody():
    nothing, fractions = np.zeros(0, np.int64), np.array([0.5, 0.5])
    assert assign_stratified(nothing, nothing.astype(float), fractions).size == 0
    assert assign_iterative_stratified(np.zeros((0, 3), bool), nothing.astype(float), fractions).size == 0
    assert assign_groups(nothing, nothing, nothing.astype(float), fractions, nothing).size == 0


def test_groups_are_numbered_as_they_come():
    assert number_groups(np.array(["b", "a", "b"])).tolist() == [0, 1, 0]
    assert number_groups(np.array([7, None, "x", 7, None], dtype=object)).tolist() == [0, 1, 2, 0, 1]
