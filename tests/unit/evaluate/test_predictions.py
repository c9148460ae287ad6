"""The predictions table: its columns, its exact round trip, and what it says of a broken file."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import DataError, UsageError
from vitrail.evaluate.predictions import ClassificationPredictions, concat_predictions, read_class_predictions_csv

text = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=12)


def some(n: int = 5, classes: tuple[str, ...] = ("cat", "dog", "a fish"), targets: bool = True, seed: int = 0):
    generator = np.random.default_rng(seed)
    return ClassificationPredictions(
        paths=tuple(f"pictures/{i}.png" for i in range(n)),
        ids=tuple(f"{i}" for i in range(n)),
        split="test",
        targets=generator.integers(0, len(classes), n) if targets else None,
        probabilities=generator.dirichlet(np.ones(len(classes)), n).astype(np.float32),
        classes=classes,
    )


def assert_same(a: ClassificationPredictions, b: ClassificationPredictions) -> None:
    assert (a.paths, a.ids, a.split, a.classes) == (b.paths, b.ids, b.split, b.classes)
    np.testing.assert_array_equal(a.probabilities, b.probabilities)
    assert (a.targets is None) == (b.targets is None)
    if a.targets is not None:
        np.testing.assert_array_equal(a.targets, b.targets)


def test_the_columns_are_those_of_the_contract(tmp_path):
    some().write_csv(tmp_path / "test.csv")
    header = (tmp_path / "test.csv").read_text().splitlines()[0]
    assert header == "path,id,split,target,label,probability,prob_cat,prob_dog,prob_a fish,abstain"


def test_label_and_probability_are_those_of_the_most_probable_class(tmp_path):
    table = some(20)
    table.write_csv(tmp_path / "test.csv")
    for row, best, top in zip(
        csv.DictReader((tmp_path / "test.csv").read_text().splitlines()), table.indices, table.confidences, strict=True
    ):
        assert row["label"] == table.classes[best]
        assert np.float32(row["probability"]) == top == np.float32(row[f"prob_{row['label']}"])


@given(bits=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2))
def test_every_float32_survives_the_file(bits, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.csv"
    table = ClassificationPredictions(
        paths=("",), ids=("0",), split="", targets=None, probabilities=np.array([bits], np.float32), classes=("a", "b")
    )
    table.write_csv(path)
    assert_same(table, read_class_predictions_csv(path))


@given(path=text, id=text, first=text)
def test_any_name_survives_the_file(path, id, first, tmp_path_factory):
    file = tmp_path_factory.mktemp("t") / "a.csv"
    table = ClassificationPredictions(
        paths=(path, "b"),
        ids=(id, "b"),
        split="test",
        targets=np.array([0, 1]),
        probabilities=np.full((2, 2), 0.5),
        classes=(first or "x", 'another, "class"'),
    )
    table.write_csv(file)
    assert_same(table, read_class_predictions_csv(file))


def test_a_path_outside_utf8_survives_the_file(tmp_path):
    table = ClassificationPredictions(
        paths=("caf\udce9.png",), ids=("0",), split="", targets=None, probabilities=np.ones((1, 1)), classes=("a",)
    )
    table.write_csv(tmp_path / "a.csv")
    assert b"caf\xe9.png" in (tmp_path / "a.csv").read_bytes()
    assert_same(table, read_class_predictions_csv(tmp_path / "a.csv"))


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", "'x"])
def test_no_cell_can_be_run_by_a_spreadsheet(name, tmp_path):
    table = ClassificationPredictions(
        paths=(name,), ids=(name,), split=name, targets=np.zeros(1, int), probabilities=np.ones((1, 1)), classes=(name,)
    )
    table.write_csv(tmp_path / "a.csv")
    (row,) = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline="")))[1:]
    assert all(not cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
    assert_same(table, read_class_predictions_csv(tmp_path / "a.csv"))


def test_unknown_targets_are_empty_cells(tmp_path):
    table = some()
    table.targets[2] = -1
    table.write_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[3].split(",")[3] == ""
    assert_same(table, read_class_predictions_csv(tmp_path / "a.csv"))
    some(targets=False).write_csv(tmp_path / "b.csv")
    assert read_class_predictions_csv(tmp_path / "b.csv").targets is None


def test_an_empty_table_survives_too(tmp_path):
    some(0).write_csv(tmp_path / "a.csv")
    assert len(read_class_predictions_csv(tmp_path / "a.csv")) == 0
    assert read_class_predictions_csv(tmp_path / "a.csv").classes == some().classes


def test_joining_parts_gives_the_whole():
    a, b = some(3, seed=1), some(4, targets=False, seed=2)
    both = concat_predictions([a, b])
    assert len(both) == 7
    assert both.ids == a.ids + b.ids
    assert both.targets.tolist() == a.targets.tolist() + [-1] * 4
    np.testing.assert_array_equal(both.probabilities[3:], b.probabilities)


def test_joining_refuses_other_classes_and_nothing():
    with pytest.raises(UsageError, match="share classes and split"):
        concat_predictions([some(), some(classes=("a", "b", "c"))])
    with pytest.raises(UsageError, match="Got none"):
        concat_predictions([])


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match=r"shape \(1, 2\).*Got \(2, 2\) and 1 path"):
        ClassificationPredictions(
            paths=("",), ids=("0",), split="", targets=None, probabilities=np.zeros((2, 2)), classes=("a", "b")
        )
    with pytest.raises(UsageError, match=r"needed, 1\. Got 3"):
        ClassificationPredictions(
            paths=("",), ids=("0",), split="", targets=np.zeros(3, int), probabilities=np.ones((1, 1)), classes=("a",)
        )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p,0,test,cat,cat,0.5,0.5,0.5", r"line 3: a row must have 9 cells.*Got 8"),
        ("p,0,test,cow,cat,0.5,0.5,0.5,0", r"line 3: target must be empty or one of cat, dog\. Got 'cow'"),
        ("p,0,test,cat,cat,0.5,half,0.5,0", r"line 3: probabilities must be numbers\. Got half, 0\.5"),
        ("p,0,val,cat,cat,0.5,0.5,0.5,0", r"one file holds one split\. Got test, val"),
    ],
)
def test_a_broken_line_is_named(line, message, tmp_path):
    some(1, classes=("cat", "dog")).write_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        read_class_predictions_csv(tmp_path / "a.csv")


def test_another_file_is_refused_in_words(tmp_path):
    (tmp_path / "a.csv").write_text("image,answer\n1,2\n")
    with pytest.raises(DataError, match=r"must read path,id,split.*Got image,answer"):
        read_class_predictions_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(DataError, match="Got nothing"):
        read_class_predictions_csv(tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"missing\.csv\. No such file"):
        read_class_predictions_csv(tmp_path / "missing.csv")
