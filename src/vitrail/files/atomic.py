"""A file or folder appears whole or not at all, whatever interrupts the writing.

The order that survives a crash: write a temporary neighbour, flush it to the disk, rename it into place, flush the
folder that holds the name.
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
"""Begins the name of everything unfinished; what a crash left behind may be deleted."""


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file at once, making its folder if need be; whatever fails, the old file is still there.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    temporary = _temporary_path(path)
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            disk.crash_if_requested("before", path.name)
            _write_halves(temporary, data, path.name)
            disk.crash_if_requested("written", path.name)
            flush(temporary)
            disk.crash_if_requested("flushed", path.name)
            temporary.replace(path)
            disk.crash_if_requested("renamed", path.name)
            flush(path.parent)
            disk.crash_if_requested("lasting", path.name)
        finally:
            temporary.unlink(missing_ok=True)


def _write_halves(path: Path, data: bytes, name: str) -> None:
    """In two halves, so that a test can die between them."""
    with path.open("wb") as file:
        disk.crash_if_requested("made", name)
        middle = len(data) // 2
        file.write(memoryview(data)[:middle])
        if disk.ENV_VARIABLE in os.environ:
            file.flush()
        disk.crash_if_requested("half-written", name)
        file.write(memoryview(data)[middle:])


@contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an empty file to fill bit by bit; afterwards it replaces `path` at once. An error leaves the old one.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    temporary = _temporary_path(path)
    with resource_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w+b") as opened:
                yield opened
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file at once; NaN and infinity are refused, because JSON has no word for them."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def append_line(path: Path, text: str) -> None:
    """Add one line of text; after a line that a crash cut short, begin a new one, so that only that one is lost."""
    path = Path(path)
    with resource_errors(path), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(text.rstrip("\n").encode() + b"\n")


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; afterwards, with its manifest, it becomes `path`. An error leaves none.

    Raises:
        UsageError: `path` exists already; such folders are made once and never changed.
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


def remove_folder(path: Path) -> None:
    """Delete a folder, its name first, so that no reader finds it half deleted.

    Raises:
        OSError: permission is missing; the folder is then still whole under its name, or out of sight.
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
    """Delete what dead processes left unfinished in a folder and below; what is younger than `before` (seconds) may be
    alive."""
    left = [path for path in sorted(folder.rglob(f"{TEMPORARY}*")) if path.lstat().st_mtime < before]
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return left


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}"[:200])


# Something new written beside its place first, so that what is refused in the end has never been there.


@contextmanager
def make_draft(out: Path) -> Iterator[Path]:
    """A place for `out` by its name in a temporary folder beside it, which is gone afterwards with what is left in it.

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
    """Put a draft, and whatever was written beside it, into its place; `out` itself last."""
    for written in sorted(draft_path.parent.iterdir(), key=lambda path: path == draft_path):
        if written.is_file():
            flush(written)
        written.rename(out.with_name(written.name))
    flush(out.parent)
