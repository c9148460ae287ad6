"""Tensors are stored exactly, and a damaged file is a sentence."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import DamagedFileError
from vitrail.files.safetensors_file import (
    CHECKSUM,
    has_checksum,
    load_tensors,
    open_tensors,
    read_metadata,
    save_tensors,
)


def test_values_shapes_types_and_texts_come_back(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {
        "a": torch.randn(2, 3),
        "b": torch.arange(6, dtype=torch.int64).reshape(2, 3).T,
        "c": torch.ones((), dtype=torch.bfloat16),
        "d": torch.zeros(0, 4, dtype=torch.uint8),
    }
    save_tensors(path, tensors, {"kind": "test"})
    found = load_tensors(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert read_metadata(path) == {"kind": "test"}


def test_tensors_that_share_storage_are_stored_each(tmp_path):
    whole = torch.arange(4.0)
    save_tensors(tmp_path / "t", {"whole": whole, "same": whole, "part": whole[1:]}, {})
    assert torch.equal(load_tensors(tmp_path / "t")["part"], whole[1:])
    assert torch.equal(load_tensors(tmp_path / "t")["same"], whole)


def test_a_parameter_is_stored_as_a_plain_tensor(tmp_path):
    save_tensors(tmp_path / "t", {"p": torch.nn.Parameter(torch.ones(2))}, {})
    assert not load_tensors(tmp_path / "t")["p"].requires_grad


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "t"
    save_tensors(path, {"a": torch.arange(3.0)}, {"kind": "test"})
    data = path.read_bytes()
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError, match=r"/t is not a whole safetensors file \(.+\)\. It is cut short"):
            load_tensors(path)
        with pytest.raises(DamagedFileError, match="is not a whole safetensors file"):
            read_metadata(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"/t is empty\. Copy it again"):
        load_tensors(path)


def test_a_missing_file_is_named(tmp_path):
    for read in (load_tensors, read_metadata):
        with pytest.raises(DamagedFileError, match=r"There is no weights file .*/none\. Check the path\."):
            read(tmp_path / "none")


def test_a_folder_is_refused_in_words(tmp_path):
    with pytest.raises(DamagedFileError, match=r"weights file .* cannot be read: it is no plain file"):
        load_tensors(tmp_path)


def test_tensors_can_stay_on_the_disk_until_they_are_asked_for(tmp_path):
    tensors = {"a": torch.randn(2, 3), "b": torch.zeros(0, 4), "c": torch.tensor(3.0)}
    save_tensors(tmp_path / "t", tensors, {})
    opened = open_tensors(tmp_path / "t")
    assert set(opened) == set(tensors) and len(opened) == 3
    assert all(torch.equal(opened[name], tensor) for name, tensor in tensors.items())
    opened["a"].zero_()
    assert torch.equal(opened["a"], tensors["a"])
    with pytest.raises(KeyError):
        opened["d"]


def test_a_file_that_shrinks_while_it_is_open_is_noticed(tmp_path):
    save_tensors(tmp_path / "t", {"a": torch.zeros(100)}, {})
    opened = open_tensors(tmp_path / "t")
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-8])
    with pytest.raises(DamagedFileError, match="a is no longer there"):
        opened["a"]


@pytest.fixture
def alone(tmp_path):
    """A file that keeps its own hash."""
    save_tensors(tmp_path / "t.safetensors", {"a": torch.arange(6.0), "b": torch.ones(1)}, {"kind": "x"}, checksum=True)
    return tmp_path / "t.safetensors"


def test_a_file_with_its_own_hash_is_whole_and_says_so(alone):
    assert torch.equal(load_tensors(alone)["a"], torch.arange(6.0))
    assert torch.equal(open_tensors(alone)["a"], torch.arange(6.0))
    assert has_checksum(alone) and read_metadata(alone)["kind"] == "x" and len(read_metadata(alone)[CHECKSUM]) == 64


def test_a_file_without_a_hash_says_so(tmp_path):
    save_tensors(tmp_path / "t", {"a": torch.ones(1)}, {})
    assert not has_checksum(tmp_path / "t")


def test_every_flipped_byte_of_a_file_with_its_own_hash_is_noticed(alone):
    data = alone.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        alone.write_bytes(changed)
        if CHECKSUM in _texts(alone):  # a flip in the key itself leaves a file without a hash
            with pytest.raises(DamagedFileError):
                load_tensors(alone)


def _texts(path):
    try:
        return read_metadata(path)
    except DamagedFileError:
        return {CHECKSUM: ""}


def test_a_changed_number_is_a_checksum_mismatch(alone):
    data = bytearray(alone.read_bytes())
    data[-1] ^= 1
    alone.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"Checksum mismatch in .*t\.safetensors: expected \w{8}, got \w{8}\."):
        load_tensors(alone)


def test_a_hash_that_stands_twice_is_none(alone):
    data = alone.read_bytes().replace(b'"kind":"x"', b'"kind":"' + read_metadata(alone)[CHECKSUM].encode() + b'"')
    length = int.from_bytes(data[:8], "little") + 63
    alone.write_bytes(length.to_bytes(8, "little") + data[8:])
    with pytest.raises(DamagedFileError, match="the hash in its header is no hash"):
        load_tensors(alone)


def test_a_file_with_much_metadata_has_the_same_bytes_every_time(tmp_path):
    tensors = {"b": torch.arange(5.0), "a": torch.ones(2, 3, dtype=torch.bfloat16)}
    metadata = {f"key {n}": f"ü {n}" for n in range(9)}
    written = set()
    for _ in range(4):
        save_tensors(tmp_path / "file.safetensors", tensors, metadata)
        written.add((tmp_path / "file.safetensors").read_bytes())
    assert len(written) == 1 and read_metadata(tmp_path / "file.safetensors") == metadata
    read = load_tensors(tmp_path / "file.safetensors")
    assert read.keys() == tensors.keys() and all(torch.equal(read[name], tensors[name]) for name in tensors)
