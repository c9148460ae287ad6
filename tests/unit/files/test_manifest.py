"""Every change to a folder is noticed before anything in it is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.errors import DamagedFileError
from vitrail.files.atomic import MANIFEST, folder, sha256, verify


@pytest.fixture
def made(tmp_path) -> Path:
    with folder(tmp_path / "made") as inside:
        (inside / "weights").write_bytes(b"abc")
        (inside / "sub").mkdir()
        (inside / "sub" / "note").write_text("")
    return tmp_path / "made"


def test_an_untouched_folder_passes(made):
    verify(made)


def test_the_hash_is_sha256(made):
    assert sha256(made / "weights") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_every_flipped_bit_is_noticed_with_both_hashes(made):
    for bit in range(24):
        data = bytearray(b"abc")
        data[bit // 8] ^= 1 << bit % 8
        (made / "weights").write_bytes(bytes(data))
        with pytest.raises(DamagedFileError, match=r"mismatch in .*weights: expected ba7816bf, got [0-9a-f]{8}\."):
            verify(made)


def test_a_cut_file_is_named_with_both_sizes(made):
    (made / "weights").write_bytes(b"ab")
    with pytest.raises(DamagedFileError, match=r"weights has 2 bytes, expected 3\. Use another copy"):
        verify(made)


def test_a_missing_file_is_named(made):
    (made / "sub" / "note").unlink()
    with pytest.raises(DamagedFileError, match=r"sub/note is missing, though manifest\.json lists it"):
        verify(made)


def test_an_added_file_is_named(made):
    (made / "sub" / "more").write_text("")
    with pytest.raises(DamagedFileError, match=r"sub/more is not listed in manifest\.json"):
        verify(made)


def test_an_unfinished_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(DamagedFileError, match=r"has no manifest\.json, so it is unfinished or not ours"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": {"size": null}}}', "[" * 100_000]
)
def test_a_damaged_manifest_is_said_to_be_one(made, text):
    (made / MANIFEST).write_text(text)
    with pytest.raises(DamagedFileError, match=r"manifest\.json is not a list of files with sizes and hashes"):
        verify(made)


def test_a_name_in_the_manifest_cannot_lead_out_of_the_folder(made):
    entries = json.loads((made / MANIFEST).read_text())
    entries["files"]["../outside"] = {"size": 0, "sha256": ""}
    (made / MANIFEST).write_text(json.dumps(entries))
    with pytest.raises(DamagedFileError, match=r"lists \.\./outside, which is not inside the folder"):
        verify(made)
