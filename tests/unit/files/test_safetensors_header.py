"""A safetensors header is judged before a tensor is read. The hostile headers are in tests/hostile.py."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import torch as safetensors

from hostile import entry, fields, header
from vitrail.errors import DamagedFileError
from vitrail.files import safetensors_file
from vitrail.files.safetensors_file import TensorEntry, read_safetensors_header

NUMBERS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
)
MORE = (torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64)


def test_a_header_tells_names_shapes_formats_and_places(tmp_path):
    safetensors.save_file({"b": torch.zeros(2, 3), "a": torch.zeros(1).half()}, tmp_path / "t", {"kind": "x"})
    found = read_safetensors_header(tmp_path / "t")
    assert found.metadata == {"kind": "x"}
    assert dict(found.entries) == {"b": TensorEntry("F32", (2, 3), 0, 24), "a": TensorEntry("F16", (1,), 24, 26)}
    assert found.data_offset == (tmp_path / "t").stat().st_size - 26


@pytest.mark.parametrize("number", [*NUMBERS, *MORE], ids=str)
def test_every_number_format_is_read_by_both_ways(tmp_path, number):
    safetensors.save_file({"a": torch.ones(3).to(number)}, tmp_path / "t")
    for found in (safetensors_file.load_tensors(tmp_path / "t"), safetensors_file.open_tensors(tmp_path / "t")):
        assert found["a"].dtype == number and found["a"].tolist() == [1, 1, 1]


def test_names_with_slashes_and_spaces_are_plain(tmp_path):
    names = ("Transformer/encoderblock_0/kernel", "a b", "größe", "x..y")
    safetensors.save_file({name: torch.ones(1) for name in names}, tmp_path / "t")
    assert set(read_safetensors_header(tmp_path / "t").entries) == set(names)


def test_two_tensors_without_numbers_lie_at_one_place(tmp_path):
    text = fields(a=entry([0], [0, 0]), b=entry([2, 0], [0, 0]), c=entry([1], [0, 4]))
    (tmp_path / "t").write_bytes(header(text, bytes(4)))
    assert (
        list(safetensors_file.load_tensors(tmp_path / "t"))
        and len(read_safetensors_header(tmp_path / "t").entries) == 3
    )


def test_every_flipped_bit_is_refused_in_words_or_still_a_whole_file(tmp_path):
    """The format has no checksum, so that many flips pass; none may raise anything else."""
    path = tmp_path / "t"
    safetensors.save_file({"a": torch.arange(4.0), "b": torch.ones(2)}, path)
    data = path.read_bytes()
    passed = 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            passed += len(safetensors_file.load_tensors(path)) == 2
        except DamagedFileError as error:
            assert str(path) in str(error)
    assert passed < len(data) / 2


def test_the_reader_of_the_format_agrees_that_good_files_are_good(tmp_path):
    text = json.dumps({"__metadata__": {}, "w": entry([2, 2], [0, 16])}) + "   "
    (tmp_path / "t").write_bytes(header(text, bytes(16)))
    assert safetensors_file.load_tensors(tmp_path / "t")["w"].shape == (2, 2)
