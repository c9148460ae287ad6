"""Atomic writes: a file or folder appears whole or not at all, even after a crash.

Write a temporary sibling, flush it to disk, rename it into place, flush the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UsageError
from . import disk
from .checksums import MANIFEST, sha256, verify_manifest, write_manifest
from .disk import flush, resource_errors
from .lock import Lock

__all__ = [
    "MANIFEST",
    "TEMPORARY",
    "Lock",
    "append_line",
    "check_new_path",
    "copy_folder",
    "remove_folder",
    "remove_leftovers",
    "sha256",
    "verify_manifest",
    "write_bytes",
    "write_file",
    "write_folder",
    "write_json",
    "write_text",
]

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and folders; leftovers of a crash may be deleted."""


def check_new_path(path: Path) -> None:
    """Check before any work that a file or folder can be made: nothing stands there, and its folder can be written.

    Raises:
        UsageError: the path exists; it is not overwritten.
        ResourceError: as `disk.check_writable`.
    """
    if path.exists():
        raise UsageError(f"{path} exists already and is not overwritten. Choose another name or move it away.")
    disk.check_writable(path)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and make its folder if needed; after an error the old file is unchanged.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    with write_file(path) as file:
        middle = len(data) // 2  # in two halves, so that a test can crash between them
        file.write(memoryview(data)[:middle])
        if disk.ENV_VARIABLE in os.environ:
            file.flush()
        disk.crash_if_requested("half-written", Path(path).name)
        file.write(memoryview(data)[middle:])


@contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an open file to write to; on exit it replaces `path` atomically. An error leaves the old file.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    temporary = _temporary_path(path)
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            disk.crash_if_requested("before", path.name)
            with temporary.open("w+b") as file:
                disk.crash_if_requested("made", path.name)
                yield file
            disk.crash_if_requested("written", path.name)
            flush(temporary)
            disk.crash_if_requested("flushed", path.name)
            temporary.replace(path)
            disk.crash_if_requested("renamed", path.name)
            flush(path.parent)
            disk.crash_if_requested("lasting", path.name)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically; NaN and infinity are a ValueError, because JSON has no literals for them."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def append_line(path: Path, text: str) -> None:
    """Append one line of text; after a line that a crash truncated, begin a new line first."""
    path = Path(path)
    with resource_errors(path), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(text.rstrip("\n").encode() + b"\n")


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; on exit it gets a manifest and becomes `path`. An error leaves no folder.

    Raises:
        UsageError: `path` exists already; such folders are written once.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already and is not overwritten. Choose another name or move it away.")
    temporary, kind = _temporary_path(path), path.name.partition("-")[0]
    with resource_errors(path):
        try:
            disk.crash_if_requested("before", kind)
            temporary.mkdir(parents=True)
            disk.crash_if_requested("made", kind)
            yield temporary
            disk.crash_if_requested("filled", kind)
            write_manifest(temporary)
            disk.crash_if_requested("listed", kind)
            temporary.rename(path)
            disk.crash_if_requested("renamed", kind)
            flush(path.parent)
            disk.crash_if_requested("lasting", kind)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def copy_folder(source: Path, target: Path, without: str = "") -> None:
    """Copy the contents of all files below a folder, except those of one name.

    Permissions and times are not copied: SMB, FAT and some of FUSE refuse to set them.
    """
    for path in sorted(file for file in source.rglob("*") if file.is_file() and file.name != without):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def remove_folder(path: Path) -> None:
    """Rename a folder, then delete it, so that no reader finds it half deleted.

    Raises:
        OSError: permission is missing; the folder then still has its name and all files, or its temporary name.
    """
    path = Path(path)
    kind, aside = path.name.partition("-")[0], _temporary_path(path)
    disk.crash_if_requested("before-removing", kind)
    path.rename(aside)
    disk.crash_if_requested("out-of-sight", kind)
    for file in sorted(file for file in aside.rglob("*") if not file.is_dir()):
        file.unlink()
        disk.crash_if_requested("half-removed", kind)
    shutil.rmtree(aside)
    disk.crash_if_requested("removed", kind)


def remove_leftovers(folder: Path, before: float) -> list[Path]:
    """Delete unfinished files and folders below `folder` that are older than `before` (a time in seconds)."""
    left = [path for path in sorted(folder.rglob(f"{TEMPORARY}*")) if path.lstat().st_mtime < before]
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return left


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}"[:200])


# -- Drafts: write beside the final path first, and move into place once everything is checked.


@contextmanager
def make_draft(out: Path) -> Iterator[Path]:
    """Yield a path with the name of `out` in a temporary sibling folder, which is deleted on exit.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    folder = out.with_name(f"{TEMPORARY}{secrets.token_hex(4)}")
    with resource_errors(out):
        try:
            folder.mkdir(parents=True)
            yield folder / out.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def commit_draft(draft_path: Path, out: Path) -> None:
    """Move a draft, and the other files of its folder, into place; `out` itself last."""
    for written in sorted(draft_path.parent.iterdir(), key=lambda path: path == draft_path):
        if written.is_file():
            flush(written)
        written.rename(out.with_name(written.name))
    flush(out.parent)
