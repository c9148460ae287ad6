"""Pictures inside shards: the right bytes in any order and from any thread, and no others after a change."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tar_files import classed, write_tar
from vitrail.data.source import LazyImage
from vitrail.data.sources import tar_index
from vitrail.data.sources.tar_index import TarShard, read_members
from vitrail.data.sources.webdataset import index_samples
from vitrail.errors import DataError


@pytest.fixture
def pictures(tmp_path):
    """Forty pictures in two shards, and their bytes in order."""
    files = [classed("ab" * 10, start) for start in (0, 20)]
    paths = [write_tar(tmp_path / f"{number}.tar", each) for number, each in enumerate(files)]
    samples = index_samples(str(tmp_path), [(path.name, TarShard.from_path(path)) for path in paths], ("cls",))
    return samples.images, [data for each in files for name, data in each.items() if name.endswith(".png")]


def test_every_picture_is_the_bytes_that_were_packed(pictures):
    found, expected = pictures
    assert [picture.fetch() for picture in found] == expected
    assert [found[row].fetch() for row in (39, 0, 21, 7)] == [expected[row] for row in (39, 0, 21, 7)]
    assert isinstance(found[0], LazyImage)


def test_many_threads_read_at_once(pictures):
    found, expected = pictures
    rows = np.random.default_rng(0).integers(0, 40, 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda row: found[row].fetch(), rows)) == [expected[row] for row in rows]


def test_a_worker_process_gets_a_copy_that_reads_the_same(pictures):
    found, expected = pictures
    copy = pickle.loads(pickle.dumps(found))
    assert copy[25].fetch() == expected[25] and copy[25] == found[25]


def test_reading_leaves_no_file_open(pictures):
    found, _ = pictures
    before = len(os.listdir("/proc/self/fd"))
    for picture in found:
        picture.fetch()
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_tell_the_shard_and_the_file_in_it(pictures, tmp_path):
    found, _ = pictures
    assert found[0].name == str(tmp_path / "0.tar" / "0000.png")
    assert found[-1].name == str(tmp_path / "1.tar" / "0039.png")
    assert [picture.name for picture in found[19:21]] == [found[19].name, found[20].name]
    with pytest.raises(IndexError):
        found[40]


def test_the_stamp_changes_with_place_and_size_and_not_with_the_folder(pictures, tmp_path):
    found, _ = pictures
    assert len({picture.stamp for picture in found}) == 40
    assert str(tmp_path) not in found[0].stamp


def test_D23_a_shard_that_changes_while_it_is_in_use_is_not_read(pictures, tmp_path):
    found, expected = pictures
    shard = tmp_path / "0.tar"
    data = shard.read_bytes()
    shard.write_bytes(data[:512] + data)  # every picture would be another's bytes
    with pytest.raises(DataError, match=r"0\.tar was changed while it was in use\. Start again"):
        found[3].fetch()
    assert found[25].fetch() == expected[25]
    os.utime(tmp_path / "1.tar", ns=(0, 0))
    with pytest.raises(DataError, match=r"1\.tar was changed while it was in use"):
        found[25].fetch()


def test_D23_a_shard_that_is_gone_is_named(pictures, tmp_path):
    (tmp_path / "0.tar").unlink()
    with pytest.raises(DataError, match=r"0\.tar cannot be read \(no such file or directory\)"):
        pictures[0][3].fetch()
    with pytest.raises(DataError, match=r"0\.tar cannot be read \(no such file or directory\)"):
        TarShard.from_path(tmp_path / "0.tar")


def test_a_huge_member_is_refused_before_it_is_read(pictures, monkeypatch):
    monkeypatch.setattr(tar_index, "MAX_MEMBER_BYTES", 20)
    with pytest.raises(DataError, match=r"0000\.png: file is 0 MiB, limit 0 MiB\."):
        pictures[0][0].fetch()


def test_small_files_are_read_in_order_with_one_shard_open_at_a_time(tmp_path):
    shards = [TarShard.from_path(write_tar(tmp_path / f"{name}.tar", {"a.cls": name.encode() * 3})) for name in "xy"]
    numbers, offsets, sizes = np.array([0, 0, 1]), np.array([512, -1, 513]), np.array([3, 0, 2])
    assert list(read_members(shards, numbers, offsets, sizes)) == [b"xxx", b"", b"yy"]
