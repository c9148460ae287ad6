"""DataFrames: paths or pictures in a column, and the roles of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

pandas = pytest.importorskip("pandas")


def table(**columns: object):
    plain = {
        "file": ["a.png", "b.png", "c.png", "d.png"],
        "label": ["cat", "dog", "dog", "cat"],
        "split": ["train", "train", "validation", "test"],
        "patient_id": ["p1", "p1", "p2", "p3"],
        "age": [30, 30, 41, 52],
    }
    return pandas.DataFrame(plain | columns)


def test_columns_find_their_roles():
    source = open_source(table(), DataSettings(group="patient_id"))
    assert list(source.images) == [Path("a.png"), Path("b.png"), Path("c.png"), Path("d.png")]
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [0, 1, 1, 0]
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {"train": [0, 1], "val": [2], "test": [3]}
    assert source.groups is not None and source.groups.tolist() == ["p1", "p1", "p2", "p3"]
    assert list(source.metadata["age"]) == ["30", "30", "41", "52"] and list(source.ids)[:1] == ["a.png"]


def test_rows_without_a_group_are_groups_of_their_own():
    source = open_source(table(patient_id=["p1", None, None, "p1"]), DataSettings(group="patient_id"))
    assert source.groups is not None and len(set(source.groups)) == 3
    assert "2 rows have an empty 'patient_id'; each counts as a group of its own." in source.notes


def test_a_group_is_not_taken_unasked_and_stays_for_the_doctor_to_see():
    source = open_source(table())
    assert source.groups is None and "patient_id" in source.metadata


def test_relative_paths_belong_to_the_data_root(tmp_path):
    source = open_source(table(), DataSettings(data_root=str(tmp_path)))
    assert source.images[0] == tmp_path / "a.png" and source.ids[0] == "a.png"


@pytest.mark.parametrize("kind", ["arrays", "pillow", "bytes"])
def test_a_column_may_hold_the_pictures_themselves(photo, encode, kind):
    made = {"arrays": photo, "pillow": Image.fromarray(photo), "bytes": encode(photo, "PNG")}[kind]
    frame = pandas.DataFrame({"label": [1, 0, 1], "scan": [made] * 3})
    source = open_source(frame)
    assert source.targets.tolist() == [1, 0, 1] and list(source.ids) == ["000000", "000001", "000002"]
    assert np.array_equal(decode_image(source.images[2], ImageSpec(height=37, width=53)), photo)


def test_labels_may_be_lists_rows_of_numbers_columns_or_fractions():
    assert open_source(table(label=[["a"], ["a", "b"], [], ["b"]])).task == "multilabel"
    assert open_source(table(label=[[1, 0], [0, 1], [0, 1], [1, 0]])).targets.tolist() == [0, 1, 1, 0]
    settings = DataSettings(targets=("x", "y"))
    found = open_source(table(x=[0, 1, 1, 0], y=[1, 1, 0, None]), settings)
    assert found.task == "multilabel" and found.classes == ("x", "y") and np.isnan(found.targets[3, 1])
    assert open_source(table(label=[0.5, 1.5, 2.5, 0.25])).task == "regression"


def test_classes_with_gaps_in_the_table_are_whole_numbers_still():
    found = open_source(table(label=[1.0, 2.0, None, 1.0]), DataSettings(uncertain="ignore"))
    assert found.classes == ("1", "2") and len(found) == 3
    assert {split: rows.tolist() for split, rows in found.splits.items()}["test"] == [2]


def test_categories_and_dates_and_missing_values_are_plain_cells():
    frame = table(seen=pandas.to_datetime(["2020-01-01"] * 4), side=pandas.Categorical(["l", "r", None, "l"]))
    source = open_source(frame.set_index("age"))
    assert list(source.metadata["side"]) == ["l", "r", "", "l"] and source.metadata["seen"][0].startswith("2020-01-01")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (table().iloc[:0], r"The DataFrame has no rows"),
        (table()[["label", "age"]], r"DataFrame has no column of pictures\. Its columns: 'label', 'age'"),
        (table()[["file", "age"]], r"DataFrame has no column of labels"),
        (table(split=["train", "dev", "nowhere", "test"]), r"'split' .*'nowhere'"),
        (table(split=["train", "dev", None, "test"]), r"DataFrame, row 2: column 'split' is empty"),
        (table(label=["cat", "dog", None, "cat"]), r"DataFrame, row 2: 'label' is empty"),
        (table().rename(columns={"age": "file"}), r"several columns called 'file'"),
        (table(a=[np.zeros((2, 2))] * 4, b=[np.zeros((2, 2))] * 4), r"several columns of pictures: 'a', 'b'"),
    ],
)
def test_tables_that_say_too_little_are_refused_in_a_sentence(frame, words):
    with pytest.raises(DataError, match=words):
        open_source(frame)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"DataFrame has no column 'grade'"):
        open_source(table(), DataSettings(targets=("grade",)))
