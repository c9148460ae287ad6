"""Files appear whole or not at all, and a full disk is a sentence."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from pathlib import Path

import pytest

from vitrail.errors import MachineWarning, ResourceError, UsageError
from vitrail.files import atomic, checksums, disk


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_bytes_text_and_json_replace_what_was_there(tmp_path):
    path = tmp_path / "new" / "file"
    atomic.write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    atomic.write_text(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    atomic.write_json(path, {"é": [1, 0.1]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"é": [1, 0.1]}
    assert names(path.parent) == ["file"]


def test_json_refuses_nan_before_touching_the_file(tmp_path):
    path = tmp_path / "file.json"
    atomic.write_json(path, 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(path, float("nan"))
    assert path.read_text() == "1\n"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "your disk quota is used up"),
        (errno.EACCES, "permission is missing; choose another place"),
        (errno.EROFS, "the disk is read-only; choose another place"),
    ],
)
def test_what_the_system_refuses_is_said_in_words_and_the_old_file_stays(tmp_path, monkeypatch, number, words):
    path = tmp_path / "file"
    atomic.write_text(path, "old")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ResourceError, match=rf"^Cannot write .*/file: {words}.* \([\d,]+ MiB free in .*\)\.$"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def refuse_folders(monkeypatch, number: int) -> None:
    """A file system that flushes files and answers fsync of a folder with this error."""
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(disk, "_warned_devices", set())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF], ids=errno.errorcode.get)
def test_a_file_system_that_cannot_flush_folders_is_named_once_and_stops_nothing(tmp_path, monkeypatch, number):
    refuse_folders(monkeypatch, number)
    with pytest.warns(MachineWarning) as warned:
        atomic.write_text(tmp_path / "file", "new")
        with atomic.write_folder(tmp_path / "folder") as folder:
            (folder / "inside").write_text("new")
    (only,) = warned
    assert f"file system of {tmp_path} cannot flush folders ({os.strerror(number)})" in str(only.message)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "inside").read_text() == "new"


def test_a_disk_that_fails_to_flush_a_folder_stops_the_write(tmp_path, monkeypatch):
    refuse_folders(monkeypatch, errno.EIO)
    with pytest.raises(ResourceError, match="the disk reports an input/output error"):
        atomic.write_text(tmp_path / "file", "new")


def test_a_folder_is_copied_where_permissions_and_times_cannot_be_set(tmp_path, monkeypatch):
    (tmp_path / "from" / "inside").mkdir(parents=True)
    for name in ("file", "manifest", "inside/file"):
        (tmp_path / "from" / name).write_text(name)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for name in ("chmod", "utime"):
        monkeypatch.setattr(os, name, refuse)
    atomic.copy_folder(tmp_path / "from", tmp_path / "to", without="manifest")
    copied = {path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert copied == {"file", "inside/file"}
    assert (tmp_path / "to" / "inside" / "file").read_text() == "inside/file"


def test_a_write_that_stops_in_the_middle_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    atomic.write_text(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ResourceError, match="the file is larger than is allowed here"):
            atomic.write_bytes(path, bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_in_the_place_of_a_folder_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="a file stands where a folder is expected"):
        atomic.write_text(tmp_path / "file" / "below", "text")


def test_errors_about_files_elsewhere_pass_through(tmp_path):
    with pytest.raises(PermissionError), disk.resource_errors(tmp_path / "mine" / "file"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "other"))


def test_each_write_is_flushed_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    order: list[str] = []
    real_flush, real_replace = disk.flush, Path.replace
    monkeypatch.setattr(atomic, "flush", lambda path: (order.append(f"flush {path.is_dir()}"), real_flush(path)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename"), real_replace(self, to)))
    atomic.write_text(tmp_path / "file", "text")
    assert order == ["flush False", "rename", "flush True"]


def test_lines_are_added_and_one_cut_short_by_a_crash_stands_alone(tmp_path):
    path = tmp_path / "lines"
    atomic.append_line(path, "one")
    path.write_text(path.read_text() + "tw")
    atomic.append_line(path, "three")
    assert path.read_text().splitlines() == ["one", "tw", "three"]


def test_a_folder_appears_whole_with_its_manifest(tmp_path):
    with atomic.write_folder(tmp_path / "deep" / "made") as folder:
        (folder / "a").write_text("a")
        (folder / "sub").mkdir()
        (folder / "sub" / "b").write_text("b")
        assert names(tmp_path / "deep") == [folder.name]
        assert folder.name.startswith(atomic.TEMPORARY)
    assert names(tmp_path / "deep") == ["made"]
    files = json.loads((tmp_path / "deep" / "made" / checksums.MANIFEST).read_text())["files"]
    assert list(files) == ["a", "sub/b"]
    assert files["a"] == {"size": 1, "sha256": checksums.sha256(tmp_path / "deep" / "made" / "a")}


def test_the_manifest_is_the_last_file_of_a_folder_and_everything_is_flushed_before_the_name(tmp_path, monkeypatch):
    order: list[str] = []
    real_flush, real_rename = disk.flush, Path.rename
    for module in (atomic, checksums):
        monkeypatch.setattr(module, "flush", lambda path: (order.append(path.name), real_flush(path)))
    monkeypatch.setattr(Path, "rename", lambda self, to: (order.append("rename"), real_rename(self, to)))
    with atomic.write_folder(tmp_path / "made") as folder:
        (folder / "a").write_text("a")
    assert order == ["a", checksums.MANIFEST, folder.name, "rename", tmp_path.name]


def test_an_error_while_filling_a_folder_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic.write_folder(tmp_path / "made") as folder:
        (folder / "a").write_text("a")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_a_folder_that_exists_is_not_overwritten(tmp_path):
    words = r"exists already and is not overwritten\. Choose another name"
    with pytest.raises(UsageError, match=words), atomic.write_folder(tmp_path):
        pass


def test_a_full_disk_while_filling_a_folder_is_said_in_words(tmp_path):
    with (
        pytest.raises(ResourceError, match=r"Cannot write .*/made: the disk is full \("),
        atomic.write_folder(tmp_path / "made"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []
