"""The table of labels: its columns, its cells, its exact round trip, and what it says of a broken file."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import DataError, UsageError
from vitrail.evaluate import predictions
from vitrail.evaluate.predictions import MultilabelPredictions, concat_predictions, read_label_predictions_csv
from vitrail.evaluate.tables import escape_name, format_label_cell, parse_label_cell

NAN = float("nan")
names = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), min_size=1, max_size=8) | st.text(
    "\\|=?(none)'-", min_size=1, max_size=6
)
cells = st.sampled_from([0.0, 1.0, NAN]) | st.floats(0, 1, width=32)


def table(targets, probabilities, classes=("oedema", "nodule")) -> MultilabelPredictions:
    probabilities = np.asarray(probabilities, np.float32).reshape(-1, len(classes))
    n = len(probabilities)
    return MultilabelPredictions(
        paths=tuple(f"pictures/{i}.png" for i in range(n)),
        ids=tuple(map(str, range(n))),
        split="test",
        targets=None if targets is None else np.asarray(targets, np.float32).reshape(n, len(classes)),
        probabilities=probabilities,
        classes=classes,
    )


def assert_same(a: MultilabelPredictions, b: MultilabelPredictions) -> None:
    assert (a.paths, a.ids, a.split, a.classes) == (b.paths, b.ids, b.split, b.classes)
    np.testing.assert_array_equal(a.probabilities, b.probabilities)
    assert (a.targets is None) == (b.targets is None)
    if a.targets is not None:
        np.testing.assert_array_equal(a.targets, b.targets)


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_the_columns_are_those_of_the_contract():
    header = table(None, [[0.1, 0.9]]).csv_bytes().decode().splitlines()[0]
    assert header == "path,id,split,target,label,probability,prob_oedema,prob_nodule,abstain"


def test_a_target_names_its_labels_and_those_that_are_not_known():
    targets = [[1, 1], [1, NAN], [0, 0], [NAN, 0], [NAN, NAN], [0.25, 0]]
    rows = rows_of(table(targets, [[0.1, 0.2]] * 6).csv_bytes())
    assert [row["target"] for row in rows] == [
        "oedema|nodule", "oedema|?nodule", "(none)", "?oedema", "", "oedema=0.25",
    ]  # fmt: skip


def test_labels_are_answered_from_one_half_on_and_the_likeliest_tells_the_probability():
    rows = rows_of(table(None, [[0.5, 0.75], [0.25, 0.125], [0.25, 0.5]]).csv_bytes())
    assert [row["label"] for row in rows] == ["oedema|nodule", "(none)", "nodule"]
    assert [row["probability"] for row in rows] == ["0.75", "0.25", "0.5"]
    assert {row["target"] for row in rows} == {""}


@given(classes=st.lists(names, min_size=1, max_size=4, unique=True), data=st.data())
def test_any_labels_survive_the_file(classes, data, tmp_path_factory):
    K = len(classes)
    targets = data.draw(st.lists(st.lists(cells, min_size=K, max_size=K), min_size=1, max_size=4))
    chances = data.draw(st.lists(st.floats(0, 1, width=32), min_size=K, max_size=K))
    given = table(targets, [chances] * len(targets), tuple(classes))
    if np.isnan(given.targets).all():
        given = table(None, given.probabilities, tuple(classes))
    path = tmp_path_factory.mktemp("t") / "a.csv"
    given.write_csv(path)
    assert_same(given, read_label_predictions_csv(path))


@given(classes=st.lists(names, min_size=1, max_size=4, unique=True), data=st.data())
def test_any_cell_reads_back_and_no_two_targets_share_one(classes, data):
    drawn = [data.draw(st.lists(cells, min_size=len(classes), max_size=len(classes))) for _ in range(2)]
    safe = [escape_name(name) for name in classes]
    positions = {name: k for k, name in enumerate(safe)}
    written = [format_label_cell(target, safe) for target in drawn]
    for cell, target in zip(written, drawn, strict=True):
        np.testing.assert_array_equal(parse_label_cell(cell, positions, "here"), np.array(target, np.float32))
    assert (written[0] == written[1]) == np.array_equal(*drawn, equal_nan=True)


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", "'x"])
def test_no_cell_can_be_run_by_a_spreadsheet(name, tmp_path):
    given = table([[1, 0]], [[0.9, 0.1]], (name, "other"))
    (row,) = list(csv.reader(io.StringIO(given.csv_bytes().decode(), newline="")))[1:]
    assert all(not cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
    given.write_csv(tmp_path / "a.csv")
    assert_same(given, read_label_predictions_csv(tmp_path / "a.csv"))


def test_records_say_what_the_file_says():
    first, second, third = table([[1, NAN], [0, 0], [NAN, NAN]], [[0.75, 0.5], [0.25, 0], [0, 0]]).records()
    assert first["target"] == {"oedema": 1.0, "nodule": None} and first["label"] == ["oedema", "nodule"]
    assert list(first) == [
        "path",
        "id",
        "split",
        "target",
        "label",
        "probability",
        "prob_oedema",
        "prob_nodule",
        "abstain",
    ]
    assert (second["target"], second["label"]) == ({"oedema": 0.0, "nodule": 0.0}, [])
    assert third["target"] is None


def test_joining_parts_gives_the_whole():
    both = concat_predictions([table([[1, 0]], [[0.9, 0.1]]), table(None, [[0.2, 0.3]] * 2)])
    assert both.targets is not None and both.targets[0].tolist() == [1, 0] and np.isnan(both.targets[1:]).all()
    assert len(both) == 3 and concat_predictions([table(None, [[0.2, 0.3]])]).targets is None
    with pytest.raises(UsageError, match="share classes and split"):
        concat_predictions([table(None, [[0.1, 0.2]]), table(None, [[0.1, 0.2]], ("a", "b"))])


def test_shapes_and_names_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match=r"2 labels need probabilities of shape \(1, 2\).*Got \(1, 3\)"):
        MultilabelPredictions(
            paths=("",), ids=("0",), split="", targets=None, probabilities=np.zeros((1, 3)), classes=("a", "b")
        )
    with pytest.raises(UsageError, match=r"must have shape \(1, 1\)\. Got \(1,\)"):
        MultilabelPredictions(
            paths=("",), ids=("0",), split="", targets=np.zeros(1), probabilities=np.zeros((1, 1)), classes=("a",)
        )
    for classes in (("a", "a"), ("a", "")):
        with pytest.raises(UsageError, match="a name of its own"):
            table(None, [[0.1, 0.2]], classes)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cow", r"line 2: target must hold labels among oedema, nodule, joined by \|, or be \(none\)\. Got 'cow'"),
        ("oedema|", r"Got ''"),
        ("oedema=2", r"line 2: the share of a label must be a number in 0\.\.1\. Got '2'"),
        ("oedema=some", r"Got 'some'"),
    ],
)
def test_a_broken_target_is_named(target, message, tmp_path):
    header = "path,id,split,target,label,probability,prob_oedema,prob_nodule,abstain"
    (tmp_path / "a.csv").write_text(f"{header}\np,0,test,{target},(none),0.1,0.1,0.1,0\n")
    with pytest.raises(DataError, match=message):
        read_label_predictions_csv(tmp_path / "a.csv")


def test_an_empty_table_survives_too(tmp_path):
    table(None, np.zeros((0, 2))).write_csv(tmp_path / "a.csv")
    again = predictions.read_label_predictions_csv(tmp_path / "a.csv")
    assert len(again) == 0 and again.classes == ("oedema", "nodule")
