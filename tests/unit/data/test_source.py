"""A source keeps its columns together and knows itself again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vitrail.data.source import LazyImage, Source
from vitrail.errors import DataError


def source(**changes: object) -> Source:
    plain = {
        "name": "drawn",
        "classes": ("a", "b"),
        "images": np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3),
        "targets": np.array([0, 1, 0, 1]),
        "ids": ("w", "x", "y", "z"),
    }
    return Source(**{**plain, **changes})


def test_the_fingerprint_notices_every_change(tmp_path):
    changes = [
        {},
        {"classes": ("a", "c")},
        {"targets": np.array([0, 1, 1, 1])},
        {"ids": ("w", "x", "y", "Z")},
        {"groups": np.array([1, 1, 2, 2])},
        {"splits": {"test": np.array([3])}},
        {"splits": {"test": np.array([2])}},
        {"images": np.zeros((4, 2, 3), np.uint8)},
        {"images": tuple(np.zeros((4, 2, 3), np.uint8))},
        {"images": (tmp_path / "none.png",) * 4},
    ]
    assert len({source(**change).fingerprint() for change in changes}) == len(changes)
    assert source().fingerprint() == source().fingerprint()
    assert source(name="renamed").fingerprint() == source().fingerprint(), "it may have been moved"


def test_a_fingerprint_of_the_version_that_hashed_the_name_too_is_known():
    old = "cb7f6f0857e451b7c1fb0190cd669b0af2708398796bf26c784064061b27ec26"
    assert source().has_fingerprint(source().fingerprint()) and source().has_fingerprint(old)
    assert not source(name="renamed").has_fingerprint(old) and not source(ids=("w", "x", "y", "v")).has_fingerprint(old)
    assert not source().has_fingerprint(None)


def test_the_fingerprint_of_files_changes_with_their_sizes(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"12")
    before = source(images=(path,) * 4).fingerprint()
    path.write_bytes(b"123")
    assert source(images=(path,) * 4).fingerprint() != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": np.array([0, 1])}, r"drawn has 4 pictures but 2 targets\. Each picture needs one"),
        ({"ids": ("w",)}, r"4 pictures but 1 id"),
        ({"groups": np.array([1])}, r"4 pictures but 1 group"),
        ({"targets": np.array([0, 1, 2, -1])}, r"must lie in 0\.\.1, .*Got 2 at row 2 \(y\); 2 such rows in all"),
        ({"splits": {"holdout": np.array([0])}}, r"called train, val, test\. drawn has one called 'holdout'"),
        ({"splits": {"test": np.array([4])}}, r"Split test of drawn names rows beyond its 4 pictures"),
        ({"splits": {"test": np.array([-1])}}, r"Split test of drawn names rows beyond"),
        (
            {"splits": {"train": np.array([0, 1, 2]), "test": np.array([1, 2, 3])}},
            r"x is in both train and test of drawn \(2 such pictures\)",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        source(**changes)


HALF = np.full((4, 2), 0.5, np.float32)


def with_one(value: float, task: str = "multilabel") -> dict[str, object]:
    targets = HALF.copy()
    targets[2, 1] = value
    return {"task": task, "targets": targets}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "regression", "targets": np.zeros(4)}, r"one column per output, 2\. Got shape \(4,\)"),
        ({"task": "multilabel", "targets": np.zeros((4, 3))}, r"one column per output, 2\. Got shape \(4, 3\)"),
        (with_one(1.5), r"must lie in 0\.\.1, or be NaN where unknown\. Got .* at row 2 \(y\); 1 such row"),
        (with_one(np.inf, "regression"), r"must be finite numbers, or NaN where unknown\. Got .* at row 2"),
        (with_one(0.7, "classification"), r"must be probabilities that sum to 1\. Got .* at row 2"),
        ({"blocks": np.array([0, 0, 1])}, r"4 pictures but 3 blocks"),
        ({"metadata": {"age": ["1"]}}, r"4 pictures but 1 value of 'age'"),
    ],
)
def test_targets_of_each_task_keep_its_rule(changes, message):
    with pytest.raises(DataError, match=message):
        source(**changes)


def test_unknown_labels_and_numbers_are_welcome_and_soft_labels_are_known():
    assert np.isnan(source(**with_one(np.nan)).targets[2, 1])
    assert np.isnan(source(**with_one(np.nan, "regression")).targets[2, 1])
    assert (
        source(targets=HALF).has_soft_labels
        and not source().has_soft_labels
        and not source(**with_one(0.5)).has_soft_labels
    )


class Kept:
    """A picture that lies somewhere else."""

    def __init__(self, stamp: str):
        self.name, self.stamp = "kept", stamp

    def fetch(self) -> np.ndarray:
        raise AssertionError("a fingerprint reads no picture")


def test_the_fingerprint_of_a_picture_elsewhere_is_its_stamp():
    assert isinstance(Kept(""), LazyImage)
    marks = [source(images=(Kept(stamp),) * 4).fingerprint() for stamp in ("a", "b", "a")]
    assert marks[0] == marks[2] != marks[1]


def test_a_source_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        source().name = "other"
