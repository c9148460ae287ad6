"""CIFAR as it is published, in miniature: Python 2's own pickles, in their folder or still packed."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

import python2
from cifar_files import NAMES10, files10, files100, write
from hostile_pickles import Calls
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources import builtin
from vitrail.errors import DamagedFileError, DataError


def pack(path: Path, folder: str, files: dict[str, dict], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in {**files, "readme.html": {}}.items():
            data = python2.pickled(content)
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def opened(name: str, root: Path):
    return open_source(name, DataSettings(data_root=str(root)))


def check10(source) -> None:
    assert source.name == "cifar10" and source.classes == tuple(NAMES10) and source.task == "classification"
    assert source.images.shape == (26, 32, 32, 3) and source.images.dtype == np.uint8
    assert source.images[0, 5, 5].tolist() == [4, 5, 6] and source.images[-1, 31, 31].tolist() == [45, 46, 47]
    assert (source.images[:, 0, 0] == 255).all() and (source.images[:, 0, 1] < 255).all()
    assert source.targets.tolist() == [row % 10 for row in [*range(4, 24), *range(40, 46)]]
    assert {split: rows.tolist() for split, rows in source.splits.items()} == {
        "train": list(range(20)),
        "test": list(range(20, 26)),
    }
    assert (source.ids[0], source.ids[20]) == ("train/000000", "test/000000")


@pytest.mark.parametrize("folder", [".", "cifar10", "cifar-10-batches-py"])
def test_cifar10_is_read_from_its_folder(tmp_path, folder):
    root = tmp_path / "root"
    write(root / folder if folder == "cifar-10-batches-py" else root / folder / "cifar-10-batches-py", files10())
    check10(opened("cifar10", root))
    if folder == "cifar-10-batches-py":
        check10(opened("cifar10", root / folder))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_batches_written_again_by_python_3_are_the_same(tmp_path, protocol, as_bytes):
    def pickled(content: dict) -> bytes:
        keys = {key.encode(): value for key, value in content.items()} if as_bytes else content
        return pickle.dumps(keys, protocol)

    write(tmp_path / "cifar-10-batches-py", files10(), pickled)
    check10(opened("cifar10", tmp_path))


def test_cifar10_is_read_from_its_archive_and_nothing_is_unpacked(tmp_path, monkeypatch):
    pack(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files10())
    source = opened("cifar10", tmp_path)
    check10(source)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]
    assert source.notes[0].startswith("cifar-10-python.tar.gz is not the file as it was published: its MD5 is ")
    assert source.notes[0].endswith("published one c58f30108f718f92721af3b95e74349a.")


def test_cifar100_has_its_fine_labels(tmp_path):
    write(tmp_path / "cifar-100-python", files100())
    source = opened("cifar100", tmp_path)
    assert source.classes == tuple(f"fine {number}" for number in range(100))
    assert source.targets.tolist() == [*range(1, 21), *range(40, 46)]
    assert [len(rows) for rows in source.splits.values()] == [20, 6]


def test_absent_files_are_said_with_where_they_come_from(tmp_path):
    with pytest.raises(
        DataError,
        match=r"cifar10: neither the folder cifar-10-batches-py nor cifar-10-python\.tar\.gz was found in .*\. "
        r"Download https://www\.cs\.toronto\.edu/~kriz/cifar-10-python\.tar\.gz "
        r"\(MD5 c58f30108f718f92721af3b95e74349a\)",
    ):
        opened("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"cifar100: .* was found, as no --data-root was given"):
        open_source("cifar100")
    write(tmp_path / "cifar-10-batches-py", files10())
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py has no data_batch_3; 6 other files of the set are there"):
        opened("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": np.zeros((4, 100), np.uint8)}, r"test_batch: data must be uint8 \[n, 3072\]\. Got uint8 \[4, 100\]"),
        ({"data": "none"}, r"Got str\."),
        ({"labels": [0, 1]}, r"test_batch holds 6 pictures but 2 labels"),
        ({"labels": ["cat"] * 6}, r"labels must be a list of whole numbers"),
        ({"labels": [0, 1, 2, 3, 4, 10]}, r"must lie in 0\.\.9.*Got 10"),
    ],
)
def test_files_that_hold_something_else_are_refused(tmp_path, change, words):
    files = files10()
    files["test_batch"] |= change
    write(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(DataError, match=words):
        opened("cifar10", tmp_path)


def test_names_of_classes_must_be_there(tmp_path):
    write(tmp_path / "cifar-10-batches-py", files10() | {"batches.meta": {"label_names": 3}})
    with pytest.raises(DataError, match=r"batches\.meta: label_names must be a list of at least two texts"):
        opened("cifar10", tmp_path)


def test_a_hostile_batch_runs_nothing(tmp_path):
    folder = write(tmp_path / "cifar-10-batches-py", files10())
    canary = tmp_path / "canary"
    (folder / "data_batch_2").write_bytes(pickle.dumps(Calls(os.mkdir, str(canary)), 2))
    with pytest.raises(DamagedFileError, match=r"data_batch_2 is a pickle that asks to run \w+\.mkdir"):
        opened("cifar10", tmp_path)
    assert not canary.exists()


def test_a_damaged_archive_and_one_that_unpacks_to_too_much_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "cifar-10-python.tar.gz"
    pack(path, "cifar-10-batches-py", files10())
    whole = path.read_bytes()
    for cut in (len(whole) // 2, 20, 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz (cannot be read|has no )"):
            opened("cifar10", tmp_path)
    path.write_bytes(gzip.compress(bytes(20_000_000)))
    monkeypatch.setattr(builtin, "MAX_UNPACKED_BYTES", 10_000_000)
    with pytest.raises(DataError, match=r"has no batches\.meta|unpacks to more than 10,000,000 bytes"):
        opened("cifar10", tmp_path)
    huge = tarfile.TarInfo("cifar-10-batches-py/filler")
    huge.size = 20_000_000
    path.write_bytes(gzip.compress(huge.tobuf() + bytes(huge.size)))
    with pytest.raises(DataError, match=r"unpacks to more than 10,000,000 bytes"):
        opened("cifar10", tmp_path)
    path.write_bytes(whole)
    folder = write(tmp_path / "cifar-10-batches-py", files10())
    monkeypatch.setattr(builtin, "MAX_BATCH_BYTES", 1000)
    with pytest.raises(DataError, match=r"data_batch_1 has [\d,]+ bytes; a batch has at most 1,000"):
        opened("cifar10", folder)
