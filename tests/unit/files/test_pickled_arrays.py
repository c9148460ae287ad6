"""Pickled dictionaries of arrays come back value for value; whatever asks to run something is refused by name."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import python2
from hostile_pickles import Calls, call, text
from vitrail.errors import DamagedFileError
from vitrail.files import pickle_vm
from vitrail.files.pickles import load_pickled_arrays

BATCH = {
    "batch_label": "training batch 1 of 5",
    "labels": [6, 9, 0],
    "data": np.arange(24, dtype=np.uint8).reshape(3, 8),
    "filenames": ["leptodactylus_s_000004.png", "camion_s_000148.png", "x.png"],
    "large": np.arange(600, dtype=np.uint8).reshape(2, 300),
    "fine": np.arange(4),
    "number": 3,
}


def same(found: dict, expected: dict) -> bool:
    assert list(found) == [key.decode() if isinstance(key, bytes) else key for key in expected]
    for mine, theirs in zip(found.values(), expected.values(), strict=True):
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype and mine.flags.writeable
        assert np.array_equal(mine, theirs), (mine, theirs)
    return True


def test_a_batch_of_python_2_comes_back():
    assert same(load_pickled_arrays(python2.pickled(BATCH), "batch"), BATCH)


@pytest.mark.parametrize("protocol", range(6))
def test_a_batch_of_python_3_comes_back_in_every_protocol(protocol):
    content = {**BATCH, "by columns": np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), "none": None}
    assert same(load_pickled_arrays(pickle.dumps(content, protocol), "batch"), content)


@pytest.mark.parametrize("protocol", range(6))
def test_keys_and_texts_may_be_bytes(protocol):
    content = {key.encode(): value for key, value in BATCH.items()} | {b"texts": [b"a\xff", b""]}
    assert same(load_pickled_arrays(pickle.dumps(content, protocol), "batch"), content)


def test_the_other_byte_order_and_an_empty_array_come_back():
    content = {"big": np.arange(3, dtype=">i8"), "none": np.zeros((0, 3), np.uint8)}
    found = load_pickled_arrays(python2.pickled(content), "batch")
    assert found["big"].tolist() == [0, 1, 2] and found["big"].dtype.isnative
    assert found["none"].shape == (0, 3)
    again = load_pickled_arrays(pickle.dumps(content, 2), "batch")
    assert again["none"].shape == (0, 3) and again["big"].tolist() == [0, 1, 2]


def test_what_asks_to_run_something_is_refused_by_name_and_nothing_runs(tmp_path):
    canary = tmp_path / "canary"
    asks = [
        b"\x80\x02" + call("os mkdir", canary) + b".",
        b"\x80\x02}" + text("data") + call("posix mkdir", canary) + b"s.",
        b"\x80\x02" + call("os mkdir", canary) + b"0}.",  # thrown away before the end
        b"\x80\x02" + call("os mkdir", canary) + b"\xff",  # broken behind
        b"(" + b"S" + repr(str(canary)).encode() + b"\nios\nmkdir\n.",
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + text(canary) + b"\x85R.",
        *(pickle.dumps({"data": Calls(os.mkdir, str(canary))}, protocol) for protocol in range(6)),
    ]
    for data in asks:
        with pytest.raises(
            DamagedFileError, match=r"batch is a pickle that asks to run (os|posix|nt)\.mkdir\. Pictures"
        ):
            load_pickled_arrays(data, "batch")
    with pytest.raises(DamagedFileError, match=r"asks to run builtins\.eval|__builtin__\.eval"):
        load_pickled_arrays(b"\x80\x02" + call("__builtin__ eval", "1") + b".", "batch")
    assert not canary.exists()


def test_an_array_of_python_objects_is_refused():
    with pytest.raises(DamagedFileError, match=r"no pickled set of pictures \(an array holds values of the kind 'O8'"):
        load_pickled_arrays(pickle.dumps({"data": np.array([None, 1], dtype=object)}, 2), "batch")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds a list, expected a dictionary"),
        ({"a": {"b": 1}}, "'a' is a dict, expected an array"),
        ({"a": [[1]]}, "the list 'a' holds a list, expected numbers"),
        ({"a": [[]]}, "the list 'a' holds a list, expected numbers"),
        ({"a": 2**70}, "'a' is a int"),
        ({1: "a"}, "a key is no text"),
        ({"a": np.zeros(2, np.float32)}, "values of the kind 'f4'; u1, i8 are read"),
    ],
)
def test_anything_else_than_arrays_lists_and_texts_is_refused(content, words):
    with pytest.raises(DamagedFileError, match=words):
        load_pickled_arrays(pickle.dumps(content, 2), "batch")


def array(shape: bytes, raw: bytes, dtype: bytes = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR") -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    return made + b"(K\x01" + shape + dtype + b"\x89" + raw + b"tb"


def pickled_array(shape: bytes, raw: bytes) -> bytes:
    return b"\x80\x02}" + text("data") + array(shape, raw) + b"s."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pickled_array(b"K\x04\x85", b"U\x03abc"), r"an array of shape \[4\] has 3 bytes"),
        (pickled_array(b"J\xff\xff\xff\xff\x85", b"U\x00"), "the shape of an array is no list of counts"),
        (pickled_array(b"(" + b"K\x01" * 9 + b"t", b"U\x01a"), "the shape of an array is no list of counts"),
        (pickled_array(b"K\x00\x8a\x08" + b"\xff" * 7 + b"\x7f\x86", b"U\x00"), "no array can have the shape"),
        (pickled_array(b"K\x01\x85", b"K\x01"), "the content of an array is no run of bytes"),
        (pickled_array(b"K\x01\x85", b"X\x03\x00\x00\x00\xe2\x82\xac"), "the content of an array is a text"),
        (b"\x80\x02}" + text("a") + b"cnumpy.core.multiarray\n_reconstruct\n)Rs.", "an array has no content"),
        (b"\x80\x02}" + text("a") + b"cnumpy\nndarray\n)Rs.", r"'a' is a numpy\.ndarray"),
        (b"\x80\x02}" + text("a") + b"cnumpy\nndarray\ns.", "'a' is a PickledName"),
        (b"\x80\x02}" + text("a") + b"c_codecs\nencode\nK\x01\x85Rs.", "encodes something that is no text"),
        (b"\x80\x02}" + text("a") + b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85Rs.", "makes bytes of something else"),
        (b"\x80\x05}\x8c\x01acnumpy.core.numeric\n_frombuffer\n)Rs.", "made of something else than bytes"),
        (b"\x80\x02U\x01aQ.", "refers to something outside itself"),
        (b"\x80\x02}", "is not a whole pickle"),
        (b"", "is not a whole pickle"),
        (b"PK\x03\x04", "is not a whole pickle"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x", "is not a whole pickle"),
    ],
)
def test_a_malformed_pickle_is_refused_in_words(data, words):
    with pytest.raises(DamagedFileError, match=words):
        load_pickled_arrays(data, "batch")


def test_a_pickle_of_too_many_steps_is_given_up(monkeypatch):
    monkeypatch.setattr(pickle_vm, "MAX_OPERATIONS", 1000)
    with pytest.raises(DamagedFileError, match="it has more than 1000 steps"):
        load_pickled_arrays(b"\x80\x02]" + b"(K\x01e" * 1000 + b".", "batch")


def test_a_few_bytes_cannot_become_many_arrays():
    raw = b"T" + struct.pack("<i", 10_000) + bytes(10_000)
    first = b"\x80\x02}(" + text("0") + array(b"M\x10\x27\x85", raw + b"q\x01")
    again = b"".join(text(number) + array(b"M\x10\x27\x85", b"h\x01") for number in range(1, 50))
    with pytest.raises(DamagedFileError, match="its arrays have more bytes than the file"):
        load_pickled_arrays(first + again + b"u.", "batch")
    word = b"X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"q\x01"
    encode = b"c_codecs\nencode\n"
    first = b"\x80\x02}(" + text("0") + encode + word + text("latin1") + b"\x86R"
    again = b"".join(text(number) + encode + b"h\x01" + text("latin1") + b"\x86R" for number in range(1, 50))
    with pytest.raises(DamagedFileError, match="its bytes are more than those of the file"):
        load_pickled_arrays(first + again + b"u.", "batch")


@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_damaged_batch_is_read_or_refused_and_never_anything_else(cut, flip, bit):
    whole = python2.pickled(BATCH)
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 1 << bit
    for data in (bytes(damaged), whole[: cut % len(whole)]):
        try:
            assert isinstance(load_pickled_arrays(data, "batch"), dict)
        except DamagedFileError as error:
            assert str(error).startswith("batch ")


def test_reading_makes_no_file(tmp_path: Path):
    load_pickled_arrays(python2.pickled(BATCH), str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())
