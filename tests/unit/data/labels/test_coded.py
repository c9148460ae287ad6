"""Columns kept by their distinct values."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.labels import coded
from vitrail.data.labels.coded import Coded, Growing, Pieces, as_texts, cell_of, code, rows_of


def test_a_coded_column_reads_like_the_list_it_came_from():
    cells = ["b", "a", "b", None, ("x", "y"), 3, "b"]
    column = code(cells)
    assert list(column) == cells
    assert [column[row] for row in range(len(column))] == cells
    assert column[1:3] == ["a", "b"] and column[-1] == "b"
    assert column.counts()[column.values.index("b")] == 3
    assert column.first(column.values.index("a")) == 1
    assert code(column) is column


def test_one_and_true_and_the_text_one_are_different_cells():
    cells = [1, True, "1", 1.0, False, 0]
    column = code(cells)
    assert len(column.values) == 6
    assert [type(cell) for cell in column] == [int, bool, str, float, bool, int]


def test_every_kind_of_nothing_is_none_and_numpy_values_become_plain_ones():
    class NAType:
        """As pandas has it."""

    for nothing in (None, float("nan"), np.float32("nan"), NAType()):
        assert cell_of(nothing) is None
    assert cell_of(np.int64(4)) == 4 and type(cell_of(np.int64(4))) is int
    assert cell_of(np.array(["a", "b"])) == ("a", "b")
    assert cell_of(["a"]) == ("a",)
    assert cell_of(b"caf\xc3\xa9") == "café"
    assert len(code([float("nan"), float("nan"), None]).values) == 1


def test_a_column_whose_texts_hardly_come_again_becomes_plain_letters(monkeypatch):
    monkeypatch.setattr(coded, "OFTEN", 3)
    growing = Growing()
    pieces = [["a", "b"], ["c", "d"], ["é", "a"], ["f"]]
    for piece in pieces:
        growing.add(piece)
    column = growing.finish()
    assert isinstance(column, Pieces)
    assert list(column) == ["a", "b", "c", "d", "é", "a", "f"]
    assert [column[row] for row in (0, 3, 6, -1)] == ["a", "d", "f", "f"] and column[4:] == ["é", "a", "f"]
    with pytest.raises(IndexError):
        column[7]


def test_a_column_whose_texts_come_again_stays_coded_and_an_empty_one_is_empty(monkeypatch):
    monkeypatch.setattr(coded, "OFTEN", 4)
    growing = Growing()
    for _ in range(5):
        growing.add(["a", "b", "c", "d"])
    assert isinstance(growing.finish(), Coded)
    assert list(Growing().finish()) == []


def test_columns_as_texts_lose_their_spaces_and_rows_can_be_taken():
    column = as_texts(code([" a", None, 1.5, ("x", "y")]))
    assert list(column) == ["a", "", "1.5", "x|y"]
    assert list(rows_of(column, np.array([0, 3]))) == ["a", "x|y"]
    assert list(rows_of(as_texts(["b ", "c"]), np.array([1]))) == ["c"]
