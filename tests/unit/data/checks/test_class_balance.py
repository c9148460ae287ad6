"""What there is to learn, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from unit.data.doctored import codes, everything, of_arrays
from vitrail.data.checks.class_balance import class_counts, find_class_balance_issues, find_similar_names
from vitrail.data.checks.findings import DataIssue
from vitrail.data.source import Source


def of_targets(targets: object, task: str, classes: tuple[str, ...], dtype: type = np.float32) -> Source:
    values = np.array(targets, dtype=np.int64 if task == "classification" else dtype)
    n = len(values)
    pictures = np.zeros((n, 2, 2), np.uint8)
    return of_arrays(images=pictures, targets=values, task=task, classes=classes, ids=tuple(map(str, range(n))))


def found(source: Source, splits: dict[str, np.ndarray] | None = None) -> list[DataIssue]:
    splits = splits or everything(source)
    return find_class_balance_issues(source, splits, class_counts(source, splits))


def test_scarce_and_absent_classes_are_told_per_split():
    source = of_targets([0] * 20 + [1] * 4 + [0] * 3, "classification", ("cat", "dog"))
    splits = {"train": np.arange(24), "val": np.arange(0), "test": np.arange(24, 27)}
    train, test = found(source, splits)
    assert (train.code, train.severity, train.text) == (
        "few-pictures-in-train",
        "hint",
        "Few pictures in train: 'dog' (4).",
    )
    assert (test.code, test.severity, test.text) == (
        "few-pictures-in-test",
        "warning",
        "Few pictures in test: 'dog' (0).",
    )


def test_very_uneven_classes_are_told():
    source = of_targets([0] * 1200 + [1] * 12, "classification", ("cat", "dog"))
    (uneven,) = found(source)
    assert uneven.text == "'cat' has 100 times as many training pictures as 'dog' (1,200 and 12)."


def test_labels_are_counted_where_they_are_present():
    source = of_targets([[1, 0], [np.nan, 1], [1, 1]], "multilabel", ("edema", "mass"))
    assert class_counts(source, everything(source))["train"] == {"edema": 2, "mass": 2}


def test_the_share_of_unknown_values_is_told_for_each_label():
    source = of_targets([[1, 0], [np.nan, 1], [0, 1], [np.nan, np.nan]] * 10, "multilabel", ("edema", "mass"))
    (unknown,) = [each for each in found(source) if each.code == "unknown-labels"]
    assert "'edema' 50.0%, 'mass' 25.0% of the pictures" in unknown.text


def test_what_has_no_known_value_or_only_one_stops_if_nothing_else_is_left():
    names = ("edema", "mass", "nodule")
    some = found(of_targets([[1, np.nan, 0], [1, np.nan, 1]], "multilabel", names))
    assert {(each.code, each.severity) for each in some if "known" in each.code or "equal" in each.code} == {
        ("nothing-known", "warning"),
        ("all-values-equal", "warning"),
        ("unknown-labels", "hint"),
    }
    none = found(of_targets([[1, np.nan, 0], [1, np.nan, 0]], "multilabel", names))
    assert {each.code for each in none if each.severity == "stop"} == {"nothing-known", "all-values-equal"}


def test_numbers_have_their_range_told_and_slips_of_the_pen_named():
    values = np.linspace(20, 90, 200)
    values[17] = 4100
    ages = found(of_targets(values[:, None], "regression", ("age",)))
    (span,) = [each for each in ages if each.code == "range-of-numbers"]
    (far,) = [each for each in ages if each.code == "outliers"]
    assert span.text == "'age' lies in 20 to 4100, median 55.3518."
    assert far.text == "1 value of 'age' lies very far from the rest: 17 (4100)." and far.rows == (17,)


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (np.arange(1000, 1040), True),  # a serial number
        (1700000000.25 + np.arange(40), True),
        (1.7e9 + np.random.default_rng(0).integers(0, 1e7, 40), True),  # Unix times
        (1.7e12 + np.random.default_rng(0).integers(0, 1e10, 40), True),
        (np.random.default_rng(0).integers(0, 90, 40), False),
        (np.full(40, 5), False),
        (np.arange(5), False),
    ],
)
def test_a_serial_number_or_a_time_to_predict_is_warned_of(values, warned):
    source = of_targets(values.astype(np.float64)[:, None], "regression", ("stamp",), np.float64)
    assert ("counter" in codes(found(source))) == warned
    assert ("all-values-equal" in codes(found(source))) == (len(set(values.tolist())) == 1)


def test_similar_names_are_counted():
    source = of_targets([0] * 20 + [1] * 4 + [2] * 30, "classification", ("1.0", "1", "cat"))
    assert "'1.0' (20) and '1' (4)." in "".join(each.text for each in found(source) if each.code == "similar-names")


def test_numbers_that_are_all_equal_stop_a_training():
    (equal,) = [each for each in found(of_targets([[5.0]] * 9, "regression", ("age",))) if each.severity == "stop"]
    assert equal.text == "All training pictures have the same value of 'age' (5)."


def test_one_class_in_train_stops_a_training():
    source = of_targets([0, 0, 0, 1], "classification", ("cat", "dog"))
    splits = {"train": np.arange(3), "val": np.arange(0), "test": np.array([3])}
    assert "one-class" in codes(each for each in found(source, splits) if each.severity == "stop")


@pytest.mark.parametrize(
    "names",
    [
        ("dog", "dogs"),
        ("T-shirt", "t shirt"),
        ("daffodil", "dafodil"),
        ("Hernia", "Hernie"),
        ("x ray", "X-Ray"),
        ("1", "1.0"),
        ("02", "2"),
        ("True", "yes"),
        ("0", "no"),
        ("St", "St."),
    ],
)
def test_names_that_differ_by_a_slip_are_told(names):
    assert find_similar_names(("other", *names)) == [names]


@pytest.mark.parametrize(
    "names",
    [
        ("cat", "bat"),
        ("class1", "class2"),
        ("0", "1", "10"),
        ("Edema", "Emphysema"),
        ("T-shirt/top", "Shirt"),
        ("1.0", "10"),
        ("1.5", "15"),
    ],
)
def test_different_names_are_left_in_peace(names):
    assert find_similar_names(names) == []
