"""Tensors are stored exactly, and a damaged file is a sentence."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import DamagedFileError
from vitrail.files.tensors import load, metadata, save


def test_values_shapes_types_and_texts_come_back(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {
        "a": torch.randn(2, 3),
        "b": torch.arange(6, dtype=torch.int64).reshape(2, 3).T,
        "c": torch.ones((), dtype=torch.bfloat16),
        "d": torch.zeros(0, 4, dtype=torch.uint8),
    }
    save(path, tensors, {"kind": "test"})
    found = load(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert metadata(path) == {"kind": "test"}


def test_tensors_that_share_storage_are_stored_each(tmp_path):
    whole = torch.arange(4.0)
    save(tmp_path / "t", {"whole": whole, "same": whole, "part": whole[1:]}, {})
    assert torch.equal(load(tmp_path / "t")["part"], whole[1:])
    assert torch.equal(load(tmp_path / "t")["same"], whole)


def test_a_parameter_is_stored_as_a_plain_tensor(tmp_path):
    save(tmp_path / "t", {"p": torch.nn.Parameter(torch.ones(2))}, {})
    assert not load(tmp_path / "t")["p"].requires_grad


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "t"
    save(path, {"a": torch.arange(3.0)}, {"kind": "test"})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError, match=r"/t is not a whole safetensors file \(.+\)\. It is cut short"):
            load(path)
        with pytest.raises(DamagedFileError, match="is not a whole safetensors file"):
            metadata(path)


def test_a_missing_file_is_named(tmp_path):
    for read in (load, metadata):
        with pytest.raises(DamagedFileError, match=r"There is no weights file .*/none\. Check the path\."):
            read(tmp_path / "none")


def test_a_folder_is_refused_in_words(tmp_path):
    with pytest.raises(DamagedFileError, match=r"weights file .* cannot be read|is not a whole safetensors file"):
        load(tmp_path)
