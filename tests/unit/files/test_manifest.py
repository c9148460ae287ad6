"""Every change to a folder is noticed before anything in it is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.checkpoints.bundle_weights import save_bundle
from vitrail.errors import DamagedFileError
from vitrail.files import checksums
from vitrail.files.atomic import write_folder
from vitrail.files.checksums import MANIFEST, sha256, verify_manifest
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.spec import ImageSpec

TINY = ViTConfig(
    image_size=(4, 4), patch=(2, 2), channels=1, width=4, depth=1, heads=1, mlp_width=4, outputs=2, positions="none"
)


@pytest.fixture
def made(tmp_path) -> Path:
    with write_folder(tmp_path / "made") as inside:
        (inside / "weights").write_bytes(b"abc")
        (inside / "sub").mkdir()
        (inside / "sub" / "note").write_text("")
    return tmp_path / "made"


def test_an_untouched_folder_passes(made):
    verify_manifest(made)


def test_the_hash_is_sha256(made):
    assert sha256(made / "weights") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_every_flipped_bit_is_noticed_with_both_hashes(made):
    for bit in range(24):
        data = bytearray(b"abc")
        data[bit // 8] ^= 1 << bit % 8
        (made / "weights").write_bytes(bytes(data))
        with pytest.raises(DamagedFileError, match=r"mismatch in .*weights: expected ba7816bf, got [0-9a-f]{8}\."):
            verify_manifest(made)


def test_a_cut_file_is_named_with_both_sizes(made):
    (made / "weights").write_bytes(b"ab")
    with pytest.raises(
        DamagedFileError,
        match=r"weights has 2 bytes, expected 3: it is shorter than when it was written\. Use another copy",
    ):
        verify_manifest(made)


def test_a_longer_file_is_named_with_both_sizes(made):
    (made / "weights").write_bytes(b"abcd")
    with pytest.raises(DamagedFileError, match=r"weights has 4 bytes, expected 3: it is longer than when it was"):
        verify_manifest(made)


@pytest.mark.parametrize("second", [b"xyz", b"longer"])
def test_two_swapped_files_are_said_to_be_so(tmp_path, second):
    with write_folder(tmp_path / "made") as inside:
        (inside / "a").write_bytes(b"abc")
        (inside / "b").write_bytes(second)
    (tmp_path / "made" / "a").write_bytes(second)
    (tmp_path / "made" / "b").write_bytes(b"abc")
    with pytest.raises(DamagedFileError, match=r"/a\b.*Its content is that of b: the two may have been swapped\."):
        verify_manifest(tmp_path / "made")


def test_a_file_is_hashed_once_however_many_entries_have_its_size(tmp_path, monkeypatch):
    with write_folder(tmp_path / "made") as inside:
        for number in range(5):
            (inside / f"a{number}").write_bytes(b"abc%d" % number)
        (inside / "b").write_bytes(b"longer")
    (tmp_path / "made" / "b").write_bytes(b"abcd")
    hashed = []
    monkeypatch.setattr(checksums, "sha256", lambda path: hashed.append(path.name) or sha256(path))
    with pytest.raises(DamagedFileError, match="b has 4 bytes, expected 6"):
        verify_manifest(tmp_path / "made")
    assert hashed.count("b") == 1


def test_zeros_of_the_right_size_are_noticed(made):
    (made / "weights").write_bytes(bytes(3))
    with pytest.raises(DamagedFileError, match=r"mismatch in .*weights: expected ba7816bf, got 709e80c8"):
        verify_manifest(made)


def damages(data: bytes, step: int) -> Iterator[bytes]:
    """One bit flipped in every so many bytes, each such length, and one byte more."""
    for place in range(0, len(data), step):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)
        yield data[:place]
    yield data + b" "


def check_all(made: Path, step: int) -> None:
    for file in sorted(path for path in made.rglob("*") if path.is_file()):
        data = file.read_bytes()
        for damaged in damages(data, step):
            file.write_bytes(damaged)
            with pytest.raises(DamagedFileError):
                verify_manifest(made)
        file.write_bytes(data)
    verify_manifest(made)


def test_every_flip_and_every_truncation_of_every_file_is_noticed_the_list_itself_too(made):
    check_all(made, step=1)


def test_flips_and_truncations_of_a_real_bundle_are_noticed(tmp_path):
    save_bundle(
        tmp_path / "bundle", ViT(TINY), ImageSpec(height=4, width=4, channels=1), "classification", ("a", "b"), {}
    )
    check_all(tmp_path / "bundle", step=31)


def test_another_way_to_write_the_same_list_is_a_changed_one(made):
    entries = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps(entries))
    with pytest.raises(DamagedFileError, match=r"manifest\.json was changed since it was written"):
        verify_manifest(made)


def test_a_missing_file_is_named(made):
    (made / "sub" / "note").unlink()
    with pytest.raises(DamagedFileError, match=r"sub/note is missing, though manifest\.json lists it"):
        verify_manifest(made)


def test_an_added_file_is_named(made):
    (made / "sub" / "more").write_text("")
    with pytest.raises(DamagedFileError, match=r"sub/more is not listed in manifest\.json"):
        verify_manifest(made)


def test_an_unfinished_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(DamagedFileError, match=r"has no manifest\.json, so it is unfinished or not ours"):
        verify_manifest(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": {"size": null}}}', "[" * 100_000]
)
def test_a_damaged_manifest_is_said_to_be_one(made, text):
    (made / MANIFEST).write_text(text)
    with pytest.raises(DamagedFileError, match=r"manifest\.json is not a list of files with sizes and hashes"):
        verify_manifest(made)


def test_a_name_in_the_manifest_cannot_lead_out_of_the_folder(made):
    entries = json.loads((made / MANIFEST).read_text())
    entries["files"]["../outside"] = {"size": 0, "sha256": ""}
    (made / MANIFEST).write_text(json.dumps(entries))
    with pytest.raises(DamagedFileError, match=r"lists \.\./outside, which is not inside the folder"):
        verify_manifest(made)
