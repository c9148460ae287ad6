"""Copies are recognised by what they hold, whatever they are called."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from vitrail.data.content_hashes import UNREADABLE, hash_content, hash_contents


@dataclass
class Member:
    """A picture inside a container."""

    content: bytes | np.ndarray
    name: str = "member"
    stamp: str = ""

    def fetch(self) -> bytes | np.ndarray:
        return self.content


def test_equal_contents_have_equal_hashes_under_any_name(tmp_path):
    (tmp_path / "a").mkdir()
    first, copy, other = tmp_path / "1.png", tmp_path / "a" / "copy.jpg", tmp_path / "2.png"
    first.write_bytes(b"pixels")
    copy.write_bytes(b"pixels")
    other.write_bytes(b"pixel")
    assert hash_content(first) == hash_content(copy) == hash_content(Member(b"pixels")) != hash_content(other)


def test_arrays_count_by_type_shape_and_values():
    plain = np.arange(12, dtype=np.uint8).reshape(3, 4)
    turned = np.ascontiguousarray(plain.T).T
    assert hash_content(plain) == hash_content(turned) == hash_content(Member(plain))
    others = [plain + 1, plain.reshape(4, 3), plain.astype(np.uint16), plain[:2]]
    assert len({hash_content(each) for each in (plain, *others)}) == 5


def test_what_cannot_be_read_has_a_hash_of_its_own_and_stops_nothing(tmp_path):
    (tmp_path / "1.png").write_bytes(b"pixels")
    found = hash_contents([tmp_path / "1.png", tmp_path / "gone.png"])
    assert found.dtype == np.uint64 and found[0] != UNREADABLE and found[1] == UNREADABLE


def test_no_image_is_begun_after_the_time_is_over(tmp_path):
    assert len(hash_contents([tmp_path / "1.png"] * 9, until=time.monotonic() - 1)) == 0
