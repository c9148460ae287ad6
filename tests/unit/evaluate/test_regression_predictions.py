"""The table of numbers: its columns, its exact round trip, and what it says of a broken file."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import DataError, UsageError
from vitrail.evaluate.predictions import (
    RegressionPredictions,
    concat_predictions,
    read_regression_predictions_csv,
)

NAN = float("nan")
names = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=8)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def table(targets, values, columns=("age", "weight, kg")) -> RegressionPredictions:
    values = np.asarray(values, np.float32).reshape(-1, len(columns))
    n = len(values)
    return RegressionPredictions(
        paths=tuple(f"pictures/{i}.png" for i in range(n)),
        ids=tuple(map(str, range(n))),
        split="test",
        targets=None if targets is None else np.asarray(targets, np.float32).reshape(n, len(columns)),
        values=values,
        columns=columns,
    )


def assert_same(a: RegressionPredictions, b: RegressionPredictions) -> None:
    assert (a.paths, a.ids, a.split, a.columns) == (b.paths, b.ids, b.split, b.columns)
    np.testing.assert_array_equal(a.values, b.values)
    assert (a.targets is None) == (b.targets is None)
    if a.targets is not None:
        np.testing.assert_array_equal(a.targets, b.targets)


def test_every_number_has_a_target_and_a_value_and_unknown_ones_an_empty_cell():
    text = table([[40, NAN]], [[41.5, 70.25]]).csv_bytes().decode()
    header, row = csv.reader(io.StringIO(text, newline=""))
    assert header == [
        "path", "id", "split", "target_age", "target_weight, kg", "value_age", "value_weight, kg", "abstain",
    ]  # fmt: skip
    assert row == ["pictures/0.png", "0", "test", "40", "", "41.5", "70.25", "no"]


@given(columns=st.lists(names, min_size=1, max_size=3), data=st.data())
def test_any_number_survives_the_file(columns, data, tmp_path_factory):
    K = len(columns)
    targets = data.draw(st.lists(finite | st.just(NAN), min_size=K, max_size=K))
    values = data.draw(st.lists(finite, min_size=K, max_size=K))
    given = table(None if np.isnan(targets).all() else [targets], [values], tuple(columns))
    path = tmp_path_factory.mktemp("t") / "a.csv"
    given.write_csv(path)
    assert_same(given, read_regression_predictions_csv(path))


def test_records_say_what_the_file_says():
    (row,) = table([[40, NAN]], [[41.5, 70.25]]).records()
    assert row == {
        "path": "pictures/0.png", "id": "0", "split": "test", "target_age": 40.0, "target_weight, kg": None,
        "value_age": 41.5, "value_weight, kg": 70.25, "abstain": "no",
    }  # fmt: skip


def test_joining_parts_gives_the_whole():
    both = concat_predictions([table([[1, 2]], [[3, 4]]), table(None, [[5, 6]])])
    assert both.values.tolist() == [[3, 4], [5, 6]]
    assert both.targets is not None and np.isnan(both.targets[1]).all() and both.targets[0].tolist() == [1, 2]
    with pytest.raises(UsageError, match="share classes and split"):
        concat_predictions([table(None, [[3, 4]]), table(None, [[3, 4]], ("a", "b"))])


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match=r"1 column need values of shape \(1, 1\).*Got \(1, 2\)"):
        RegressionPredictions(paths=("",), ids=("0",), split="", targets=None, values=np.zeros((1, 2)), columns=("a",))
    with pytest.raises(UsageError, match=r"must have shape \(1, 1\)\. Got \(2, 1\)"):
        RegressionPredictions(
            paths=("",), ids=("0",), split="", targets=np.zeros((2, 1)), values=np.zeros((1, 1)), columns=("a",)
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,id,split,target_a,value_b,abstain\n", r"must read path,id,split,target_<column>\.\.\.,value_"),
        ("path,id,split,target_a,value_a,abstain\np,0,test,x,1,0\n", r"line 2: targets must be numbers\. Got x"),
        ("path,id,split,target_a,value_a,abstain\np,0,test,1,y,0\n", r"line 2: values must be numbers\. Got y"),
        ("path,id,split,target_a,value_a,abstain\np,0,test,1,0\n", r"line 2: a row must have 6 cells.*Got 5"),
    ],
)
def test_a_broken_file_is_named(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_regression_predictions_csv(tmp_path / "a.csv")
