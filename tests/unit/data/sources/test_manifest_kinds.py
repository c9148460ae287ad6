"""Manifests as JSON lines and Parquet files."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError


@pytest.fixture
def root(draw: Callable[..., Path]) -> Path:
    return draw("a.png", "b.png", "c.png")


def read(path: Path, **said: object) -> Source:
    return open_source(str(path), DataSettings(**said))


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["films.jsonl", "films.ndjson", "films.JSONL"])
def test_json_lines_are_a_manifest_and_values_keep_their_types(root, name):
    path = lines(
        root / name,
        {"file_name": "a.png", "label": "01", "age": 61, "extra": {"x": [1]}},
        {"label": "TRUE", "file_name": "b.png"},
        {"file_name": "c.png", "label": "NA", "age": None},
    )
    source = read(path)
    assert source.classes == ("01", "NA", "TRUE") and list(source.ids) == ["a.png", "b.png", "c.png"]
    assert list(source.metadata["age"]) == ["61", "", ""] and list(source.metadata["extra"]) == ['{"x": [1]}', "", ""]


def test_lists_of_words_in_json_lines_are_labels(root):
    path = lines(
        root / "films.jsonl",
        {"image": "a.png", "labels": ["x", "y"]},
        {"image": "b.png", "labels": []},
        {"image": "c.png", "labels": None},
    )
    source = read(path)
    expected = np.array([[1, 1], [0, 0], [np.nan, np.nan]], np.float32)
    np.testing.assert_array_equal(source.targets, expected)
    assert (source.task, source.classes) == ("multilabel", ("x", "y"))


def test_D9_a_line_that_is_no_object_in_json_is_named(root):
    path = root / "films.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"path": "a.png", "label": "x"}\r\n\r\n{"path": "b.png", "label": "y"}\r\n')
    assert list(read(path).ids) == ["a.png", "b.png"]
    for text, message in {
        '{"path": "a.png"\n': r"films\.jsonl, line 1: this is not JSON",
        r'{"path": "\ud800.png"}': r"films\.jsonl, line 1: this is not JSON",
        "[1, 2]\n": r"films\.jsonl, line 1: expected an object .* Got '\[1, 2\]'",
        "[" * 100_000: r"films\.jsonl, line 1: this is not JSON",
        "": r"films\.jsonl holds no rows",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read(path)


def test_parquet_files_are_manifests_and_rows_are_named_by_number(root):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"path": ["a.png", "b.png", "c.png"], "score": [0.5, None, 2.0], "patient": [1, 1, 2]}
    parquet.write_table(pyarrow.table(columns), root / "films.parquet")
    source = read(root / "films.parquet")
    np.testing.assert_array_equal(source.targets, np.array([[0.5], [np.nan], [2]], np.float32))
    assert source.task == "regression" and list(source.metadata["patient"]) == ["1", "1", "2"]
    parquet.write_table(pyarrow.table({**columns, "score": ["x", "", "y"]}), root / "films.parquet")
    with pytest.raises(DataError, match=r"^films\.parquet, row 2: 'score' is empty"):
        read(root / "films.parquet")


def test_a_parquet_file_of_pictures_is_sent_to_the_right_door_and_a_damaged_one_refused(root):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = root / "films.parquet"
    parquet.write_table(pyarrow.table({"image": [{"bytes": b"x", "path": "a.png"}], "label": [1]}), path)
    with pytest.raises(DataError, match=r"Column 'image' of .*films\.parquet holds bytes.*save_to_disk"):
        read(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        read(path)


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(root):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([["a.png", "b.png"], ["cat", "dog"], ["dog", "cat"]], names=["path", "label", "label"])
    parquet.write_table(table, root / "films.parquet")
    with pytest.raises(
        DataError, match=r"films\.parquet has several columns called 'label'\. Give each a name of its own"
    ):
        read(root / "films.parquet")


def test_parquet_without_pyarrow_says_what_to_install(root, monkeypatch):
    true_import = builtins.__import__

    def refusing(name: str, *rest: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return true_import(name, *rest)

    (root / "films.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(DataError, match=r"^Parquet files need pyarrow: pip install 'vitrail\[data\]'\.$"):
        read(root / "films.parquet")


def test_a_line_that_says_something_twice_is_refused(root):
    (root / "twice.jsonl").write_text(
        '{"path": "a.png", "label": "x"}\n{"path": "b.png", "label": "x", "label": "y"}\n'
    )
    with pytest.raises(DataError, match=r"twice\.jsonl, line 2: this is not JSON \(it says 'label' twice\)"):
        read(root / "twice.jsonl")
