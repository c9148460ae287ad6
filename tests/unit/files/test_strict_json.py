"""JSON is bounded before it is parsed, and says nothing twice."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import DamagedFileError
from vitrail.files import strict_json

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4),
    max_leaves=20,
)


@given(content=st.dictionaries(st.text(), PLAIN, max_size=5), indent=st.sampled_from([None, 2]))
def test_whatever_json_writes_comes_back(content, indent):
    assert strict_json.parse_json(json.dumps(content, indent=indent).encode(), "x") == content


def test_a_byte_order_mark_is_read_past():
    assert strict_json.parse_json(b'\xef\xbb\xbf{"a": 1}', "x") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":1,"b":2,"a":3}', "x says 'a' twice"),
        (b'{"a":{"b":1,"b":1}}', "x says 'b' twice"),
        (b'{"a":NaN}', "x holds NaN, which JSON has no word for"),
        (b'{"a":-Infinity}', "x holds -Infinity"),
        (b'{"a":1e999}', "x holds 1e999, which is too large"),
        (b'{"a":12345678901234567890}', "x holds a whole number of 20 digits; at most 19 are read"),
        (b"[1]", r"x must hold a JSON object\. Got a list"),
        (b'{"a"', r"x is not JSON text \("),
        (b"\xff{}", "x is not JSON text"),
        (b'{"a":' + b"[" * 65, "x is nested deeper than 64 brackets"),
        (b'{"a":[' + b"1," * 500_000, "x holds more than 250000 values"),
        (b"", "x is not JSON text"),
    ],
)
def test_what_nobody_honest_writes_is_refused(text, words):
    with pytest.raises(DamagedFileError, match=words):
        strict_json.parse_json(text, "x")


def test_brackets_inside_texts_are_no_depth():
    assert strict_json.parse_json(json.dumps({"a": "[{" * 100 + '\\"' + "]"}).encode(), "x")["a"].startswith("[{")


@pytest.mark.parametrize("tail", [b'"' + b'\\"' * 500_000, b'"' + b"\\" * 999_999, b'"a' * 300_001])
def test_texts_without_an_end_are_scanned_once(tail):
    start = time.perf_counter()
    with pytest.raises(DamagedFileError, match="not JSON text"):
        strict_json.parse_json(b'{"a":' + tail, "x")
    assert time.perf_counter() - start < 1


def test_a_large_file_is_not_read(tmp_path):
    with (tmp_path / "c.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(DamagedFileError, match=r"c\.json has 1073741824 bytes; at most 100 are read"):
        strict_json.read_json(tmp_path / "c.json", size=100)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match=r"none\.json is missing or cannot be read"):
        strict_json.read_json(tmp_path / "none.json")
