"""NumPy's files come back number for number. The hostile ones are in tests/hostile_archives.py."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vitrail.errors import DamagedFileError
from vitrail.files.npy import open_npz

NUMBERS = ("<f8", "<f4", "<f2", ">f4", ">f8", "<i8", "<i4", ">i2", "|i1", "|u1", "|b1")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("number", NUMBERS)
def test_every_number_format_comes_back_packed_or_not(tmp_path, save, number):
    content = {
        "Transformer/encoderblock_0/kernel": np.arange(6).reshape(2, 3).astype(number),
        "by columns": np.asfortranarray(np.arange(24).reshape(2, 3, 4).astype(number)),
        "scalar": np.array(3).astype(number),
        "empty": np.zeros((0, 2)).astype(number),
    }
    save(tmp_path / "a.npz", **content)
    found = open_npz(tmp_path / "a.npz")[0]
    assert list(found) == list(content)
    for name, array in content.items():
        assert tuple(found[name].shape) == array.shape
        assert found[name].tolist() == array.tolist()


@given(
    array=arrays.arrays(
        np.float32, arrays.array_shapes(min_dims=0, max_dims=4, max_side=4), elements=st.floats(width=32)
    )
)
def test_any_array_comes_back_bit_for_bit(tmp_path_factory, array):
    path = tmp_path_factory.getbasetemp() / "any.npz"
    np.savez(path, a=array)
    assert open_npz(path)[0]["a"].contiguous().numpy().tobytes() == np.ascontiguousarray(array).tobytes()


def test_two_bytes_without_a_meaning_are_bfloat16(tmp_path):
    numbers = torch.tensor([1.0, -2.5, 3.0], dtype=torch.bfloat16)
    np.savez(tmp_path / "a.npz", a=numbers.view(torch.int16).numpy().view("V2"))
    found = open_npz(tmp_path / "a.npz")[0]["a"]
    assert found.dtype == torch.bfloat16 and torch.equal(found, numbers)


def test_objects_are_refused_by_their_number_format(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([None]))
    with pytest.raises(DamagedFileError, match=r"a\.npy: an array must hold numbers\. It holds Python objects"):
        open_npz(tmp_path / "a.npz")


def test_a_single_array_is_not_taken_for_an_archive(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1))
    with pytest.raises(DamagedFileError, match=r"is no NumPy archive: its first bytes are of the kind npy"):
        open_npz(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_flip_and_every_truncation_is_noticed_or_changes_nothing(tmp_path, save):
    file = io.BytesIO()
    save(file, a=np.arange(3, dtype=np.float32))
    data, path = file.getvalue(), tmp_path / "a.npz"
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), data[:place]):
            path.write_bytes(damaged)
            try:
                found = open_npz(path)[0]
            except DamagedFileError:
                continue
            assert len(damaged) == len(data) and [array.tolist() for array in found.values()] == [[0, 1, 2]]
