"""What a person may have meant: the nearest name beside the path, or a word that is known."""

from __future__ import annotations

import pytest

from vitrail.files.suggest import MAX_NAMES, suggest_path


@pytest.mark.parametrize("deep", ["", "a-long-folder-name/another-long-folder-name/"])
def test_only_the_last_name_is_compared_however_deep_it_lies(tmp_path, deep):
    folder = tmp_path / deep
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "first").mkdir()
    assert suggest_path(str(folder / "frist")) == f" Did you mean {folder / 'first'}?"
    assert suggest_path(str(folder / "nowhere")) == ""


def test_known_words_are_meant_too_and_nothing_is_asked_of_what_cannot_be_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert suggest_path("digist", ("digits", "planted")) == " Did you mean digits?"
    assert suggest_path("no/such/folder/first") == suggest_path("") == suggest_path("\0") == ""


def test_of_a_large_folder_some_names_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.files.suggest.MAX_NAMES", 3)
    for number in range(9):
        (tmp_path / f"picture{number}").touch()
    assert suggest_path(str(tmp_path / "pictuer")).startswith(f" Did you mean {tmp_path / 'picture'}")
    assert MAX_NAMES >= 100
