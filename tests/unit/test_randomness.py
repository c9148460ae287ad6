"""Random numbers depend on their names and on nothing else."""

from __future__ import annotations

import numpy as np

from vitrail.randomness import derive, permutation, uniform


def test_a_sample_gets_the_same_numbers_in_any_batch():
    every = uniform(3, "crop", 5, np.arange(100), 4)
    some = uniform(3, "crop", 5, np.array([99, 7, 7]), 4)
    assert np.array_equal(some, every[[99, 7, 7]])


def test_asking_for_more_draws_leaves_the_first_ones_as_they_were():
    few, many = (uniform(0, "crop", 0, np.arange(9), draws) for draws in (2, 5))
    assert np.array_equal(few, many[:, :2])


def test_seed_purpose_and_epoch_each_change_every_number():
    samples = np.arange(50)
    streams = [uniform(*name, samples, 2) for name in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))]
    for place, one in enumerate(streams):
        for other in streams[place + 1 :]:
            assert not np.any(one == other)


def test_numbers_fill_the_unit_interval_evenly_and_without_correlation():
    drawn = uniform(1, "test", 0, np.arange(100_000), 2)  # [n, 2]
    assert drawn.dtype == np.float64
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn[:, 0], bins=100, range=(0, 1))
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 149  # 99 degrees of freedom, one in a thousand
    neighbours = np.corrcoef([drawn[:-1, 0], drawn[1:, 0], drawn[:-1, 1]])
    assert np.abs(neighbours - np.eye(3)).max() < 0.02


def test_the_numbers_are_a_promise_to_saved_runs():
    assert uniform(0, "crop", 0, np.array([0, 1]), 2).round(6).tolist() == PINNED_UNIFORM
    assert permutation(0, "order", 0, 8).tolist() == PINNED_ORDER
    assert derive(0, "weights", 1, 2) == PINNED_SEED


PINNED_UNIFORM = [[0.982261, 0.238525], [0.83875, 0.962042]]
PINNED_ORDER = [5, 3, 4, 1, 0, 6, 7, 2]
PINNED_SEED = 6992458917134032925


def test_a_permutation_holds_every_number_once_and_changes_with_the_epoch():
    first, second = permutation(0, "order", 0, 1000), permutation(0, "order", 1, 1000)
    assert first.dtype == np.int64
    assert np.array_equal(np.sort(first), np.arange(1000))
    assert not np.array_equal(first, second)
    assert permutation(0, "order", 0, 0).tolist() == []


def test_derived_seeds_fit_torch_and_depend_on_every_number():
    names = [(0, "a"), (0, "a", 0), (0, "a", 0, 0), (0, "a", 1), (1, "a"), (-1, "a")]
    seeds = {derive(*name) for name in names}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
