"""Copies and groups that make a result too good, or a label doubtful."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from unit.data.doctored import SPEC, as_jpeg, codes, everything, halves, of_arrays, textures
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.checks.findings import DataCheckReport, DataIssue


def concern(findings: DataCheckReport, code: str) -> DataIssue:
    (found,) = [each for each in findings.issues if each.code == code]
    return found


def test_D17_every_exact_copy_across_splits_is_found():
    originals = textures(60, side=24)
    source = of_arrays(*originals, *originals[10:40])
    splits = {"train": np.arange(60), "val": np.arange(60, 70), "test": np.arange(70, 90)}
    findings = check_dataset(source, splits, SPEC)
    test, val = concern(findings, "exact-copies-in-train-and-test"), concern(findings, "exact-copies-in-train-and-val")
    assert test.text == "20 pictures of test are also in train, so the figure on test will be too good."
    assert set(test.groups) == {(row + 50, row) for row in range(20, 40)}
    assert set(val.groups) == {(row + 50, row) for row in range(10, 20)}
    assert "--exclude DIR/exclude.csv" in test.advice


def test_counts_of_a_sample_say_that_they_are(monkeypatch):
    originals = textures(60, side=24)
    source = of_arrays(*originals, *originals[:30])
    splits = {"train": np.arange(60), "val": np.arange(0), "test": np.arange(60, 90)}
    whole = concern(check_dataset(source, splits, SPEC), "exact-copies-in-train-and-test").text
    assert whole == "30 pictures of test are also in train, so the figure on test will be too good."
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    found = check_dataset(source, splits, SPEC, time_limit=80)
    text = concern(found, "exact-copies-in-train-and-test").text
    assert 0 < found.checked_count < 90 and not text.startswith("30 ")
    assert text.endswith(f"Only {found.checked_count} of 90 pictures were compared, so there are likely more.")


def test_D17_copies_in_a_stack_of_arrays_are_found_across_splits():
    stack = np.stack(textures(50, side=16))
    source = of_arrays(
        images=np.concatenate([stack, stack[:7]]), targets=np.arange(57) % 2, ids=tuple(map(str, range(57)))
    )
    splits = {"train": np.arange(50), "val": np.arange(0), "test": np.arange(50, 57)}
    assert len(concern(check_dataset(source, splits, SPEC), "exact-copies-in-train-and-test").groups) == 7


def test_the_training_copy_is_the_one_to_leave_out():
    originals = textures(6, side=24)
    source = of_arrays(*originals, originals[0], originals[1], originals[1], targets=np.zeros(9, np.int64))
    splits = {"train": np.arange(6), "val": np.array([7]), "test": np.array([6, 8])}
    found = check_dataset(source, splits, SPEC).rows_to_exclude()
    assert found == [
        (0, "exact copy of a picture in test"),
        (1, "exact copy of a picture in test"),
        (7, "exact copy of a picture in test"),
    ]


@pytest.mark.wide
def test_near_copies_across_splits_are_told_with_all_their_exact_copies():
    originals = textures(20)
    source = of_arrays(*originals, originals[3], as_jpeg(originals[3]), targets=np.zeros(22, np.int64))
    splits = {"train": np.arange(21), "val": np.arange(0), "test": np.array([21])}
    findings = check_dataset(source, splits, SPEC)
    assert concern(findings, "near-copies-in-train-and-test").groups == ((21, 3), (21, 20))
    assert concern(findings, "exact-copies-in-train").groups == ((3, 20),)
    assert "near-copies-in-train" not in codes(findings.issues)
    assert dict(findings.rows_to_exclude()) == dict.fromkeys((3, 20), "near copy of a picture in test")


def test_D20_the_same_picture_with_different_labels_is_listed():
    originals = textures(8, side=24)
    source = of_arrays(*originals, originals[0], originals[2], targets=np.array([0, 1, 0, 1, 0, 1, 0, 1, 1, 0]))
    findings = check_dataset(source, everything(source), SPEC)
    found = concern(findings, "exact-copies-with-different-labels")
    assert found.groups == ((0, 8),)
    assert found.text == "2 pictures are each the same picture as another one with a different label: 1 a / b."
    assert {row for row, _ in findings.rows_to_exclude()} == {0, 8}
    assert "a = i" in findings.table()


@pytest.mark.parametrize("how", ["multilabel", "regression", "soft"])
def test_D20_different_labels_are_seen_in_every_task(how):
    one, other = textures(2, side=24)
    rows = {
        "multilabel": [[1, 0], [1, np.nan], [0, 1], [0, np.nan], [1, 1]],
        "regression": [[1, 0], [1, np.nan], [7, 1], [7, np.nan], [7, 2]],
        "soft": [[0.5, 0.5], [0.5, 0.5], [1, 0], [1, 0], [0, 1]],
    }[how]
    source = of_arrays(
        one,
        one,
        other,
        other,
        other,
        targets=np.array(rows, np.float32),
        task="classification" if how == "soft" else how,
    )
    found = concern(check_dataset(source, everything(source), SPEC), "exact-copies-with-different-labels")
    assert found.groups == ((2, 3, 4),)


def test_near_copies_with_different_labels_are_told_and_not_left_out():
    originals = textures(20)
    targets = np.zeros(21, np.int64)
    targets[20] = 1
    source = of_arrays(*originals, as_jpeg(originals[3]), targets=targets)
    findings = check_dataset(source, everything(source), SPEC)
    found = concern(findings, "near-copies-with-different-labels")
    assert found.text == "2 pictures are nearly the same as another one with a different label: 1 a / b."
    assert findings.rows_to_exclude() == []


def test_copies_in_test_are_no_independent_pictures_and_those_of_train_only_weigh_more():
    originals = textures(20)
    pictures = [*originals, as_jpeg(originals[0]), as_jpeg(originals[5]), as_jpeg(originals[5], 60), originals[6]]
    source = of_arrays(*pictures, targets=np.zeros(24, np.int64))
    splits = {"train": np.array([0, 1, 20]), "val": np.arange(0), "test": np.array([*range(2, 20), 21, 22, 23])}
    findings = check_dataset(source, splits, SPEC)
    trained, near = concern(findings, "near-copies-in-train"), concern(findings, "near-copies-in-test")
    assert trained.text.endswith(" of train are nearly the same as another one there, so 2 of 3 are different.")
    assert trained.text.startswith("2 pictures") and "nothing has to be done" in trained.advice
    assert near.text.startswith("3 pictures of test are nearly the same as another one there, so 19 of 21 are differ")
    exact = concern(findings, "exact-copies-in-test")
    assert exact.text.startswith("2 pictures of test are the same as another one there, so 20 of 21 are different, and")
    for one in (near, exact):
        assert one.text.endswith("intervals that count all of them are too narrow.") and "--group" in one.advice
    held = np.array([f"part {number}" for number in [*range(20), 0, 5, 5, 6]])
    grouped = check_dataset(dataclasses.replace(source, groups=held), splits, SPEC)
    assert "too narrow" not in concern(grouped, "near-copies-in-test").text


def test_copies_across_splits_doubt_the_column_that_was_to_keep_them_together():
    originals = textures(20)
    source = of_arrays(*originals, as_jpeg(originals[3]), targets=np.zeros(21, np.int64))
    splits = {"train": np.arange(20), "val": np.arange(0), "test": np.array([20])}
    assert "true unit" not in concern(check_dataset(source, splits, SPEC), "near-copies-in-train-and-test").text
    source = dataclasses.replace(source, groups=np.array([f"module {number}" for number in range(21)]))
    found = concern(check_dataset(source, splits, SPEC), "near-copies-in-train-and-test")
    assert found.text.endswith("so their column may not name the true unit.")


def test_parts_of_one_kind_may_look_nearly_alike():
    originals = textures(20)
    targets = np.array([0] * 20 + [0, 1], np.int64)
    source = of_arrays(*originals, as_jpeg(originals[3]), as_jpeg(originals[4]), targets=targets, task="anomaly")
    splits = {"train": np.arange(20), "val": np.arange(0), "test": np.array([20, 21])}
    findings = check_dataset(source, splits, SPEC)
    found = concern(findings, "near-copies-in-train-and-test")
    assert found.severity == "hint" and found.groups == ((20, 3), (21, 4))
    assert found.text.startswith("2 pictures of test look nearly like one in train, as parts of one kind may.")
    assert findings.rows_to_exclude() == []
    assert "near-copies-with-different-labels" not in codes(findings.issues)


def test_D21_one_picture_that_stands_in_for_many_is_told():
    originals = textures(6, side=24)
    source = of_arrays(*originals, *[originals[0]] * 4, targets=np.zeros(10, np.int64))
    found = concern(check_dataset(source, everything(source), SPEC), "one-picture-many-times")
    assert found.text == "50% of all pictures are one and the same (a and 4 more)."
    fewer = of_arrays(*originals, originals[0], targets=np.zeros(7, np.int64))
    assert "one-picture-many-times" not in codes(check_dataset(fewer, everything(fewer), SPEC).issues)


def test_D19_a_group_in_two_splits_stops_a_training():
    source = of_arrays(*textures(8, side=24), groups=np.array(["p1", "p2", "p3", "p4", "p1", "p5", "p6", "p2"]))
    findings = check_dataset(source, halves(source), SPEC)
    assert findings.blocking_reasons[0].startswith(
        "2 groups, of 4 pictures, lie in more than one split, so the result would be too good: p1, p2."
    )
    whole = of_arrays(*textures(8, side=24), groups=np.array([1, 2, 3, 4, 5, 6, 7, 8]))
    assert check_dataset(whole, halves(whole), SPEC).blocking_reasons == ()


def test_D19_a_column_that_looks_like_a_group_is_told_with_its_flag():
    patients = [f"p{number % 8}" for number in range(20)]
    source = of_arrays(*textures(20, side=24), metadata={"Patient ID": patients, "Age": patients})
    (found,) = [
        each for each in check_dataset(source, halves(source), SPEC).issues if each.code == "column-like-a-group"
    ]
    assert found.text.startswith("Column 'Patient ID' has 8 values for 20 pictures, and 8 of them (of 20 pictures)")
    assert found.advice == (
        'If each is one patient, the result will be too good: --group "Patient ID" keeps each patient in one split.'
    )


def test_a_column_of_one_value_per_picture_is_no_group():
    source = of_arrays(*textures(20, side=24), metadata={"exam": [str(number) for number in range(20)]})
    assert "column-like-a-group" not in codes(check_dataset(source, halves(source), SPEC).issues)


def test_flat_pictures_are_nobodys_near_copies():
    flat = [np.full((80, 80), level, np.uint8) for level in (90, 91, 92, 93)]
    source = of_arrays(*flat)
    assert not [
        code for code in codes(check_dataset(source, everything(source), SPEC).issues) if code.startswith("near")
    ]
