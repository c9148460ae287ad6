"""Data sets in NumPy's files: numbers and texts come back, mapped where they can be; the rest is refused."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from vitrail.errors import DamagedFileError, ResourceError
from vitrail.files import npy
from vitrail.files.npy import ArrayFile

CONTENT = {
    "x_train": np.arange(24, dtype=np.uint16).reshape(2, 3, 4),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "swapped": np.arange(3, dtype=">i4"),
    "flags": np.array([True, False]),
    "names": np.array(["cat", "dög"]),
    "bytes": np.array([b"ab", b"c"]),
    "empty": np.zeros((0, 2), np.uint8),
    "number": np.array(3),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numbers_and_texts_come_back_and_can_be_written_to(tmp_path, save):
    save(tmp_path / "a.npz", **CONTENT)
    file = ArrayFile(tmp_path / "a.npz")
    assert list(file.headers) == list(CONTENT)
    assert file.headers["x_train"].shape == (2, 3, 4)
    for name, expected in CONTENT.items():
        found = file.read(name)
        assert np.array_equal(found, expected) and found.shape == expected.shape and found.dtype.isnative
        assert found.flags.writeable


def test_what_is_not_packed_is_a_view_of_the_file_and_writing_does_not_reach_it(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 8, 8), np.uint8))
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8), np.uint8))
    for path, name in ((tmp_path / "a.npz", "x"), (tmp_path / "a.npy", "")):
        before = path.read_bytes()
        found = ArrayFile(path).read(name)
        assert not found.flags.owndata
        found[:] = 7
        assert path.read_bytes() == before


def test_objects_are_listed_but_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2), other=np.array([None, {}], dtype=object))
    file = ArrayFile(tmp_path / "a.npz")
    assert file.headers["other"].dtype.hasobject and file.read("x").tolist() == [0, 0]
    with pytest.raises(DamagedFileError, match=r"a\.npz, other must hold numbers or texts\. It holds Python objects"):
        file.read("other")
    with pytest.raises(DamagedFileError, match=r"a\.npz, z is missing\. There are: x, other"):
        file.read("z")


def test_a_header_that_promises_terabytes_is_refused_before_anything_is_allocated(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**40,)})
    (tmp_path / "a.npy").write_bytes(header.getvalue() + bytes(100))
    with pytest.raises(
        DamagedFileError, match=r"a\.npy is not a whole array .* takes 1099511627776 bytes, 100 are there"
    ):
        ArrayFile(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100))
    with pytest.raises(DamagedFileError, match=r"a\.npz, x is not a whole array"):
        ArrayFile(tmp_path / "a.npz")


def test_white_pictures_may_shrink_as_far_as_they_can(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.full((20, 1000, 1000), 255, np.uint8))
    assert (tmp_path / "a.npz").stat().st_size < 40_000
    assert ArrayFile(tmp_path / "a.npz").read("x").shape == (20, 1000, 1000)


def test_packed_arrays_larger_than_the_memory_are_refused_with_the_way_out(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000, np.uint8))
    monkeypatch.setattr(npy, "machine_memory", lambda: 1500)
    with pytest.raises(ResourceError, match=r"Unpacking .*a\.npz, x takes .*numpy\.savez instead of savez_compressed"):
        ArrayFile(tmp_path / "a.npz").read("x")
    np.savez(tmp_path / "a.npz", x=np.zeros(1000, np.uint8))
    assert ArrayFile(tmp_path / "a.npz").read("x").sum() == 0


def test_a_flipped_bit_is_noticed(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(1000, np.uint8))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[500] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DamagedFileError, match="checksum"):
        ArrayFile(tmp_path / "a.npz").read("x")


@pytest.mark.parametrize(("data", "kind"), [(b"", "empty"), (b"\x1f\x8b1234", "gzip"), (b"hello, world", "unknown")])
def test_other_files_are_named(tmp_path, data, kind):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(
        DamagedFileError, match=rf"a\.npz holds no NumPy arrays: its first bytes are of the kind {kind}"
    ):
        ArrayFile(tmp_path / "a.npz")
