"""Tensors of a mapped file, brought into memory of their own."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch

from vitrail.files.memory import copy_mapped_tensors
from vitrail.files.npy import open_npz
from vitrail.files.pickles import open_state_dict


def test_copies_outlive_the_file_and_the_mapping_is_given_back(tmp_path: Path) -> None:
    weights = {"a": torch.randn(300, 100), "b": torch.randn(7), "tied": torch.randn(2, 5000)}
    torch.save({**weights, "again": weights["tied"]}, tmp_path / "w.pt")
    content, memory = open_state_dict(tmp_path / "w.pt")
    found = copy_mapped_tensors(content, memory)
    assert not content
    memory.seek(0)
    (tmp_path / "w.pt").write_bytes(b"")
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor)
    assert torch.equal(found["again"], weights["tied"])


def test_tensors_over_one_storage_take_its_memory_once(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    views = {"whole": whole, "turned": whole.view(3, 4).t(), "part": whole[3:7], "again": whole}
    torch.save(views, tmp_path / "w.pt")
    found = copy_mapped_tensors(*open_state_dict(tmp_path / "w.pt"))
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
    assert all(torch.equal(found[name], tensor) for name, tensor in views.items())
    for dtype in (torch.complex64, torch.bool, torch.float8_e5m2, torch.bfloat16):
        one = torch.ones(3).to(dtype)
        torch.save({"a": one, "b": one[1:]}, tmp_path / "w.pt")
        found = copy_mapped_tensors(*open_state_dict(tmp_path / "w.pt"))
        assert found["a"].dtype == dtype and found["b"].tolist() == [1, 1]


def test_what_lies_elsewhere_is_kept_as_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.arange(5000.0))
    content, memory = open_npz(tmp_path / "w.npz")
    elsewhere = torch.ones(3)
    found = copy_mapped_tensors({**content, "elsewhere": elsewhere}, memory)
    assert found["elsewhere"] is elsewhere
    assert isinstance(memory, mmap.mmap)
    assert torch.equal(found["a"], torch.arange(5000.0, dtype=torch.float64))
