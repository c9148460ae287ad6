"""Which reader a name belongs to."""

from __future__ import annotations

import pytest

from vitrail.data.open import open_source
from vitrail.errors import DataError


def test_a_folder_is_opened_and_a_built_in_name_comes_first(draw, monkeypatch):
    root = draw("digits/cat/1.png", "digits/dog/1.png")
    monkeypatch.chdir(root)
    assert len(open_source("./digits")) == 2
    assert len(open_source("digits")) == 1797


def test_what_does_not_exist_is_said_with_the_closest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"no folder digts\. Expected .*digits, fashion-mnist, mnist\. Did you mean digits\?"
    ):
        open_source("digts")
    with pytest.raises(DataError, match=r"no folder flowers\. Expected .*mnist\.$"):
        open_source("flowers")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "labels.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"labels\.csv is a file\. Expected a folder with one folder per class"):
        open_source(str(tmp_path / "labels.csv"))
