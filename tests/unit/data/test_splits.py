"""Splits: published ones stay, missing ones are carved out in proportion, groups stay whole, files keep them."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.source import Source
from vitrail.data.splits import complete, read, without, write
from vitrail.errors import DataError, UsageError


def source(counts: tuple[int, ...], groups: np.ndarray | None = None, **splits: np.ndarray) -> Source:
    """A source with so many pictures of each class, in the order of classes."""
    targets = np.repeat(np.arange(len(counts)), counts)
    return Source(
        name="drawn",
        classes=tuple(f"c{number}" for number in range(len(counts))),
        pictures=np.zeros((len(targets), 1, 1), np.uint8),
        targets=targets,
        ids=tuple(f'"odd", name\n{row}' for row in range(len(targets))),
        groups=groups,
        splits=splits,
    )


def counted(found: Source, rows: np.ndarray) -> list[int]:
    return np.bincount(found.targets[rows], minlength=len(found.classes)).tolist()


def test_everything_is_split_in_proportion_when_nothing_was_published():
    whole = source((50, 30, 20))
    splits = complete(whole, 0, 0.2, 0.1)
    assert list(splits) == ["train", "val", "test"]
    assert [counted(whole, rows) for rows in splits.values()] == [[35, 21, 14], [10, 6, 4], [5, 3, 2]]
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(100))


def test_a_published_test_is_kept_and_val_comes_out_of_train():
    whole = source((20, 20), train=np.arange(0, 40, 2), test=np.arange(1, 40, 2))
    splits = complete(whole, 0, 0.2, 0.5)
    assert np.array_equal(splits["test"], np.arange(1, 40, 2))
    assert counted(whole, splits["val"]) == [2, 2]
    assert np.array_equal(np.union1d(splits["train"], splits["val"]), np.arange(0, 40, 2))


def test_three_published_splits_are_taken_as_they_are():
    whole = source((6, 6), train=np.arange(0, 12, 3), val=np.arange(1, 12, 3), test=np.arange(2, 12, 3))
    splits = complete(whole, 0, 0.9, 0.9)
    assert all(np.array_equal(splits[name], whole.splits[name]) for name in splits)


def test_without_a_published_train_it_is_what_the_others_leave():
    splits = complete(source((6, 6), test=np.array([0, 11])), 0, 0.0, 0.3)
    assert np.array_equal(splits["train"], np.arange(1, 11))
    assert splits["val"].size == 0


def test_many_small_classes_still_add_up():
    whole = source((2,) * 50)
    splits = complete(whole, 0, 0.2, 0.2)
    assert [len(rows) for rows in splits.values()] == [60, 20, 20]
    assert min(counted(whole, splits["train"])) >= 1


def test_a_class_with_one_picture_is_trained_on():
    whole = source((1, 1, 40))
    assert counted(whole, complete(whole, 0, 0.25, 0.25)["train"])[:2] == [1, 1]


def test_the_seed_alone_decides():
    whole = source((40, 40))
    first, again, other = (complete(whole, seed, 0.2, 0.2)["val"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_groups_are_never_parted():
    patients = np.random.default_rng(0).integers(0, 60, 400)
    whole = source((250, 150), groups=patients)
    splits = complete(whole, 0, 0.2, 0.2)
    owners = [set(patients[rows]) for rows in splits.values()]
    assert not (owners[0] & owners[1] or owners[0] & owners[2] or owners[1] & owners[2])
    for rows, share in zip(splits.values(), (0.6, 0.2, 0.2), strict=True):
        assert counted(whole, rows) == pytest.approx([250 * share, 150 * share], abs=8)


def test_one_giant_group_is_trained_on():
    splits = complete(source((5, 5), groups=np.zeros(10, int)), 0, 0.4, 0.4)
    assert [len(rows) for rows in splits.values()] == [10, 0, 0]


def test_a_published_split_that_parts_a_group_is_refused():
    whole = source((2, 2), groups=np.array(["p", "q", "p", "r"]), train=np.array([0, 1]), test=np.array([2, 3]))
    with pytest.raises(DataError, match=r"Group p has pictures in train and in test of drawn"):
        complete(whole, 0, 0.0, 0.0)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (-0.1, 0.1)])
def test_fractions_must_leave_something_to_train_on(fractions):
    with pytest.raises(UsageError, match=rf"Got val {fractions[0]:g} and test {fractions[1]:g}"):
        complete(source((5, 5)), 0, *fractions)


def test_pictures_without_classes_are_split_too():
    numbers = Source(
        name="n",
        task="number",
        classes=("age",),
        pictures=np.zeros((10, 1, 1)),
        targets=np.ones((10, 1)),
        ids="abcdefghij",
    )
    assert [len(rows) for rows in complete(numbers, 0, 0.2, 0.2).values()] == [6, 2, 2]


def test_left_out_rows_renumber_nobody():
    splits = without({"train": np.array([0, 2, 5]), "test": np.array([1, 3])}, np.array([2, 3]))
    assert (splits["train"].tolist(), splits["test"].tolist()) == ([0, 5], [1])


def test_kept_splits_find_their_pictures_again_in_another_order(tmp_path):
    whole = source((6, 6))
    splits = complete(whole, 0, 0.25, 0.25)
    write(tmp_path / "splits.csv", whole, splits)
    assert (tmp_path / "splits.csv").read_text().startswith("id,split\n")
    back = read(tmp_path / "splits.csv", whole)
    assert all(np.array_equal(back[name], splits[name]) for name in splits)
    reversed_ = Source(
        name="drawn", classes=whole.classes, pictures=whole.pictures, targets=whole.targets[::-1], ids=whole.ids[::-1]
    )
    back = read(tmp_path / "splits.csv", reversed_)
    assert all(np.array_equal(back[name], np.sort(11 - splits[name])) for name in splits)


def test_kept_splits_name_the_picture_that_is_gone(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("id,split\ngone.png,train\n")
    with pytest.raises(DataError, match=r"splits\.csv, line 2: picture gone\.png is no longer in drawn"):
        read(path, source((2, 2)))
    path.write_text("id,split\ngone.png\n")
    with pytest.raises(DataError, match=r"line 2: expected an id and one of .*train.* Got \['gone\.png'\]"):
        read(path, source((2, 2)))
