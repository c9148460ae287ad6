"""Splits: published ones stay, missing ones are carved out in proportion, groups stay whole."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from vitrail.data.compact_strings import CompactStrings
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.splits import make_folds, remove_rows
from vitrail.data.splits import make_splits as parted
from vitrail.errors import DataError, UsageError


def source(counts: tuple[int, ...], groups: np.ndarray | None = None, **splits: np.ndarray) -> Source:
    """A source with so many pictures of each class, in the order of classes."""
    targets = np.repeat(np.arange(len(counts)), counts)
    return Source(
        name="drawn",
        classes=tuple(f"c{number}" for number in range(len(counts))),
        images=np.zeros((len(targets), 1, 1), np.uint8),
        targets=targets,
        ids=tuple(f'"odd", name\n{row}' for row in range(len(targets))),
        groups=groups,
        splits=splits,
    )


def complete(whole: Source, seed: int, val: float, test: float, **settings: int) -> dict[str, np.ndarray]:
    return parted(whole, DataSettings(val_fraction=val, test_fraction=test, **settings), seed)


def counted(found: Source, rows: np.ndarray) -> list[int]:
    return np.bincount(found.targets[rows], minlength=len(found.classes)).tolist()


def together(parts: list[np.ndarray]) -> list[int]:
    return np.sort(np.concatenate(parts)).tolist()


def test_everything_is_split_in_proportion_when_nothing_was_published():
    whole = source((50, 30, 20))
    splits = complete(whole, 0, 0.2, 0.1)
    assert list(splits) == ["train", "val", "test"]
    assert [counted(whole, rows) for rows in splits.values()] == [[35, 21, 14], [10, 6, 4], [5, 3, 2]]
    assert together(list(splits.values())) == list(range(100))


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


def test_groups_may_be_words_and_blanks_and_a_fraction_of_nothing_stays_empty():
    patients = np.array(["p 1", None, "é", "p 1", "q", 7, None, "r"], dtype=object)
    splits = complete(source((4, 4), groups=patients), 0, 0.0, 0.3)
    assert splits["val"].size == 0 and splits["test"].size and splits["train"].size
    assert not set(patients[splits["train"]]) & set(patients[splits["test"]])


def test_one_giant_group_is_trained_on():
    splits = complete(source((5, 5), groups=np.zeros(10, int)), 0, 0.4, 0.4)
    assert [len(rows) for rows in splits.values()] == [10, 0, 0]


def test_D19_a_published_split_that_parts_a_group_is_refused():
    whole = source((2, 2), groups=np.array(["p", "q", "p", "r"]), train=np.array([0, 1]), test=np.array([2, 3]))
    with pytest.raises(DataError, match=r"Group p has pictures in train and in test of drawn, so the result would be"):
        complete(whole, 0, 0.0, 0.0)
    unnamed = source((2, 2), groups=np.array(["r", "q", "q", "r"]), test=np.array([2, 3]))
    with pytest.raises(DataError, match=r"Group r has pictures in train and in test of drawn \(2 such groups in all\)"):
        complete(unnamed, 0, 0.0, 0.0)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (-0.1, 0.1), (np.nan, 0.1), (0.1, np.nan), (0.0, 1.0)])
def test_fractions_must_leave_something_to_train_on(fractions):
    with pytest.raises(UsageError, match=rf"Got val {fractions[0]:g} and test {fractions[1]:g}"):
        complete(source((5, 5)), 0, *fractions)


def test_folds_share_out_everything_and_every_class_evenly():
    whole = source((31, 12, 7))
    parts = make_folds(whole, 5, 0)
    assert together(parts) == list(range(50))
    assert [len(part) for part in parts] == [10] * 5
    for counts in zip(*(counted(whole, part) for part in parts), strict=True):
        assert max(counts) - min(counts) <= 1


def test_a_fold_is_the_test_split_and_val_comes_out_of_the_others():
    whole = source((40, 40))
    tests = []
    for fold in range(4):
        splits = complete(whole, 3, 0.1, 0.5, folds=4, fold=fold)
        assert np.array_equal(splits["test"], make_folds(whole, 4, 3)[fold])
        assert [len(rows) for rows in splits.values()] == [54, 6, 20]
        tests.append(splits["test"])
    assert together(tests) == list(range(80))


def test_with_a_published_test_the_fold_is_val():
    whole = source((30, 30), train=np.arange(0, 40), val=np.arange(40, 48), test=np.arange(48, 58))
    vals = []
    for fold in range(3):
        splits = complete(whole, 0, 0.1, 0.2, folds=3, fold=fold)
        assert np.array_equal(splits["test"], np.arange(48, 58))
        assert np.array_equal(np.union1d(splits["train"], splits["val"]), np.arange(48))
        vals.append(splits["val"])
    assert together(vals) == list(range(48)), "what was published in no split stays out of all"


def test_folds_keep_groups_whole():
    patients = np.random.default_rng(1).integers(0, 40, 300)
    parts = make_folds(source((200, 100), groups=patients), 5, 0)
    assert together(parts) == list(range(300))
    owners = [set(patients[part]) for part in parts]
    assert sum(map(len, owners)) == len(set(patients))
    assert all(abs(len(part) - 60) <= 8 for part in parts)


def test_folds_need_as_many_pictures_or_groups():
    with pytest.raises(UsageError, match=r"5 folds need at least 5 pictures\. drawn has 4 to split"):
        make_folds(source((2, 2)), 5, 0)
    with pytest.raises(UsageError, match=r"3 folds need at least 3 groups\. drawn has 2 to split"):
        make_folds(source((5, 5), groups=np.arange(10) % 2), 3, 0)


def labels(targets: np.ndarray, groups: np.ndarray | None = None, task: str = "multilabel") -> Source:
    return Source(
        name="films",
        task=task,
        classes=tuple(f"l{number}" for number in range(targets.shape[1])),
        images=np.zeros((len(targets), 1, 1), np.uint8),
        targets=targets.astype(np.float32),
        ids=tuple(map(str, range(len(targets)))),
        groups=groups,
    )


def drawn_labels(n: int = 2000) -> np.ndarray:
    """Eight labels from common to rare, some of which go together, a tenth of them unknown."""
    draw = np.random.default_rng(4)
    chances = np.array([0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.005])
    targets = (draw.random((n, 8)) < chances).astype(np.float32)
    targets[:, 6] = np.maximum(targets[:, 5], targets[:, 6])
    targets[draw.random((n, 8)) < 0.1] = np.nan
    return targets


def test_every_label_is_in_every_split_in_proportion():
    targets = drawn_labels()
    splits = complete(labels(targets), 0, 0.1, 0.2)
    assert [len(rows) for rows in splits.values()] == pytest.approx([1400, 200, 400], abs=2)
    positive = np.nan_to_num(targets) >= 0.5
    for rows, share in zip(splits.values(), (0.7, 0.1, 0.2), strict=True):
        assert positive[rows].sum(0) == pytest.approx(positive.sum(0) * share, abs=1.01)


def test_folds_of_labels_and_of_groups_with_labels_are_alike_too():
    targets = drawn_labels()
    positive = np.nan_to_num(targets) >= 0.5
    for part in make_folds(labels(targets), 4, 0):
        assert positive[part].sum(0) == pytest.approx(positive.sum(0) / 4, abs=1.01)
    patients = np.random.default_rng(0).integers(0, 500, len(targets))
    for part in make_folds(labels(targets, patients), 4, 0):
        assert positive[part].sum(0) == pytest.approx(positive.sum(0) / 4, abs=4)
        assert len(part) == pytest.approx(500, abs=4)


def test_numbers_are_parted_by_size_and_unknown_ones_evenly():
    ages = np.arange(200, dtype=np.float32)[:, None]
    ages[::10] = np.nan
    splits = complete(labels(ages, task="regression"), 0, 0.2, 0.2)
    for rows, share in zip(splits.values(), (0.6, 0.2, 0.2), strict=True):
        assert len(rows) == 200 * share
        assert np.nanmean(ages[rows]) == pytest.approx(np.nanmean(ages), abs=6)
        assert np.isnan(ages[rows]).sum() == pytest.approx(20 * share, abs=1)


def test_several_numbers_are_parted_by_all_of_them():
    draw = np.random.default_rng(0)
    both = draw.normal(size=(400, 2)).astype(np.float32)
    both[draw.random((400, 2)) < 0.1] = np.nan
    splits = complete(labels(both, task="regression"), 0, 0.25, 0.25)
    for rows in splits.values():
        assert np.nanmean(both[rows], axis=0) == pytest.approx(np.nanmean(both, axis=0), abs=0.15)


def test_pictures_with_equal_or_unknown_numbers_are_split_too():
    for value in (1.0, np.nan):
        splits = complete(labels(np.full((10, 1), value), task="regression"), 0, 0.2, 0.2)
        assert [len(rows) for rows in splits.values()] == [6, 2, 2]


def test_soft_labels_count_as_their_most_probable_class():
    chances = np.full((40, 2), [0.9, 0.1], np.float32)
    chances[30:] = [0.2, 0.8]
    splits = complete(labels(chances, task="classification"), 0, 0.2, 0.2)
    assert [(chances[rows, 1] > 0.5).sum() for rows in splits.values()] == [6, 2, 2]


def test_left_out_rows_renumber_nobody():
    splits = remove_rows({"train": np.array([0, 2, 5]), "test": np.array([1, 3])}, np.array([2, 3]))
    assert (splits["train"].tolist(), splits["test"].tolist()) == ([0, 5], [1])


def shuffled(whole: Source, order: np.ndarray) -> Source:
    groups = None if whole.groups is None else whole.groups[order]
    ids, targets = tuple(whole.ids[row] for row in order.tolist()), whole.targets[order]
    return dataclasses.replace(whole, images=whole.images[order], targets=targets, ids=ids, groups=groups)


def sides(whole: Source, splits: dict[str, np.ndarray]) -> dict[str, str]:
    return {whole.ids[row]: name for name, rows in splits.items() for row in rows.tolist()}


@pytest.mark.parametrize("kind", ["classes", "groups", "labels"])
def test_the_same_pictures_in_another_order_are_parted_in_the_same_way(kind):
    patients = np.random.default_rng(1).integers(0, 90, 300) if kind == "groups" else None
    whole = labels(drawn_labels(300)) if kind == "labels" else source((200, 100), groups=patients)
    other = shuffled(whole, np.random.default_rng(2).permutation(300))
    assert sides(whole, complete(whole, 4, 0.1, 0.2)) == sides(other, complete(other, 4, 0.1, 0.2))
    first, second = ([{found.ids[row] for row in part} for part in make_folds(found, 3, 4)] for found in (whole, other))
    assert first == second


def test_added_pictures_leave_nearly_all_others_on_their_side():
    whole = source((220, 110))
    before = shuffled(whole, np.setdiff1d(np.arange(330), np.arange(5, 330, 11)))  # 300 of them
    old, new = sides(before, complete(before, 0, 0.1, 0.2)), sides(whole, complete(whole, 0, 0.1, 0.2))
    assert sum(new[name] != side for name, side in old.items()) <= 12


@pytest.mark.slow
def test_a_million_pictures_are_parted_in_seconds():
    n = 1_000_000
    whole = Source(
        name="million",
        classes=("a", "b"),
        images=np.zeros((n, 1, 1), np.uint8),
        targets=np.arange(n) % 2,
        ids=CompactStrings(f"folder/{row}.png" for row in range(n)),
    )
    began = time.process_time()
    splits = complete(whole, 0, 0.1, 0.2)
    assert [len(rows) for rows in splits.values()] == [700_000, 100_000, 200_000]
    assert time.process_time() - began < 15
