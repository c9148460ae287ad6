"""JSON lines and Parquet hold what the CSV of the same table holds, however its rows came in."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.evaluate import tables
from vitrail.evaluate.decisions import Decisions, add_prediction_sets, predictions_from_outputs
from vitrail.evaluate.predictions import (
    MultilabelPredictions,
    RegressionPredictions,
    concat_predictions,
    decision_array,
    output_names,
    read_predictions_csv,
)
from vitrail.evaluate.tables import check_table_path, write_tables

OUTPUTS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
NAMES = ("cat", "=sum(1)", "oiseau é")
PATHS = ("a.png", "-b.png", 'c",d.png', "e\nf.png", "dépôt/g.png", "not\udcfftext.png", "h.png")
ROWS = [(path, path) for path in PATHS]
TARGETS = {
    "classification": np.array([0, 1, 2, -1, 1, 0, 2]),
    "multilabel": np.where(OUTPUTS > 1, np.nan, OUTPUTS > 0).astype(np.float32),
    "regression": np.where(OUTPUTS > 1, np.nan, OUTPUTS * 10).astype(np.float32),
}
SURE = Decisions(sure=0.5, cuts=(0.6, 0.6, 0.6), reach=(1.5, 2.5, 3.5))


def table(task, targets=False, sets=False):
    """Seven rows with names of all sorts, some of them without an answer."""
    known = TARGETS[task] if targets else None
    found = predictions_from_outputs(
        task, OUTPUTS, NAMES, None, ROWS, "test", known, decisions=None if task == "regression" else SURE
    )
    return add_prediction_sets(found, SURE) if sets else found


ALL = [(task, targets, sets) for task in TARGETS for targets in (False, True) for sets in (False, True)]
CASES = [case for case in ALL if case[::2] != ("multilabel", True)]


def readable(found):
    """Records with names as text, as Parquet must hold them."""
    text = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return json.loads(text)


@pytest.mark.parametrize(("task", "targets", "sets"), CASES)
def test_json_lines_hold_the_columns_and_the_digits_of_the_csv(task, targets, sets, tmp_path):
    found = table(task, targets, sets)
    write_tables(tmp_path / "a.jsonl", [found])
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    header = found.csv_header_bytes().decode().strip().split(",")
    assert [list(line) for line in lines] == [header] * len(PATHS)
    assert tuple(line["path"] for line in lines) == PATHS  # bytes that are no text, too
    cells = [column.to_list() for column in read_csv_of(found, task, tmp_path).all_typed_columns().values()]
    for line, row in zip(lines, zip(*cells, strict=True), strict=True):
        for (name, said), cell in zip(line.items(), row, strict=True):
            if isinstance(cell, float) and name.startswith("target_"):
                assert said == cell  # a truth keeps every digit of the user's file
            elif isinstance(cell, float):
                assert np.float32(said) == np.float32(cell) and repr(said) == repr(float(f"{cell:.9g}"))
            elif not isinstance(cell, dict):
                assert said == cell


def read_csv_of(found, task, folder):
    """The same table after a way through a CSV file."""
    write_tables(folder / "a.csv", [found])
    assert (folder / "a.csv").read_bytes() == found.csv_bytes()
    return read_predictions_csv(folder / "a.csv", task)


@pytest.mark.parametrize(("task", "targets", "sets"), CASES)
def test_parquet_holds_float32_text_lists_and_nothing_where_nothing_is_known(task, targets, sets, tmp_path):
    import pyarrow.parquet

    found = table(task, targets, sets)
    write_tables(tmp_path / "a.parquet", [found])
    read = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert read.to_pylist() == readable(read_csv_of(found, task, tmp_path).records())
    kinds = {str(field.type) for field in read.schema}
    assert "float" in kinds and ("double" in kinds) == (task == "regression")
    label = {"classification": "string", "multilabel": "list<element: string>"}.get(task)
    assert task == "regression" or str(read.schema.field("label").type) == label


@pytest.mark.parametrize("start", [6.032, 1700000025.25, 202100000001.0, 1e30])
def test_truths_and_values_that_float32_cannot_hold_keep_every_digit(start, tmp_path):
    targets = start * (1 + 1e-9 * np.arange(7.0))[:, None]
    found = RegressionPredictions(
        paths=PATHS, ids=tuple("abcdefg"), split="test", targets=targets, values=targets + 0.5, columns=("x",),
        ranges=targets[..., None] + [-1.0, 1.0],
    )  # fmt: skip
    again = read_csv_of(found, "regression", tmp_path)
    for name in ("targets", "values", "ranges"):
        assert getattr(again, name).dtype == np.float64
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert f",{start!r},".replace(".0,", ",") in found.csv_bytes().decode("utf-8", "replace")
    write_tables(tmp_path / "a.jsonl", [found])
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert [line["target_x"] for line in lines] == targets[:, 0].tolist()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("task", TARGETS)
def test_the_bytes_are_the_same_however_the_rows_are_divided(task, ending, tmp_path, monkeypatch):
    whole = table(task)
    monkeypatch.setattr(tables, "ROW_GROUP_CELLS", 3 * len(whole.all_typed_columns()))  # row groups of three rows
    write_tables(tmp_path / f"whole{ending}", [whole])
    cut = [rows(whole, slice(0, 4)), rows(whole, slice(4, 4)), rows(whole, slice(4, 5)), rows(whole, slice(5, 7))]
    assert concat_predictions(cut).csv_bytes() == whole.csv_bytes()
    write_tables(tmp_path / f"cut{ending}", cut)
    assert (tmp_path / f"cut{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    if ending == ".parquet":
        import pyarrow.parquet

        facts = pyarrow.parquet.ParquetFile(tmp_path / "cut.parquet").metadata
        assert [facts.row_group(k).num_rows for k in range(facts.num_row_groups)] == [3, 3, 1]


def rows(found, some):
    """Some rows of a table."""
    values = {"paths": found.paths[some], "ids": found.ids[some], "abstain_reasons": found.abstain_reasons[some]}
    if hasattr(found, "values"):
        return dataclasses.replace(found, **values, values=found.values[some])
    return dataclasses.replace(
        found, **values, probabilities=found.probabilities[some], predicted=decision_array(found)[some]
    )  # fmt: skip


@pytest.mark.parametrize("task", TARGETS)
def test_a_table_without_rows_keeps_its_columns(task, tmp_path):
    import pyarrow.parquet

    nobody = rows(table(task), slice(0, 0))
    write_tables(tmp_path / "a.parquet", [nobody])
    read = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert len(read) == 0 and read.column_names == nobody.csv_header_bytes().decode().strip().split(",")
    write_tables(tmp_path / "a.jsonl", [nobody])
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_a_table_writes_itself_by_the_ending(tmp_path):
    found = table("multilabel")
    found.write(tmp_path / "A.CSV")
    assert isinstance(found, MultilabelPredictions) and (tmp_path / "A.CSV").read_bytes() == found.csv_bytes()
    with pytest.raises(UsageError, match=r"ends in \.csv, \.jsonl or \.parquet\. Got .*a\.json\."):
        found.write(tmp_path / "a.json")
    assert output_names(found) == NAMES


def test_without_pyarrow_it_says_what_to_install_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"^Parquet files need pyarrow: pip install 'vitrail\[data\]'\.$"):
        write_tables(tmp_path / "a.parquet", [table("classification")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_earlier_answers_are_replaced_with_a_word_and_other_files_never(ending, tmp_path):
    path = tmp_path / f"answers{ending}"
    assert check_table_path(path) == ""
    table("classification").write(path)
    assert check_table_path(path) == f"{path} held earlier answers, which are replaced."
    path.write_text("path,finding\na.png,nodule\n")
    with pytest.raises(UsageError, match=r"is there already and holds no answers, so it is not overwritten"):
        check_table_path(path)
