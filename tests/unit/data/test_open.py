"""Which reader a name, a path or an object belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.open import find_file_reader, find_folder_reader, is_in_memory, open_source
from vitrail.errors import DataError


def test_a_folder_is_opened_and_a_built_in_name_comes_first(draw, monkeypatch):
    root = draw("digits/cat/1.png", "digits/dog/1.png")
    monkeypatch.chdir(root)
    assert len(open_source("./digits")) == 2
    assert len(open_source("digits")) == 1797


def test_what_does_not_exist_is_said_with_the_closest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"nothing at digts\. Expected .* one of digits, .*\. Did you mean digits\?"):
        open_source("digts")
    with pytest.raises(DataError, match=r"nothing at flowers\. Expected a folder .*cifar100\.$"):
        open_source("flowers")


def test_a_file_of_no_known_kind_is_said_with_what_is_known(tmp_path):
    (tmp_path / "labels.docx").write_text("a,b")
    with pytest.raises(DataError, match=r"labels\.docx is a file of no kind that holds a data set\. Expected .*\.csv"):
        open_source(tmp_path / "labels.docx")


@pytest.mark.parametrize(
    ("ending", "reader"),
    [
        ("csv", "open_manifest"), ("TSV", "open_manifest"), ("jsonl", "open_manifest"), ("parquet", "open_manifest"),
        ("npz", "open_arrays"), ("npy", "open_arrays"), ("tar", "open_shard"),
    ],
)  # fmt: skip
def test_a_file_goes_to_the_reader_of_its_ending(tmp_path, ending, reader):
    assert find_file_reader(tmp_path / f"data.{ending}").__name__ == reader


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("dataset_info.json", "huggingface"), ("dataset_dict.json", "huggingface"),
        ("Data_Entry_2017_v2020.csv", "chest_xray14"), ("train-0000.tar", "webdataset"), ("cat", "class_folders"),
    ],
)  # fmt: skip
def test_a_folder_goes_to_the_reader_that_its_files_ask_for(tmp_path, name, module):
    (tmp_path / name).touch()
    assert find_folder_reader(tmp_path).__module__.endswith(f".{module}")


def test_an_open_source_and_objects_are_taken_as_they_are():
    source = open_source("digits")
    assert open_source(source) is source
    assert is_in_memory([]) and not is_in_memory("digits")
    pair = (np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1]))
    assert len(open_source(pair)) == 4


def test_shards_may_lie_in_the_folders_of_their_splits(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "0.tar").touch()
    assert find_folder_reader(tmp_path).__module__.endswith(".webdataset")


def test_a_packed_archive_is_told_how_to_be_unpacked(tmp_path):
    (tmp_path / "pets.tar.gz").touch()
    with pytest.raises(DataError, match=r"pets\.tar\.gz is packed, and shards are read in place\. .* tar -xf"):
        open_source(tmp_path / "pets.tar.gz")
