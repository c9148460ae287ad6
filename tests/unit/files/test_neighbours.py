"""What a person may have meant: the nearest name beside the path, or a word that is known."""

from __future__ import annotations

import pytest

from vitrail.files.neighbours import MOST, alike


@pytest.mark.parametrize("deep", ["", "a-long-folder-name/another-long-folder-name/"])
def test_only_the_last_name_is_compared_however_deep_it_lies(tmp_path, deep):
    folder = tmp_path / deep
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "first").mkdir()
    assert alike(str(folder / "frist")) == f" Did you mean {folder / 'first'}?"
    assert alike(str(folder / "nowhere")) == ""


def test_known_words_are_meant_too_and_nothing_is_asked_of_what_cannot_be_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert alike("digist", ("digits", "planted")) == " Did you mean digits?"
    assert alike("no/such/folder/first") == alike("") == alike("\0") == ""


def test_of_a_large_folder_some_names_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.files.neighbours.MOST", 3)
    for number in range(9):
        (tmp_path / f"picture{number}").touch()
    assert alike(str(tmp_path / "pictuer")).startswith(f" Did you mean {tmp_path / 'picture'}")
    assert MOST >= 100
