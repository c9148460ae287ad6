"""Whether a file can be written is known before the work whose result it would hold."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vitrail.errors import ResourceError, UsageError
from vitrail.files.atomic import check_new_path
from vitrail.files.disk import check_writable


def test_a_path_that_can_be_written_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "a" / "b" / "c.csv")
    check_writable(tmp_path / "c.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_and_a_folder_in_that_of_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"Cannot write .*file/x/y: a file stands where a folder is expected"):
        check_writable(tmp_path / "file" / "x" / "y")
    with pytest.raises(ResourceError, match=r"a folder of that name stands there; .* Nothing was done yet\.$"):
        check_writable(tmp_path)


@pytest.mark.parametrize(("number", "why"), [(errno.EROFS, "the disk is read-only"), (errno.EACCES, "permission is")])
def test_a_disk_that_cannot_be_written_is_said(number, why, tmp_path, monkeypatch):
    def refuse(path: Path, *words: object, **more: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ResourceError, match=rf"Cannot write .*new/answers\.csv: {why}"):
        check_writable(tmp_path / "new" / "answers.csv")


def test_what_is_there_is_not_overwritten(tmp_path):
    check_new_path(tmp_path / "new")
    (tmp_path / "old").touch()
    with pytest.raises(UsageError, match=r"old exists already and is not overwritten\."):
        check_new_path(tmp_path / "old")
