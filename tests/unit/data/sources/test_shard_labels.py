"""Labels of shards: classes, fields, texts, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tar_files import classed, picture, write_tar
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources import webdataset
from vitrail.errors import DataError

SETTINGS = DataSettings()
PNG = picture(9)


def opened(tmp_path, files, **settings):
    return open_source(write_tar(tmp_path / "a.tar", files), replace(SETTINGS, **settings))


def with_json(*objects):
    """Samples 0, 1, ... each with its fields."""
    files = {}
    for number, each in enumerate(objects):
        data = each if isinstance(each, bytes) else json.dumps(each).encode()
        files |= {f"{number}.png": PNG, f"{number}.json": data}
    return files


def test_numbers_in_cls_files_are_classes_in_natural_order(tmp_path):
    source = opened(tmp_path, classed([10, 2, 1, 2]))
    assert source.task == "classification" and source.classes == ("1", "2", "10")
    assert source.targets.tolist() == [2, 1, 0, 1]
    assert source.reason == "Each sample has one class in its .cls file."


def test_many_numbers_in_cls_files_are_still_classes(tmp_path):
    source = opened(tmp_path, classed(range(60)))
    assert source.task == "classification" and len(source.classes) == 60


def test_names_in_cls_files_are_classes_whatever_they_look_like(tmp_path):
    source = opened(tmp_path, classed(["NA", "01", "1.0\n", " cat "]))
    assert source.classes == ("01", "1.0", "cat", "NA")


def test_cls_files_may_be_numbers_to_predict_if_one_says_so(tmp_path):
    source = opened(tmp_path, classed([0.5, 2, 1]), task="regression")
    assert source.task == "regression" and source.targets.tolist() == [[0.5], [2.0], [1.0]]


def test_a_label_field_of_json_files_is_found_and_the_others_become_metadata(tmp_path):
    fields = [{"label": kind, "camera": f"c{n % 2}", "width": 5} for n, kind in enumerate(["cat", "dog", "cat"])]
    source = opened(tmp_path, with_json(*fields))
    assert source.classes == ("cat", "dog") and source.targets.tolist() == [0, 1, 0]
    assert source.reason.startswith("Column 'label' holds 2 different words") and source.reason.endswith(".")
    assert list(source.metadata["camera"]) == ["c0", "c1", "c0"]


def test_cls_files_come_before_fields(tmp_path):
    files = classed("ab") | {f"000{n}.json": json.dumps({"label": n, "patient": n}).encode() for n in range(2)}
    source = opened(tmp_path, files)
    assert source.classes == ("a", "b") and list(source.metadata["label"]) == ["0", "1"]


def test_several_fields_can_be_learnt_at_once(tmp_path):
    fields = [{"oedema": 1, "nodule": 0}, {"oedema": 1, "nodule": 1}, {"oedema": 0, "nodule": None}]
    source = opened(tmp_path, with_json(*fields), targets=("oedema", "nodule"))
    assert source.task == "multilabel" and source.classes == ("oedema", "nodule")
    assert np.array_equal(source.targets, np.array([[1, 0], [1, 1], [0, np.nan]], np.float32), equal_nan=True)


def test_a_list_in_a_field_is_several_labels(tmp_path):
    source = opened(tmp_path, with_json({"tags": ["a", "b"]}, {"tags": ["b"]}, {"tags": []}))
    assert source.task == "multilabel" and source.classes == ("a", "b")
    assert source.targets.tolist() == [[1, 1], [0, 1], [0, 0]]


def test_fields_name_groups_and_splits(tmp_path):
    fields = [{"label": n % 2, "patient": f"p{n // 2}", "split": "test" if n > 3 else "train"} for n in range(6)]
    source = opened(tmp_path, with_json(*fields), group="patient")
    assert source.groups.tolist() == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert {name: rows.tolist() for name, rows in source.splits.items()} == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert "patient" in opened(tmp_path, with_json(*fields)).metadata


def test_an_unknown_field_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(DataError, match=r"a has no column 'patiant'.*'label', 'patient'"):
        opened(tmp_path, with_json({"label": 1, "patient": 2}), group="patiant")


def test_txt_files_are_labels_where_they_are_few_words(tmp_path):
    files = {f"{n}.png": PNG for n in range(4)} | {f"{n}.txt": b"cat" if n % 2 else b"dog\n" for n in range(4)}
    assert opened(tmp_path, files).classes == ("cat", "dog")


def test_captions_are_not_taken_for_labels(tmp_path):
    files = {f"{n}.png": PNG for n in range(50)} | {f"{n}.txt": f"a photo of thing {n}".encode() for n in range(50)}
    words = r"\.txt files of a hold 50 different texts in 50 samples: captions.*--data\.targets txt"
    with pytest.raises(DataError, match=words):
        opened(tmp_path, files)
    assert len(opened(tmp_path, files, targets=("txt",)).classes) == 50


def test_labels_may_lie_in_files_of_any_ending_that_is_named(tmp_path):
    files = classed("ab") | {"0000.species": b"oak", "0001.species": b"elm"}
    assert opened(tmp_path, files, targets=("species",)).classes == ("elm", "oak")


def test_samples_without_a_label_stop_the_reading_by_name(tmp_path):
    files = classed("abab")
    del files["0001.cls"], files["0003.cls"]
    with pytest.raises(DataError, match=r"2 of 4 samples have no \.cls file.*: a\.tar/0001, a\.tar/0003\. Write"):
        opened(tmp_path, files)
    fields = with_json({"label": 1}, {"label": 2}, {"label": 1})
    del fields["1.json"]
    with pytest.raises(DataError, match=r"1 of 3 samples has no \.json file.*: a\.tar/1\. Write"):
        opened(tmp_path, fields)


def test_an_empty_label_stops_the_reading_and_names_the_sample(tmp_path):
    with pytest.raises(DataError, match=r"a\.tar/0002"):
        opened(tmp_path, classed(["a", "b", "", "a"]))


def test_shards_without_labels_say_where_labels_are_expected(tmp_path):
    with pytest.raises(DataError, match=r"a holds 2 pictures and no labels\..*\.cls \(its class\) or \.json"):
        opened(tmp_path, {"1.png": PNG, "2.png": PNG})
    with pytest.raises(DataError, match=r"If its folders are the classes, unpack it \(tar -xf\)"):
        opened(tmp_path, {"cat/1.png": PNG, "dog/2.png": PNG})


DAMAGE = {
    "cls in several lines": ({"0000.cls": b"a\nb"}, r"a\.tar/0000\.cls holds several lines, and one class"),
    "cls in another encoding": ({"0000.cls": b"caf\xe9"}, r"a\.tar/0000\.cls is not text in UTF-8"),
    "a huge cls": ({"0000.cls": b"a" * 5000}, r"a\.tar/0000\.cls has 5,000 bytes, limit 4,096: more than a label"),
    "no JSON": ({"0000.json": b"{oops"}, r"a\.tar/0000\.json is not JSON \(Expecting property name"),
    "JSON that is no object": ({"0000.json": b"[1, 2]"}, r'must hold an object such as \{"label": "cat"\}\. Got \'\[1'),
    "a name twice": ({"0000.json": b'{"label": 1, "label": 2}'}, r"is not JSON \(it says 'label' twice\)"),
    "deep brackets": ({"0000.json": b'{"a":' + b"[" * 200_000}, r"a\.tar/0000\.json is not JSON"),
    "JSON in another encoding": ({"0000.json": b'{"a": "caf\xe9"}'}, r"a\.tar/0000\.json is not JSON"),
}


@pytest.mark.parametrize(("files", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_labels_are_named(files, words, tmp_path):
    with pytest.raises(DataError, match=words):
        opened(tmp_path, classed("ab") | {"0001.json": b"{}"} | files)


def test_of_many_samples_some_thousand_decide_which_fields_are_read_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "SAMPLED_FIELDS", 10)
    fields = [{"label": n % 2, "camera": n % 3, "file": f"f{n}"} for n in range(100)]
    source = opened(tmp_path, with_json(*fields))
    assert source.targets.tolist() == [n % 2 for n in range(100)]
    assert list(source.metadata) == ["camera"]  # names that hardly come again are not kept of a million samples


def test_rows_that_are_left_out_are_left_out_of_everything(tmp_path):
    fields = [{"label": label, "camera": n} for n, label in enumerate([0, 1, -1, 1, 0])]
    with pytest.raises(DataError, match=r"a\.tar/2.*--data\.uncertain"):
        opened(tmp_path, with_json(*fields))
    source = opened(tmp_path, with_json(*fields), uncertain="ignore")
    assert list(source.ids) == ["a.tar/0", "a.tar/1", "a.tar/3", "a.tar/4"] and source.targets.tolist() == [0, 1, 1, 0]
    assert list(source.metadata["camera"]) == ["0", "1", "3", "4"] and len(source.blocks) == 4
