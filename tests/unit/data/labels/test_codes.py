"""Columns kept by their distinct values."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.labels import codes
from vitrail.data.labels.codes import (
    CategoricalColumn,
    ChunkedStrings,
    ColumnBuilder,
    encode_categorical,
    format_column,
    normalize_cell,
    take_rows,
)


def test_a_coded_column_reads_like_the_list_it_came_from():
    cells = ["b", "a", "b", None, ("x", "y"), 3, "b"]
    column = encode_categorical(cells)
    assert list(column) == cells
    assert [column[row] for row in range(len(column))] == cells
    assert column[1:3] == ["a", "b"] and column[-1] == "b"
    assert column.counts()[column.values.index("b")] == 3
    assert column.first_row(column.values.index("a")) == 1
    assert encode_categorical(column) is column


def test_one_and_true_and_the_text_one_are_different_cells():
    cells = [1, True, "1", 1.0, False, 0]
    column = encode_categorical(cells)
    assert len(column.values) == 6
    assert [type(cell) for cell in column] == [int, bool, str, float, bool, int]


def test_every_kind_of_nothing_is_none_and_numpy_values_become_plain_ones():
    class NAType:
        """As pandas has it."""

    for nothing in (None, float("nan"), np.float32("nan"), NAType()):
        assert normalize_cell(nothing) is None
    assert normalize_cell(np.int64(4)) == 4 and type(normalize_cell(np.int64(4))) is int
    assert normalize_cell(np.array(["a", "b"])) == ("a", "b")
    assert normalize_cell(["a"]) == ("a",)
    assert normalize_cell(b"caf\xc3\xa9") == "café"
    assert len(encode_categorical([float("nan"), float("nan"), None]).values) == 1


def test_a_column_whose_texts_hardly_come_again_becomes_plain_letters(monkeypatch):
    monkeypatch.setattr(codes, "MAX_CODED_VALUES", 3)
    growing = ColumnBuilder()
    pieces = [["a", "b"], ["c", "d"], ["é", "a"], ["f"]]
    for piece in pieces:
        growing.append_cells(piece)
    column = growing.build()
    assert isinstance(column, ChunkedStrings)
    assert list(column) == ["a", "b", "c", "d", "é", "a", "f"]
    assert [column[row] for row in (0, 3, 6, -1)] == ["a", "d", "f", "f"] and column[4:] == ["é", "a", "f"]
    with pytest.raises(IndexError):
        column[7]


def test_a_column_whose_texts_come_again_stays_coded_and_an_empty_one_is_empty(monkeypatch):
    monkeypatch.setattr(codes, "MAX_CODED_VALUES", 4)
    growing = ColumnBuilder()
    for _ in range(5):
        growing.append_cells(["a", "b", "c", "d"])
    assert isinstance(growing.build(), CategoricalColumn)
    assert list(ColumnBuilder().build()) == []


def test_columns_as_texts_lose_their_spaces_and_rows_can_be_taken():
    column = format_column(encode_categorical([" a", None, 1.5, ("x", "y")]))
    assert list(column) == ["a", "", "1.5", "x|y"]
    assert list(take_rows(column, np.array([0, 3]))) == ["a", "x|y"]
    assert list(take_rows(format_column(["b ", "c"]), np.array([1]))) == ["c"]
