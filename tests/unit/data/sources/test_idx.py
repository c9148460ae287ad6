"""Fashion-MNIST and MNIST in their own format, whole or damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources import builtin
from vitrail.errors import DataError


def packed(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write(folder: Path, ending: str = ".gz", dot: str = "-", labels: int = 4) -> Path:
    """Four training and two test pictures of 3 x 2."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = np.arange(36, dtype=np.uint8).reshape(6, 3, 2)
    targets = np.array([9, 0, 1, 2, 3, 4], np.uint8)
    parts = {
        "train-images": pictures[:4],
        "train-labels": targets[:labels],
        "t10k-images": pictures[4:],
        "t10k-labels": targets[4:],
    }
    for stem, values in parts.items():
        data = packed(values)
        axes = 3 if "images" in stem else 1
        (folder / f"{stem}{dot}idx{axes}-ubyte{ending}").write_bytes(gzip.compress(data) if ending else data)
    return folder


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(builtin, "DEBIAN_FASHION_FOLDER", tmp_path / "not installed")


@pytest.mark.parametrize("folder", [".", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize(("ending", "dot"), [(".gz", "-"), ("", "-"), ("", ".")])
def test_the_files_are_found_packed_or_not_in_all_usual_places(folder, ending, dot, tmp_path):
    write(tmp_path / folder, ending, dot)
    source = open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))
    assert np.array_equal(source.images, np.arange(36).reshape(6, 3, 2))
    assert source.targets.tolist() == [9, 0, 1, 2, 3, 4]
    assert {name: rows.tolist() for name, rows in source.splits.items()} == {"train": [0, 1, 2, 3], "test": [4, 5]}
    assert (source.classes[0], source.classes[9]) == ("T-shirt/top", "Ankle boot")
    assert source.ids == ("train/00000", "train/00001", "train/00002", "train/00003", "test/00000", "test/00001")


def test_mnist_has_its_own_classes(tmp_path):
    write(tmp_path / "mnist")
    assert open_source("mnist", DataSettings(data_root=str(tmp_path))).classes == tuple("0123456789")


def test_absent_files_are_said_with_the_command_that_brings_them(tmp_path):
    with pytest.raises(DataError, match=r"fashion-mnist: .*not found in .*sudo apt install dataset-fashion-mnist"):
        open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))
    with pytest.raises(DataError, match=r"mnist: .*not found, as no --data-root was given"):
        open_source("mnist")


def test_one_absent_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"has no t10k-labels-idx1-ubyte\.gz, with or without \.gz\. All four"):
        open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))


def test_pictures_and_labels_must_be_as_many(tmp_path):
    write(tmp_path, labels=3)
    with pytest.raises(DataError, match=r"train-images holds 4 pictures but train-labels 3 labels"):
        open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))


def test_a_truncated_file_is_named_with_its_counts(tmp_path):
    write(tmp_path, ending="")
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte must hold 4 x 3 x 2 = 24 bytes of values\. Got 19"):
        open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))
    write(tmp_path, ending="")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match=r"= 24 bytes of values\. Got more than 24"):
        open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))


def test_a_truncated_or_damaged_gzip_is_named(tmp_path):
    write(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:5], b"no gzip", whole[:30] + b"\xff\xff" + whole[32:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz (cannot be read|must hold|is not an IDX)"):
            open_source("fashion-mnist", DataSettings(data_root=str(tmp_path)))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"PK\x03\x04 and more of it")
    with pytest.raises(DataError, match=r"a is not an IDX file .*begin with 00000803, got 504b0304"):
        builtin.read_idx(tmp_path / "a", 3)
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match="got nothing"):
        builtin.read_idx(tmp_path / "a", 3)
    (tmp_path / "a").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 2**31))
    with pytest.raises(
        DataError, match=r"says it holds 9,903,520,314,283,042,199,192,993,792 bytes, limit 2,147,483,648"
    ):
        builtin.read_idx(tmp_path / "a", 3)


@pytest.mark.needs_apt_data
def test_fashion_mnist_is_complete_where_debian_puts_it(monkeypatch):
    monkeypatch.undo()
    source = open_source("fashion-mnist")
    assert source.images.shape == (70_000, 28, 28)
    assert [len(rows) for rows in source.splits.values()] == [60_000, 10_000]
    assert np.bincount(source.targets[:60_000]).tolist() == [6000] * 10
    assert source.images[0].sum() == 76247  # an ankle boot
    assert source.classes[source.targets[0]] == "Ankle boot"
