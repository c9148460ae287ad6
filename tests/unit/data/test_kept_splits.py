"""Splits in a run folder: they find their pictures again, leave out a few that are gone, and refuse other data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.data.split_files import read_splits, read_weights, write_splits
from vitrail.data.splits import make_splits
from vitrail.errors import DataError


def source(counts: tuple[int, ...]) -> Source:
    """A source with so many pictures of each class, in the order of classes."""
    targets = np.repeat(np.arange(len(counts)), counts)
    return Source(
        name="drawn",
        classes=tuple(f"c{number}" for number in range(len(counts))),
        images=np.zeros((len(targets), 1, 1), np.uint8),
        targets=targets,
        ids=tuple(f'"odd", name\n{row}' for row in range(len(targets))),
    )


def test_kept_splits_find_their_pictures_again_in_another_order(tmp_path):
    whole = source((6, 6))
    splits = make_splits(whole, DataSettings(val_fraction=0.25, test_fraction=0.25), 0)
    write_splits(tmp_path / "splits.csv", whole, splits)
    assert (tmp_path / "splits.csv").read_text().startswith("id,split,target\n")
    back, notes = read_splits(tmp_path / "splits.csv", whole)
    assert not notes
    assert all(np.array_equal(back[name], splits[name]) for name in splits)
    reversed_ = Source(
        name="drawn", classes=whole.classes, images=whole.images, targets=whole.targets[::-1], ids=whole.ids[::-1]
    )
    back, notes = read_splits(tmp_path / "splits.csv", reversed_)
    assert not notes
    assert all(np.array_equal(back[name], np.sort(11 - splits[name])) for name in splits)


def named(*ids: str) -> Source:
    pictures = np.zeros((len(ids), 1, 1))
    return Source(name="n", classes=("a",), images=pictures, targets=np.zeros(len(ids), int), ids=ids)


def test_D16_names_that_look_like_formulas_are_text_in_the_file_and_come_back(tmp_path):
    whole = named("=cmd()", "'quoted", "+1.png", "plain.png", "'=x")
    splits = {"train": np.arange(4), "val": np.array([4]), "test": np.zeros(0, np.int64)}
    write_splits(tmp_path / "splits.csv", whole, splits)
    lines = [line.rpartition(",")[0] for line in (tmp_path / "splits.csv").read_text().splitlines()]
    assert lines == ["id,split", "'=cmd(),train", "''quoted,train", "'+1.png,train", "plain.png,train", "''=x,val"]
    assert {name: rows.tolist() for name, rows in read_splits(tmp_path / "splits.csv", whole)[0].items()} == {
        "train": [0, 1, 2, 3], "val": [4], "test": [],
    }  # fmt: skip


def test_two_pictures_of_one_name_could_not_be_told_apart_again(tmp_path):
    splits = {"train": np.array([0]), "val": np.array([1]), "test": np.zeros(0, np.int64)}
    with pytest.raises(DataError, match=r"Two pictures of n are called a\.png\."):
        write_splits(tmp_path / "splits.csv", named("a.png", "a.png"), splits)


def test_a_carriage_return_in_a_name_comes_back(tmp_path):
    whole = named("a\rb.png", "c\r\nd.png", "\re.png")
    splits = {"train": np.arange(2), "val": np.array([2]), "test": np.zeros(0, np.int64)}
    write_splits(tmp_path / "splits.csv", whole, splits)
    back, notes = read_splits(tmp_path / "splits.csv", whole)
    assert not notes and {name: rows.tolist() for name, rows in back.items()} == {
        "train": [0, 1],
        "val": [2],
        "test": [],
    }


def test_a_few_lost_pictures_are_left_out_and_named_and_more_are_refused(tmp_path):
    whole = source((20, 20))
    write_splits(tmp_path / "splits.csv", whole, make_splits(whole, DataSettings(), 0))
    back, notes = read_splits(tmp_path / "splits.csv", without_first(whole, 9))
    assert sum(map(len, back.values())) == 31
    assert notes[0].startswith("9 of the run's 40 pictures are no longer in drawn: ")
    assert notes[0].endswith(" and 4 more. It goes on without them.")
    with pytest.raises(DataError, match=r"(?s)^10 of the run's 40 pictures are no longer in .* Put them back where"):
        read_splits(tmp_path / "splits.csv", without_first(whole, 10))


def without_first(whole: Source, count: int) -> Source:
    left = {"images": whole.images[count:], "targets": whole.targets[count:], "ids": whole.ids[count:]}
    return dataclasses.replace(whole, **left)


@pytest.mark.parametrize("kind", ["classification", "soft", "multilabel", "regression"])
def test_pictures_that_show_something_else_are_refused_by_name(tmp_path, kind):
    targets = np.eye(2, dtype=np.float32)[np.arange(6) % 2]
    targets = {"classification": np.arange(6) % 2, "regression": targets[:, :1]}.get(kind, targets).copy()
    if kind in ("multilabel", "regression"):
        targets[5] = np.nan
    classes = ("age",) if kind == "regression" else ("a", "b")
    whole = dataclasses.replace(
        named(*"stuvwx"), classes=classes, targets=targets, task="classification" if kind == "soft" else kind
    )
    write_splits(tmp_path / "splits.csv", whole, {"train": np.arange(6), "val": np.arange(0), "test": np.arange(0)})
    assert read_splits(tmp_path / "splits.csv", whole)[1] == ()
    turned = targets.copy()
    turned[4] = targets[3]
    with pytest.raises(DataError, match=r"^1 picture of n changed classes or labels since the run began: w\."):
        read_splits(tmp_path / "splits.csv", dataclasses.replace(whole, targets=turned))


def test_splits_of_older_versions_are_still_read(tmp_path):
    (tmp_path / "splits.csv").write_text("id,split\na.png,train\nb.png,test\n")
    back, _ = read_splits(tmp_path / "splits.csv", named("b.png", "a.png"))
    assert {name: rows.tolist() for name, rows in back.items()} == {"train": [1], "val": [], "test": [0]}


def test_a_line_that_is_no_split_is_named(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("id,split\ngone.png\n")
    with pytest.raises(DataError, match=r"line 2: expected an id and one of train, val, test\. Got \['gone\.png'\]"):
        read_splits(path, source((2, 2)))


def test_weights_are_kept_with_the_splits_because_an_object_cannot_be_asked_again(tmp_path):
    whole = dataclasses.replace(named(*"stuvw"), weights=np.array([0.1, 2.0, 1 / 3, 4.0, 1e-7]))
    path, splits = tmp_path / "splits.csv", {"train": np.array([0, 2, 4]), "val": np.array([1]), "test": np.arange(0)}
    write_splits(path, whole, splits)
    assert path.read_text().startswith("id,split,target,weight\n")
    assert {name: rows.tolist() for name, rows in read_splits(path, whole)[0].items()} == {
        "train": [0, 2, 4], "val": [1], "test": [],
    }  # fmt: skip
    assert read_weights(path, whole) is whole.weights
    found = read_weights(path, named(*"wvuts"))
    assert found is not None and found.tolist() == [1e-7, 1.0, 1 / 3, 2.0, 0.1], "v is in no split"
    others = dataclasses.replace(whole, weights=np.array([0.1, 2.0, 1 / 3, 4.0, 1e-6]))
    with pytest.raises(DataError, match=r"^The pictures of n have other loss weights than when the run began"):
        read_weights(path, others)
    write_splits(path, named(*"stuvw"), splits)
    assert read_weights(path, named(*"stuvw")) is None
    with pytest.raises(DataError, match=r"other loss weights"):
        read_weights(path, whole)
