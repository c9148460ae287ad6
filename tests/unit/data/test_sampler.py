"""Which pictures a step reads: each once an epoch, the same for any number of ranks, from wherever one begins."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from vitrail.data.sampler import SHUFFLED_SHARDS, iter_step_indices, make_random_keys, shuffle_epoch
from vitrail.errors import UsageError

ROWS = np.arange(1000, 3000, 20)  # 100 of them


@pytest.mark.parametrize("repeats", [1, 3])
def test_an_epoch_shows_each_picture_as_often_as_it_is_repeated(repeats):
    seen = [
        share for share in islice(iter_step_indices(ROWS, 30, 5, repeats=repeats), 10 * repeats) if share.epoch == 0
    ]
    shown = np.concatenate([share.places for share in seen])
    left_out = len(ROWS) % (30 // repeats)
    assert sorted(np.unique(shown, return_counts=True)[1].tolist()) == [repeats] * (len(ROWS) - left_out)
    for share in seen:
        pairs = set(zip(share.places.tolist(), share.copies.tolist(), strict=True))
        assert pairs == {(place, copy) for place in share.places.tolist() for copy in range(repeats)}


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("repeats", [1, 2])
def test_the_parts_of_all_ranks_make_up_the_batch_of_one(world, repeats):
    blocks = np.arange(100) // 7
    alone = islice(iter_step_indices(ROWS, 24, 3, 2, repeats, blocks), 12)
    ranks = [iter_step_indices(ROWS, 24, 3, 2, repeats, blocks, rank, world) for rank in range(world)]
    for whole, *parts in zip(alone, *ranks, strict=False):
        assert {(part.step, part.epoch) for part in parts} == {(whole.step, whole.epoch)}
        assert {len(part.places) for part in parts} == {24 // world}
        assert np.array_equal(np.concatenate([part.places for part in parts]), whole.places)
        assert np.array_equal(np.concatenate([part.copies for part in parts]), whole.copies)


@pytest.mark.parametrize("start", [1, 4, 9, 17])
def test_beginning_anywhere_goes_on_as_an_unbroken_run(start):
    blocks = np.arange(100) // 7
    unbroken = list(islice(iter_step_indices(ROWS, 24, 3, 0, 2, blocks), 20))[start:]
    for ours, theirs in zip(iter_step_indices(ROWS, 24, 3, start, 2, blocks), unbroken, strict=False):
        assert (ours.step, ours.epoch) == (theirs.step, theirs.epoch)
        assert np.array_equal(ours.places, theirs.places)


def test_a_picture_left_out_changes_the_order_of_no_others():
    whole = ROWS[shuffle_epoch(ROWS, 1, 2)].tolist()
    fewer = np.delete(ROWS, [3, 50])
    assert fewer[shuffle_epoch(fewer, 1, 2)].tolist() == [row for row in whole if row not in (ROWS[3], ROWS[50])]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(shuffle_epoch(ROWS, seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len(orders) == 6


def test_shards_are_read_a_few_at_a_time_and_in_another_order_each_epoch():
    rows, blocks = np.arange(3000), np.sort(np.arange(3000) % 30)
    windows = []
    for epoch in (0, 1):
        order = shuffle_epoch(rows, 0, epoch, blocks)
        assert np.array_equal(np.sort(order), rows)
        parts = [
            set(blocks[order[start : start + SHUFFLED_SHARDS * 100]].tolist())
            for start in range(0, 3000, SHUFFLED_SHARDS * 100)
        ]
        assert [len(part) for part in parts] == [8, 8, 8, 6]
        assert set.union(*parts) == set(range(30))
        assert len(set(blocks[order[:50]].tolist())) == SHUFFLED_SHARDS  # mixed from the first batch on
        windows.append(parts)
    assert windows[0] != windows[1]


def test_shards_of_a_split_need_not_be_all_nor_of_one_size():
    blocks = np.array([3] * 5 + [8] + [40] * 14)
    order = shuffle_epoch(np.arange(20), 0, 0, blocks)
    assert np.array_equal(np.sort(order), np.arange(20))


def test_every_copy_has_a_key_of_its_own_and_the_first_that_of_its_row():
    rows, copies = np.array([7, 7, 7, 8]), np.array([0, 1, 2, 1])
    found = make_random_keys(rows, copies)
    assert found[0] == 7
    assert len(set(found.tolist())) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"repeats": 5}, r"multiple of how often .* batch=24, repeats=5"),
        ({"repeats": 0}, r"repeats=0"),
        ({"world_size": 5}, r"multiple of the number of ranks.* batch=24, world=5"),
        ({"rank": 2, "world_size": 2}, r"rank must lie in 0\.\.world-1\. Got rank=2, world=2"),
        ({"world_size": 24, "repeats": 1}, r"A batch of 20 pictures cannot be shared among 24 ranks"),
    ],
)
def test_a_batch_that_cannot_be_shared_out_is_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        next(iter_step_indices(np.arange(20), 24, 0, **settings))
