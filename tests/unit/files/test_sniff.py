"""A file is what its first bytes say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors

from vitrail.errors import DamagedFileError
from vitrail.files.sniff import detect_kind, require_weights_kind


def test_weights_are_known_by_their_content_whatever_they_are_called(tmp_path):
    safetensors.save_file({"a": torch.ones(1)}, tmp_path / "a.bin")
    torch.save({"a": torch.ones(1)}, tmp_path / "b.safetensors")
    torch.save({"a": torch.ones(1)}, tmp_path / "c.npz", _use_new_zipfile_serialization=False)
    torch.save({}, tmp_path / "d", _use_new_zipfile_serialization=False, pickle_protocol=4)
    np.savez(tmp_path / "e.npz", a=np.ones(1))
    np.save(tmp_path / "f.npy", np.ones(1))
    kinds = [detect_kind(path) for path in sorted(tmp_path.iterdir())]
    assert kinds == ["safetensors", "zip", "legacy", "pickle", "zip", "npy"]


def test_a_header_whose_length_spells_another_kind_is_still_safetensors(tmp_path):
    (tmp_path / "t").write_bytes(b"\x1f\x8b" + bytes(6) + b'{"a":')  # the length 35,615, and the beginning of gzip
    assert detect_kind(tmp_path / "t") == "safetensors"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"Rar!\x1a\x07", "is a RAR archive"),
        (b"\xfd7zXZ\x00", "is packed with xz"),
        (b"BZh9", "is packed with bzip2"),
        (b"\x28\xb5\x2f\xfd", "is packed with zstd"),
        (b"GGUF", "is a GGUF file"),
        (b"  <html>", "is a web page"),
        (b"PK\x05\x06" + bytes(18), "is an empty zip archive"),
    ],
)
def test_what_holds_no_weights_is_named_with_what_to_do(tmp_path, data, words):
    (tmp_path / "w.pt").write_bytes(data)
    with pytest.raises(DamagedFileError, match=rf"w\.pt {words}.*\. .*"):
        require_weights_kind(tmp_path / "w.pt")


def test_anything_else_is_left_to_its_reader(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"\x00\x01\x02")
    assert require_weights_kind(tmp_path / "w.pt") == "unknown"
