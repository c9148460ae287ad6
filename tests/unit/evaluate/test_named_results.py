"""What `Run.predict` gives: names, their places, probabilities, rows and a DataFrame, for each task."""

from __future__ import annotations

import csv
import io
import sys

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.evaluate.predictions import (
    ClassificationPredictions,
    ClassificationRow,
    MultilabelPredictions,
    RegressionPredictions,
)
from vitrail.evaluate.tables import PredictionTable

SHARED = {"paths": ("a.png", "b.png", ""), "ids": ("a", "b", "2"), "split": "", "targets": None}


def classes(**more: object) -> ClassificationPredictions:
    chances = np.array([[0.25, 0.75], [0.875, 0.125], [0.5, 0.5]], np.float32)
    return ClassificationPredictions(**{**SHARED, "probabilities": chances, "classes": ("cat", "dog"), **more})


def findings() -> MultilabelPredictions:
    chances = np.array([[0.25, 0.75], [0.875, 0.5], [0.125, 0.25]], np.float32)
    return MultilabelPredictions(**SHARED, probabilities=chances, classes=("nodule", "effusion"))


def numbers() -> RegressionPredictions:
    values = np.array([[1.5, 20], [2.5, 30], [3.5, 40]], np.float32)
    return RegressionPredictions(**{**SHARED, "targets": np.full((3, 2), np.nan)}, values=values, columns=("age", "kg"))


def test_labels_are_names_and_indices_their_places_among_the_classes():
    found = classes(abstain_reasons=("", "unsure", ""))
    assert found.labels == ("dog", "cat", "cat") and found.indices.tolist() == [1, 0, 0]
    assert found.indices.dtype == np.int64 and found.abstained.tolist() == [False, True, False]
    assert found.labels == tuple(row["label"] for row in found.records())


def test_labels_follow_the_threshold_and_not_the_most_probable_class():
    found = classes(predicted=np.array([0, 0, 1]))
    assert found.labels == ("cat", "cat", "dog") and found.confidences.tolist() == [0.25, 0.875, 0.5]


def test_several_labels_are_a_tuple_of_names_for_each_image():
    found = findings()
    assert found.labels == (("effusion",), ("nodule", "effusion"), ())
    assert [places.tolist() for places in found.indices] == [[1], [0, 1], []]
    assert found.indicators.tolist() == [[False, True], [True, True], [False, False]]


def test_numbers_have_values_and_columns_and_say_so_where_labels_are_asked_for():
    found = numbers()
    assert found.columns == ("age", "kg") and found.values[1].tolist() == [2.5, 30]
    assert not hasattr(found, "labels")
    with pytest.raises(AttributeError, match=r"have no labels\. Their values \[n, K\] are in \.values.*: age, kg\."):
        found.labels  # noqa: B018


def test_rows_are_typed_and_hold_what_the_file_holds():
    first, second, third = classes(abstain_reasons=("", "unsure", ""))
    assert first == ClassificationRow(
        path="a.png", id="a", abstain_reason="", label="dog", index=1, probability=0.75,
        probabilities={"cat": 0.25, "dog": 0.75},
    )  # fmt: skip
    assert (second.abstain_reason, third.path, third.label) == ("unsure", "", "cat")
    assert [row.labels for row in findings()] == [("effusion",), ("nodule", "effusion"), ()]
    assert [row.values["kg"] for row in numbers()] == [20, 30, 40]


@pytest.mark.parametrize("table", [classes(), findings(), numbers()], ids=["classes", "labels", "numbers"])
def test_a_frame_has_the_columns_of_the_file(table: PredictionTable):
    frame = table.to_pandas()
    header = next(csv.reader(io.StringIO(table.csv_bytes().decode())))
    assert list(frame.columns) == header and len(frame) == len(table) == 3
    assert {str(kind) for kind in frame.dtypes[frame.columns.str.startswith(("prob", "value"))]} == {"float32"}
    assert frame.id.tolist() == ["a", "b", "2"]
    assert frame[[name for name in header if name.startswith("target")]].isna().all(axis=None)


def test_a_frame_without_pandas_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"^to_pandas\(\) needs pandas: pip install pandas\. Without it records\(\)"):
        classes().to_pandas()


def test_the_text_of_a_result_shows_its_first_rows():
    assert repr(classes(abstain_reasons=("", "unsure", ""))).splitlines() == [
        "ClassificationPredictions, 3 images",
        "  a: dog (0.7500)",
        "  b: unsure (0.8750)",
        "  2: cat (0.5000)",
    ]
    assert repr(findings()).splitlines()[2:] == ["  b: nodule (0.8750), effusion (0.5000)", "  2: (none)"]
    assert repr(numbers()).splitlines()[1] == "  a: age 1.5, kg 20"
    many = ClassificationPredictions(
        paths=("",) * 20, ids=tuple(map(str, range(20))), split="", targets=None,
        probabilities=np.full((20, 2), 0.5, np.float32), classes=("a", "b"),
    )  # fmt: skip
    assert repr(many).splitlines()[-1] == "  ... and 12 more" and len(repr(many).splitlines()) == 10
